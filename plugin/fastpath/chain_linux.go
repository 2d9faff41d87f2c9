package fastpath

import (
	"context"
	"encoding/binary"
	"net"
	"sync"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/block/wirechain"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// work answers a query in the plugin chain, and then each query that gets its place.
func work(r *request) {
	var output batch.Batch
	for r != nil {
		r.serve(true)
		next, _ := r.ticket.FinishAnd(&output).(*request)
		r.done()
		output.Flush()
		r = next
	}
}

// serve handles a query as CoreDNS's server does. With mayWait, a reply over TCP waits until the client has read earlier ones:
// meanwhile the query counts in the client's share of the places.
func (r *request) serve(mayWait bool) {
	b := r.query
	if len(b) < wire.HeaderLen {
		return
	}
	w := newWriter(r, mayWait)
	m := new(dns.Msg)
	action := r.server.accept(b)
	if action == dns.MsgIgnore {
		return
	}
	if action != dns.MsgAccept { // only the header is read
		b = b[:wire.HeaderLen]
		clear(b[4:])
	}
	err := m.Unpack(b)
	if action != dns.MsgAccept || err != nil {
		refuse(w, m, action)
		return
	}
	if n, ok := w.to.(*notifiedReply); ok {
		n.lowerCase(m)
	}
	coreDNS := r.server.Server
	w.tsig.verify(coreDNS.TsigSecret, b, m)
	ctx := context.WithValue(context.Background(), dnsserver.Key{}, coreDNS)
	ctx = context.WithValue(ctx, dnsserver.LoopKey{}, 0)
	if r.result != nil {
		ctx = wirechain.WithResult(ctx, m, r.result)
	}
	coreDNS.ServeDNS(ctx, w, m)
}

// accept decides by the header, which is complete, how a query is answered, as CoreDNS's server does.
func (s *server) accept(b []byte) dns.MsgAcceptAction {
	header := dns.Header{
		Id: binary.BigEndian.Uint16(b), Bits: binary.BigEndian.Uint16(b[2:]),
		Qdcount: binary.BigEndian.Uint16(b[4:]), Ancount: binary.BigEndian.Uint16(b[6:]),
		Nscount: binary.BigEndian.Uint16(b[8:]), Arcount: binary.BigEndian.Uint16(b[10:]),
	}
	action := dns.DefaultMsgAcceptFunc(header)
	if action != dns.MsgRejectNotImplemented || !s.opcodes[int(header.Bits>>11)&0xF] {
		return action
	}
	if header.Qdcount != 1 {
		return dns.MsgReject
	}
	return dns.MsgAccept
}

// refuse answers a query that is not accepted or malformed, with the question if it could be unpacked.
func refuse(w *writer, m *dns.Msg, action dns.MsgAcceptAction) {
	opcode := m.Opcode
	m.SetRcodeFormatError(m)
	m.Zero = false
	if action == dns.MsgRejectNotImplemented {
		m.Opcode, m.Rcode = opcode, dns.RcodeNotImplemented
	}
	m.Answer, m.Ns, m.Extra = nil, nil, nil
	_ = w.WriteMsg(m) // it counts a failure
}

// writer sends the reply of the plugin chain to a query. A plugin may use it after the request is reused.
type writer struct {
	to      destination
	origin  datagram // to points to it for a query over UDP
	metrics *listenerMetrics
	remote  net.Addr
	mayWait bool // see request.serve
	closed  bool
	unsent  bool // a reply could not be sent
	tsig
}

func newWriter(r *request, mayWait bool) *writer {
	w := &writer{to: r.to, metrics: r.server.metrics, mayWait: mayWait}
	if r.to == &r.origin {
		w.origin = r.origin
		w.to = &w.origin
	} else if n, ok := r.to.(*notified); ok {
		w.to = newNotifiedReply(n.connection, r)
	}
	return w
}

// maxDatagram is the maximum length of a reply over UDP and IPv4 in bytes, without the headers. The UDP size of a client can be
// more, up to 65,535 (RFC 6891 section 6.2.3).
const maxDatagram = dns.MaxMsgSize - 20 - 8

var packing = sync.Pool{New: func() any { b := make([]byte, 4096); return &b }}

// WriteMsg implements dns.ResponseWriter.
func (w *writer) WriteMsg(m *dns.Msg) error {
	if signed, err := w.tsig.sign(m); signed != nil || err != nil {
		if err == nil {
			_, err = w.Write(signed)
		}
		return err
	}
	buf, _ := packing.Get().(*[]byte)
	defer packing.Put(buf)
	b, err := m.PackBuffer(*buf)
	if err == nil && len(b) > maxDatagram && w.to == &w.origin {
		m.Truncate(maxDatagram)
		b, err = m.PackBuffer(*buf)
	}
	if err != nil {
		return err
	}
	_, err = w.Write(b)
	return err
}

// Write implements dns.ResponseWriter.
func (w *writer) Write(b []byte) (int, error) {
	if w.closed || len(b) == 0 {
		return 0, net.ErrClosed
	}
	if err := w.to.send(b, w.mayWait); err != nil {
		if !w.unsent { // once for each query: after a failure, CoreDNS sends SERVFAIL
			w.unsent = true
			w.metrics.droppedSend.Inc()
		}
		return 0, err
	}
	return len(b), nil
}

// LocalAddr implements dns.ResponseWriter.
func (w *writer) LocalAddr() net.Addr { return w.to.localAddr() }

// RemoteAddr implements dns.ResponseWriter.
func (w *writer) RemoteAddr() net.Addr {
	if w.remote == nil {
		w.remote = w.to.remoteAddr()
	}
	return w.remote
}

// Close implements dns.ResponseWriter.
func (w *writer) Close() error {
	w.closed = true
	w.to.close()
	return nil
}

// Hijack implements dns.ResponseWriter.
func (w *writer) Hijack() {}
