package store

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/caller"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
)

func TestRecord(t *testing.T) {
	if c := PropertiesOf(context.Background(), new(dns.Msg)); c != nil {
		t.Error("properties without a recorded query")
	}
	query := new(dns.Msg)
	ctx, c := Record(context.Background(), query)
	if c == nil || PropertiesOf(ctx, query) != &c.Properties || c.ByGeneration() {
		t.Error("not the empty properties of the query")
	}
	if PropertiesOf(ctx, query.Copy()) != nil {
		t.Error("the properties of another query")
	}
	inner, other := Record(ctx, query)
	if PropertiesOf(inner, query) != &other.Properties || other == c {
		t.Error("not the properties of the inner cache")
	}
	c.Bounds[0].Generation = new(generation)
	if !PropertiesOf(ctx, query).ByGeneration() {
		t.Error("a bound is not in the properties")
	}
}

// TestMarkPrivate asserts that MarkPrivate marks the replies to a query and to the queries it is sent for, and no others.
func TestMarkPrivate(t *testing.T) {
	query := new(dns.Msg)
	outer, first := Record(context.Background(), query)
	inner, second := Record(outer, query.Copy())
	_, beside := Record(outer, query)
	MarkPrivate(context.Background())
	if !first.ForAll() || !second.ForAll() || !beside.ForAll() {
		t.Fatal("private without MarkPrivate")
	}
	MarkPrivate(inner)
	second.End() // has no effect on it
	if first.ForAll() || second.ForAll() || !beside.ForAll() {
		t.Errorf("outer for all: %t, inner: %t, another: %t", first.ForAll(), second.ForAll(), beside.ForAll())
	}
}

func TestPutReply(t *testing.T) {
	const name = "web.default.svc.cluster.local."
	g := new(generation)
	props := Properties{Validity: until(g, 0), Serial: modified(9), AnyCase: true}
	a := name + " 5 IN A 10.0.0.1"
	edit := func(change func(*dns.Msg)) *dns.Msg {
		m := message(t, name, dns.TypeA, a)
		change(m)
		return m
	}
	tests := map[string]struct {
		message    *dns.Msg
		properties Properties
		off        bool // Keyspace.ByGeneration is not set
		stored     bool
		kind       Kind
	}{
		"data":                {message(t, name, dns.TypeA, a), props, false, true, Success},
		"NODATA":              {message(t, name, dns.TypeA), props, false, true, Denial},
		"NXDOMAIN":            {edit(func(m *dns.Msg) { m.Rcode, m.Answer = dns.RcodeNameError, nil }), props, false, true, Denial},
		"SERVFAIL":            {edit(func(m *dns.Msg) { m.Rcode = dns.RcodeServerFailure }), props, false, true, Denial},
		"another class":       {edit(func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS }), props, false, true, Success},
		"not by generation":   {message(t, name, dns.TypeA, a), props, true, false, 0},
		"no properties":       {message(t, name, dns.TypeA, a), Properties{}, false, false, 0},
		"upper case":          {message(t, "Web.default.svc.cluster.local.", dns.TypeA, a), props, false, false, 0},
		"escaped case":        {message(t, `\087eb.default.svc.cluster.local.`, dns.TypeA, a), props, false, false, 0},
		"truncated":           {edit(func(m *dns.Msg) { m.Truncated = true }), props, false, false, 0},
		"no question":         {edit(func(m *dns.Msg) { m.Question = nil }), props, false, false, 0},
		"two questions":       {edit(func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) }), props, false, false, 0},
		"OPT":                 {edit(func(m *dns.Msg) { m.SetEdns0(1232, false) }), props, false, false, 0},
		"extended rcode":      {edit(func(m *dns.Msg) { m.Rcode = dns.RcodeBadVers }), props, false, false, 0},
		"unpackable name":     {edit(func(m *dns.Msg) { m.Answer[0].Header().Name = "a..b." }), props, false, false, 0},
		"unpackable question": {edit(func(m *dns.Msg) { m.Question[0].Name = "a..b." }), props, false, false, 0},
	}
	for name, tt := range tests {
		for _, tt.message.Compress = range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				s, c := newStore(1<<20, false)
				c.Store(77)
				ks := s.NewKeyspace()
				ks.ByGeneration.Store(!tt.off)
				before, compress := tt.message.Copy().String(), tt.message.Compress
				ks.PutReply(queryFor(tt.message), tt.message, &tt.properties)
				if tt.message.String() != before || tt.message.Compress != compress {
					t.Errorf("the message was changed: %v, was %s", tt.message, before)
				}
				if got := ks.Len(tt.kind); got != 0 != tt.stored {
					t.Fatalf("%d entries stored", got)
				}
				if tt.stored {
					checkStored(t, s, ks, tt.message, tt.kind)
				}
			})
		}
	}
}

