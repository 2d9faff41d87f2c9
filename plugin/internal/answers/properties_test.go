package answers

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
)

func TestRecord(t *testing.T) {
	if c := PropertiesOf(context.Background(), new(dns.Msg)); c != nil {
		t.Error("conditions out of nothing")
	}
	query := new(dns.Msg)
	ctx, c := Record(context.Background(), query)
	if c == nil || PropertiesOf(ctx, query) != &c.Properties || c.ByGeneration() {
		t.Error("not the empty conditions that were put there")
	}
	if PropertiesOf(ctx, query.Copy()) != nil {
		t.Error("the conditions of another query")
	}
	inner, other := Record(ctx, query)
	if PropertiesOf(inner, query) != &other.Properties || other == c {
		t.Error("not the conditions of the nearer cache")
	}
	c.Bounds[0].Generation = new(generation)
	if !PropertiesOf(ctx, query).ByGeneration() {
		t.Error("not known")
	}
}

// TestForOne asserts that what is found out for one caller is noted for every query on the way to it, and for no
// other.
func TestForOne(t *testing.T) {
	query := new(dns.Msg)
	outer, first := Record(context.Background(), query)
	inner, second := Record(outer, query.Copy())
	_, beside := Record(outer, query)
	MarkPrivate(context.Background())
	if !first.ForAll() || !second.ForAll() || !beside.ForAll() {
		t.Fatal("for one, and nobody has said so")
	}
	MarkPrivate(inner)
	second.End() // does not undo it
	if first.ForAll() || second.ForAll() || !beside.ForAll() {
		t.Errorf("outer for all: %t, inner: %t, another: %t", first.ForAll(), second.ForAll(), beside.ForAll())
	}
}

func TestKeep(t *testing.T) {
	const name = "web.default.svc.cluster.local."
	g := new(generation)
	known := Properties{Validity: Validity{Bounds: [MaxBounds]Bound{{g, 0}}}, Serial: modified(9), AnyCase: true}
	a := name + " 5 IN A 10.0.0.1"
	edit := func(change func(*dns.Msg)) *dns.Msg {
		m := message(t, name, dns.TypeA, a)
		change(m)
		return m
	}
	tests := map[string]struct {
		message    *dns.Msg
		conditions Properties
		off        bool
		kept       bool
		kind       Kind
	}{
		"data":            {message(t, name, dns.TypeA, a), known, false, true, Success},
		"NODATA":          {message(t, name, dns.TypeA), known, false, true, Denial},
		"NXDOMAIN":        {edit(func(m *dns.Msg) { m.Rcode, m.Answer = dns.RcodeNameError, nil }), known, false, true, Denial},
		"failed":          {edit(func(m *dns.Msg) { m.Rcode = dns.RcodeServerFailure }), known, false, true, Denial},
		"another class":   {edit(func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS }), known, false, true, Success},
		"not by bounds":   {message(t, name, dns.TypeA, a), known, true, false, 0},
		"no conditions":   {message(t, name, dns.TypeA, a), Properties{}, false, false, 0},
		"upper case":      {message(t, "Web.default.svc.cluster.local.", dns.TypeA, a), known, false, false, 0},
		"escaped case":    {message(t, `\087eb.default.svc.cluster.local.`, dns.TypeA, a), known, false, false, 0},
		"truncated":       {edit(func(m *dns.Msg) { m.Truncated = true }), known, false, false, 0},
		"no question":     {edit(func(m *dns.Msg) { m.Question = nil }), known, false, false, 0},
		"two questions":   {edit(func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) }), known, false, false, 0},
		"OPT":             {edit(func(m *dns.Msg) { m.SetEdns0(1232, false) }), known, false, false, 0},
		"extended rcode":  {edit(func(m *dns.Msg) { m.Rcode = dns.RcodeBadVers }), known, false, false, 0},
		"unpackable name": {edit(func(m *dns.Msg) { m.Answer[0].Header().Name = "a..b." }), known, false, false, 0},
		"question broken": {edit(func(m *dns.Msg) { m.Question[0].Name = "a..b." }), known, false, false, 0},
	}
	for name, tt := range tests {
		for _, tt.message.Compress = range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				s, c := newStore(1<<20, false)
				c.Store(77)
				sp := s.NewKeyspace()
				sp.ByGeneration.Store(!tt.off)
				before, compress := tt.message.Copy().String(), tt.message.Compress
				sp.PutReply(tt.message, tt.message, &tt.conditions)
				if tt.message.String() != before || tt.message.Compress != compress {
					t.Errorf("the message was changed: %v, was %s", tt.message, before)
				}
				if got := sp.Len(tt.kind); got != 0 != tt.kept {
					t.Fatalf("%d entries kept", got)
				}
				if tt.kept {
					checkKept(t, s, sp, tt.message, tt.kind)
				}
			})
		}
	}
}

