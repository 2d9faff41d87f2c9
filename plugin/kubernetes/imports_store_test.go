package kubernetes

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/test/property"
)

// storedImportBlocks are configurations with options that answers in a clusterset depend on in different ways.
var storedImportBlocks = []struct {
	name    string
	options []string
	inFront bool
	order   bool // also for the tests of the order of lookups
}{
	{name: "plain", order: true},
	{name: "pods verified, zonal", options: []string{"pods verified", "zonal"}},
	{name: "ignore empty_service", options: []string{"ignore empty_service"}, order: true},
	{name: "noendpoints", options: []string{"noendpoints"}},
	{name: "namespaces", options: []string{"namespaces shop"}},
	{name: "a cache in front", options: []string{"pods verified"}, inFront: true, order: true},
	{name: "the own cluster first", options: []string{"prefer-local-cluster"}, order: true},
	{name: "the own cluster first, by its name", options: []string{"prefer-local-cluster EAST"}},
	{name: "topology", options: []string{"topology"}, order: true},
	{name: "topology, zone or any", options: []string{"topology keys topology.kubernetes.io/zone *", "pods verified"}},
	{name: "topology, the own cluster first", options: []string{"topology", "prefer-local-cluster"}, order: true},
	{name: "topology, the own cluster first, same host, a cache in front", options: []string{"topology keys kubernetes.io/hostname", "prefer-local-cluster eu.west-1"}, inFront: true},
}

// TestClustersetStored sends queries between random changes of a cluster with ServiceImports. Every answer must be the
// model's, for every caller; and a stored answer that counts as valid must equal, byte for byte, one made without a
// store.
func TestClustersetStored(t *testing.T) {
	all := seen{}
	for i, block := range storedImportBlocks {
		t.Run(block.name, func(t *testing.T) {
			mine := seen{}
			property.Seeds(t, uint64(2*i), 2, func(t *testing.T, seed uint64) {
				s, world := newStoring(t, clusterset(block.options...))
				if block.inFront {
					s.withCache()
				}
				c := s.importChanges(seed)
				if err := s.askImportsBetweenChanges(c, world, mine); err != nil {
					t.Fatal(err)
				}
			})
			mine.require(t, "A", "SRV", "NODATA", "mixed case", "EDNS", "not valid any more", "model: NOERROR", "model: NXDOMAIN")
			for kind, n := range mine {
				all[kind] += n
			}
		})
	}
	all.require(t, "AAAA", "NXDOMAIN", "long", "compressed", "search: stored", "search: the first", "search: a later one", "search: none exists",
		"search: none has data", "search: data of the other family", "model: an endpoint", "model: a port", "model: a part of all endpoints", "model: SERVFAIL")
}

func (s *storing) askImportsBetweenChanges(c *importChanges, world *elsewhere, counts seen) error {
	questions := c.questions(storedQuestions)
	for step := range storedChanges {
		text := c.change()
		world.address = world.address.Next()
		for range 20 {
			q := pick(c.Rand, questions)
			query, err := s.importQuery(c.Rand, q)
			if err != nil {
				return err
			}
			from := pick(c.Rand, s.clients)
			if err := s.compareAnswers(c, query, from, counts); err != nil {
				return fmt.Errorf("step %d, after %s:\n%w", step, text, err)
			}
			if err := s.compareModel(c.m, query, from, counts); err != nil {
				return fmt.Errorf("step %d, after %s:\n%w", step, text, err)
			}
		}
	}
	return nil
}

// importLists are search lists with suffixes in both zones.
var importLists = [][]string{
	{"shop.svc.clusterset.local.", "svc.clusterset.local.", "clusterset.local."},
	{"shop.svc.cluster.local.", "svc.cluster.local.", "cluster.local.", "svc.clusterset.local.", "clusterset.local."},
	{"team.svc.cluster.local.", "team.svc.clusterset.local."},
	{"team.svc.clusterset.local.", "team.svc.cluster.local.", "shop.svc.clusterset.local."},
	{"svc.clusterset.local.", "svc.cluster.local."},
	{"svc.clusterset.local.", "example.org."}, // outside of the zones
	{"pod.clusterset.local.", "svc.clusterset.local."},
}