func checkStored(t *testing.T, s *Store, ks *Keyspace, m *dns.Msg, kind Kind) {
	t.Helper()
	query, q := queryOf(t, m)
	e := s.Get(ks.Key(nil, query, &q))
	if e == nil {
		t.Fatal("no entry for the question")
	}
	if e.Kind != kind || e.Stored != 77 || e.Expires != 0 || e.Cached || !e.AnyCase || e.Serial != modified(9) || !e.Current() {
		t.Errorf("entry %+v", e)
	}
	got := unpackMsg(t, e.Plain.AppendReply(nil, query, &q, &Patch{}))
	if got.String() != m.String() {
		t.Errorf("stored %v, want %v", got, m)
	}
	e.Bounds[0].Generation.(*generation).Add(1)
	defer e.Bounds[0].Generation.(*generation).Store(0)
	if e.Fresh(78) {
		t.Error("fresh after its generation has advanced")
	}
}

// TestPutReplyByFlags asserts that replies to queries with and without CD have an entry each.
func TestPutReplyByFlags(t *testing.T) {
	s, _ := newStore(1<<20, false)
	ks := s.NewKeyspace()
	ks.ByGeneration.Store(true)
	g := new(generation)
	m := message(t, "a.org.", dns.TypeA, "a.org. 5 IN A 10.0.0.1")
	for _, m.CheckingDisabled = range []bool{false, true} {
		ks.PutReply(queryFor(m), m, &Properties{Validity: until(g, 0)})
	}
	if ks.Len(Success) != 2 {
		t.Errorf("%d entries, want one with CD and one without", ks.Len(Success))
	}
}

// TestPutReplySearched asserts that a reply to a search list is stored for queries with that list, with its options, and
// a reply without the option for queries without a list.
func TestPutReplySearched(t *testing.T) {
	const name = "web.default.svc.cluster.local."
	extended := []byte{0, 15, 0, 2, 0, 3}
	list := searchlist.AppendOption(nil, []byte("\x07default\x00"))
	for label, tt := range map[string]struct {
		options  []byte
		searched bool
	}{
		"option":                 {list, true},
		"option without data":    {searchlist.AppendOption(nil, nil), true},
		"option and an error":    {slices.Concat(extended, list), true},
		"no option":              {nil, false},
		"an error and no option": {extended, false},
	} {
		t.Run(label, func(t *testing.T) {
			s, _ := newStore(1<<20, false)
			ks := s.NewKeyspace()
			ks.ByGeneration.Store(true)
			m := message(t, name, dns.TypeA, name+" 5 IN A 10.0.0.1")
			query := searchlist.WithOption(queryFor(m), []byte("\x07default\x00\x03svc\x00"))
			ks.PutReply(query, m, &Properties{Validity: validity.Validity{Bounds: [validity.MaxBounds]validity.Bound{{Generation: new(generation), Number: 0}}}, Options: tt.options})
			for _, r := range []*dns.Msg{query, m, searchlist.WithOption(m, []byte("\x07default\x00"))} {
				packed, q := queryOf(t, r)
				e := s.Get(ks.Key(nil, packed, &q))
				if want := tt.searched && r == query || !tt.searched && r == m; want != (e != nil) {
					t.Errorf("%v: stored %t, want %t", r, e != nil, want)
				} else if want && !bytes.Equal(e.Patch(0).Options, tt.options) {
					t.Errorf("options %x, want %x", e.Patch(0).Options, tt.options)
				}
			}
		})
	}
}

// byAddress is Views with a view per address. Callers with an option are private.
type byAddress struct{ calls int }

func (b *byAddress) View(from netip.Addr, option []byte) View {
	b.calls++
	if option != nil {
		return View{Private: true}
	}
	return View{Number: uint32(from.As4()[3])}
}

