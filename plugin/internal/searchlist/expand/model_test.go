package expand

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/test/property"
)

// expectation is the result of a resolver that queries the candidates one by one.
type expectation struct {
	rcode    int
	owner    string // owner name of the records, "" if none was found
	position string
	saved    int
	result   string
	fact     fact // the fact of the reply
	failed   bool // a candidate before the result has failed
}

// resolve is the oracle of a walk. It has neither search lists in queries nor a store. As in a walk, a query without a
// reply in one of the zones counts for the following candidates in the zones, up to the maximum number of suffixes of a
// search list.
func resolve(w *backend, qtype uint16, names []string, zones ...string) expectation {
	var denials, empties []fact
	var tried []string
	failed, silent := false, 0
	inZones := func(i int) bool {
		return i < len(names)-1 && len(names[i]) <= 254 && plugin.Zones(zones).Matches(names[i]) != ""
	}
	for i, name := range names {
		if silent > 0 && inZones(i) {
			silent--
			tried = append(tried, strings.ToLower(name)) // a duplicate of the name is skipped, too
			continue
		}
		silent = 0
		if len(name) > 254 || slices.Contains(tried, strings.ToLower(name)) {
			continue
		}
		tried = append(tried, strings.ToLower(name))
		f := w.factOf(name, qtype)
		wins := f.replyKind == replyData || f.replyKind == replyTruncated
		if f.replyKind == replyNODATA && otherFamily(qtype) != 0 && (i < len(names)-1 || failed) {
			switch w.factOf(name, otherFamily(qtype)).replyKind {
			case replyData, replyTruncated:
				wins = true
			case replySERVFAIL, returnSERVFAIL, replyREFUSED, returnREFUSED, noReply, returnError:
				failed = true
				continue
			}
		}
		if wins {
			o := expectation{owner: name, position: fmt.Sprint(i), saved: i, result: "success", fact: f, failed: failed}
			if f.replyKind == replyNODATA || f.replyKind == replyTruncated && f.ttl%2 == 0 {
				o.result = "nodata"
			}
			if i == len(names)-1 {
				o.position = "bare"
			}
			return o
		}
		switch f.replyKind {
		case replyNXDOMAIN:
			denials = append(denials, f)
		case replyNODATA:
			empties = append(empties, f)
		case noReply, returnError:
			failed = true
			if inZones(i) {
				silent = searchlist.MaxSuffixes - 1
			}
		default:
			failed = true
		}
	}
	switch {
	case failed, len(denials)+len(empties) == 0:
		return expectation{rcode: dns.RcodeServerFailure, position: "none", result: "failure", failed: true}
	case len(empties) > 0:
		return expectation{position: "none", result: "nodata", fact: empties[0]}
	}
	return expectation{rcode: dns.RcodeNameError, position: "none", result: "nxdomain", fact: denials[0]}
}

// check compares the reply to a query with the expectation. age is the time since the reply was made, in seconds.
func (o *expectation) check(r *dns.Msg, got response, age uint32) error {
	question := r.Question[0]
	if got.Msg == nil {
		if o.rcode != dns.RcodeServerFailure || got.code != dns.RcodeServerFailure {
			return fmt.Errorf("no reply and code %d, want %s", got.code, dns.RcodeToString[o.rcode])
		}
		return nil
	}
	m := got.Msg
	switch {
	case got.code != dns.RcodeSuccess || got.err != nil:
		return fmt.Errorf("code %d, error %v", got.code, got.err)
	case m.Rcode != o.rcode || !m.Response || m.Id != r.Id || m.RecursionDesired != r.RecursionDesired || m.CheckingDisabled != r.CheckingDisabled:
		return fmt.Errorf("the header is %v, want %s to %v", m.MsgHdr, dns.RcodeToString[o.rcode], r.MsgHdr)
	case len(m.Question) != 1 || m.Question[0] != question:
		return fmt.Errorf("the question is %v, want %v", m.Question, question)
	case m.Truncated != (o.fact.replyKind == replyTruncated && o.rcode == dns.RcodeSuccess):
		return fmt.Errorf("truncated is %t", m.Truncated)
	case m.IsEdns0() != nil && r.IsEdns0() == nil:
		return fmt.Errorf("an OPT record in the reply to a query without one: %v", m.Extra)
	}
	var want, denial []dns.RR
	switch {
	case o.rcode == dns.RcodeServerFailure:
	case o.fact.replyKind == replyData:
		want = recordsOf(o.owner, question.Qtype, o.fact.ttl)
	case o.fact.replyKind == replyTruncated:
		want = recordsOf(o.owner, question.Qtype, o.fact.ttl)[:o.fact.ttl%2]
	default:
		denial = []dns.RR{soaOf(o.fact.ttl)}
	}
	for _, rr := range slices.Concat(want, denial) {
		rr.Header().Ttl -= min(age, rr.Header().Ttl)
	}
	if err := sameRecords(m.Ns, denial); err != nil {
		return fmt.Errorf("authority: %w", err)
	}
	return o.checkAnswer(m, want)
}

