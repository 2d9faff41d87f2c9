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
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/caller"
	"github.com/nearside-dns/nearside/plugin/internal/explain"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

func init() { explain.Register(process) }

// explainedSize is the UDP size of explained queries in bytes, that of glibc's resolver with edns0 and of dig.
const explainedSize = 1232

var (
	errNoListeners   = errors.New("no server has started")
	errInvalidCaller = errors.New("no valid names of a node and a zone")
)

// SearchListOf implements explain.Server.
func (f *fastPath) SearchListOf(client netip.Addr, name string) (suffixes []string, ndots int, origin string) {
	origin = "no plugin knows the search lists of clients (autopath)"
	for _, s := range f.servers() {
		zones := slices.Sorted(maps.Keys(s.blocks))
		if _, zone := s.blockOf(name); zone != "" {
			zones = slices.Insert(zones, 0, zone)
		}
		for _, zone := range zones {
			for _, h := range s.blocks[zone].Handlers() {
				p, is := h.(explain.SearchListProvider)
				if !is {
					continue
				}
				if suffixes, ndots, origin = p.SearchListOf(client); suffixes != nil {
					return suffixes, ndots, origin
				}
			}
		}
	}
	return nil, 0, origin
}

// servers returns the present servers by address.
func (f *fastPath) servers() (all []*server) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, address := range slices.Sorted(maps.Keys(f.serving)) {
		all = append(all, f.serving[address])
	}
	return all
}

// Explain implements explain.Server. Listeners with the same server blocks give one explanation.
func (f *fastPath) Explain(ctx context.Context, q explain.Query) (all []explain.Explanation, err error) {
	var blocks []*servedBlock
	for _, s := range f.servers() {
		b, zone := s.blockOf(q.Name)
		if slices.ContainsFunc(blocks, func(o *servedBlock) bool { return b != nil && o != nil && o.Block == b.Block || o == b }) {
			continue
		}
		blocks = append(blocks, b)
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
	zone := block.ZoneOf(s.blocks, name)
	return s.blocks[zone], zone
}

// packetOf returns an explained query as a message and as its packet.
func packetOf(q explain.Query) (*dns.Msg, []byte, error) {
	m := new(dns.Msg).SetQuestion(q.Name, q.Type)
	m.SetEdns0(explainedSize, false)
	if q.Node != "" {
		data, ok := caller.Append(nil, q.Node, q.Zone)
		if !ok {
			return nil, nil, fmt.Errorf("node %q with zone %q: %w", q.Node, q.Zone, errInvalidCaller)
		}
		opt := m.IsEdns0()
		opt.Option = append(opt.Option, &dns.EDNS0_LOCAL{Code: wire.OptionCaller, Data: data})
	}
	packet, err := m.Pack()
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", q.Name, err)
	}
	return m, packet, nil
}

// explain has the plugin chain answer a query with a trace, and compares the reply with the answer that was stored before.
func (s *server) explain(ctx context.Context, q explain.Query) (explain.Explanation, error) {
	e := explain.Explanation{Query: q, Server: s.Addr}
	m, packet, err := packetOf(q)
	if err != nil {
		return e, err
	}
	trace := explain.New(q)
	first := s.explainBlock(trace, q)
	stored := s.findStored(packet, q)
	switch stored.without {
	case "":
		trace.Add("fastpath", "answer %s. A query gets it without the plugins", stored.entry.Describe(stored.at))
	case notStored:
		trace.Add("fastpath", "no answer is stored: the plugins reply")
	default:
		trace.Add("fastpath", "no stored answer is sent, the plugins reply: %s", stored.without)
	}
	w := &explainedWriter{query: q, local: s.Addr, trace: trace}
	ctx = context.WithValue(ctx, dnsserver.Key{}, s.Server)
	ctx = context.WithValue(ctx, dnsserver.LoopKey{}, 0)
	ended := func() {}
	if first != "" {
		ctx, ended = trace.Chain(ctx, first, func(name string) bool { return slices.Contains(dnsserver.Directives, name) })
	}
	s.ServeDNS(ctx, w, m)
	ended()
	e.Steps, e.Took = trace.Steps(), trace.Elapsed()
	e.Reply, e.FastPath = w.reply, stored.compare(w.packed)
	return e, nil
}

// explainBlock adds the server block of a query and its plugins to the trace. It returns the name of the first plugin, or "".
func (s *server) explainBlock(t *explain.Trace, q explain.Query) (first string) {
	b, zone := s.blockOf(q.Name)
	if b == nil {
		t.Add("server", "no server block on %s is for %s: REFUSED", s.Addr, q.Name)
		return ""
	}
	var names []string
	for _, h := range b.Handlers() {
		names = append(names, h.Name())
	}
	t.Add("server", "server block %s on %s, plugins %s", zone, s.Addr, strings.Join(names, ", "))
	if len(names) == 0 {
		return ""
	}
	return names[0]
}

