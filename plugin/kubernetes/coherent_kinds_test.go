package kubernetes

import (
	"net/netip"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
	"github.com/nearside-dns/nearside/test/kit"
)

// The reasons why answers have no handles. The README lists them.
const (
	ofServer     = "the serial, and the addresses of the server itself, are no data of a Generation"
	ofUpstream   = "the records are another server's"
	ofAddress    = "the answer depends on the address of the client, which pods share"
	ofOther      = "another plugin may answer"
	ofManyData   = "the answer depends on more data than an option has handles for"
	notSynced    = "the answer is not that of the whole cluster"
	notForLookup = "the server may query another block for the name, or does not look it up"
	ofOneQuery   = "the answer is for the query that has waited: the next one waits, too"
	notInStore   = "the stored answer has lower-case names"
)

// answerKind is a query, and the reason why its answer has no handles, empty if it has.
type answerKind struct {
	name, ask string
	none      string
	caller    string   // in the caller option, as in notifiedCase
	list      []string // search list
	from      string   // the client; empty for one whose caller options are trusted
	pods      podMode  // empty for verified
	alter     func(*storing, *dns.Msg)
}

// withOption returns a function that adds a caller option with arbitrary data to a query.
func withOption(data []byte) func(*storing, *dns.Msg) {
	return func(_ *storing, r *dns.Msg) {
		r.SetEdns0(1232, false)
		r.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_LOCAL{Code: wire.OptionCaller, Data: data}}
	}
}

// namesOfServices are the kinds of answers for names of Services.
func namesOfServices() []answerKind {
	return []answerKind{
		{name: "ClusterIP", ask: "web.shop.svc.cluster.local A"},
		{name: "ClusterIP of the other family", ask: "web.shop.svc.cluster.local AAAA"},
		{name: "ClusterIP, SRV", ask: "web.shop.svc.cluster.local SRV"},
		{name: "port", ask: "_http._tcp.web.shop.svc.cluster.local SRV"},
		{name: "port, A", ask: "_http._tcp.web.shop.svc.cluster.local A"},
		{name: "no port", ask: "_none._tcp.web.shop.svc.cluster.local SRV"},
		{name: "endpoint of a ClusterIP", ask: "10-1-0-1.web.shop.svc.cluster.local A"},
		{name: "headless", ask: "db.shop.svc.cluster.local A"},
		{name: "headless, the other family", ask: "db.shop.svc.cluster.local AAAA"},
		{name: "headless, SRV", ask: "_sql._tcp.db.shop.svc.cluster.local SRV"},
		{name: "endpoint", ask: "db-0.db.shop.svc.cluster.local A"},
		{name: "endpoint, SRV", ask: "db-0.db.shop.svc.cluster.local SRV"},
		{name: "no endpoint", ask: "db-9.db.shop.svc.cluster.local A"},
		{name: "zonal", ask: "east.pin._zone.db.shop.svc.cluster.local A"},
		{name: "zonal, no endpoints", ask: "none.pin._zone.db.shop.svc.cluster.local A"},
		{name: "headless without endpoints", ask: "empty.shop.svc.cluster.local A"},
		{name: "headless that queries wait for", ask: "waits.shop.svc.cluster.local A", none: ofOneQuery},
		{name: "type without records", ask: "web.shop.svc.cluster.local MX"},
		{name: "ANY", ask: "web.shop.svc.cluster.local ANY"},
		{name: "CNAME of no alias", ask: "web.shop.svc.cluster.local CNAME"},
		{name: "NS below the apex", ask: "web.shop.svc.cluster.local NS"},
		{name: "SOA below the apex", ask: "web.shop.svc.cluster.local SOA"},
		{name: "no Service", ask: "new.shop.svc.cluster.local A"},
		{name: "no namespace", ask: "web.new.svc.cluster.local A"},
		{name: "wildcard for a Service", ask: "*.shop.svc.cluster.local A"},
		{name: "wildcard for an endpoint", ask: "*.db.shop.svc.cluster.local A"},
		{name: "wildcard for a port", ask: "*.*.web.shop.svc.cluster.local SRV"},
		{name: "namespace", ask: "shop.svc.cluster.local A"},
		{name: "name outside of the schema", ask: "a.b.c.web.shop.svc.cluster.local A"},
		{name: "DS", ask: "web.shop.svc.cluster.local DS", none: notForLookup},
		{name: "upper case", ask: "Web.shop.svc.cluster.local A", none: notInStore},
		{name: "before the first sync", ask: "web.shop.svc.cluster.local A", none: notSynced, alter: func(s *storing, _ *dns.Msg) { unsynced(s.k) }},
	}
}

