package fastpath

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/internal/explain"
)

// explainer implements explain.Server with the listeners of the process.
type explainer struct{}

func init() { explain.Register(explainer{}) }

// explainedSize is the UDP size of explained queries in bytes, that of glibc's resolver with edns0 and of dig.
const explainedSize = 1232

var errNoListeners = errors.New("no server has started")

// SearchListOf implements explain.Server.
func (explainer) SearchListOf(client netip.Addr) (suffixes []string, origin string) {
	origin = "no plugin knows the search lists of clients (autopath)"
	for _, s := range listeners.servers() {
		for _, b := range s.blocks {
			for _, h := range b.Handlers() {
				l, is := h.(explain.Lister)
				if !is {
					continue
				}
				if suffixes, origin = l.SearchListOf(client); suffixes != nil {
					return suffixes, origin
				}
			}
		}
	}
	return nil, origin
}

// servers returns the present servers by address.
func (r *registry) servers() (all []*server) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, address := range slices.Sorted(maps.Keys(r.serving)) {
		all = append(all, r.serving[address])
	}
	return all
}

// Explain implements explain.Server. Listeners with the same server blocks give one explanation.
func (explainer) Explain(ctx context.Context, q explain.Query) (all []explain.Explanation, err error) {
	var explained []*servedBlock
	for _, s := range listeners.servers() {
		b, zone := s.blockOf(q.Name)
		if slices.ContainsFunc(explained, func(o *servedBlock) bool { return b != nil && o != nil && o.Block == b.Block || o == b }) {
			continue
		}
		explained = append(explained, b)
		e, err := s.explain(ctx, q)
		if err != nil {
			return all, err
		}
		e.Zone = zone
		all = append(all, e)
	}
	if all == nil {
		return nil, errNoListeners
	}
	return all, nil
}

// blockOf returns the server block of a name, and its zone; nil without one.
func (s *server) blockOf(name string) (*servedBlock, string) {
	zone := plugin.Zones(slices.Collect(maps.Keys(s.blocks))).Matches(name)
	return s.blocks[zone], zone
}

// explain has the plugin chain answer a query with a trace, and compares the reply with the stored answer.
func (s *server) explain(ctx context.Context, q explain.Query) (explain.Explanation, error) {
	trace := explain.New(q)
	e := explain.Explanation{Query: q, Server: s.Addr}
	m := new(dns.Msg).SetQuestion(q.Name, q.Type)
	m.SetEdns0(explainedSize, false)
	packet, err := m.Pack()
	if err != nil {
		return e, fmt.Errorf("%s: %w", q.Name, err)
	}
	s.explainBlock(trace, q)
	s.explainStored(trace, packet, q.Client)
	w := &explainedWriter{query: q, local: s.Addr}
	ctx = context.WithValue(explain.With(ctx, trace), dnsserver.Key{}, s.Server)
	ctx = context.WithValue(ctx, dnsserver.LoopKey{}, 0)
	began := time.Now()
	s.ServeDNS(ctx, w, m)
	e.Took, e.Reply = time.Since(began), w.reply
	e.FastPath = s.compareStored(packet, q, w.packed)
	e.Steps = trace.Steps()
	return e, nil
}

// explainBlock adds the server block of a query, its plugins, and whether it has a fast path.
func (s *server) explainBlock(t *explain.Trace, q explain.Query) {
	b, zone := s.blockOf(q.Name)
	if b == nil {
		t.Add("server", "no server block on %s is for %s: REFUSED", s.Addr, q.Name)
		return
	}
	var names []string
	for _, h := range b.Handlers() {
		names = append(names, h.Name())
	}
	t.Add("server", "server block %s on %s, plugins %s", zone, s.Addr, strings.Join(names, ", "))
	if b.Prevented != "" {
		t.Add("fastpath", "no fast path: %s", b.Prevented)
	}
}