// storedReply is the reply that a reader would send to a query from the store.
type storedReply struct {
	lookup
	query   explain.Query
	packet  []byte
	at      time.Duration // of the lookup, on the clock of validity.Now
	reply   []byte
	without string // why a reader sends none, "" if it sends reply
	random  random
}

// findStored returns the reply that a reader would send to a query now. The query is not counted.
func (s *server) findStored(packet []byte, q explain.Query) *storedReply {
	r := &storedReply{query: q, packet: packet, at: validity.Now(), random: newRandom()}
	r.peek = true
	found := r.find(s, packet, q.Client, r.at)
	switch {
	case r.viewed && r.unnamed && q.Node != "": // plugins trust the caller option of an explained query
		r.without = fmt.Sprintf("a query from %s with the caller option is not trusted; that of a nodecache is from its node", q.Client)
		return r
	case !found:
		r.without = r.whyNot(s)
		return r
	}
	if e := r.entry; e.Popularity != nil && e.Popularity.Due(r.at) && !e.Popularity.Refreshing.Load() && !e.Vouched(r.at) {
		r.without = fmt.Sprintf("answer %s; popular answers are prefetched before their TTL ends, and the next query does that", e.Describe(r.at))
		return r
	}
	if r.reply = r.render(r.at); r.reply == nil {
		r.without = "the stored answer has to be truncated for this client, or its records have an order that loadbalance changes"
	}
	return r
}

// render returns the stored answer as a reader sends it at a time, nil if the plugins have to make the reply.
func (r *storedReply) render(now time.Duration) []byte {
	limit, fragments := min(r.lookup.query.Limit(), maxHitLen), fragmentOf(r.query.Client)
	if r.query.TCP {
		limit, fragments = dns.MaxMsgSize, dns.MaxMsgSize
	}
	patch := r.entry.Patch(now)
	form := formOf(r.route, r.entry, &r.lookup.query, &patch, limit, fragments, &r.random)
	if form == nil {
		return nil
	}
	// With room for a copy of the records to shuffle them.
	return form.AppendReply(make([]byte, 0, 2*dns.MaxMsgSize), r.packet, &r.lookup.query, &patch)
}

const notStored = "none is stored"

// whyNot returns the reason why find has found no answer to send. Its conditions are those of find, in the same order.
func (r *storedReply) whyNot(s *server) string {
	q, e, rt := &r.lookup.query, r.entry, r.route
	b, _ := s.blockOf(r.query.Name)
	switch {
	case rt == nil:
		return "no server block is for the name, or the query has an unusual form"
	case rt.keyspace == 0 && b != nil && b.Prevented != "":
		return "no fast path: " + b.Prevented
	case rt.keyspace == 0:
		return "plugin local answers names of its zones"
	case q.Type == dns.TypeDS, q.Type == dns.TypeANY:
		return "no answers are stored for queries of type " + dns.TypeToString[q.Type]
	case e == nil && rt.local && isLocalhost(r.query.Name):
		return "plugin local answers names that begin with localhost"
	case e == nil && r.viewed:
		return "none is stored for this caller"
	case e == nil:
		return notStored
	case q.Upper && !e.AnyCase:
		return "the name has upper case, and the answer repeats the name in other records"
	case e.Waits:
		return "the name does not exist, and queries wait for it to be created"
	case !e.Fresh(r.at):
		return "answer " + e.Describe(r.at)
	case mayTranslate(rt.dns64, q, r.query.Client) && translates(rt.dns64, e, q):
		return "plugin dns64 may replace the answer"
	case rt.logged != 0 && isLogged(rt.logged, e, q):
		return "plugin log logs such answers"
	}
	return "plugin rewrite changes queries for the name"
}

func isLocalhost(name string) bool { return strings.HasPrefix(strings.ToLower(name), "localhost.") }

// compare compares the reply of the plugins, nil for none, with the stored one.
func (r *storedReply) compare(reply []byte) string {
	switch {
	case r.without == notStored:
		return "not compared: no answer was stored before this query"
	case r.without != "":
		return "not compared: " + r.without
	case reply == nil:
		return "another answer: the plugins do not reply"
	case bytes.Equal(r.reply, reply), bytes.Equal(r.render(validity.Now()), reply): // TTLs may have changed since
		return "the same bytes"
	}
	one, other := new(dns.Msg), new(dns.Msg)
	if one.Unpack(r.reply) == nil && other.Unpack(reply) == nil && one.Rcode == other.Rcode && slices.Equal(recordsOf(one), recordsOf(other)) {
		return "the same records; order, TTLs or compression differ"
	}
	return "another answer"
}

// explainedWriter receives the reply to an explained query as its client would.
type explainedWriter struct {
	query  explain.Query
	local  string
	trace  *explain.Trace
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
	reply, err := store.Unpack(b)
	if err != nil {
		return 0, err
	}
	w.reply, w.packed = reply, bytes.Clone(b)
	w.trace.Replied(reply)
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
