package kubernetes

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/coredns/coredns/plugin/pkg/dnstest"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/test/kit"
)

// searchLists are the lists of random queries: those of pods, and others with more dependencies.
var searchLists = [][]string{
	listShop, listTeam,
	{"shop.svc.cluster.local.", "team.svc.cluster.local."},
	{"team.svc.cluster.local.", "shop.svc.cluster.local.", "svc.cluster.local."},
	{"shop.svc.cluster.local.", "none.svc.cluster.local.", "team.svc.cluster.local.", "web.shop.svc.cluster.local.", "web.team.svc.cluster.local."}, // too many dependencies
	{"svc.cluster.local.", "shop.svc.cluster.local.", "cluster.local."},
	{"pod.cluster.local.", "cluster.local.", "svc.cluster.local."},
	{"shop.pod.cluster.local.", "team.pod.cluster.local."},
	{"cluster.local.", "svc.cluster.local.", "shop.svc.cluster.local."},
	{"shop.svc.cluster.local.", "svc.cluster.local.", "example.org."}, // outside of the zones
	{"in-addr.arpa.", "cluster.local."},
	{"example.org.", "svc.cluster.local."},
}

// listFor draws a search list for a name, nil if none begins with a suffix of it.
func listFor(r *rand.Rand, name string) []string {
	var all [][]string
	for _, list := range searchLists {
		if strings.HasSuffix(name, "."+list[0]) {
			all = append(all, list)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return pick(r, all)
}

// addList draws whether a query has a search list, and which.
func addList(r *rand.Rand, m *dns.Msg) *dns.Msg {
	list := listFor(r, strings.ToLower(m.Question[0].Name))
	if list == nil || r.IntN(3) > 0 {
		return m
	}
	data, ok := searchlist.AppendSuffixes(nil, list)
	if !ok {
		panic(fmt.Sprint("no search list: ", list))
	}
	if r.IntN(20) == 0 {
		data = data[1:] // malformed
	}
	return searchlist.WithOption(m, data)
}

// checkWalk compares the answer to a query with a search list with the result of querying its candidates one by one.
// If another plugin may answer one of them, it must be the answer for the name.
func (s *storing) checkWalk(query []byte, from client, counts seen) error {
	r := new(dns.Msg)
	if err := r.Unpack(query); err != nil {
		return err
	}
	data, ok := searchlist.OptionOf(r)
	if !ok {
		return nil
	}
	var failed error
	ask := func(name string, qtype uint16) *dns.Msg {
		q := searchlist.WithoutOption(r).Copy()
		q.Question[0].Name, q.Question[0].Qtype = name, qtype
		m, err := replyTo(s.plain, q, from)
		if err != nil {
			failed = err
			return q
		}
		return m
	}
	m, err := replyTo(s.plain, r, from)
	if err != nil {
		return err
	}
	suffixes, readable := searchlist.ParseSuffixes(data)
	if !readable || r.Question[0].Qtype == dns.TypeDS || len(s.plain.Fall.Zones) > 0 && s.plain.Fall.Zones[0] == "." ||
		slices.ContainsFunc(suffixes, func(name string) bool {
			return !dns.IsSubDomain("cluster.local.", name) && (s.imports == nil || s.imports.unread.Load() || !dns.IsSubDomain(modelZone, name))
		}) {
		suffixes = nil // only the name
	}
	want, got := walk(ask, r.Question[0], suffixes), walkedOf(m)
	if failed != nil {
		return failed
	}
	counts["search: "+kindOfWalk(got, suffixes)]++
	if !got.same(want) {
		return fmt.Errorf("%v with the search list %v:\n%+v\nwant\n%+v", r.Question[0], suffixes, got, want)
	}
	return nil
}

// replyTo returns the unmodified reply of the handler to a query.
func replyTo(k *Kubernetes, r *dns.Msg, from client) (*dns.Msg, error) {
	w := dnstest.NewRecorder(&test.ResponseWriter{RemoteIP: from.address})
	rcode, err := k.ServeDNS(context.Background(), w, r)
	if err != nil || w.Msg == nil {
		return nil, fmt.Errorf("%v: ServeDNS returned %s and error %w", r.Question, dns.RcodeToString[rcode], err)
	}
	return w.Msg, nil
}

// searchKinds are the kinds of answers that a test of stored answers must compare.
var searchKinds = []string{"search: the first", "search: a later one", "search: none exists", "search: none has data",
	"search: data of the other family", "search: stored"}

// TestStoredSearch_What asserts which answers to queries with a search list are stored, by whom, and under which other
// keys.
func TestStoredSearch_What(t *testing.T) {
	for _, c := range []struct {
		name, ask string
		list      []string
		alter     func(s *storing)
		stored    bool // with the key of the list
		plain     bool // with the key of the name
	}{
		{name: "the first", ask: "web.shop.svc.cluster.local A", list: listShop, stored: true},
		{name: "a later one", ask: "db-0.db.shop.team.svc.cluster.local A", list: listTeam, stored: true},
		{name: "none exists", ask: "www.example.org.shop.svc.cluster.local A", list: listShop, stored: true},
		{name: "none has data", ask: "web.shop.svc.cluster.local TXT", list: listShop, stored: true},
		{name: "data of the other family", ask: "web.shop.svc.cluster.local AAAA", list: listShop, stored: true},
		{name: "an alias on the way", ask: "out.shop.svc.cluster.local AAAA", list: listShop},
		{name: "an alias that has no data", ask: "in.shop.svc.cluster.local AAAA", list: []string{"shop.svc.cluster.local.", "team.svc.cluster.local."}, stored: true},
		{name: "an alias without target, before a candidate with data", ask: "dead.shop.svc.cluster.local A",
			list: []string{"shop.svc.cluster.local.", "team.svc.cluster.local."}, stored: true, alter: func(s *storing) {
				indexOf(s.k).PutService(&index.Service{Namespace: "shop", Name: "dead", Kind: index.ExternalName, Target: "none.shop.svc.cluster.local."})
				indexOf(s.k).PutService(&index.Service{Namespace: "team", Name: "dead", IPs: []netip.Addr{netip.MustParseAddr("10.0.0.5")}})
			}},
		{name: "an alias to another server, HTTPS", ask: "out.shop.svc.cluster.local HTTPS", list: listShop},
		{name: "an alias to another server, SVCB", ask: "out.shop.svc.cluster.local SVCB", list: listShop},
		{name: "an alias to a Service, HTTPS", ask: "in.shop.svc.cluster.local HTTPS", list: []string{"shop.svc.cluster.local.", "team.svc.cluster.local."}, stored: true},
		{name: "an alias to a Service, SVCB", ask: "in.shop.svc.cluster.local SVCB", list: []string{"shop.svc.cluster.local.", "team.svc.cluster.local."}, stored: true},
		{name: "an alias, SRV", ask: "out.shop.svc.cluster.local SRV", list: listShop, stored: true},
		{name: "a name of the server on the way", ask: "ns.dns.shop.svc.cluster.local A", list: listShop},
		{name: "maximum number of dependencies", ask: "x.s0.shop.svc.cluster.local A", stored: true,
			list: append(listOf(3), "shop.svc.cluster.local.", "svc.cluster.local.")},
		{name: "too many dependencies", ask: "x.s0.shop.svc.cluster.local A", list: append(listOf(4), "shop.svc.cluster.local.", "svc.cluster.local.")},
		{name: "the same again and again", ask: "x.web.shop.svc.cluster.local A", stored: true,
			list: []string{"web.shop.svc.cluster.local.", "y.web.shop.svc.cluster.local.", "z.web.shop.svc.cluster.local.", "shop.svc.cluster.local.",
				"svc.cluster.local.", "db-1.web.shop.svc.cluster.local."}},
		{name: "of other zones", ask: "web.shop.svc.cluster.local A", list: append(listShop[:1:1], "example.org."), plain: true},
		{name: "a plugin beside it", ask: "web.shop.svc.cluster.local A", list: listShop, alter: func(s *storing) { s.k.shared = true }, plain: true},
		{name: "upper case", ask: "Web.shop.svc.cluster.local A", list: listShop},
		{name: "before the first sync", ask: "web.shop.svc.cluster.local A", list: listShop, alter: func(s *storing) { unsynced(s.k) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, _ := newStoring(t, allZones+" {\npods verified\nzonal\n}", storedObjects()...)
			if c.alter != nil {
				c.alter(s)
			}
			plain := questionFor(t, c.ask)
			e := s.storedFor(t, withList(t, plain, c.list...))
			if got := e != nil && e.Fresh(validity.Now()); got != c.stored {
				t.Errorf("stored is %v, want %v", got, c.stored)
			}
			query := kit.Pack(t, plain)
			if e, _ := s.entry(query); (e != nil && e.Fresh(validity.Now())) != c.plain {
				t.Errorf("it is stored for the name: %v", e)
			}
			if c.stored != (s.len() > 0) && !c.plain {
				t.Errorf("%d answers are stored", s.len())
			}
		})
	}
}

// listOf returns a search list of Services that do not exist: each candidate depends on one more name.
func listOf(n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprintf("s%d.shop.svc.cluster.local.", i))
	}
	return list
}

