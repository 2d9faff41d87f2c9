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

	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/test/property"
)

// outcomeOf is what a resolver comes to that goes through the candidates by itself, one after the other.
type outcomeOf struct {
	rcode    int
	owner    string // of the records or of the denial, "" if none was found
	position string
	saved    int
	result   string
	fact     fact // that the reply follows from
	failed   bool // a candidate did, on the way
}

// resolve is the rule of the package, as plain as can be: it knows neither servers that try several names at once
// nor what is kept. Where nothing comes for a name in one of the zones, nothing is taken to come for those in the zones
// that follow it, up to as many as one query has room for.
func resolve(w *world, qtype uint16, names []string, zones ...string) outcomeOf {
	var denials, empties []fact
	var tried []string
	failed, silent := false, 0
	inZones := func(i int) bool {
		return i < len(names)-1 && len(names[i]) <= 254 && plugin.Zones(zones).Matches(names[i]) != ""
	}
	for i, name := range names {
		if silent > 0 && inZones(i) {
			silent--
			tried = append(tried, strings.ToLower(name)) // a second entry of the list with that name is not tried either
			continue
		}
		silent = 0
		if len(name) > 254 || slices.Contains(tried, strings.ToLower(name)) {
			continue
		}
		tried = append(tried, strings.ToLower(name))
		f := w.of(name, qtype)
		wins := f.said == saysData || f.said == saysTruncated
		if f.said == saysNODATA && otherFamily(qtype) != 0 && (i < len(names)-1 || failed) {
			switch w.of(name, otherFamily(qtype)).said {
			case saysData, saysTruncated:
				wins = true
			case saysSERVFAIL, returnsSERVFAIL, saysREFUSED, returnsREFUSED, saysNothing, returnsError:
				failed = true
				continue
			}
		}
		if wins {
			o := outcomeOf{owner: name, position: fmt.Sprint(i), saved: i, result: "success", fact: f, failed: failed}
			if f.said == saysNODATA || f.said == saysTruncated && f.ttl%2 == 0 {
				o.result = "nodata"
			}
			if i == len(names)-1 {
				o.position = "bare"
			}
			return o
		}
		switch f.said {
		case saysNXDOMAIN:
			denials = append(denials, f)
		case saysNODATA:
			empties = append(empties, f)
		case saysNothing, returnsError:
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
		return outcomeOf{rcode: dns.RcodeServerFailure, position: "none", result: "failure", failed: true}
	case len(empties) > 0:
		return outcomeOf{position: "none", result: "nodata", fact: empties[0]}
	}
	return outcomeOf{rcode: dns.RcodeNameError, position: "none", result: "nxdomain", fact: denials[0]}
}

// check compares the reply to a query with what it is to be, some time after its facts were found.
func (o *outcomeOf) check(r *dns.Msg, got answered, age uint32) error {
	question := r.Question[0]
	if got.Msg == nil {
		if o.rcode != dns.RcodeServerFailure || got.code != dns.RcodeServerFailure {
			return fmt.Errorf("nothing was written, and %d returned; want %s", got.code, dns.RcodeToString[o.rcode])
		}
		return nil
	}
	m := got.Msg
	switch {
	case got.code != dns.RcodeSuccess || got.err != nil:
		return fmt.Errorf("it returned %d, %v", got.code, got.err)
	case m.Rcode != o.rcode || !m.Response || m.Id != r.Id || m.RecursionDesired != r.RecursionDesired || m.CheckingDisabled != r.CheckingDisabled:
		return fmt.Errorf("the header is %v, want %s to %v", m.MsgHdr, dns.RcodeToString[o.rcode], r.MsgHdr)
	case len(m.Question) != 1 || m.Question[0] != question:
		return fmt.Errorf("the question is %v, want %v", m.Question, question)
	case m.Truncated != (o.fact.said == saysTruncated && o.rcode == dns.RcodeSuccess):
		return fmt.Errorf("truncated is %t", m.Truncated)
	case m.IsEdns0() != nil && r.IsEdns0() == nil:
		return fmt.Errorf("an OPT record that nobody has asked for: %v", m.Extra)
	}
	var want, denial []dns.RR
	switch {
	case o.rcode == dns.RcodeServerFailure:
	case o.fact.said == saysData:
		want = recordsOf(o.owner, question.Qtype, o.fact.ttl)
	case o.fact.said == saysTruncated:
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

// checkAnswer follows the aliases from the question, which are there if it is not the name that was found.
func (o *outcomeOf) checkAnswer(m *dns.Msg, want []dns.RR) error {
	at, rest := m.Question[0].Name, m.Answer
	for len(rest) > 0 && rest[0].Header().Rrtype == dns.TypeCNAME {
		cname := rest[0].(*dns.CNAME)
		if cname.Hdr.Name != at || len(want) == 0 || cname.Hdr.Ttl > want[0].Header().Ttl { // less where a denial on the way is known for less
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

// randomWorld makes a world with facts about the candidates of a question.
type randomWorld struct {
	*rand.Rand
	generations []*generation
}

func newRandomWorld(seed uint64) *randomWorld {
	r := &randomWorld{Rand: rand.New(rand.NewPCG(seed, 7))}
	for i := range 5 {
		r.generations = append(r.generations, &generation{name: fmt.Sprint("generation ", i)})
	}
	return r
}

// The suffixes that lists are made of. The first three are in the zone of the cluster; what is looked up below the
// last one is too long.
var someSuffixes = []string{
	"shop.svc.cluster.test.", "svc.cluster.test.", "cluster.test.", "corp.test.", "x.cluster.test.", "eu.corp.test.",
	strings.Repeat(strings.Repeat("a", 62)+".", 3) + strings.Repeat("b", 45) + ".cluster.test.",
}

func (r *randomWorld) question() *Question {
	q := &Question{Base: []string{"db.", "www.example.org.", "_sip._tcp.x.", `o\.dd.`, "Web."}[r.IntN(5)]}
	n := 1 + r.IntN(6)
	for range n {
		q.Suffixes = append(q.Suffixes, someSuffixes[r.IntN(len(someSuffixes))])
	}
	if r.IntN(3) > 0 { // what is usual
		q.Suffixes = slices.Concat(someSuffixes[:3], q.Suffixes[min(3, n):])
	}
	if r.IntN(4) > 0 {
		q.Path = 1 + r.Uint32N(5)
	}
	return q
}

func (r *randomWorld) fact(most said) fact {
	f := fact{said: said(r.IntN(int(most) + 1)), ttl: 1 + r.Uint32N(300)}
	if r.IntN(2) == 0 {
		f.said = saysNXDOMAIN
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
	f.forOne = r.IntN(40) == 0
	if r.IntN(40) == 0 {
		f.change = r.generations[r.IntN(len(r.generations))]
	}
	return f
}

// world returns facts about names.
func (r *randomWorld) world(names []string) *world {
	w := &world{facts: map[asked]fact{}, ability: ability(r.IntN(int(abilities)))}
	most := []said{saysNODATA, saysData, saysData, saysTruncated, returnsError}[r.IntN(5)]
	w.fallback = r.fact(saysNXDOMAIN)
	for _, name := range names {
		exists := r.fact(most)
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeTXT} {
			f := r.fact(most)
			if exists.said == saysNXDOMAIN && r.IntN(10) > 0 {
				f = exists
			}
			w.facts[asked{strings.ToLower(name), qtype}] = f
		}
	}
	return w
}

// forever is the validity of outcomes that depend on Generations alone.
const forever = time.Duration(math.MaxInt64)

// holdsUntil returns until when all holds that was seen on the way, false if what came of it is not kept: also if it is
// the plain answer to the question, which a cache keeps.
func holdsUntil(w *world, o *outcomeOf, question string) (until time.Duration, bounds []answers.Bound, ok bool) {
	until = forever
	if last := w.seen[len(w.seen)-1]; o.owner == question && o.result == "success" && !last.list && last.conditions.Expires != 0 {
		return 0, nil, false
	}
	for _, s := range w.seen {
		c := &s.conditions
		if s.forOne || c.Views != nil || c.View.Private || s.said > saysData || !c.ByGeneration() && c.Expires == 0 {
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
	return until, bounds, !o.failed && len(bounds) <= answers.MaxBounds && current(bounds)
}

func current(bounds []answers.Bound) bool {
	return !slices.ContainsFunc(bounds, func(b answers.Bound) bool { return b.Generation.Load() != b.Number })
}

// namesOf returns the candidates of a question, as they are asked for.
func namesOf(asked string, q *Question) []string {
	var names []string
	for _, s := range q.Suffixes {
		names = append(names, q.Base+s)
	}
	names = append(names, q.Base)
	if strings.EqualFold(names[0], asked) {
		names[0] = asked
	}
	return names
}

// TestModel asks random questions of random worlds. The first answer, and those that follow, which may be from what
// is kept, are what a resolver comes to that goes through the list by itself. An answer is kept for exactly as long
// as all that it follows from.
func TestModel(t *testing.T) {
	counts := map[string]int{}
	property.Seeds(t, 0, 6000, func(t *testing.T, seed uint64) {
		inTime(t, func(t *testing.T) { checkModel(t, seed, counts) })
	})
	t.Log(counts)
	for _, what := range []string{
		"kept", "not kept", "expired", "outdated", "still there", "by bounds alone", "asked one server for several",
		"success", "nodata", "nxdomain", "failure", "bare", "upper case", "found behind a failure", "truncated",
	} {
		if counts[what] < 20 && property.Fixed() {
			t.Errorf("%s: %d times", what, counts[what])
		}
	}
}

// inTime runs a test in a bubble in which time passes when nothing else happens. The time begins in 2000 there; it is
// made to come after the store's epoch.
func inTime(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		for answers.Now() < 0 {
			time.Sleep(365 * 24 * time.Hour)
		}
		f(t)
	})
}

func checkModel(t *testing.T, seed uint64, counts map[string]int) {
	random := newRandomWorld(seed)
	q := random.question()
	name := q.Base + q.Suffixes[0]
	switch {
	case len(name) > 254 || random.IntN(5) == 0:
		name = "carried.in.the.name.test."
		q.Path = 0
	case random.IntN(10) == 0:
		name = strings.ToUpper(name)
		q.Base = name[:len(q.Base)]
	}
	names := namesOf(name, q)
	w := random.world(names)
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
	before := results.snapshot()
	describe := func() string {
		s := fmt.Sprintf("%v of %+v\nability %d, zones %q", r.Question[0], *q, w.ability, x.Zones)
		for _, name := range names {
			for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeTXT} {
				s += fmt.Sprintf("\n%s %s: %v", name, dns.TypeToString[qtype], w.of(name, qtype))
			}
		}
		return fmt.Sprintf("%s\nseen: %+v", s, w.seen)
	}
	if err := want.check(r, ask(t, x, r, q), 0); err != nil {
		t.Fatalf("%v\n%s", err, describe())
	}
	delta := map[string]float64{"expansions " + want.result + " " + want.position: 1}
	if want.saved > 0 {
		delta["saved"] = float64(want.saved)
	}
	if d := results.since(before); !maps.Equal(d, delta) {
		t.Fatalf("counted %v, want %v\n%s", d, delta, describe())
	}
	counts[want.result]++
	if want.position == "bare" {
		counts["bare"]++
	}
	if want.failed && want.owner != "" {
		counts["found behind a failure"]++
	}
	if want.fact.said == saysTruncated {
		counts["truncated"]++
	}
	if len(w.asks) < len(w.seen) || w.ability == knowsLists && len(w.asks) < len(names) && want.result == "nxdomain" {
		counts["asked one server for several"]++
	}

	until, bounds, kept := holdsUntil(w, &want, name)
	if strings.ToLower(name) != name {
		counts["upper case"]++
		kept = false
	}
	now := answers.Now()
	again := func(what string, age uint32, isKept bool) bool {
		t.Helper()
		w.asks, before = nil, results.snapshot()
		w.seen = nil
		wanted := resolve(w, r.Question[0].Qtype, names, x.Zones...)
		got := ask(t, x, r, q)
		if isKept != (len(w.asks) == 0) {
			t.Fatalf("%s: it asked for %v, and is kept %t, want %t\n%s", what, w.asks, len(w.asks) == 0, isKept, describe())
		}
		if err := wanted.check(r, got, age); err != nil {
			t.Fatalf("%s: %v\n%s", what, err, describe())
		}
		if d := results.since(before); !maps.Equal(d, delta) {
			t.Fatalf("%s: counted %v, want %v\n%s", what, d, delta, describe())
		}
		return true
	}
	if !kept {
		counts["not kept"]++
		again("not kept", 0, false)
		return
	}
	counts["kept"]++
	for _, other := range random.generations {
		if !slices.ContainsFunc(bounds, func(b answers.Bound) bool { return b.Generation == answers.Generation(other) }) {
			other.Add(1)
		}
	}
	again("at once", 0, true)
	if until == forever {
		counts["by bounds alone"]++
		time.Sleep(1000 * time.Hour)
		again("after a long time", 0, true)
	} else {
		time.Sleep(until - now - 1)
		again("just before", uint32((until-now-1)/time.Second), true)
		counts["still there"]++
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

// snapshot returns what was counted, for the server without a name.
func (x *Results) snapshot() map[string]float64 {
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
	if x.Also != nil {
		collect(x.Also, "also")
	}
	return all
}

// since returns what was counted since a snapshot.
func (x *Results) since(before map[string]float64) map[string]float64 {
	now := x.snapshot()
	for name, value := range now {
		if now[name] -= before[name]; value == before[name] {
			delete(now, name)
		}
	}
	return now
}