// otherNames are the kinds of answers for names of the schema without a Service.
func otherNames() []answerKind {
	return []answerKind{
		{name: "apex", ask: "cluster.local A"},
		{name: "apex, ANY", ask: "cluster.local ANY"},
		{name: "apex, SOA", ask: "cluster.local SOA", none: ofServer},
		{name: "apex, NS", ask: "cluster.local NS", none: ofServer},
		{name: "name server", ask: "ns.dns.cluster.local A", none: ofServer},
		{name: "parent of the name server", ask: "dns.cluster.local A"},
		{name: "svc", ask: "svc.cluster.local A"},
		{name: "pod", ask: "pod.cluster.local A"},
		{name: "dns-version", ask: "dns-version.cluster.local TXT"},
		{name: "dns-version, A", ask: "dns-version.cluster.local A"},
		{name: "no such name", ask: "www.cluster.local A"},
		{name: "another zone", ask: "www.example.org A", none: ofOther},
		{name: "PTR of a ClusterIP", ask: "1.0.0.10.in-addr.arpa PTR"},
		{name: "PTR of an endpoint", ask: "2.0.1.10.in-addr.arpa PTR"},
		{name: "PTR, other type", ask: "2.0.1.10.in-addr.arpa A"},
		{name: "no PTR", ask: "99.0.1.10.in-addr.arpa PTR"},
		{name: "no address", ask: "x.0.1.10.in-addr.arpa PTR"},
		{name: "reverse apex", ask: "10.in-addr.arpa PTR"},
		{name: "reverse apex, NS", ask: "10.in-addr.arpa NS", none: ofServer},
		{name: "fallthrough", ask: "9.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa PTR", none: ofOther},
		{name: "pod verified", ask: "10-1-0-7.shop.pod.cluster.local A"},
		{name: "pod verified, the other family", ask: "10-1-0-7.shop.pod.cluster.local AAAA"},
		{name: "pod verified, SRV", ask: "10-1-0-7.shop.pod.cluster.local SRV"},
		{name: "no pod", ask: "10-1-0-99.shop.pod.cluster.local A"},
		{name: "pod of no namespace", ask: "10-1-0-7.new.pod.cluster.local A"},
		{name: "pod insecure", ask: "10-1-0-99.shop.pod.cluster.local A", pods: podsInsecure},
		{name: "pod insecure, no namespace", ask: "10-1-0-99.new.pod.cluster.local A", pods: podsInsecure},
		{name: "pod insecure, no address", ask: "10-1-0.shop.pod.cluster.local A", pods: podsInsecure},
		{name: "pods disabled", ask: "10-1-0-7.shop.pod.cluster.local A", pods: podsDisabled},
		{name: "alias", ask: "in.shop.svc.cluster.local A"},
		{name: "alias, the other family", ask: "in.shop.svc.cluster.local AAAA"},
		{name: "alias, CNAME", ask: "in.shop.svc.cluster.local CNAME"},
		{name: "alias, SRV", ask: "in.shop.svc.cluster.local SRV"},
		{name: "alias of no Service", ask: "to-none.shop.svc.cluster.local A"},
		{name: "alias outside", ask: "out.shop.svc.cluster.local A", none: ofUpstream},
		{name: "alias outside, CNAME", ask: "out.shop.svc.cluster.local CNAME"},
		{name: "alias outside, TXT", ask: "out.shop.svc.cluster.local TXT"},
		{name: "alias of the name server", ask: "self.shop.svc.cluster.local A", none: ofServer},
	}
}