// TestStoredSearch_Until asserts that the answer to a query with a search list is valid until the answer for one of
// the candidates tried changes.
func TestStoredSearch_Until(t *testing.T) {
	ip := func(s string) []netip.Addr { return []netip.Addr{netip.MustParseAddr(s)} }
	const (
		first  = "web.shop.svc.cluster.local A"               // the first candidate exists
		second = "web.shop.team.svc.cluster.local A"          // after a candidate that does not exist
		none   = "www.example.shop.svc.cluster.local A"       // www in namespace example, or below Service example
		pod    = "10-1-0-7.shop.pod.shop.svc.cluster.local A" // the third
	)
	for _, c := range []struct {
		name, ask string
		list      []string
		change    func(*index.Index)
		outlives  bool
	}{
		{"found, the Service changes", first, listShop, func(ix *index.Index) {
			ix.PutService(&index.Service{Namespace: "shop", Name: "web", IPs: ip("10.0.0.9")})
		}, false},
		{"found, the Service is deleted", first, listShop, func(ix *index.Index) { ix.DeleteService("shop", "web") }, false},
		{"found, another is created", first, listShop, func(ix *index.Index) { ix.PutService(&index.Service{Namespace: "shop", Name: "new"}) }, true},
		{"found, another changes", first, listShop, func(ix *index.Index) { ix.PutService(&index.Service{Namespace: "shop", Name: "db"}) }, true},
		{"found, a namespace of that name is created", first, listShop, func(ix *index.Index) { ix.PutNamespace("web") }, true},

		{"found behind, the first is created", second, listTeam, func(ix *index.Index) {
			ix.PutService(&index.Service{Namespace: "team", Name: "shop", Kind: index.Headless})
		}, false},
		{"found behind, another is created in the namespace of the first", second, listTeam, func(ix *index.Index) {
			ix.PutService(&index.Service{Namespace: "team", Name: "new"})
		}, true},
		{"found behind, another is created in its namespace", second, listTeam, func(ix *index.Index) {
			ix.PutService(&index.Service{Namespace: "shop", Name: "new"})
		}, true},
		{"found behind, it changes", second, listTeam, func(ix *index.Index) {
			ix.PutService(&index.Service{Namespace: "shop", Name: "web", IPs: ip("10.0.0.9")})
		}, false},
		{"found behind, the namespace of the first is deleted", second, listTeam, func(ix *index.Index) { ix.DeleteNamespace("team") }, true},
		{"found behind, its namespace is deleted", second, listTeam, func(ix *index.Index) { ix.DeleteNamespace("shop") }, false},

		{"none, the Service is created", none, listShop, func(ix *index.Index) {
			ix.PutService(&index.Service{Namespace: "shop", Name: "example", Kind: index.Headless})
		}, false},
		{"none, the namespace is created", none, listShop, func(ix *index.Index) { ix.PutNamespace("example") }, true},
		{"none, the namespace is created with the Service", none, listShop, func(ix *index.Index) {
			ix.PutNamespace("example")
			ix.PutService(&index.Service{Namespace: "example", Name: "www"})
		}, false},
		{"none, the namespace of the Service is created", none, listShop, func(ix *index.Index) {
			ix.PutService(&index.Service{Namespace: "example", Name: "www"})
			ix.PutNamespace("example")
		}, false},
		{"none, a Service changes", none, listShop, func(ix *index.Index) {
			ix.PutService(&index.Service{Namespace: "shop", Name: "web", IPs: ip("10.0.0.9")})
		}, true},
		{"none, a Service of another namespace is created", none, listShop, func(ix *index.Index) {
			ix.PutService(&index.Service{Namespace: "team", Name: "example", Kind: index.Headless})
		}, true},
		{"none, a pod is created", none, listShop, func(ix *index.Index) { ix.PutPod(&index.Pod{Namespace: "shop", Name: "x", IPs: ip("10.1.0.9")}) }, true},

		{"pod, it is deleted", pod, listShop, func(ix *index.Index) { ix.DeletePod("shop", "p") }, false},
		{"pod, another is created", pod, listShop, func(ix *index.Index) { ix.PutPod(&index.Pod{Namespace: "shop", Name: "q", IPs: ip("10.1.0.8")}) }, true},
		{"pod, a Service changes", pod, listShop, func(ix *index.Index) { ix.PutService(&index.Service{Namespace: "shop", Name: "db"}) }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, _ := newStoring(t, allZones+" {\npods verified\n}", storedObjects()...)
			s.checkUntil(t, withList(t, questionFor(t, c.ask), c.list...), c.change, c.outlives)
		})
	}
}

