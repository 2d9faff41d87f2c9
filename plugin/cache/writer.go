package cache

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"

	"github.com/miekg/dns"
)

// recorder is the dns.ResponseWriter that the next plugin gets: it keeps the reply, which is then given
// to everyone who waits for it. Without an inner writer it has no client.
type recorder struct {
	inner         dns.ResponseWriter // nil if the client may be gone before the reply comes
	local, remote net.Addr
	reply         *dns.Msg
}

// recording returns a recorder for the reply to a client.
func recording(w dns.ResponseWriter) *recorder {
	return &recorder{inner: w, local: w.LocalAddr(), remote: w.RemoteAddr()}
}

// withoutClient returns a recorder that looks like another to the next plugin, but does not hold on to
// the client.
func withoutClient(w dns.ResponseWriter) *recorder {
	return &recorder{local: w.LocalAddr(), remote: w.RemoteAddr()}
}

// ownQuery returns a recorder for a query of the cache itself. It is as one over TCP, so that the reply
// is whole.
func ownQuery() *recorder {
	return &recorder{local: &net.TCPAddr{}, remote: &net.TCPAddr{}}
}

// overUDP reports whether a client asks over UDP, where replies may be truncated.
func overUDP(client net.Addr) bool { return client == nil || client.Network() == "udp" }

var errNoReply = errors.New("there is no message")

// WriteMsg implements dns.ResponseWriter. The reply to one question is one message.
func (r *recorder) WriteMsg(m *dns.Msg) error {
	if m == nil {
		return fmt.Errorf("plugin/%s: %w", pluginName, errNoReply)
	}
	if r.reply == nil {
		r.reply = m.Copy() // plugins give out records that are theirs
	}
	return nil
}

// TakeMsg is WriteMsg for a message that the plugin gives away: no other plugin has it or any of its
// records.
func (r *recorder) TakeMsg(m *dns.Msg) error {
	if r.reply == nil {
		r.reply = m
	}
	return nil
}

// Write implements dns.ResponseWriter.
func (r *recorder) Write(b []byte) (int, error) {
	m := new(dns.Msg)
	if err := m.Unpack(b); err != nil {
		return 0, fmt.Errorf("plugin/%s: the reply: %w", pluginName, err)
	}
	if r.reply == nil {
		r.reply = m
	}
	return len(b), nil
}

// LocalAddr implements dns.ResponseWriter.
func (r *recorder) LocalAddr() net.Addr { return r.local }

// RemoteAddr implements dns.ResponseWriter.
func (r *recorder) RemoteAddr() net.Addr { return r.remote }

// Close implements dns.ResponseWriter.
func (r *recorder) Close() error {
	if r.inner == nil {
		return nil
	}
	return r.inner.Close()
}

// TsigStatus implements dns.ResponseWriter.
func (r *recorder) TsigStatus() error {
	if r.inner == nil {
		return nil
	}
	return r.inner.TsigStatus()
}

// TsigTimersOnly implements dns.ResponseWriter.
func (r *recorder) TsigTimersOnly(b bool) {
	if r.inner != nil {
		r.inner.TsigTimersOnly(b)
	}
}

// Hijack implements dns.ResponseWriter.
func (r *recorder) Hijack() {
	if r.inner != nil {
		r.inner.Hijack()
	}
}

// ConnectionState implements dns.ConnectionStater.
func (r *recorder) ConnectionState() *tls.ConnectionState {
	if s, ok := r.inner.(dns.ConnectionStater); ok {
		return s.ConnectionState()
	}
	return nil
}