// checkAnswer follows the aliases from the question to the name of the records.
func (o *expectation) checkAnswer(m *dns.Msg, want []dns.RR) error {
	at, rest := m.Question[0].Name, m.Answer
	for len(rest) > 0 && rest[0].Header().Rrtype == dns.TypeCNAME {
		cname := rest[0].(*dns.CNAME)
		if cname.Hdr.Name != at || len(want) == 0 || cname.Hdr.Ttl > want[0].Header().Ttl { // lower if the reply for another candidate expires earlier
			return fmt.Errorf("the alias %v does not continue %s with the TTL of %v", cname, at, want)
		}
		at, rest = cname.Target, rest[1:]
	}
	if len(want) > 0 && at != o.owner {
		return fmt.Errorf("the answer is that of %s, want %s:\n%v", at, o.owner, m)
	}
	return sameRecords(rest, want)
}

func sameRecords(got, want []dns.RR) error {
	if len(got) != len(want) {
		return fmt.Errorf("got %v, want %v", got, want)
	}
	for i := range got {
		if got[i].String() != want[i].String() {
			return fmt.Errorf("got %v, want %v", got[i], want[i])
		}
	}
	return nil
}

// randomBackend makes random backends.
type randomBackend struct {
	*rand.Rand
	generations []*generation
}

func newRandomBackend(seed uint64) *randomBackend {
	r := &randomBackend{Rand: rand.New(rand.NewPCG(seed, 7))}
	for i := range 5 {
		r.generations = append(r.generations, &generation{name: fmt.Sprint("generation ", i)})
	}
	return r
}

// someSuffixes are the suffixes of random lists. The first three are in the zone of the cluster; names below the last
// one are too long.
var someSuffixes = []string{
	"shop.svc.cluster.test.", "svc.cluster.test.", "cluster.test.", "corp.test.", "x.cluster.test.", "eu.corp.test.",
	strings.Repeat(strings.Repeat("a", 62)+".", 3) + strings.Repeat("b", 45) + ".cluster.test.",
}

func (r *randomBackend) question() *Question {
	q := &Question{Base: []string{"db.", "www.example.org.", "_sip._tcp.x.", `o\.dd.`, "Web."}[r.IntN(5)]}
	n := 1 + r.IntN(6)
	for range n {
		q.Suffixes = append(q.Suffixes, someSuffixes[r.IntN(len(someSuffixes))])
	}
	if r.IntN(3) > 0 { // the usual list of a pod
		q.Suffixes = slices.Concat(someSuffixes[:3], q.Suffixes[min(3, n):])
	}
	if r.IntN(4) > 0 {
		q.ListID = 1 + r.Uint32N(5)
	}
	return q
}

func (r *randomBackend) fact(limit replyKind) fact {
	f := fact{replyKind: replyKind(r.IntN(int(limit) + 1)), ttl: 1 + r.Uint32N(300)}
	if r.IntN(2) == 0 {
		f.replyKind = replyNXDOMAIN
	}
	by := r.IntN(20)
	if by < 12 {
		for range 1 + r.IntN(2) {
			f.bounds = append(f.bounds, r.generations[r.IntN(len(r.generations))])
		}
	}
	if by >= 8 && by < 19 {
		f.expires = time.Duration(1+r.IntN(120_000)) * time.Millisecond
	}
	f.private = r.IntN(40) == 0
	if r.IntN(40) == 0 {
		f.change = r.generations[r.IntN(len(r.generations))]
	}
	return f
}

// backend returns a backend with random facts for names.
func (r *randomBackend) backend(names []string) *backend {
	w := &backend{facts: map[lookup]fact{}, ability: ability(r.IntN(int(abilities)))}
	limit := []replyKind{replyNODATA, replyData, replyData, replyTruncated, returnError}[r.IntN(5)]
	w.fallback = r.fact(replyNXDOMAIN)
	for _, name := range names {
		exists := r.fact(limit)
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeTXT} {
			f := r.fact(limit)
			if exists.replyKind == replyNXDOMAIN && r.IntN(10) > 0 {
				f = exists
			}
			w.facts[lookup{strings.ToLower(name), qtype}] = f
		}
	}
	return w
}

