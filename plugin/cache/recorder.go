package cache

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/store"
)

// recorder is the dns.ResponseWriter of the next plugin: it records the reply, which may answer several queries.
type recorder struct {
	dns.ResponseWriter
	reply *dns.Msg
}

// newRecorder returns a recorder for the reply to a client.
func newRecorder(w dns.ResponseWriter) *recorder { return &recorder{ResponseWriter: w} }

// detachedRecorder returns a recorder with the addresses of a client that may be gone before the reply arrives.
func detachedRecorder(w dns.ResponseWriter) *recorder {
	return newRecorder(noClient{local: w.LocalAddr(), remote: w.RemoteAddr()})
}

// backgroundRecorder returns a recorder for a query of the cache itself. It has TCP addresses, so that the reply is not
// truncated.
func backgroundRecorder() *recorder {
	return newRecorder(noClient{local: &net.TCPAddr{}, remote: &net.TCPAddr{}})
}

var errNoMessage = errors.New("reply without a message")

// WriteMsg implements dns.ResponseWriter. A question has one reply; further ones are ignored.
func (r *recorder) WriteMsg(m *dns.Msg) error {
	if m == nil {
		return fmt.Errorf("plugin/%s: %w", pluginName, errNoMessage)
	}
	if r.reply == nil {
		r.reply = m.Copy() // plugins may write records that they use again
	}
	return nil
}

// TakeMsg is WriteMsg without a copy: the plugin does not use the message or its records again.
func (r *recorder) TakeMsg(m *dns.Msg) error {
	if r.reply == nil {
		r.reply = m
	}
	return nil
}

// Write implements dns.ResponseWriter.
func (r *recorder) Write(b []byte) (int, error) {
	m, err := store.Unpack(b)
	if err != nil {
		return 0, fmt.Errorf("plugin/%s: unpack reply: %w", pluginName, err)
	}
	return len(b), r.TakeMsg(m)
}

// ConnectionState implements dns.ConnectionStater.
func (r *recorder) ConnectionState() *tls.ConnectionState {
	if s, ok := r.ResponseWriter.(dns.ConnectionStater); ok {
		return s.ConnectionState()
	}
	return nil
}

// noClient is the dns.ResponseWriter of a recorder without a client.
type noClient struct {
	dns.ResponseWriter // nil: a recorder does not write to it
	local, remote      net.Addr
}

// LocalAddr implements dns.ResponseWriter.
func (c noClient) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements dns.ResponseWriter.
func (c noClient) RemoteAddr() net.Addr { return c.remote }

// Close implements dns.ResponseWriter.
func (noClient) Close() error { return nil }

// TsigStatus implements dns.ResponseWriter.
func (noClient) TsigStatus() error { return nil }

// TsigTimersOnly implements dns.ResponseWriter.
func (noClient) TsigTimersOnly(bool) {}

// Hijack implements dns.ResponseWriter.
func (noClient) Hijack() {}