// The stored answer to a query with a search list is not used for a query without one or with another one, nor the
// other way round.
func TestStoredSearch_Apart(t *testing.T) {
	s, _ := newStoring(t, allZones, storedObjects()...)
	plain := questionFor(t, "web.shop.team.svc.cluster.local A")
	queries := []*dns.Msg{plain, withList(t, plain, listTeam...), withList(t, plain, listTeam[:1]...), withList(t, plain, "shop.team.svc.cluster.local.", "team.svc.cluster.local.")}
	for i, r := range queries {
		for j, other := range queries {
			query := kit.Pack(t, other)
			if stored := s.stored(query, testClients[0]); (stored != nil) != (j < i) {
				t.Errorf("before query %d is asked something is stored for query %d: %v", i, j, stored != nil)
			}
		}
		s.storedFor(t, r)
	}
}

// A cache in front receives the dependencies of the answer, and the option of the reply.
func TestConditions_Search(t *testing.T) {
	for _, c := range []struct {
		ask    string
		list   []string
		option []byte
		any    bool
	}{
		{"web.shop.svc.cluster.local A", listShop, []byte("\x04shop\x03svc\x07cluster\x05local\x00"), true},
		{"web.shop.team.svc.cluster.local A", listTeam, []byte("\x03svc\x07cluster\x05local\x00"), true},
		{"none.team.svc.cluster.local A", listTeam, []byte{}, false},
	} {
		t.Run(c.ask, func(t *testing.T) {
			s, _ := newStoring(t, allZones, storedObjects()...)
			r := withList(t, questionFor(t, c.ask), c.list...)
			ctx, conditions := store.Record(context.Background(), r)
			if _, err := s.k.ServeDNS(ctx, dnstest.NewRecorder(&test.ResponseWriter{}), r); err != nil {
				t.Fatal(err)
			}
			want := append([]byte{0xff, 0x22, 0, byte(len(c.option))}, c.option...)
			if !conditions.ByGeneration() || string(conditions.Options) != string(want) || conditions.AnyCase != c.any {
				t.Errorf("the conditions are %+v, want option %q, in any case %v", conditions.Properties, want, c.any)
			}
			if s.len() > 0 {
				t.Error("the handler keeps the answer itself")
			}
		})
	}
}
