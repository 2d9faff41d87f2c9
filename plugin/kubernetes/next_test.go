package kubernetes

import (
	"context"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/dnstest"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"
)

// passedOn reports whether the query was passed to the next plugin; no reply may have been written then.
func passedOn(t *testing.T, k *Kubernetes, question string) (next bool) {
	t.Helper()
	owner, qtype, _ := strings.Cut(question, " ")
	k.Next = plugin.HandlerFunc(func(context.Context, dns.ResponseWriter, *dns.Msg) (int, error) {
		next = true
		return dns.RcodeRefused, nil
	})
	defer func() { k.Next = nil }()
	w := dnstest.NewRecorder(&test.ResponseWriter{})
	rcode, err := k.ServeDNS(context.Background(), w, test.Case{Qname: owner, Qtype: dns.StringToType[qtype]}.Msg())
	kit.Must(t, err)
	if next != (rcode == dns.RcodeRefused) || next != (w.Msg == nil) {
		t.Errorf("%s: passed on is %v, and ServeDNS returned %s and wrote %v", question, next, dns.RcodeToString[rcode], w.Msg)
	}
	return next
}

func TestFallthrough(t *testing.T) {
	web := service("shop", "web", []string{"10.0.0.1"}, tcp("http", 80))
	for _, c := range []struct {
		name, block, question string
		next                  bool
	}{
		{"another zone", "", "example.org A", true},
		{"the zone's parent", "", "local A", true},
		{"a name that only ends like the zone", "", "xcluster.local A", true},
		{"without", "", "none.shop.svc.cluster.local A", false},
		{"all zones", "fallthrough", "none.shop.svc.cluster.local A", true},
		{"all zones, reverse", "fallthrough", "9.0.0.10.in-addr.arpa PTR", true},
		{"the zone", "fallthrough cluster.local", "none.shop.svc.cluster.local A", true},
		{"the zone, mixed case", "fallthrough Cluster.LOCAL", "none.shop.svc.CLUSTER.local A", true},
		{"another zone's", "fallthrough 10.in-addr.arpa", "none.shop.svc.cluster.local A", false},
		{"reverse zones", "fallthrough in-addr.arpa ip6.arpa", "9.0.0.10.in-addr.arpa PTR", true},
		{"a part of the zone", "fallthrough other.svc.cluster.local", "none.other.svc.cluster.local A", true},
		{"another part of the zone", "fallthrough other.svc.cluster.local", "none.shop.svc.cluster.local A", false},
		{"a name that exists", "fallthrough", "web.shop.svc.cluster.local A", false},
		{"NODATA", "fallthrough", "web.shop.svc.cluster.local AAAA", false},
		{"namespace", "fallthrough", "shop.svc.cluster.local A", false},
		{"apex", "fallthrough", "cluster.local A", false},
		{"SOA of a nonexistent name", "fallthrough", "none.shop.svc.cluster.local SOA", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := answering(t, allZones+" {\n"+c.block+"\n}", namespace("shop"), web)
			if got := passedOn(t, k, c.question); got != c.next {
				t.Errorf("passed on is %v, want %v", got, c.next)
			}
		})
	}
}

func TestTransferTypesRefused(t *testing.T) {
	k := answering(t, allZones)
	for _, qtype := range []uint16{dns.TypeAXFR, dns.TypeIXFR} {
		w := dnstest.NewRecorder(&test.ResponseWriter{})
		rcode, err := k.ServeDNS(context.Background(), w, test.Case{Qname: "cluster.local", Qtype: qtype}.Msg())
		if err != nil || rcode != dns.RcodeRefused || w.Msg != nil {
			t.Errorf("%s: %s, error %v, reply %v, want REFUSED and no reply", dns.TypeToString[qtype], dns.RcodeToString[rcode], err, w.Msg)
		}
	}
}