// importQuery draws a packed query, sometimes with a search list.
func (s *storing) importQuery(r *rand.Rand, q dns.Question) ([]byte, error) {
	query, err := s.queryOf(r, q.Name, q.Qtype)
	if err != nil || r.IntN(4) > 0 {
		return query, err
	}
	m := new(dns.Msg)
	if err := m.Unpack(query); err != nil {
		return nil, err
	}
	lists := slices.DeleteFunc(slices.Clone(importLists), func(list []string) bool {
		return !strings.HasSuffix(strings.ToLower(m.Question[0].Name), "."+list[0])
	})
	if len(lists) == 0 || searchlist.HasOption(m) {
		return query, nil
	}
	data, ok := searchlist.AppendSuffixes(nil, pick(r, lists))
	if !ok {
		return nil, fmt.Errorf("no search list: %v", lists)
	}
	return searchlist.WithOption(m, data).Pack()
}

// compareAnswers compares the stored answer to a query, if any, with one made without a store. Then it sends the
// query, which must not change the answer, and checks the stored answer again. The candidates of a search list are
// queried one by one.
func (s *storing) compareAnswers(c *importChanges, query []byte, from client, counts seen) error {
	if e, _ := s.entry(query); e != nil && !e.Current() {
		counts["not valid any more"]++
	}
	if err := s.compare(query, from, counts); err != nil {
		return fmt.Errorf("stored: %w", err)
	}
	want, err := packedReply(s.plain, query, from)
	if err != nil {
		return err
	}
	answer, err := packedReply(s.front, query, from)
	if err != nil {
		return err
	}
	if err := same(answer, want); err != nil {
		return fmt.Errorf("answer with a store: %w", err)
	}
	if err := s.compare(query, from, counts); err != nil {
		return fmt.Errorf("just stored: %w", err)
	}
	return s.compareWalk(c, query, from, counts)
}

