package fastpath

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/coredns/coredns/plugin/dns64"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/fastpath/admission"
	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// lookup finds the stored answers to queries, one after the other. Its memory is reused.
type lookup struct {
	query   wire.Query
	nested  bool          // names are not expanded: a plugin has sent the query to answer another one
	waited  bool          // the queries have waited for their names: Entry.Waits is ignored
	peek    bool          // the query is not counted for prefetch
	single  bool          // the plugins have ignored the search list of the query, and answered its name alone
	reply   []byte        // of the plugin chain, whose entry may have ended already; nil without one
	since   time.Duration // start of the plugin chain's work on the reply
	key     [store.MaxKey]byte
	listKey [store.MaxKey]byte

	// The result for the last query.
	route    *route
	entry    *store.Entry
	counters [3]store.Counter // of the answer; unused ones are nil
	viewed   bool             // the entry is for some callers only
	unnamed  bool             // it depends on the address of the client, not on the caller option
	beyond   bool             // the TTL has passed: a session vouches for the answer
	wire     bool             // without a fresh entry: the wire handlers of the route may answer
	keyLen   int
}

// localhost is the first label of names that plugin local answers, whatever follows.
var localhost = []byte("\x09localhost")

// find parses a query and reports whether the store has an answer. The answer may still be too long for the client, see
// formOf.
func (l *lookup) find(s *server, in []byte, client netip.Addr, now time.Duration) bool {
	q := &l.query
	l.route, l.entry, l.counters = nil, nil, [3]store.Counter{}
	l.viewed, l.unnamed, l.beyond, l.wire = false, false, false, false
	if !q.Parse(in) {
		return false
	}
	if l.single {
		q.Search = nil
	}
	key := store.AppendKey(l.key[:0], 0, in, q) // with capacity for a view
	l.keyLen = len(key)
	// CoreDNS dispatches a question for DS to the block of a parent zone, if there is one.
	name := store.KeyName(key)
	if l.route = s.routes.find(name); l.route == nil || l.route.keyspace == 0 || q.Type == dns.TypeDS || q.Type == dns.TypeANY {
		return false // plugin any answers queries of type ANY, also if plugin rewrite makes others of that type
	}
	if l.route.local && bytes.HasPrefix(name, localhost) {
		return false
	}
	if limit := l.route.bufSize; limit > 0 && q.UDPSize > limit {
		q.UDPSize = limit
	}
	store.SetKeyspace(key, l.route.keyspace)
	l.findEntry(key, in, client, now)
	e := l.entry
	translated := mayTranslate(l.route.dns64, q, client)
	l.wire = l.route.wire != nil && isForWire(q) && !translated
	if e == nil || q.Upper && !e.AnyCase || e.Waits && !l.waited || !e.Fresh(now) && (e.Current() || !l.isMade(e, in)) {
		return false
	}
	if translated && translates(l.route.dns64, e, q) {
		return false
	}
	if l.route.logged != 0 && isLogged(l.route.logged, e, q) || l.route.rewrites != nil && isRewritten(l.route.rewrites, e, name, q.Type) {
		return false
	}
	l.beyond = e.Cached && e.Expires != 0 && now >= e.Expires
	// If the entry is to be prefetched now, the plugin chain gets the query.
	return l.reply != nil || l.peek || e.Popularity == nil || !e.Popularity.Count(now) || e.Popularity.Refreshing.Load() || e.Vouched(now)
}

// isLogged reports whether plugin log may log the answer to a query, given the answers that it logs.
func isLogged(logged block.Logged, e *store.Entry, q *wire.Query) bool {
	kind, rcode := block.LoggedError, e.Plain.Rcode()
	switch answered := e.Plain.HasAnswers(); {
	case answered && rcode == dns.RcodeSuccess:
		kind = block.LoggedData
	case !answered && (rcode == dns.RcodeSuccess || rcode == dns.RcodeNameError):
		kind = block.LoggedDenial
	}
	return logged&kind != 0 || logged&block.LoggedSigned != 0 && q.DO
}

// mayTranslate reports whether plugin dns64, nil for none, looks at the answer to a query.
func mayTranslate(d *dns64.DNS64, q *wire.Query, client netip.Addr) bool {
	return d != nil && q.Type == dns.TypeAAAA && (d.AllowIPv4 || !client.Unmap().Is4())
}

// translates reports whether plugin dns64 may replace an answer by one with addresses of IPv4 (RFC 6147 section 5.1).
func translates(d *dns64.DNS64, e *store.Entry, q *wire.Query) bool {
	if e.Plain.Rcode() == dns.RcodeNameError {
		return q.DO || e.Plain.HasAnswers() // to dns64, a reply with an expired signature or an alias is no denial
	}
	return d.TranslateAll || !e.Plain.HasType(dns.TypeAAAA)
}

// isRewritten reports whether plugin rewrite changes queries for a name, in wire form and lower case: then the stored answer for the
// name does not answer them.
func isRewritten(rules block.Rewrites, e *store.Entry, name []byte, qtype uint16) bool {
	return e.Memo(func() bool { return changesName(rules, name, qtype) })
}

func changesName(rules block.Rewrites, name []byte, qtype uint16) bool {
	text, _, err := dns.UnpackDomainName(name, 0)
	return err != nil || rules.Apply(text, qtype)
}