func checkKept(t *testing.T, s *Store, sp *Keyspace, m *dns.Msg, kind Kind) {
	t.Helper()
	var q Query
	query, ok := q.FromMsg(make([]byte, 0, MaxQuery), m)
	if !ok {
		t.Fatal("no query")
	}
	e := s.Get(sp.Key(nil, query, &q))
	if e == nil {
		t.Fatal("not found by its question")
	}
	if e.Kind != kind || e.Stored != 77 || e.Expires != 0 || e.Cached || !e.AnyCase || e.Serial != modified(9) || !e.Current() {
		t.Errorf("kept as %+v", e)
	}
	got := new(dns.Msg)
	if err := got.Unpack(e.Plain.AppendReply(nil, query, &q, &Patch{})); err != nil {
		t.Fatal(err)
	}
	if got.String() != m.String() {
		t.Errorf("kept %v, given was %v", got, m)
	}
	e.Bounds[0].Generation.(*generation).Add(1)
	defer e.Bounds[0].Generation.(*generation).Store(0)
	if e.Fresh(78) {
		t.Error("fresh though its generation has advanced")
	}
}

// TestKeepByFlags asserts that replies to queries with CD and without are kept apart.
func TestKeepByFlags(t *testing.T) {
	s, _ := newStore(1<<20, false)
	sp := s.NewKeyspace()
	sp.ByGeneration.Store(true)
	g := new(generation)
	m := message(t, "a.org.", dns.TypeA, "a.org. 5 IN A 10.0.0.1")
	for _, m.CheckingDisabled = range []bool{false, true} {
		sp.PutReply(m, m, &Properties{Validity: Validity{Bounds: [MaxBounds]Bound{{g, 0}}}})
	}
	if sp.Len(Success) != 2 {
		t.Errorf("%d entries, want one with CD and one without", sp.Len(Success))
	}
}

// TestKeepSearched asserts that a reply to a search list is kept for those who ask with that list, with its options,
// and a reply to the name alone for those who ask without one.
func TestKeepSearched(t *testing.T) {
	const name = "web.default.svc.cluster.local."
	extended := []byte{0, 15, 0, 2, 0, 3}
	tried := searchlist.AppendOption(nil, []byte("\x07default\x00"))
	for label, tt := range map[string]struct {
		options  []byte
		searched bool
	}{
		"option":                 {tried, true},
		"option without data":    {searchlist.AppendOption(nil, nil), true},
		"option and an error":    {slices.Concat(extended, tried), true},
		"no option":              {nil, false},
		"an error and no option": {extended, false},
	} {
		t.Run(label, func(t *testing.T) {
			s, _ := newStore(1<<20, false)
			sp := s.NewKeyspace()
			sp.ByGeneration.Store(true)
			m := message(t, name, dns.TypeA, name+" 5 IN A 10.0.0.1")
			asked := searchlist.WithOption(m, []byte("\x07default\x00\x03svc\x00"))
			sp.PutReply(asked, m, &Properties{Validity: Validity{Bounds: [MaxBounds]Bound{{new(generation), 0}}}, Options: tt.options})
			for _, r := range []*dns.Msg{asked, m, searchlist.WithOption(m, []byte("\x07default\x00"))} {
				var q Query
				query, _ := q.FromMsg(make([]byte, 0, MaxQuery), r)
				e := s.Get(sp.Key(nil, query, &q))
				if want := tt.searched && r == asked || !tt.searched && r == m; want != (e != nil) {
					t.Errorf("%v: kept %t, want %t", r, e != nil, want)
				} else if want && !bytes.Equal(e.Patch(0).Options, tt.options) {
					t.Errorf("options %x, want %x", e.Patch(0).Options, tt.options)
				}
			}
		})
	}
}

// byAddress is Views of which each address is one; a few have none.
type byAddress struct{ asked int }

func (b *byAddress) View(from netip.Addr, option []byte) View {
	b.asked++
	if option != nil {
		return View{Private: true}
	}
	return View{Number: uint32(from.As4()[3])}
}