// clustersetNames are the kinds of answers in the zone of a clusterset.
func clustersetNames() []answerKind {
	return []answerKind{
		{name: "import", ask: "web.shop.svc.clusterset.local A"},
		{name: "import, SRV", ask: "web.shop.svc.clusterset.local SRV"},
		{name: "headless import", ask: "far.shop.svc.clusterset.local A"},
		{name: "endpoint of an import", ask: "far-0.east.far.shop.svc.clusterset.local A"},
		{name: "no endpoint of an import", ask: "far-9.east.far.shop.svc.clusterset.local A"},
		{name: "no import", ask: "new.shop.svc.clusterset.local A"},
		{name: "import of no namespace", ask: "web.new.svc.clusterset.local A"},
		{name: "namespace of imports", ask: "shop.svc.clusterset.local A"},
		{name: "clusterset apex", ask: "clusterset.local A"},
		{name: "clusterset apex, SOA", ask: "clusterset.local SOA", none: ofServer},
		{name: "clusterset apex, NS", ask: "clusterset.local NS", none: ofServer},
		{name: "clusterset dns-version", ask: "dns-version.clusterset.local TXT"},
		{name: "clusterset pod", ask: "pod.clusterset.local A"},
	}
}

// byCaller are the kinds of answers that may depend on the caller.
func byCaller() []answerKind {
	const near, alias = "near.shop.svc.cluster.local A", "to-near.shop.svc.cluster.local A"
	return []answerKind{
		{name: "topology, the option", ask: near, caller: "n1"},
		{name: "topology, SRV", ask: "near.shop.svc.cluster.local SRV", caller: "n1"},
		{name: "topology, no record of the node", ask: near, caller: "n9/west"},
		{name: "topology, alias", ask: alias, caller: "n1"},
		{name: "topology, alias, no record of the node", ask: alias, caller: "n9"},
		{name: "topology, endpoint", ask: "10-1-0-20.near.shop.svc.cluster.local A"},
		{name: "topology, PTR", ask: "20.0.1.10.in-addr.arpa PTR"},
		{name: "topology, zonal", ask: "east.pin._zone.near.shop.svc.cluster.local A"},
		{name: "topology, no option", ask: near, none: ofAddress},
		{name: "topology, no option, alias", ask: alias, none: ofAddress},
		{name: "topology, no option, the address of a pod", ask: near, from: "10.1.0.7", none: ofAddress},
		{name: "topology, untrusted option", ask: near, caller: "n1", from: "192.0.2.1", none: ofAddress},
		{name: "topology, malformed option", ask: near, alter: withOption([]byte{7}), none: ofAddress},
		{name: "topology, empty option", ask: near, alter: withOption(nil), none: ofAddress},
		{name: "no topology, untrusted option", ask: "db.shop.svc.cluster.local A", caller: "n1", from: "192.0.2.1"},
		{name: "no topology, malformed option", ask: "db.shop.svc.cluster.local A", alter: withOption([]byte{7})},
		{name: "no Service, malformed option", ask: "new.shop.svc.cluster.local A", alter: withOption([]byte{7})},
		{name: "topology, Nodes not synced", ask: "mine.shop.svc.cluster.local A", caller: "n2", none: notSynced,
			alter: func(s *storing, _ *dns.Msg) { unsyncedNodes(s.k) }},
	}
}