// findEntry finds the entry of a key, and the counters of the answer.
func (l *lookup) findEntry(key, in []byte, client netip.Addr, now time.Duration) {
	rt, server := l.route, l.route.counters.server
	var search block.Search
	if rt.search != nil && l.query.Search == nil && !l.nested && !l.single {
		search = rt.search.Search(client, store.KeyName(key))
	}
	if search.List != 0 {
		listed := store.AppendKeyList(append(l.listKey[:0], key...), search.List)
		if e := store.Shared.Get(listed); e != nil && e.Fresh(now) {
			l.entry, l.counters = e, [3]store.Counter{e.Count.Counter(server), search.Client}
			return
		}
	}
	e := store.Shared.Get(key)
	var view store.View
	if l.viewed = e != nil && e.Views != nil; l.viewed {
		if option := l.query.CallerData(in); l.reply != nil {
			e, view = store.Shared.FindView(e, key, client, option)
		} else {
			e, view = store.Shared.GetView(e, key, now, client, option)
		}
		l.unnamed = !view.Named
	}
	switch {
	case e == nil || search.List != 0 && !e.Plain.HasData():
	case e.Count != nil: // the entry's plugin precedes the one with search lists in the chain
		l.entry, l.counters = e, [3]store.Counter{e.Count.Counter(server), view.Callers}
	default:
		l.entry, l.counters = e, [3]store.Counter{search.Count, search.Client, view.Callers}
	}
}

// isMade reports whether an entry that has ended has the reply of the plugin chain, or a later one. An entry that was stored before
// the chain began must have the same records: it was current when the chain made the reply.
func (l *lookup) isMade(e *store.Entry, in []byte) bool {
	switch {
	case l.reply == nil:
		return false
	case e.Stored >= l.since:
		return true
	}
	reply := new(dns.Msg)
	stored, err := e.Message(in, l.query, new(store.Patch))
	return err == nil && reply.Unpack(l.reply) == nil && reply.Rcode == stored.Rcode && slices.Equal(recordsOf(reply), recordsOf(stored))
}

// recordsOf returns the records of a message as text, sorted, without TTLs and serial: replies of the same data differ in these.
func recordsOf(m *dns.Msg) (all []string) {
	for i, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			if rr.Header().Rrtype == dns.TypeOPT {
				continue
			}
			rr.Header().Ttl = 0
			if soa, ok := rr.(*dns.SOA); ok {
				soa.Serial = 0
			}
			all = append(all, fmt.Sprint(i, rr))
		}
	}
	slices.Sort(all)
	return all
}

// count counts the answer of the last lookup in the counters of the plugins.
func (l *lookup) count() {
	for _, c := range l.counters {
		if c != nil {
			c.Inc()
		}
	}
	if l.beyond && l.route.counters.cache != nil {
		l.route.counters.lookup().BeyondTTL.Inc()
	}
}

// pass passes the query of the last lookup, which has no stored answer, to the wire handlers or to the plugin chain.
func (l *lookup) pass(b *batch.Batch, r *request, client netip.Addr, now time.Duration) {
	r.Client = client
	m := r.server.metrics
	if l.route != nil && l.route.awaiter != nil && awaitsNames(l.query.Type) && r.server.process.held.hold(l, r) {
		m.handedOver.Inc()
		return
	}
	if l.wire {
		r.setWire(l.route, &l.query, l.key[:l.keyLen], now)
	}
	if l.route != nil {
		r.handOver(b, l.route.queue)
	} else {
		r.handOver(b, r.server.queueOf(l.key[:0], r.query))
	}
	m.handedOver.Inc() // after the query dropped in its favour was counted
}

// Minimum lengths in bytes of answers over UDP in which CoreDNS compresses names to avoid fragments, as NSD does.
const (
	fragmentIPv4 = 1480
	fragmentIPv6 = 1220
)

func fragmentOf(client netip.Addr) int {
	if client.Is4() {
		return fragmentIPv4
	}
	return fragmentIPv6
}

// formOf returns the form of an entry for a client whose replies may have limit bytes, nil if the plugin chain has to make the
// reply. It sets Shuffle of the patch.
func formOf(rt *route, e *store.Entry, q *wire.Query, p *store.Patch, limit, fragments int, random *random) *store.Answer {
	form := shuffledForm(rt, e, q, p, limit, fragments, random)
	if form != nil && rt.shuffle && form.Ordered() {
		p.Shuffle = 0 // the plugin chain gets the patch
		return nil
	}
	return form
}

// shuffledForm is formOf for a client that accepts the stored order: records that Shuffle does not permute are sent in it.
func shuffledForm(rt *route, e *store.Entry, q *wire.Query, p *store.Patch, limit, fragments int, random *random) *store.Answer {
	if q.Upper && !e.AnyCase {
		return nil
	}
	form := e.Form(q, p, limit, fragments)
	if form != nil && rt.shuffle {
		p.Shuffle = random.next()
	}
	return form
}

// queueOf returns the queue of a query's server block, whose queries do not wait for those of another block. Queries that
// match no block, or that are refused whatever their name, have a queue of their own: the probes of a kubelet must not
// fail because an upstream is dead. buf has capacity for a name.
func (s *server) queueOf(buf, query []byte) *admission.Queue {
	if wire.HasOtherVersion(query) {
		return s.queue
	}
	if name, ok := wire.AppendQuestionName(buf, query); ok {
		if rt := s.routes.find(name); rt != nil {
			return rt.queue
		}
	}
	return s.queue
}