// TestViews asserts that each caller is given the answer of its own view, and nobody else's.
func TestViews(t *testing.T) {
	const name = "db.default.svc.cluster.local."
	s, _ := newStore(1<<20, false)
	sp := s.NewKeyspace()
	sp.ByGeneration.Store(true)
	g, views := new(generation), new(byAddress)
	answer := func(last byte) *dns.Msg {
		return message(t, name, dns.TypeA, fmt.Sprintf("%s 5 IN A 10.0.0.%d", name, last))
	}
	caller := func(last byte) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, last}) }
	keep := func(last byte, private bool) {
		m := answer(last)
		sp.PutReply(m, m, &Properties{
			Validity: Validity{Bounds: [MaxBounds]Bound{{g, g.Load()}}}, Views: views, View: View{Number: uint32(last), Private: private},
		})
	}
	find := func(last byte, option []byte) string {
		var q Query
		query, _ := q.FromMsg(make([]byte, 0, MaxQuery), answer(0))
		key := sp.Key(make([]byte, 0, MaxKey), query, &q)
		e := s.Get(key)
		if e == nil || e.Views == nil {
			t.Fatalf("%+v where the views are to be", e)
		}
		if e, _ = s.GetView(e, key, 0, caller(last), option); e == nil || !e.Fresh(0) {
			return ""
		}
		m := new(dns.Msg)
		if err := m.Unpack(e.Plain.AppendReply(nil, query, &q, &Patch{})); err != nil {
			t.Fatal(err)
		}
		return m.Answer[0].(*dns.A).A.String()
	}
	check := func(last byte, option []byte, want string) {
		t.Helper()
		if got := find(last, option); got != want {
			t.Errorf("caller %d with option %v is given %q, want %q", last, option, got, want)
		}
	}

	keep(1, false)
	keep(2, false)
	keep(3, true)
	check(1, nil, "10.0.0.1")
	check(2, nil, "10.0.0.2")
	check(3, nil, "")
	check(4, nil, "")
	check(1, []byte{}, "")
	bytes := s.Bytes()
	if views.asked != 5 || bytes == 0 {
		t.Errorf("asked %d times, %d bytes are kept", views.asked, bytes)
	}
	keep(1, false) // again
	if s.Bytes() != bytes {
		t.Errorf("the same answers take %d bytes more", s.Bytes()-bytes)
	}
	if sp.cached != [kinds]int64{} {
		t.Errorf("they count as answers of a cache: %v", sp.cached)
	}

	g.Add(1)
	check(1, nil, "")
	if views.asked != 5 {
		t.Error("asked for the view where nothing holds any more")
	}
	keep(2, false)
	check(1, nil, "")
	check(2, nil, "10.0.0.2")
}

// TestViewsLeaveRoom asserts that answers by generation, for callers or for all, do not take the place of those of a
// cache.
func TestViewsLeaveRoom(t *testing.T) {
	s, _ := newStore(1<<24, false)
	sp := s.NewKeyspace()
	sp.ByGeneration.Store(true)
	evicted := 0
	sp.Limit(Success, 10, func() { evicted++ })
	for n := range 10 {
		put(sp, n, &Entry{Costly: true, Cached: true})
	}
	m := message(t, "a.org.", dns.TypeA, "a.org. 5 IN A 10.0.0.1")
	g := new(generation)
	for view := range uint32(100) {
		sp.PutReply(m, m, &Properties{Validity: Validity{Bounds: [MaxBounds]Bound{{g, 0}}}, Views: new(byAddress), View: View{Number: view}})
		put(sp, 1000+int(view), &Entry{Validity: Validity{Bounds: [MaxBounds]Bound{{g, 0}}}})
	}
	put(sp, 9, &Entry{Costly: true, Cached: true})
	if evicted != 0 || sp.cached[Success] != 10 {
		t.Errorf("%d evicted, %d left of 10", evicted, sp.cached[Success])
	}
	put(sp, 10, &Entry{Costly: true, Cached: true})
	if evicted != 1 || sp.cached[Success] != 10 {
		t.Errorf("one more: %d evicted, %d left of 10", evicted, sp.cached[Success])
	}
	sp.Limit(Success, 0, nil)
	s.SetBudget(1)
	if s.Bytes() != 0 || sp.Len(Success) != 0 {
		t.Errorf("%d bytes and %d entries left of nothing", s.Bytes(), sp.Len(Success))
	}
}

// TestViewsComeAndGo asserts that an answer for all takes the place of those of the views, and they its.
func TestViewsComeAndGo(t *testing.T) {
	s, _ := newStore(1<<20, false)
	sp := s.NewKeyspace()
	sp.ByGeneration.Store(true)
	g := new(generation)
	m := message(t, "a.org.", dns.TypeA, "a.org. 5 IN A 10.0.0.1")
	for i, views := range []Views{nil, new(byAddress), nil} {
		sp.PutReply(m, m, &Properties{Validity: Validity{Bounds: [MaxBounds]Bound{{g, g.Load()}}}, Views: views})
		var q Query
		query, _ := q.FromMsg(make([]byte, 0, MaxQuery), m)
		if e := s.Get(sp.Key(nil, query, &q)); e == nil || e.Views != views || !e.Fresh(0) {
			t.Errorf("%d: %+v", i, e)
		}
		g.Add(1)
	}
}

func TestForAll(t *testing.T) {
	for name, tt := range map[string]struct {
		conditions Properties
		want       bool
	}{
		"nothing known": {Properties{}, true},
		"by views":      {Properties{Views: new(byAddress)}, false},
		"for one":       {Properties{View: View{Private: true}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tt.conditions.forAll(); got != tt.want {
				t.Errorf("for all %v", got)
			}
		})
	}
}