// explainStored adds the state of the stored answer to a query.
func (s *server) explainStored(t *explain.Trace, packet []byte, client netip.Addr) {
	var l lookup
	now := answers.Now()
	switch found := l.find(s, packet, client, now); {
	case l.route == nil || l.route.keyspace == 0:
		t.Add("fastpath", "queries for this name have no stored answers")
	case l.entry == nil:
		t.Add("fastpath", "no stored answer")
	case found:
		t.Add("fastpath", "stored answer, %s: a query gets it without the plugins", validityOf(l.entry, now))
	default:
		t.Add("fastpath", "stored answer, %s: the plugins decide", validityOf(l.entry, now))
	}
}

// validityOf describes until when a stored answer is valid, and why.
func validityOf(e *answers.Entry, now time.Duration) string {
	switch {
	case !e.Current():
		return "ended by a change of its data"
	case e.Vouched(now):
		return fmt.Sprintf("valid while the session of cluster DNS is heard, stored %s ago", (now - e.Stored).Round(time.Millisecond))
	case e.Expires == 0:
		return fmt.Sprintf("valid until its data change, stored %s ago", (now - e.Stored).Round(time.Millisecond))
	case now < e.Expires:
		return fmt.Sprintf("its TTL ends in %s", (e.Expires - now).Round(time.Millisecond))
	}
	return fmt.Sprintf("its TTL ended %s ago", (now - e.Expires).Round(time.Millisecond))
}

// compareStored compares the reply of the plugin chain with the stored answer, as a reader would send it.
func (s *server) compareStored(packet []byte, q explain.Query, reply []byte) string {
	if b, _ := s.blockOf(q.Name); b == nil || b.Prevented != "" {
		return "no fast path"
	}
	var l lookup
	now := answers.Now()
	if !l.find(s, packet, q.Client, now) {
		return "not stored: each query goes to the plugins"
	}
	patch := l.entry.Patch(now)
	form := l.entry.Form(&l.query, &patch, l.query.Limit(), fragmentOf(q.Client))
	if form == nil {
		return "stored, but too long for this client: the plugins answer"
	}
	stored := form.AppendReply(nil, packet, &l.query, &patch)
	if bytes.Equal(stored, reply) {
		return "the same bytes"
	}
	one, other := new(dns.Msg), new(dns.Msg)
	if one.Unpack(stored) == nil && other.Unpack(reply) == nil && one.Rcode == other.Rcode && slices.Equal(recordsOf(one), recordsOf(other)) {
		return "the same records; order, TTLs or compression differ"
	}
	return "another answer"
}

// explainedWriter receives the reply to an explained query as its client would.
type explainedWriter struct {
	query  explain.Query
	local  string
	reply  *dns.Msg
	packed []byte
}

// WriteMsg implements dns.ResponseWriter.
func (w *explainedWriter) WriteMsg(m *dns.Msg) error {
	packed, err := m.Pack()
	if err != nil {
		return err
	}
	_, err = w.Write(packed)
	return err
}

// Write implements dns.ResponseWriter.
func (w *explainedWriter) Write(b []byte) (int, error) {
	reply := new(dns.Msg)
	if err := reply.Unpack(b); err != nil {
		return 0, err
	}
	w.reply, w.packed = reply, bytes.Clone(b)
	return len(b), nil
}

// LocalAddr implements dns.ResponseWriter.
func (w *explainedWriter) LocalAddr() net.Addr {
	_, address, _ := strings.Cut(w.local, "://")
	a, _ := netip.ParseAddrPort(address) // zero for all addresses
	return w.addr(a)
}

// RemoteAddr implements dns.ResponseWriter.
func (w *explainedWriter) RemoteAddr() net.Addr { return w.addr(netip.AddrPortFrom(w.query.Client, 0)) }

func (w *explainedWriter) addr(a netip.AddrPort) net.Addr {
	if w.query.TCP {
		return net.TCPAddrFromAddrPort(a)
	}
	return net.UDPAddrFromAddrPort(a)
}

// Close implements dns.ResponseWriter.
func (*explainedWriter) Close() error { return nil }

// TsigStatus implements dns.ResponseWriter.
func (*explainedWriter) TsigStatus() error { return nil }

// TsigTimersOnly implements dns.ResponseWriter.
func (*explainedWriter) TsigTimersOnly(bool) {}

// Hijack implements dns.ResponseWriter.
func (*explainedWriter) Hijack() {}