// TestViews asserts that each caller gets the answer of its own view only.
func TestViews(t *testing.T) {
	const name = "db.default.svc.cluster.local."
	s, _ := newStore(1<<20, false)
	ks := s.NewKeyspace()
	ks.ByGeneration.Store(true)
	g, views := new(generation), new(byAddress)
	answer := func(last byte) *dns.Msg {
		return message(t, name, dns.TypeA, fmt.Sprintf("%s 5 IN A 10.0.0.%d", name, last))
	}
	caller := func(last byte) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, last}) }
	store := func(last byte, private bool) {
		m := answer(last)
		ks.PutReply(queryFor(m), m, &Properties{
			Validity: until(g, g.Load()), Views: views, View: View{Number: uint32(last), Private: private},
		})
	}
	find := func(last byte, option []byte) string {
		query, q := queryOf(t, answer(0))
		key := ks.Key(make([]byte, 0, MaxKey), query, &q)
		e := s.Get(key)
		if e == nil || e.Views == nil {
			t.Fatalf("entry %+v, want one with Views", e)
		}
		if e, _ = s.GetView(e, key, 0, caller(last), option); e == nil || !e.Fresh(0) {
			return ""
		}
		m := unpackMsg(t, e.Plain.AppendReply(nil, query, &q, &Patch{}))
		return m.Answer[0].(*dns.A).A.String()
	}
	check := func(last byte, option []byte, want string) {
		t.Helper()
		if got := find(last, option); got != want {
			t.Errorf("caller %d with option %v gets %q, want %q", last, option, got, want)
		}
	}

	store(1, false)
	store(2, false)
	store(3, true)
	check(1, nil, "10.0.0.1")
	check(2, nil, "10.0.0.2")
	check(3, nil, "")
	check(4, nil, "")
	check(1, []byte{}, "")
	bytes := s.Bytes()
	if views.calls != 5 || bytes == 0 {
		t.Errorf("%d calls of View, %d bytes stored", views.calls, bytes)
	}
	store(1, false)
	if s.Bytes() != bytes {
		t.Errorf("the same answer again: %d bytes more", s.Bytes()-bytes)
	}
	if ks.cached != [kinds]int64{} {
		t.Errorf("counted as cached entries: %v", ks.cached)
	}

	g.Add(1)
	check(1, nil, "")
	if views.calls != 5 {
		t.Error("View called for an entry that is not fresh")
	}
	store(2, false)
	check(1, nil, "")
	check(2, nil, "10.0.0.2")
}

// TestViewsOfNodes asserts that views by the names of a node and its zone are as separate as those by numbers, also with names of
// the maximum length.
func TestViewsOfNodes(t *testing.T) {
	s, _ := newStore(1<<20, false)
	ks := s.NewKeyspace()
	ks.ByGeneration.Store(true)
	g, name := new(generation), strings.Repeat("long.", 50)
	all := []View{
		{}, {Number: 1}, {Node: "n1"}, {Node: "n1", Zone: "a"}, {Node: "n1a"}, {Node: "n2"},
		{Node: strings.Repeat("n", caller.MaxNode), Zone: strings.Repeat("z", caller.MaxZone)},
	}
	answer := func(i int) *dns.Msg { return message(t, name, dns.TypeA, fmt.Sprintf("%s 5 IN A 10.0.0.%d", name, i)) }
	for i, v := range all {
		m := answer(i)
		ks.PutReply(queryFor(m), m, &Properties{Validity: until(g, g.Load()), Views: fixedView{}, View: v})
	}
	query, q := queryOf(t, answer(0))
	for i, v := range all {
		key := ks.Key(make([]byte, 0, MaxKey), query, &q)
		base := s.Get(key)
		if base == nil || base.Views == nil {
			t.Fatalf("entry %+v, want one with Views", base)
		}
		e, _ := s.GetView(&Entry{Views: fixedView{v}, Validity: base.Validity}, key, 0, netip.Addr{}, nil)
		if e == nil || !e.Fresh(0) {
			t.Fatalf("no answer of view %+v", v)
		}
		if m := unpackMsg(t, e.Plain.AppendReply(nil, query, &q, &Patch{})); m.Answer[0].String() != answer(i).Answer[0].String() {
			t.Errorf("view %+v gets %v", v, m.Answer)
		}
	}
}