// forever is the validity of outcomes that depend on Generations alone.
const forever = time.Duration(math.MaxInt64)

// expectedValidity returns the joined validity of the replies, false if the outcome is not stored under the search
// list: also if a cache stores it as the reply to the question.
func expectedValidity(w *backend, o *expectation, question string) (until time.Duration, bounds []validity.Bound, ok bool) {
	until = forever
	if last := w.replies[len(w.replies)-1]; o.owner == question && o.result == "success" && !last.list && last.properties.Expires != 0 {
		return 0, nil, false
	}
	for _, s := range w.replies {
		c := &s.properties
		if s.private || c.Views != nil || c.View.Private || s.replyKind > replyData || !c.ByGeneration() && c.Expires == 0 {
			return 0, nil, false
		}
		for _, b := range c.Bounds {
			if b.Generation != nil && !slices.Contains(bounds, b) {
				bounds = append(bounds, b)
			}
		}
		if c.Expires != 0 {
			until = min(until, c.Expires)
		}
	}
	return until, bounds, !o.failed && len(bounds) <= validity.MaxBounds && current(bounds)
}

func current(bounds []validity.Bound) bool {
	return !slices.ContainsFunc(bounds, func(b validity.Bound) bool { return b.Generation.Load() != b.Number })
}

// namesOf returns the candidates of a question in the case in which they are queried.
func namesOf(qname string, q *Question) []string {
	var names []string
	for _, s := range q.Suffixes {
		names = append(names, q.Base+s)
	}
	names = append(names, q.Base)
	if strings.EqualFold(names[0], qname) {
		names[0] = qname
	}
	return names
}

// TestModel sends random queries to random backends. Every reply, from the store or not, is that of a resolver which
// walks the list itself. A reply is stored exactly as long as the replies it follows from are valid.
func TestModel(t *testing.T) {
	t.Run("messages", func(t *testing.T) { testModel(t, 6000, func(*backend, *Expander, *rand.Rand) sender { return send }) })
	t.Run("wire", func(t *testing.T) {
		testModel(t, 3000, func(w *backend, x *Expander, random *rand.Rand) sender {
			withWire(x, w, randomly(random))
			return func(t *testing.T, x *Expander, r *dns.Msg, q *Question) response {
				got, _ := sendWire(t, x, r, q)
				return got
			}
		})
	})
}

// sender sends a query to an Expander.
type sender func(t *testing.T, x *Expander, r *dns.Msg, q *Question) response

// testModel tests the way of a query that sent returns, which may change the Expander.
func testModel(t *testing.T, seeds uint64, way func(w *backend, x *Expander, random *rand.Rand) sender) {
	counts := map[string]int{}
	property.Seeds(t, 0, seeds, func(t *testing.T, seed uint64) {
		inBubble(t, func(t *testing.T) { checkModel(t, seed, way, counts) })
	})
	t.Log(counts)
	for _, event := range []string{
		"stored", "not stored", "expired", "outdated", "before the end", "by generations alone", "several candidates in one query",
		"success", "nodata", "nxdomain", "failure", "bare", "upper case", "found after a failure", "truncated",
	} {
		if counts[event] < 20 && property.Fixed() {
			t.Errorf("%s: %d times", event, counts[event])
		}
	}
}

// inBubble runs a test with synctest's clock. The clock starts in 2000; inBubble advances it to the start of the
// process.
func inBubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		for validity.Now() < 0 {
			time.Sleep(365 * 24 * time.Hour)
		}
		f(t)
	})
}

