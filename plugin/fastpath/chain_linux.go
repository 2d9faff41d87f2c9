package fastpath

import (
	"context"
	"encoding/binary"
	"net"
	"sync"
	"time"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
)

// datagramLen is the maximum length of a query in bytes, the rest is cut off: a packet of the Internet is not longer.
const datagramLen = 1536

// shortQuery is the maximum length in bytes of a query that is stored in its datagram.
const shortQuery = 256

// datagram is a query that is handed to the plugin chain.
type datagram struct {
	server *server
	socket *socket
	peer   peer
	query  []byte
	buf    [shortQuery]byte // of query, unless it is longer

	chain  *chain
	client *client

	// While it is queued:
	arrived      time.Duration // on the clock of answers.Now
	next         *datagram     // of the same client
	older, newer *datagram     // in the same chain
}

var datagrams = sync.Pool{New: func() any { return new(datagram) }}

// work answers a query, and then those that start in its place.
func work(d *datagram) {
	for d != nil {
		d.serve()
		next := d.chain.queue.finish(d.chain, d.client)
		d.done()
		d = next
	}
}

// done releases a query that was answered or dropped.
func (d *datagram) done() {
	d.server.metrics.inFlight.Dec()
	d.server.release()
	d.server, d.socket, d.query, d.chain, d.client, d.next = nil, nil, nil, nil, nil, nil
	datagrams.Put(d)
}

// serve handles a query as CoreDNS's server does.
func (d *datagram) serve() {
	b := d.query
	if len(b) < answers.HeaderLen {
		return
	}
	w := &writer{socket: d.socket, metrics: d.server.metrics, peer: d.peer}
	m := new(dns.Msg)
	action := d.server.accept(b)
	if action == dns.MsgIgnore {
		return
	}
	if action != dns.MsgAccept { // only the header is read
		b = b[:answers.HeaderLen]
		clear(b[4:])
	}
	err := m.Unpack(b)
	if action != dns.MsgAccept || err != nil {
		refuse(w, m, action)
		return
	}
	coreDNS := d.server.Server
	w.tsig.verify(coreDNS.TsigSecret, b, m)
	ctx := context.WithValue(context.Background(), dnsserver.Key{}, coreDNS)
	ctx = context.WithValue(ctx, dnsserver.LoopKey{}, 0)
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

// writer sends the reply of the plugin chain to a query. A plugin may use it after the datagram is reused.
type writer struct {
	socket  *socket
	metrics *listenerMetrics
	peer    peer
	remote  *net.UDPAddr
	closed  bool
	unsent  bool // a reply could not be sent
	tsig
}

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
	if err := w.socket.send(&w.peer, b); err != nil {
		if !w.unsent { // CoreDNS sends SERVFAIL after a failure
			w.unsent = true
			w.metrics.droppedSend.Inc()
		}
		return 0, err
	}
	return len(b), nil
}

// LocalAddr implements dns.ResponseWriter.
func (w *writer) LocalAddr() net.Addr { return w.socket.conn.LocalAddr() }

// RemoteAddr implements dns.ResponseWriter.
func (w *writer) RemoteAddr() net.Addr {
	if w.remote == nil {
		w.remote = w.peer.udpAddr()
	}
	return w.remote
}

// Close implements dns.ResponseWriter.
func (w *writer) Close() error {
	w.closed = true
	return nil
}

// Hijack implements dns.ResponseWriter.
func (w *writer) Hijack() {}