// fixedView has one view.
type fixedView struct{ view View }

func (v fixedView) View(netip.Addr, []byte) View { return v.view }

// TestShared asserts that an answer found with a client's search list, and one that is not stored, are not shared.
func TestShared(t *testing.T) {
	s, _ := newStore(1<<20, false)
	ks := s.NewKeyspace()
	list := searchlist.AppendOption(nil, []byte("\x07default\x00"))
	for name, tt := range map[string]struct {
		key  func(key []byte) []byte
		want bool
	}{
		"the name":            {func(key []byte) []byte { return key }, true},
		"a view":              {func(key []byte) []byte { return appendKeyView(key, &View{Number: 7}) }, true},
		"the client's list":   {func(key []byte) []byte { return AppendKeyList(key, 7) }, false},
		"the list of a query": {nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			m := message(t, "a.org.", dns.TypeA, "a.org. 5 IN A 10.0.0.1")
			if tt.key == nil {
				m = searchlist.WithOption(m, list)
				tt.key = func(key []byte) []byte { return key }
			}
			query, q := queryOf(t, m)
			e := new(Entry)
			if e.Shared() {
				t.Error("shared before it is stored")
			}
			s.Put(ks, tt.key(ks.Key(nil, query, &q)), e)
			if e.Shared() != tt.want {
				t.Errorf("shared %t", e.Shared())
			}
		})
	}
}

// TestViewsAreNotLimited asserts that entries by generation, with and without views, do not count to the limit of a cache.
func TestViewsAreNotLimited(t *testing.T) {
	s, _ := newStore(1<<24, false)
	ks := s.NewKeyspace()
	ks.ByGeneration.Store(true)
	evicted := 0
	ks.Limit(Success, 10, func() { evicted++ })
	for n := range 10 {
		put(ks, n, &Entry{Costly: true, Cached: true})
	}
	m := message(t, "a.org.", dns.TypeA, "a.org. 5 IN A 10.0.0.1")
	g := new(generation)
	for view := range uint32(100) {
		ks.PutReply(queryFor(m), m, &Properties{Validity: until(g, 0), Views: new(byAddress), View: View{Number: view}})
		put(ks, 1000+int(view), &Entry{Validity: until(g, 0)})
	}
	put(ks, 9, &Entry{Costly: true, Cached: true})
	if evicted != 0 || ks.cached[Success] != 10 {
		t.Errorf("%d evicted, %d left of 10", evicted, ks.cached[Success])
	}
	put(ks, 10, &Entry{Costly: true, Cached: true})
	if evicted != 1 || ks.cached[Success] != 10 {
		t.Errorf("one more: %d evicted, %d left of 10", evicted, ks.cached[Success])
	}
	ks.Limit(Success, 0, nil)
	s.SetBudget(1)
	if s.Bytes() != 0 || ks.Len(Success) != 0 {
		t.Errorf("%d bytes and %d entries left with a budget of 1", s.Bytes(), ks.Len(Success))
	}
}

// TestViewsReplace asserts that a later answer for all callers replaces the entry with Views, and the reverse.
func TestViewsReplace(t *testing.T) {
	s, _ := newStore(1<<20, false)
	ks := s.NewKeyspace()
	ks.ByGeneration.Store(true)
	g := new(generation)
	m := message(t, "a.org.", dns.TypeA, "a.org. 5 IN A 10.0.0.1")
	for i, views := range []Views{nil, new(byAddress), nil} {
		ks.PutReply(queryFor(m), m, &Properties{Validity: until(g, g.Load()), Views: views})
		query, q := queryOf(t, m)
		if e := s.Get(ks.Key(nil, query, &q)); e == nil || e.Views != views || !e.Fresh(0) {
			t.Errorf("%d: %+v", i, e)
		}
		g.Add(1)
	}
}

func TestForAll(t *testing.T) {
	for name, tt := range map[string]struct {
		properties Properties
		want       bool
	}{
		"zero":     {Properties{}, true},
		"by views": {Properties{Views: new(byAddress)}, false},
		"private":  {Properties{View: View{Private: true}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tt.properties.forAll(); got != tt.want {
				t.Errorf("for all %v", got)
			}
		})
	}
}
