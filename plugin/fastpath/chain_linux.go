package fastpath

import (
	"context"
	"encoding/binary"
	"net"
	"sync"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// datagramLen is the length up to which a query is read, in bytes: nobody sends more than a packet.
const datagramLen = 1536

// datagram is a query on its way through the chain.
type datagram struct {
	service *service
	socket  *socket
	peer    peer
	n       int
	bytes   [datagramLen]byte
}

var datagrams = sync.Pool{New: func() any { return new(datagram) }}

// chain hands queries to the server: a bounded number at a time, while a bounded number waits.
type chain struct {
	mu      sync.Mutex
	most    int         // queries that are worked on at a time
	running int         // queries that are worked on
	waiting []*datagram // a ring, empty until it is needed
	first   int         // the place of the oldest that waits
	length  int         // how many wait
}

func newChain(most int) *chain { return &chain{most: most} }

// put hands a query over. If too many wait, it takes the place of the oldest, whose client has waited
// long enough to have asked again.
func (c *chain) put(d *datagram) {
	c.mu.Lock()
	if c.running < c.most {
		c.running++
		c.mu.Unlock()
		pool.do(task{c, d})
		return
	}
	if c.waiting == nil {
		c.waiting = make([]*datagram, c.most)
	}
	var oldest *datagram
	if c.length == len(c.waiting) {
		oldest = c.pop()
	}
	c.waiting[(c.first+c.length)%len(c.waiting)] = d
	c.length++
	c.mu.Unlock()
	if oldest != nil {
		oldest.service.metrics.droppedOverload.Inc()
		oldest.done()
	}
}

// pop returns the query that has waited longest, or nil if none waits. The mutex is held.
func (c *chain) pop() *datagram {
	if c.length == 0 {
		return nil
	}
	d := c.waiting[c.first]
	c.waiting[c.first] = nil
	c.first = (c.first + 1) % len(c.waiting)
	c.length--
	return d
}

// work answers a query, and those that wait.
func (c *chain) work(d *datagram) {
	for d != nil {
		d.serve()
		d.done()
		d = c.next()
	}
}

// next returns what to work on next, or nil if nothing waits.
func (c *chain) next() *datagram {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.pop()
	if d == nil {
		c.running--
	}
	return d
}

// done ends the query's way.
func (d *datagram) done() {
	d.service.metrics.inFlight.Dec()
	d.service.release()
	d.service, d.socket = nil, nil
	datagrams.Put(d)
}

// serve does with a datagram what CoreDNS does with it.
func (d *datagram) serve() {
	b := d.bytes[:d.n]
	if len(b) < wire.HeaderLen {
		return // not answered by anyone
	}
	w := &writer{socket: d.socket, metrics: d.service.metrics, peer: d.peer}
	m := new(dns.Msg)
	action := dns.DefaultMsgAcceptFunc(dns.Header{
		Id: binary.BigEndian.Uint16(b), Bits: binary.BigEndian.Uint16(b[2:]),
		Qdcount: binary.BigEndian.Uint16(b[4:]), Ancount: binary.BigEndian.Uint16(b[6:]),
		Nscount: binary.BigEndian.Uint16(b[8:]), Arcount: binary.BigEndian.Uint16(b[10:]),
	})
	if action == dns.MsgIgnore {
		return
	}
	if action != dns.MsgAccept { // nothing but the header is looked at
		b = b[:wire.HeaderLen]
		clear(b[4:])
	}
	err := m.Unpack(b)
	if action != dns.MsgAccept || err != nil {
		refuse(w, m, action)
		return
	}
	server := d.service.server
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
}

var packing = sync.Pool{New: func() any { b := make([]byte, 4096); return &b }}

// WriteMsg implements dns.ResponseWriter.
func (w *writer) WriteMsg(m *dns.Msg) error {
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
		w.metrics.droppedSend.Inc()
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

// TsigStatus implements dns.ResponseWriter. No key is configured where there is a fast path.
func (w *writer) TsigStatus() error { return nil }

// TsigTimersOnly implements dns.ResponseWriter.
func (w *writer) TsigTimersOnly(bool) {}

// Hijack implements dns.ResponseWriter.
func (w *writer) Hijack() {}
