package store

import (
	"context"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

func TestConditionsInContext(t *testing.T) {
	if c := ConditionsFrom(context.Background(), new(dns.Msg)); c != nil {
		t.Error("conditions out of nothing")
	}
	query := new(dns.Msg)
	ctx, c := WithConditions(context.Background(), query)
	if c == nil || ConditionsFrom(ctx, query) != c || c.Known() {
		t.Error("not the empty conditions that were put there")
	}
	if ConditionsFrom(ctx, query.Copy()) != nil {
		t.Error("the conditions of another query")
	}
	inner, other := WithConditions(ctx, query)
	if ConditionsFrom(inner, query) != other || other == c {
		t.Error("not the conditions of the nearer cache")
	}
	c.Bounds[0].Generation = new(generation)
	if !ConditionsFrom(ctx, query).Known() {
		t.Error("not known")
	}
}

func TestOutdated(t *testing.T) {
	c := Outdated()
	if e := (&Entry{Bounds: c.Bounds}); !c.Known() || e.Fresh(0) {
		t.Errorf("conditions that hold: known %t, %+v", c.Known(), c)
	}
}

func TestKeep(t *testing.T) {
	const name = "web.default.svc.cluster.local."
	g := new(generation)
	known := Conditions{Bounds: [MaxBounds]Bound{{g, 0}}, Serial: modified(9), AnyCase: true}
	a := name + " 5 IN A 10.0.0.1"
	edit := func(change func(*dns.Msg)) *dns.Msg {
		m := message(t, name, dns.TypeA, a)
		change(m)
		return m
	}
	tests := map[string]struct {
		message    *dns.Msg
		conditions Conditions
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
		"no conditions":   {message(t, name, dns.TypeA, a), Conditions{}, false, false, 0},
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
				sp := s.NewSpace()
				sp.ByGeneration.Store(!tt.off)
				before, compress := tt.message.Copy().String(), tt.message.Compress
				sp.Keep(tt.message, tt.message, &tt.conditions)
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

func checkKept(t *testing.T, s *Store, sp *Space, m *dns.Msg, kind Kind) {
	t.Helper()
	var q wire.Query
	query, ok := q.FromMsg(make([]byte, 0, wire.MaxQuery), m)
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
	if err := got.Unpack(e.Plain.AppendReply(nil, query, &q, &wire.Patch{})); err != nil {
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
	sp := s.NewSpace()
	sp.ByGeneration.Store(true)
	g := new(generation)
	m := message(t, "a.org.", dns.TypeA, "a.org. 5 IN A 10.0.0.1")
	for _, m.CheckingDisabled = range []bool{false, true} {
		sp.Keep(m, m, &Conditions{Bounds: [MaxBounds]Bound{{g, 0}}})
	}
	if sp.Len(Success) != 2 {
		t.Errorf("%d entries, want one with CD and one without", sp.Len(Success))
	}
}