func checkModel(t *testing.T, seed uint64, way func(w *backend, x *Expander, random *rand.Rand) sender, counts map[string]int) {
	random := newRandomBackend(seed)
	q := random.question()
	name := q.Base + q.Suffixes[0]
	switch {
	case len(name) > 254 || random.IntN(5) == 0:
		name = "carried.in.the.name.test."
		q.ListID = 0
	case random.IntN(10) == 0:
		name = strings.ToUpper(name)
		q.Base = name[:len(q.Base)]
	}
	names := namesOf(name, q)
	w := random.backend(names)
	x := newExpander(w)
	if random.IntN(4) > 0 {
		x.Zones = []string{"cluster.test."}
	}
	r := query(name, []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeTXT}[random.IntN(3)])
	r.RecursionDesired, r.CheckingDisabled = random.IntN(2) == 0, random.IntN(8) == 0
	if random.IntN(3) == 0 {
		r.SetEdns0(1232, random.IntN(2) == 0)
	}
	want := resolve(w, r.Question[0].Qtype, names, x.Zones...)
	send := way(w, x, rand.New(rand.NewPCG(seed, 8)))
	before := testMetrics.snapshot()
	describe := func() string {
		s := fmt.Sprintf("%v of %+v\nability %d, zones %q", r.Question[0], *q, w.ability, x.Zones)
		for _, name := range names {
			for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeTXT} {
				s += fmt.Sprintf("\n%s %s: %v", name, dns.TypeToString[qtype], w.factOf(name, qtype))
			}
		}
		return fmt.Sprintf("%s\nreplies: %+v", s, w.replies)
	}
	if err := want.check(r, send(t, x, r, q), 0); err != nil {
		t.Fatalf("%v\n%s", err, describe())
	}
	delta := map[string]float64{"expansions " + want.result + " " + want.position: 1}
	if want.saved > 0 {
		delta["saved"] = float64(want.saved)
	}
	if d := testMetrics.since(before); !maps.Equal(d, delta) {
		t.Fatalf("counted %v, want %v\n%s", d, delta, describe())
	}
	counts[want.result]++
	if want.position == "bare" {
		counts["bare"]++
	}
	if want.failed && want.owner != "" {
		counts["found after a failure"]++
	}
	if want.fact.replyKind == replyTruncated {
		counts["truncated"]++
	}
	if len(w.queries) < len(w.replies) || w.ability == supportsLists && len(w.queries) < len(names) && want.result == "nxdomain" {
		counts["several candidates in one query"]++
	}

	until, bounds, stored := expectedValidity(w, &want, name)
	if strings.ToLower(name) != name {
		counts["upper case"]++
		stored = false
	}
	now := validity.Now()
	again := func(what string, age uint32, isStored bool) bool {
		t.Helper()
		w.queries, before = nil, testMetrics.snapshot()
		w.replies = nil
		wanted := resolve(w, r.Question[0].Qtype, names, x.Zones...)
		got := send(t, x, r, q)
		if isStored != (len(w.queries) == 0) {
			t.Fatalf("%s: queries %v, stored %t, want %t\n%s", what, w.queries, len(w.queries) == 0, isStored, describe())
		}
		if err := wanted.check(r, got, age); err != nil {
			t.Fatalf("%s: %v\n%s", what, err, describe())
		}
		if d := testMetrics.since(before); !maps.Equal(d, delta) {
			t.Fatalf("%s: counted %v, want %v\n%s", what, d, delta, describe())
		}
		return true
	}
	if !stored {
		counts["not stored"]++
		again("not stored", 0, false)
		return
	}
	counts["stored"]++
	for _, other := range random.generations {
		if !slices.ContainsFunc(bounds, func(b validity.Bound) bool { return b.Generation == validity.Generation(other) }) {
			other.Add(1)
		}
	}
	again("at once", 0, true)
	if until == forever {
		counts["by generations alone"]++
		time.Sleep(1000 * time.Hour)
		again("after a long time", 0, true)
	} else {
		time.Sleep(until - now - 1)
		again("just before", uint32((until-now-1)/time.Second), true)
		counts["before the end"]++
	}
	if until != forever && (len(bounds) == 0 || random.IntN(2) == 0) {
		counts["expired"]++
		time.Sleep(1)
		again("expired", 0, false)
		return
	}
	counts["outdated"]++
	bounds[random.IntN(len(bounds))].Generation.(*generation).Add(1)
	again("outdated", 0, false)
}

// snapshot returns the counters of the server without a name.
func (x *Metrics) snapshot() map[string]float64 {
	all := map[string]float64{}
	collect := func(c prometheus.Collector, name string) {
		metrics := make(chan prometheus.Metric, 1000)
		c.Collect(metrics)
		close(metrics)
		for m := range metrics {
			var value dto.Metric
			if err := m.Write(&value); err != nil {
				panic(err)
			}
			labels := map[string]string{}
			for _, l := range value.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["server"] == "" {
				all[strings.TrimSpace(name+" "+labels["outcome"]+" "+labels["position"])] = value.GetCounter().GetValue()
			}
		}
	}
	collect(x.expansions, "expansions")
	collect(x.saved, "saved")
	if x.Found != nil {
		collect(x.Found, "also")
	}
	return all
}

// since returns the changes of counters since a snapshot.
func (x *Metrics) since(before map[string]float64) map[string]float64 {
	now := x.snapshot()
	for name, value := range now {
		if now[name] -= before[name]; value == before[name] {
			delete(now, name)
		}
	}
	return now
}