// compareWalk is checkWalk for lists with suffixes in zones of both kinds.
func (s *storing) compareWalk(c *importChanges, query []byte, from client, counts seen) error {
	r := new(dns.Msg)
	if err := r.Unpack(query); err != nil {
		return err
	}
	data, ok := searchlist.OptionOf(r)
	if !ok {
		return nil
	}
	suffixes, readable := searchlist.ParseSuffixes(data)
	if !readable || r.Question[0].Qtype == dns.TypeDS || slices.ContainsFunc(suffixes, func(name string) bool {
		return !dns.IsSubDomain("cluster.local.", name) && (c.unread.Load() || !dns.IsSubDomain(modelZone, name))
	}) {
		suffixes = nil // only the name
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

// compareModel compares the answer to a query for a name below svc of the clusterset, without a search list, with the
// model's.
func (s *storing) compareModel(model *importModel, query []byte, from client, counts seen) error {
	r := new(dns.Msg)
	if err := r.Unpack(query); err != nil {
		return err
	}
	r = searchlist.WithoutOption(r)
	q := r.Question[0]
	if q.Qtype == dns.TypeDS || !strings.HasSuffix(strings.ToLower(q.Name), ".svc."+modelZone) {
		return nil
	}
	m, err := replyTo(s.plain, r, from)
	if err != nil {
		return err
	}
	got, err := answerOf(m)
	if err != nil {
		return err
	}
	who := model.caller(r, netip.MustParseAddr(from.address))
	if want := model.answer(q, who); !got.equal(want) {
		return fmt.Errorf("%s from %s, known as %+v, in cluster %q:\n%s\nthe model has\n%s", q.String(), from.address, who, model.own(), got, want)
	}
	counts["model: "+dns.RcodeToString[got.rcode]]++
	n, _ := model.parse(strings.ToLower(q.Name))
	switch {
	case len(got.records) == 0:
	case n.host != "":
		counts["model: an endpoint"]++
	case n.port+n.protocol != "":
		counts["model: a port"]++
	case q.Qtype == dns.TypeA && len(got.records) < len(model.allAddresses(n)):
		counts["model: a part of all endpoints"]++
	}
	return nil
}

// allAddresses returns the IPv4 addresses of a headless ServiceImport in all clusters.
func (m *importModel) allAddresses(n importedName) map[netip.Addr]bool {
	all := map[netip.Addr]bool{}
	s := m.imports[index.Name{Namespace: n.namespace, Name: n.name}]
	for _, e := range m.under(s, importedName{}) {
		if s.Kind == index.Headless && e.Addr.Is4() {
			all[e.Addr] = true
		}
	}
	return all
}

// TestClustersetStored_ChangeDuringTheLookup is TestStored_ChangeDuringTheLookup for ServiceImports.
func TestClustersetStored_ChangeDuringTheLookup(t *testing.T) {
	for i, block := range storedImportBlocks {
		if !block.order {
			continue
		}
		t.Run(block.name, func(t *testing.T) {
			property.Seeds(t, uint64(i), 1, func(t *testing.T, seed uint64) {
				s, _ := newStoring(t, clusterset(block.options...))
				if block.inFront {
					s.withCache()
				}
				c := s.importChanges(seed)
				a := &amid{Index: c.ix.Index}
				s.k.attach(a, s.k.status)
				compared := seen{}
				for step := range 1500 {
					if text, err := s.changeImportsAmid(c, a, compared); err != nil {
						t.Fatalf("step %d, %s: %v", step, text, err)
					}
				}
				compared.require(t, "A", "NODATA", "search: stored")
			})
		})
	}
}

func (s *storing) changeImportsAmid(c *importChanges, a *amid, compared seen) (text string, err error) {
	q := c.questions(1)[0]
	query, err := s.importQuery(c.Rand, q)
	if err != nil {
		return q.String(), err
	}
	from := pick(c.Rand, s.clients)
	if labels := dns.SplitDomainName(q.Name); len(labels) > 4 {
		c.focus = index.Name{Namespace: labels[len(labels)-4], Name: labels[len(labels)-5]}
	}
	text = fmt.Sprintf("asked for %v", q)
	a.left, a.happens = 1+c.IntN(moments), func() {
		for range 1 + c.IntN(2) {
			text += "\nmeanwhile " + c.change()
		}
	}
	if _, err := packedReply(s.front, query, from); err != nil {
		return text, err
	}
	a.left = 0
	for range 3 {
		if err := s.compareForOthers(query, from, compared); err != nil {
			return text, err
		}
		text += "\nthen " + c.change()
	}
	return text, s.compareForOthers(query, from, compared)
}

// compareForOthers compares the stored answers for the caller of the query, and for callers elsewhere.
func (s *storing) compareForOthers(query []byte, from client, compared seen) error {
	for _, c := range append([]client{from}, otherCallers...) {
		if err := s.compare(query, c, compared); err != nil {
			return fmt.Errorf("for %s: %w", c.address, err)
		}
	}
	return nil
}

// TestClustersetStored_WhileTheClusterChanges is TestStored_WhileTheClusterChanges for ServiceImports.
func TestClustersetStored_WhileTheClusterChanges(t *testing.T) {
	for i, block := range storedImportBlocks {
		if !block.order {
			continue
		}
		t.Run(block.name, func(t *testing.T) {
			property.Seeds(t, uint64(i), 1, func(t *testing.T, seed uint64) {
				s, _ := newStoring(t, clusterset(block.options...))
				if block.inFront {
					s.withCache()
				}
				c := s.importChanges(seed)
				var queries [][]byte
				for _, q := range c.questions(60) {
					query, err := s.importQuery(c.Rand, q)
					if err != nil {
						t.Fatal(err)
					}
					queries = append(queries, query)
				}
				compared := seen{}
				caller := func() client { return pick(c.Rand, s.clients) }
				if err := s.whileAsked(queries, func() error { return s.compareAfter(c.change(), queries, c.Rand, caller, compared) }); err != nil {
					t.Error(err)
				}
				compared.require(t, "A", "NODATA", "NXDOMAIN")
			})
		})
	}
}

// TestClustersetStored_What asserts which answers in a clusterset's zone are stored.
func TestClustersetStored_What(t *testing.T) {
	for _, c := range []struct {
		ask    string
		stored bool
	}{
		{"web.shop" + inSet + " A", true}, {"web.shop" + inSet + " SRV", true}, {"four.shop" + inSet + " AAAA", true}, {"db.shop" + inSet + " A", true},
		{"db-0.east.db.shop" + inSet + " A", true}, {"_sql._tcp.db.shop" + inSet + " SRV", true}, {"noip.shop" + inSet + " A", true}, {"none.shop" + inSet + " A", true},
		{"web.none" + inSet + " A", true}, {"east.db.shop" + inSet + " A", true}, {"pod.clusterset.local A", true}, {"clusterset.local A", true},
		{"dns-version.clusterset.local TXT", true}, {"shop" + inSet + " A", true},
		{"clusterset.local SOA", false}, {"clusterset.local NS", false}, {"ns.dns.clusterset.local A", false}, {"Web.shop" + inSet + " A", false},
	} {
		t.Run(c.ask, func(t *testing.T) {
			for _, options := range []string{"", "prefer-local-cluster"} {
				s, _ := newImportStoring(t, clusterset(options), clustersetObjects()...)
				e := s.storedFor(t, questionFor(t, c.ask))
				if got := e != nil && e.Fresh(answers.Now()); got != c.stored {
					t.Errorf("%s: stored is %v, want %v", options, got, c.stored)
				}
				if e != nil && e.Views != nil {
					t.Errorf("%s: it is stored by caller, without topology", options)
				}
			}
		})
	}
}

// TestClustersetStored_Until asserts which changes end the validity of an answer.
func TestClustersetStored_Until(t *testing.T) {
	ip := func(s string) []netip.Addr { return []netip.Addr{netip.MustParseAddr(s)} }
	const (
		web  = "web.shop" + inSet + " A"
		db   = "db.shop" + inSet + " A"
		host = "db-0.east.db.shop" + inSet + " A"
		none = "new.shop" + inSet + " A"
		own  = "web.shop.svc.cluster.local A"
		gone = "new.shop.svc.cluster.local A"
	)
	slice := func(change func(*index.Slice)) func(*index.Index) {
		return func(ix *index.Index) {
			s := *ix.SliceRecord("shop", "db-e4")
			s.Endpoints = slices.Collect(s.All())
			change(&s)
			ix.PutSlice(&s)
		}
	}
	for _, c := range []struct {
		name, ask string
		options   string
		change    func(*index.Index)
		outlives  bool
	}{
		{"the ServiceImport changes", web, "", func(ix *index.Index) {
			ix.PutImport(&index.Service{Namespace: "shop", Name: "web", IPs: ip("10.100.0.9")})
		}, false},
		{"deleted", web, "", func(ix *index.Index) { ix.DeleteImport("shop", "web") }, false},
		{"it is not in the next list", web, "", func(ix *index.Index) { ix.ReplaceImports(nil) }, false},
		{"its namespace is deleted", web, "", func(ix *index.Index) { ix.DeleteNamespace("shop") }, false},
		{"the Service of its name changes", web, "", func(ix *index.Index) {
			ix.PutService(&index.Service{Namespace: "shop", Name: "web", IPs: ip("10.0.0.9")})
		}, true},
		{"the Service of its name is deleted", web, "", func(ix *index.Index) { ix.DeleteService("shop", "web") }, true},
		{"another one is created", web, "", func(ix *index.Index) { ix.PutImport(&index.Service{Namespace: "shop", Name: "new"}) }, true},
		{"a Service, and the ServiceImport of its name changes", own, "", func(ix *index.Index) {
			ix.PutImport(&index.Service{Namespace: "shop", Name: "web", IPs: ip("10.100.0.9")})
		}, true},
		{"the cluster's ID", web, "prefer-local-cluster", func(ix *index.Index) { ix.SetClusterID(index.NewSymbol("east")) }, true},

		{"headless, an endpoint is deleted", db, "", slice(func(s *index.Slice) { s.Endpoints = s.Endpoints[1:] }), false},
		{"headless, an endpoint is created", db, "", slice(func(s *index.Slice) { s.Endpoints = append(s.Endpoints, index.Endpoint{Addr: ip("10.9.0.1")[0]}) }), false},
		{"headless, a slice is deleted", db, "", func(ix *index.Index) { ix.DeleteSlice("shop", "db-w4") }, false},
		{"headless, a slice is created", db, "", func(ix *index.Index) {
			ix.PutSlice(&index.Slice{Namespace: "shop", Name: "db-n", Import: "db", Endpoints: []index.Endpoint{{Addr: ip("10.9.0.1")[0]}}})
		}, false},
		{"headless, a slice moves to another object", db, "", slice(func(s *index.Slice) { s.Import = "bare" }), false},
		{"headless, a slice becomes a Service's", db, "", slice(func(s *index.Slice) { s.Service, s.Import = "db", "" }), false},
		{"headless, becomes a ClusterSetIP", db, "", func(ix *index.Index) {
			ix.PutImport(&index.Service{Namespace: "shop", Name: "db", IPs: ip("10.100.0.9")})
		}, false},
		{"headless, a slice of the Service of its name changes", db, "", func(ix *index.Index) { ix.DeleteSlice("shop", "db-own") }, true},
		{"headless, the cluster's ID", db, "", func(ix *index.Index) { ix.SetClusterID(index.NewSymbol("east")) }, true},
		{"headless, the cluster's ID, preferred", db, "prefer-local-cluster", func(ix *index.Index) { ix.SetClusterID(index.NewSymbol("east")) }, false},
		{"headless, the cluster's ID again", db, "prefer-local-cluster", func(ix *index.Index) { ix.SetClusterID(index.Symbol{}) }, true},
		{"endpoint, its cluster", host, "", slice(func(s *index.Slice) { s.Cluster = index.NewSymbol("north") }), false},
		{"endpoint, its name", host, "", slice(func(s *index.Slice) { s.Endpoints[0].Name = "db-7" }), false},
		{"endpoint, the cluster's ID", host, "prefer-local-cluster", func(ix *index.Index) { ix.SetClusterID(index.NewSymbol("east")) }, true},

		{"NXDOMAIN, created", none, "", func(ix *index.Index) { ix.PutImport(&index.Service{Namespace: "shop", Name: "new"}) }, false},
		{"NXDOMAIN, created by a relist", none, "", func(ix *index.Index) {
			ix.ReplaceImports(append([]*index.Service{{Namespace: "shop", Name: "new"}}, ix.ImportRecord("shop", "web")))
		}, false},
		{"NXDOMAIN, created in another namespace", none, "", func(ix *index.Index) { ix.PutImport(&index.Service{Namespace: "team", Name: "new"}) }, true},
		{"NXDOMAIN, slice created first", none, "", func(ix *index.Index) {
			ix.PutSlice(&index.Slice{Namespace: "shop", Name: "new-1", Import: "new", Endpoints: []index.Endpoint{{Addr: ip("10.9.0.1")[0]}}})
		}, true},
		{"NXDOMAIN of an endpoint, it becomes ready", "db-9.east.db.shop" + inSet + " A", "", slice(func(s *index.Slice) {
			s.Endpoints = append(s.Endpoints, index.Endpoint{Addr: ip("10.9.0.1")[0], Name: "db-9"})
		}), false},
		{"NXDOMAIN of none ready, one becomes ready", "empty.shop" + inSet + " A", "", func(ix *index.Index) {
			ix.PutSlice(&index.Slice{Namespace: "shop", Name: "empty-1", Import: "empty", Endpoints: []index.Endpoint{{Addr: ip("10.9.0.1")[0]}}})
		}, false},
		{"NXDOMAIN of a namespace, created", "web.missing" + inSet + " A", "", func(ix *index.Index) { ix.PutNamespace("missing") }, false},
		{"NODATA, addresses added", "noip.shop" + inSet + " A", "", func(ix *index.Index) {
			ix.PutImport(&index.Service{Namespace: "shop", Name: "noip", IPs: ip("10.100.0.9")})
		}, false},
		{"NXDOMAIN of a Service, a ServiceImport of its name is created", gone, "", func(ix *index.Index) {
			ix.PutImport(&index.Service{Namespace: "shop", Name: "new"})
		}, false}, // all created and deleted names of a namespace share one generation
		{"ignore empty_service, an endpoint becomes ready", "four.shop" + inSet + " A", "ignore empty_service", func(ix *index.Index) {
			ix.PutSlice(&index.Slice{Namespace: "shop", Name: "four-1", Import: "four", Endpoints: []index.Endpoint{{Addr: ip("10.9.0.1")[0]}}})
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, _ := newImportStoring(t, clusterset(c.options), clustersetObjects()...)
			e := s.storedFor(t, questionFor(t, c.ask))
			if e == nil || !e.Fresh(answers.Now()) {
				t.Fatal("the answer is not stored")
			}
			c.change(indexOf(s.k))
			if got := e.Fresh(answers.Now()); got != c.outlives {
				t.Errorf("the answer is valid afterwards: %v, want %v", got, c.outlives)
			}
		})
	}
}
