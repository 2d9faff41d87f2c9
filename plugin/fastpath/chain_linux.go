package fastpath

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
)

// datagramLen is the length up to which a query is read, in bytes: nobody sends more than a packet.
const datagramLen = 1536

// datagram is a query on its way through the chain.
type datagram struct {
	service *service
	socket  *socket
	peer    peer
	query   []byte
	buf     [shortQuery]byte // of query, unless it is longer

	chain  *chain
	client *client

	// While it waits:
	arrived      time.Duration // since store's epoch
	next         *datagram     // of the same client
	older, newer *datagram     // in the same chain
}

// shortQuery is the length in bytes up to which a query needs no memory besides its datagram.
const shortQuery = 256

var datagrams = sync.Pool{New: func() any { return new(datagram) }}

// work answers a query, and those that take its place.
func work(d *datagram) {
	for d != nil {
		d.serve()
		next := d.chain.queue.finish(d.chain, d.client)
		d.done()
		d = next
	}
}

// done ends the query's way.
func (d *datagram) done() {
	d.service.metrics.inFlight.Dec()
	d.service.release()
	d.service, d.socket, d.query, d.chain, d.client, d.next = nil, nil, nil, nil, nil, nil
	datagrams.Put(d)
}

// serve does with a datagram what CoreDNS does with it.
func (d *datagram) serve() {
	b := d.query
	if len(b) < answers.HeaderLen {
		return // not answered by anyone
	}
	w := &writer{socket: d.socket, metrics: d.service.metrics, peer: d.peer}
	m := new(dns.Msg)
	action := d.service.accept(b)
	if action == dns.MsgIgnore {
		return
	}
	if action != dns.MsgAccept { // nothing but the header is looked at
		b = b[:answers.HeaderLen]
		clear(b[4:])
	}
	err := m.Unpack(b)
	if action != dns.MsgAccept || err != nil {
		refuse(w, m, action)
		return
	}
	server := d.service.server
	w.tsig.verify(server.TsigSecret, b, m)
	ctx := context.WithValue(context.Background(), dnsserver.Key{}, server)
	ctx = context.WithValue(ctx, dnsserver.LoopKey{}, 0)
	server.ServeDNS(ctx, w, m)
}

// refuse answers what cannot be understood, as far as it was.
func refuse(w *writer, m *dns.Msg, action dns.MsgAcceptAction) {
	opcode := m.Opcode
	m.SetRcodeFormatError(m)
	m.Zero = false
	if action == dns.MsgRejectNotImplemented {
		m.Opcode, m.Rcode = opcode, dns.RcodeNotImplemented
	}
	m.Answer, m.Ns, m.Extra = nil, nil, nil
	_ = w.WriteMsg(m) // it counts what fails
}

// writer is what the chain answers a datagram through. A plugin may hold it longer than the datagram.
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
		if !w.unsent { // after a failure, CoreDNS sends SERVFAIL
			w.unsent = true
			w.metrics.droppedSend.Inc()
		}
		return 0, err
	}
	return len(b), nil
}

// LocalAddr implements dns.ResponseWriter.
func (w *writer) LocalAddr() net.Addr { return w.socket.local }

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