// bySearchList are the kinds of answers to queries with a search list.
func bySearchList() []answerKind {
	const below = ".shop.svc.cluster.local "
	return []answerKind{
		{name: "search list", ask: "web" + below + "A", list: listShop},
		{name: "search list, a later candidate", ask: "web.shop.team.svc.cluster.local A", list: listTeam},
		{name: "search list, none", ask: "www.example.org" + below + "A", list: listShop},
		{name: "search list, NODATA", ask: "web" + below + "TXT", list: listShop},
		{name: "search list, the other family", ask: "web" + below + "AAAA", list: listShop},
		{name: "search list, alias", ask: "in" + below + "A", list: listShop},
		{name: "search list, alias outside", ask: "out" + below + "A", list: listShop, none: ofUpstream},
		{name: "search list, name server", ask: "ns.dns" + below + "A", list: listShop, none: ofServer},
		{name: "search list, topology", ask: "near" + below + "A", list: listShop, caller: "n1"},
		{name: "search list, no record of the node", ask: "near" + below + "A", list: listShop, caller: "n9"},
		{name: "search list, topology, no option", ask: "near" + below + "A", list: listShop, none: ofAddress},
		{name: "search list, many names", ask: "x.s0" + below + "A", list: append(listOf(5), listShop...), none: ofManyData},
		{name: "search list, upper case", ask: "Web" + below + "A", list: listShop, none: notInStore},
	}
}

// unsyncedNodes puts a handler into the state before the first sync of Nodes.
func unsyncedNodes(k *Kubernetes) {
	k.nodesSynced.Store(false)
	k.status = func() []source.Status { return []source.Status{{Resource: source.Nodes}} }
}

// TestHandles_Kinds has an answer of each kind: whether it has handles, which depends on the stored entry.
func TestHandles_Kinds(t *testing.T) {
	for _, kinds := range [][]answerKind{namesOfServices(), otherNames(), clustersetNames(), byCaller(), bySearchList()} {
		for _, kind := range kinds {
			t.Run(kind.name, func(t *testing.T) {
				if n := kind.handles(t); (n == 0) != (kind.none != "") {
					t.Errorf("%d handles; reason for none: %q", n, kind.none)
				}
			})
		}
	}
}

// handles returns the number of handles of the answer.
func (kind *answerKind) handles(t *testing.T) int {
	t.Helper()
	pods := kind.pods
	if pods == "" {
		pods = podsVerified
	}
	s, _ := newStoring(t, clusterset("pods "+string(pods), "topology", "zonal", "fallthrough ip6.arpa"), storedObjects()...)
	ix := indexOf(s.k)
	putNotified(t, ix)
	ix.PutService(&index.Service{Namespace: "shop", Name: "empty", Kind: index.Headless})
	ix.PutService(&index.Service{Namespace: "shop", Name: "waits", Kind: index.Headless, Wait: 4000})
	ix.PutImport(&index.Service{Namespace: "shop", Name: "far", Kind: index.Headless})
	ix.PutSlice(&index.Slice{Namespace: "shop", Name: "far-1", Import: "far", Cluster: index.NewSymbol("east"), Endpoints: []index.Endpoint{
		{Addr: parsedAddr(t, "10.9.0.1"), Name: "far-0"},
	}})
	r := questionFor(t, kind.ask)
	if kind.caller != "" {
		withCaller(t, r, kind.caller)
	}
	if kind.list != nil {
		r = withList(t, r, kind.list...)
	}
	if kind.alter != nil {
		kind.alter(s, r)
	}
	from := testClients[0]
	if kind.from != "" {
		from.address = kind.from
	}
	query := kit.Pack(t, r)
	reply, err := packedReply(s.front, query, from)
	kit.Must(t, err)
	m := kit.Unpack(t, reply)
	if kind.list != nil && !searchlist.HasOption(m) {
		t.Fatalf("the candidates were not tried:\n%v", m)
	}
	return s.handlesOf(query, netip.MustParseAddr(from.address))
}

// handlesOf returns the number of handles that the fast path sends with the stored answer to a query.
func (s *storing) handlesOf(query []byte, from netip.Addr) int {
	e, q, key := s.entryAndKey(query)
	if e != nil && e.Views != nil {
		var view store.View
		if e, view = s.store.GetView(e, key, validity.Now(), from, q.CallerData(query)); !view.Named {
			return 0
		}
	}
	if e == nil || q.Upper && !e.AnyCase || !e.Fresh(validity.Now()) {
		return 0
	}
	return len(e.Watchable(nil))
}
