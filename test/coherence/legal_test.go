//go:build linux

package coherence

import (
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// at returns a time of a hand-made history, which begins at 100 s.
func at(s float64) int64 { return int64((100 + s) * 1e9) }

// put is an event that ends a millisecond after its begin.
func put(s float64, kind string, r record) event {
	return event{Begin: at(s), End: at(s + 0.001), Operation: "put", Kind: kind, Record: r}
}

func remove(s float64, kind string, r record) event {
	e := put(s, kind, r)
	e.Operation = "delete"
	return e
}

func webRecord(ip string) record {
	return record{Namespace: "shop", Name: "web", IPs: []netip.Addr{netip.MustParseAddr(ip)}, Ports: []port{{Name: "http", Number: 80}}}
}

// handmade has the changes of the cases of TestChecker: web is created at 1 s, changes at 10 s and is deleted at 20 s; so is
// the namespace bank at 30 s.
func handmade() []event {
	return []event{
		put(0, "Namespace", record{Name: "shop"}),
		put(0, "Namespace", record{Name: "bank"}),
		put(0, "Service", record{Namespace: "bank", Name: "db", IPs: []netip.Addr{netip.MustParseAddr("10.96.0.9")}}),
		put(0, "Service", record{Namespace: "shop", Name: "alias", Kind: externalName, Target: "web.shop.svc.cluster.local."}),
		put(1, "Service", webRecord("10.96.0.1")),
		put(10, "Service", webRecord("10.96.0.2")),
		remove(20, "Service", webRecord("10.96.0.2")),
		remove(30, "Namespace", record{Name: "bank"}),
	}
}

// reread has the first lists of a replica: namespaces at 16.5 s, the rest of what most answers need at 16.95 s, and
// ServiceImports at 17.5 s.
func reread() []event {
	list := func(s float64, e event) event {
		e.Begin, e.End = at(s-0.05), at(s)
		return e
	}
	web := put(0, "Service", webRecord("10.96.0.2"))
	return []event{
		list(16.5, put(0, "Namespace", record{Name: "bank"})), list(16.5, put(0, "Namespace", record{Name: "shop"})),
		list(16.6, put(0, "Slice", record{Namespace: "shop", Name: "web-1"})), list(16.7, put(0, "Pod", record{Namespace: "shop", Name: "p0"})),
		list(16.95, put(0, "Service", record{Namespace: "bank", Name: "db"})), list(16.95, web),
		list(17.5, put(0, "Import", record{Namespace: "bank", Name: "db"})),
	}
}

// The names and answers of the cases.
const (
	importName = "web.shop.svc.clusterset.local."
	webName    = "web.shop.svc.cluster.local."
	bankName   = "db.bank.svc.cluster.local."
	aliasName  = "alias.shop.svc.cluster.local."
	searchName = "web.v1.search.shop.cluster.local.ap.k8s.io."
	bankSearch = "db.bank.v1.search.shop.cluster.local.ap.k8s.io."

	one     = webName + " A 10.96.0.1"
	two     = webName + " A 10.96.0.2"
	bankOne = bankName + " A 10.96.0.9"
	aliased = aliasName + " CNAME " + webName + "\n" + one
)

func TestChecker(t *testing.T) {
	silent := []fallback{{at(9), at(14), ttl}, {at(19), at(40), ttl}}
	killed := []view{{to: at(15), events: handmade()[:5]}, {from: at(15), to: forever, events: handmade()}}
	unread := []view{{to: at(15), events: handmade()}, {from: at(16), to: forever, events: reread(), listed: listed(reread())}}
	reloaded := []epoch{{0, at(15), nil}, {at(14), forever, []string{"shop"}}}
	for _, tc := range []struct {
		what           string
		name, answer   string
		sent, received float64
		fallbacks      []fallback
		views          []view
		epochs         []epoch
		legal          bool
	}{
		{what: "right", name: webName, answer: one, sent: 5, received: 5.1, legal: true},
		{what: "wrong", name: webName, answer: two, sent: 5, received: 5.1},
		{what: "of a later state", name: webName, answer: two, sent: 9.8, received: 9.9},
		{what: "of a state that begins before the answer is received", name: webName, answer: two, sent: 9.8, received: 10.0005, legal: true},
		{what: "old for less than a second", name: webName, answer: one, sent: 10.9, received: 10.95, legal: true},
		{what: "old for more than a second", name: webName, answer: one, sent: 11.1, received: 11.15},
		{what: "old for more than a second when it is received, not when the query was sent", name: webName, answer: one, sent: 10.9, received: 15, legal: true},
		{what: "denial, old for less than a second", name: webName, answer: nameError, sent: 1.9, received: 1.91, legal: true},
		{what: "denial, old for more than a second", name: webName, answer: nameError, sent: 2.1, received: 2.11},
		{what: "deleted Service, old for more than a second", name: webName, answer: two, sent: 21.1, received: 21.2},
		{what: "NODATA where the name does not exist", name: webName, answer: noData, sent: 25, received: 25.1},
		{what: "deleted namespace, old for more than a second", name: bankName, answer: bankOne, sent: 31.1, received: 31.2},
		{what: "within its TTL after a fault", name: webName, answer: one, sent: 11.9, received: 11.95, fallbacks: silent, legal: true},
		{what: "beyond its TTL after a fault", name: webName, answer: one, sent: 12.1, received: 12.15, fallbacks: silent},
		{what: "old for more than a second long after a fault", name: webName, answer: two, sent: 41.9, received: 42, fallbacks: silent},
		{what: "alias, old for less than a second", name: aliasName, answer: aliased, sent: 10.9, received: 10.95, legal: true},
		{what: "alias, old for more than a second", name: aliasName, answer: aliased, sent: 11.1, received: 11.2},
		{what: "SERVFAIL", name: webName, answer: "SERVFAIL", sent: 5, received: 5.1, legal: true},
		{what: "REFUSED", name: webName, answer: "reply that is REFUSED", sent: 5, received: 5.1},
		{what: "REFUSED, search", name: searchName, answer: "reply that is REFUSED", sent: 5, received: 5.1},
		{what: "no reply", name: webName, answer: "none", sent: 5, received: 5, legal: true},
		{what: "TTL above the configuration", name: webName, answer: "reply that is with a TTL of 3", sent: 5, received: 5.1},
		{what: "of a killed replica, for less than a second", name: webName, answer: one, sent: 15.9, received: 15.95, views: killed, legal: true},
		{what: "of a killed replica, for more than a second", name: webName, answer: one, sent: 16.1, received: 16.2, views: killed},
		{what: "of the next replica", name: webName, answer: two, sent: 16.1, received: 16.2, views: killed, legal: true},
		{what: "of a replica that has not read the namespaces", name: webName, answer: nameError, sent: 16.3, received: 16.4, views: unread},
		{what: "of a replica that has not read the Services", name: webName, answer: nameError, sent: 16.6, received: 16.7, views: unread},
		{what: "of a replica before its last list", name: webName, answer: two, sent: 16.7, received: 16.9, views: unread},
		{what: "of a replica after its last list", name: webName, answer: two, sent: 17, received: 17.1, views: unread, legal: true},
		{what: "of a replica that misses an object of the list", name: webName, answer: nameError, sent: 17, received: 17.1, views: unread},
		{what: "of a replica without ServiceImports", name: importName, answer: nameError, sent: 17, received: 17.1, views: unread},
		{what: "of a replica with ServiceImports", name: importName, answer: nameError, sent: 18, received: 18.1, views: unread, legal: true},
		{what: "of the configuration before", name: bankName, answer: bankOne, sent: 15.9, received: 15.95, epochs: reloaded, legal: true},
		{what: "of the configuration before, for more than a second", name: bankName, answer: bankOne, sent: 16.1, received: 16.2, epochs: reloaded},
		{what: "of the new configuration during a reload", name: bankName, answer: nameError, sent: 14.1, received: 14.2, epochs: reloaded, legal: true},
		{what: "search, right", name: searchName, answer: searchName + " CNAME " + webName + "\n" + two, sent: 15, received: 15.1, legal: true},
		{what: "search, old for less than a second", name: searchName, answer: searchName + " CNAME " + webName + "\n" + one, sent: 10.9, received: 10.95, legal: true},
		{what: "search, old for more than a second", name: searchName, answer: searchName + " CNAME " + webName + "\n" + one, sent: 11.1, received: 11.2},
		{what: "search, name behind one that exists", name: searchName, answer: searchName + " CNAME " + bankName + "\n" + bankOne, sent: 15, received: 15.1},
		{what: "search, denial, old for less than a second", name: searchName, answer: nameError, sent: 1.9, received: 1.95, legal: true},
		{what: "search, denial, old for more than a second", name: searchName, answer: nameError, sent: 2.1, received: 2.2},
		{what: "search, second name", name: bankSearch, answer: bankSearch + " CNAME " + bankName + "\n" + bankOne, sent: 15, received: 15.1, legal: true},
		{what: "search, second name, old for more than a second", name: bankSearch, answer: bankSearch + " CNAME " + bankName + "\n" + bankOne, sent: 31.1, received: 31.2},
		{what: "search, denial while the second name exists", name: bankSearch, answer: nameError, sent: 15, received: 15.1},
	} {
		t.Run(tc.what, func(t *testing.T) {
			u, x := newUniverse(), newTexts()
			if tc.views == nil {
				tc.views = []view{{to: forever, events: handmade()}}
			}
			if tc.epochs == nil {
				tc.epochs = []epoch{{to: forever}}
			}
			c := &checker{fallbacks: tc.fallbacks, callers: []int{0}, marks: make([]mark, 1), byQuestion: map[string]int{}}
			c.oracle = newOracle(u, x, []asker{{node: "node-a"}}, tc.views, tc.epochs)
			n, known := u.number[tc.name+"1"]
			if !known {
				t.Fatalf("no question for %s", tc.name)
			}
			answer, special := map[string]int32{"SERVFAIL": failure, "none": noReply}[tc.answer]
			if !special {
				answer = x.numberOf(tc.answer)
			}
			c.check(&reply{sent: at(tc.sent), received: at(tc.received), question: uint16(n), answer: answer}) // #nosec G115 -- hundreds
			if legal := c.wrongs == 0; legal != tc.legal {
				t.Errorf("legal: %t, want %t\n%s", legal, tc.legal, c.wrong)
			}
		})
	}
}

// TestModel compares answers of the model with those of the DNS specification of Kubernetes.
func TestModel(t *testing.T) {
	a := netip.MustParseAddr
	c := newCluster()
	for _, e := range []event{
		put(0, "Namespace", record{Name: "shop"}),
		put(0, "Service", webRecord("10.96.0.1")),
		put(0, "Service", record{Namespace: "shop", Name: "near", Kind: headless, Distribution: preferSameZone}),
		put(0, "Slice", record{Namespace: "shop", Name: "near-1", Service: "near", Ports: []port{{"http", "tcp", 8080}}, Endpoints: []endpoint{
			{Address: a("10.1.0.1"), Name: "e0", Zone: "east", Node: "node-a"}, {Address: a("10.1.0.2"), Zone: "west", Node: "node-b"},
		}}),
		put(0, "Node", record{Name: "node-b", Zone: "west"}),
		put(0, "Pod", record{Namespace: "shop", Name: "p0", IPs: []netip.Addr{a("10.1.0.1"), a("fd00:1::1")}}),
		put(0, "Service", record{Namespace: "shop", Name: "alias", Kind: externalName, Target: webName}),
		put(0, "Service", record{Namespace: "shop", Name: "db", Kind: headless}),
		put(0, "Slice", record{Namespace: "shop", Name: "db-1", Service: "db", Ports: []port{{"http", "tcp", 8080}}, Endpoints: []endpoint{
			{Address: a("10.1.0.3"), Name: "e0"},
		}}),
		put(0, "Import", record{Namespace: "shop", Name: "db", Kind: headless}),
		put(0, "Slice", record{Namespace: "shop", Name: "db-here", Import: "db", Cluster: "here", Ports: []port{{"http", "tcp", 8080}}, Endpoints: []endpoint{
			{Address: a("fd00:1::1"), Name: "e0"},
		}}),
	} {
		c.apply(e)
	}
	u := newUniverse()
	for _, tc := range []struct {
		name, node string
		qtype      uint16
		want       string
	}{
		{webName, "", dns.TypeA, one},
		{webName, "", dns.TypeAAAA, noData},
		{"_http._tcp." + webName, "", dns.TypeSRV, "+" + one + "\n_http._tcp." + webName + " SRV 80 " + webName},
		{"web.none.svc.cluster.local.", "", dns.TypeA, nameError},
		{"shop.svc.cluster.local.", "", dns.TypeA, noData},
		{"bank.svc.cluster.local.", "", dns.TypeA, nameError},
		{"near.shop.svc.cluster.local.", "node-a", dns.TypeA, "near.shop.svc.cluster.local. A 10.1.0.1"},
		{"near.shop.svc.cluster.local.", "node-b", dns.TypeA, "near.shop.svc.cluster.local. A 10.1.0.2"},
		{"2.0.1.10.in-addr.arpa.", "", dns.TypePTR, "2.0.1.10.in-addr.arpa. PTR 10-1-0-2.near.shop.svc.cluster.local."},
		{"1.0.96.10.in-addr.arpa.", "", dns.TypePTR, "1.0.96.10.in-addr.arpa. PTR " + webName},
		{"10-1-0-1.shop.pod.cluster.local.", "", dns.TypeA, "10-1-0-1.shop.pod.cluster.local. A 10.1.0.1"},
		{"10-1-0-2.shop.pod.cluster.local.", "", dns.TypeA, nameError},
		{"10-1-0-1.shop.pod.cluster.local.", "", dns.TypeAAAA, noData},
		{"10-1-0-1.shop.pod.cluster.local.", "", dns.TypeTXT, noData},
		{"10-1-0-1.bank.pod.cluster.local.", "", dns.TypeTXT, nameError},
		{"fd00-1--1.shop.pod.cluster.local.", "", dns.TypeAAAA, "fd00-1--1.shop.pod.cluster.local. AAAA fd00:1::1"},
		{"shop.svc.cluster.local.", "", dns.TypeTXT, noData},
		{"bank.svc.cluster.local.", "", dns.TypeAAAA, nameError},
		{webName, "", dns.TypeTXT, noData},
		{"web.bank.svc.cluster.local.", "", dns.TypeTXT, nameError},
		{webName, "", dns.TypeCNAME, noData},
		{aliasName, "", dns.TypeCNAME, aliasName + " CNAME " + webName},
		{aliasName, "", dns.TypeHTTPS, noData},
		{"alias.bank.svc.cluster.local.", "", dns.TypeCNAME, nameError},
		{"_http._tcp." + webName, "", dns.TypeA, "_http._tcp." + one},
		{"_dns._tcp." + webName, "", dns.TypeSRV, nameError},
		{"1.0.96.10.in-addr.arpa.", "", dns.TypeTXT, noData},
		{"e0.db.shop.svc.cluster.local.", "", dns.TypeSRV, "+e0.db.shop.svc.cluster.local. A 10.1.0.3\ne0.db.shop.svc.cluster.local. SRV 8080 e0.db.shop.svc.cluster.local."},
		{"e0.here.db.shop.svc.clusterset.local.", "", dns.TypeAAAA, "e0.here.db.shop.svc.clusterset.local. AAAA fd00:1::1"},
		{"e0.here.db.shop.svc.clusterset.local.", "", dns.TypeA, noData},
		{"e0.there.db.shop.svc.clusterset.local.", "", dns.TypeAAAA, nameError},
		{"_http._tcp.db.shop.svc.clusterset.local.", "", dns.TypeSRV,
			"+e0.here.db.shop.svc.clusterset.local. AAAA fd00:1::1\n_http._tcp.db.shop.svc.clusterset.local. SRV 8080 e0.here.db.shop.svc.clusterset.local."},
		{"db.shop.svc.clusterset.local.", "", dns.TypeMX, noData},
		{strings.ToUpper(webName), "", dns.TypeA, one},
	} {
		n, ok := u.number[tc.name+strconv.Itoa(int(tc.qtype))]
		if !ok {
			t.Errorf("no question for %s", tc.name)
			continue
		}
		if got := c.answer(&u.all[n], asker{node: tc.node, zone: "east"}); got != tc.want {
			t.Errorf("%s %s of %q: %q, want %q", tc.name, dns.TypeToString[tc.qtype], tc.node, got, tc.want)
		}
	}
}

// TestRequirements has phases that do not meet their requirements.
func TestRequirements(t *testing.T) {
	calm, faulty := requirements{"calm", 1, 0.1}, requirements{"faulty", 0.9, 0}
	for _, tc := range []struct {
		what string
		mark mark
		met  bool
	}{
		{"all answered", mark{requirements: calm, beyond: 20, tally: tally{answered: 100}}, true},
		{"SERVFAIL", mark{requirements: calm, beyond: 20, tally: tally{answered: 99, failed: 1}}, false},
		{"no reply", mark{requirements: calm, beyond: 20, tally: tally{answered: 99, lost: 1}}, false},
		{"no reply since the kernel dropped one", mark{requirements: calm, beyond: 20, dropped: 1, tally: tally{answered: 99, lost: 1}}, true},
		{"two without a reply since the kernel dropped one", mark{requirements: calm, beyond: 20, dropped: 1, tally: tally{answered: 99, lost: 2}}, false},
		{"few answers beyond their TTL", mark{requirements: calm, beyond: 9, tally: tally{answered: 100}}, false},
		{"no query", mark{requirements: calm}, false},
		{"share with a fault", mark{requirements: faulty, tally: tally{answered: 90, failed: 5, lost: 5}}, true},
		{"share with a fault, SERVFAIL", mark{requirements: faulty, tally: tally{answered: 89, failed: 11}}, false},
		{"share with a fault, no reply", mark{requirements: faulty, tally: tally{answered: 89, lost: 11}}, false},
		{"no query with a fault", mark{requirements: faulty}, false},
	} {
		c := &checker{marks: []mark{tc.mark}}
		if unmet := c.unmet(); (len(unmet) == 0) != tc.met {
			t.Errorf("%s: unmet %q, want met %t", tc.what, unmet, tc.met)
		}
	}
}

// TestProxy checks the faults of the proxy.
func TestProxy(t *testing.T) {
	echo := startEcho(t)
	p := startProxy(t, echo)
	c := dialProxy(t, p)
	if took := roundTrip(t, c); took > time.Second {
		t.Errorf("without a delay: %s", took)
	}
	p.delay.Store(int64(200 * time.Millisecond))
	if took := roundTrip(t, c); took < 400*time.Millisecond {
		t.Errorf("with a delay of 200 ms in both directions: %s", took)
	}
	p.delay.Store(0)
	p.cut()
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("the connection was not cut")
	}
	roundTrip(t, dialProxy(t, p))
}
