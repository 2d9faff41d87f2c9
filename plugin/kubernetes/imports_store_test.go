package kubernetes

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

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

// addImportList adds one of importLists to some of the queries without a search list.
func addImportList(r *rand.Rand, m *dns.Msg) *dns.Msg {
	lists := slices.DeleteFunc(slices.Clone(importLists), func(list []string) bool {
		return !strings.HasSuffix(strings.ToLower(m.Question[0].Name), "."+list[0])
	})
	if r.IntN(4) > 0 || len(lists) == 0 || searchlist.HasOption(m) {
		return m
	}
	data, ok := searchlist.AppendSuffixes(nil, pick(r, lists))
	if !ok {
		panic(fmt.Sprint("no search list: ", lists))
	}
	return searchlist.WithOption(m, data)
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
				s, _ := newStoring(t, clusterset(options), clustersetObjects()...)
				e := s.storedFor(t, questionFor(t, c.ask))
				if got := e != nil && e.Fresh(validity.Now()); got != c.stored {
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
			s, _ := newStoring(t, clusterset(c.options), clustersetObjects()...)
			s.checkUntil(t, questionFor(t, c.ask), c.change, c.outlives)
		})
	}
}
