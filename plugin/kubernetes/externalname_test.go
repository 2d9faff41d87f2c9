package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"
	"k8s.io/apimachinery/pkg/runtime"
)

// upstreamFunc answers queries for names outside of the cluster.
type upstreamFunc func(name string, qtype uint16) (*dns.Msg, error)

func (f upstreamFunc) Lookup(_ context.Context, state request.Request, name string, qtype uint16) (*dns.Msg, error) {
	if state.Req == nil || state.W == nil {
		return nil, errors.New("the upstream needs the client's request")
	}
	return f(name, qtype)
}

// upstreamOf answers with these records, and with NXDOMAIN for other names.
func upstreamOf(t testing.TB, records ...string) upstreamFunc {
	t.Helper()
	var all []dns.RR
	for _, r := range records {
		rr, err := dns.NewRR(r)
		kit.Must(t, err)
		all = append(all, rr)
	}
	return func(name string, qtype uint16) (*dns.Msg, error) {
		m := &dns.Msg{MsgHdr: dns.MsgHdr{Rcode: dns.RcodeNameError}}
		for _, rr := range all {
			if strings.EqualFold(rr.Header().Name, name) {
				m.Rcode = dns.RcodeSuccess
				if rr.Header().Rrtype == qtype {
					m.Answer = append(m.Answer, rr)
				}
			}
		}
		return m, nil
	}
}

func TestExternalName_Chase(t *testing.T) {
	db := service("shop", "db", headless)
	objects := []runtime.Object{
		namespace("shop"), db, slice(db, "a", endpoint("10.1.0.1", hostname("db-0"))),
		service("shop", "web", []string{"10.0.0.1"}, tcp("http", 80)),
		externalName("shop", "alias", "web.shop.svc.cluster.local"),
		externalName("shop", "alias2", "ALIAS.shop.svc.Cluster.Local."),
		externalName("shop", "to-db", "db.shop.svc.cluster.local"),
		externalName("shop", "to-db-0", "db-0.db.shop.svc.cluster.local"),
		externalName("shop", "to-pod", "10-1-0-7.shop.pod.cluster.local"),
		externalName("shop", "to-ns", "ns.dns.cluster.local"),
		externalName("shop", "dead", "none.shop.svc.cluster.local"),
		externalName("shop", "dead2", "dead.shop.svc.cluster.local"),
		externalName("shop", "apex", "cluster.local"),
		externalName("shop", "self", "self.shop.svc.cluster.local"),
		externalName("shop", "below", "x.below.shop.svc.cluster.local"),
		externalName("shop", "loop-a", "loop-b.shop.svc.cluster.local"),
		externalName("shop", "loop-b", "loop-c.shop.svc.cluster.local"),
		externalName("shop", "loop-c", "loop-a.shop.svc.cluster.local"),
		externalName("shop", "ip4", "192.0.2.1"),
		externalName("shop", "ip6", "2001:db8::1"),
		externalName("shop", "out", "www.example.org"),
		externalName("shop", "out2", "out.shop.svc.cluster.local"),
	}
	k := answering(t, "kubernetes cluster.local {\npods insecure\n}", objects...)
	k.upstream = upstreamOf(t, "www.example.org. 60 IN A 192.0.2.1")
	check(t, k,
		lookup{name: "ClusterIP", ask: "alias.shop.svc.cluster.local A", answer: []string{
			"alias.shop.svc.cluster.local. 5 IN CNAME web.shop.svc.cluster.local.", "web.shop.svc.cluster.local. 5 IN A 10.0.0.1"}},
		lookup{name: "in two steps, case stored", ask: "alias2.Shop.svc.cluster.local A", answer: []string{
			"alias2.Shop.svc.cluster.local. 5 IN CNAME ALIAS.shop.svc.Cluster.Local.",
			"ALIAS.shop.svc.Cluster.Local. 5 IN CNAME web.shop.svc.cluster.local.", "web.shop.svc.cluster.local. 5 IN A 10.0.0.1"}},
		lookup{name: "headless", ask: "to-db.shop.svc.cluster.local A", answer: []string{
			"to-db.shop.svc.cluster.local. 5 IN CNAME db.shop.svc.cluster.local.", "db.shop.svc.cluster.local. 5 IN A 10.1.0.1"}},
		lookup{name: "endpoint", ask: "to-db-0.shop.svc.cluster.local A", answer: []string{
			"to-db-0.shop.svc.cluster.local. 5 IN CNAME db-0.db.shop.svc.cluster.local.", "db-0.db.shop.svc.cluster.local. 5 IN A 10.1.0.1"}},
		lookup{name: "pod", ask: "to-pod.shop.svc.cluster.local A", answer: []string{
			"to-pod.shop.svc.cluster.local. 5 IN CNAME 10-1-0-7.shop.pod.cluster.local.", "10-1-0-7.shop.pod.cluster.local. 5 IN A 10.1.0.7"}},
		lookup{name: "outside in two steps", ask: "out2.shop.svc.cluster.local A", answer: []string{
			"out2.shop.svc.cluster.local. 5 IN CNAME out.shop.svc.cluster.local.",
			"out.shop.svc.cluster.local. 5 IN CNAME www.example.org.", "www.example.org. 60 IN A 192.0.2.1"}},
		lookup{name: "outside, other family: CNAME alone", ask: "out.shop.svc.cluster.local AAAA", answer: []string{
			"out.shop.svc.cluster.local. 5 IN CNAME www.example.org."}},
		lookup{name: "family that the target lacks", ask: "alias.shop.svc.cluster.local AAAA"},
		lookup{name: "dead target in zone", ask: "dead.shop.svc.cluster.local A"},
		lookup{name: "dead target in zone, CNAME", ask: "dead.shop.svc.cluster.local CNAME", answer: []string{"none.shop.svc.cluster.local."}},
		lookup{name: "dead target in two steps", ask: "dead2.shop.svc.cluster.local A"},
		lookup{name: "apex", ask: "apex.shop.svc.cluster.local A"},
		lookup{name: "itself", ask: "self.shop.svc.cluster.local A"},
		lookup{name: "below itself", ask: "below.shop.svc.cluster.local A"},
		lookup{name: "loop of three", ask: "loop-a.shop.svc.cluster.local A"},
		lookup{name: "IPv4 literal", ask: "ip4.shop.svc.cluster.local A", rcode: dns.RcodeNameError},
		lookup{name: "IPv6 literal", ask: "ip6.shop.svc.cluster.local AAAA", rcode: dns.RcodeNameError},
		lookup{name: "literal, CNAME", ask: "ip4.shop.svc.cluster.local CNAME", rcode: dns.RcodeNameError},
		lookup{name: "no SRV", ask: "out.shop.svc.cluster.local SRV"},
		lookup{name: "no TXT", ask: "out.shop.svc.cluster.local TXT"},
		lookup{name: "no MX", ask: "out.shop.svc.cluster.local MX"},
		lookup{name: "no endpoint names", ask: "x.out.shop.svc.cluster.local A", rcode: dns.RcodeNameError},
		lookup{name: "no port names", ask: "_http._tcp.out.shop.svc.cluster.local A", rcode: dns.RcodeNameError},
		lookup{name: "no port names, SRV", ask: "_http._tcp.out.shop.svc.cluster.local SRV", rcode: dns.RcodeNameError},
		lookup{name: "no CNAME at other Services", ask: "web.shop.svc.cluster.local CNAME"},
	)
}

// TestExternalName_TargetOfTheNextPlugin: with fallthrough, the next plugin may have a target in the zone. The answer has the CNAME
// whether it has or not, and other names of the zone are answered as before.
func TestExternalName_TargetOfTheNextPlugin(t *testing.T) {
	k := answering(t, "kubernetes cluster.local {\nfallthrough svc.cluster.local\n}",
		namespace("shop"), service("shop", "web", []string{"10.0.0.1"}, tcp("http", 80)),
		externalName("shop", "ext", "DB.hosts.svc.cluster.local"), externalName("shop", "ext2", "ext.shop.svc.cluster.local"),
		externalName("shop", "dead", "none.shop.svc.cluster.local"), externalName("shop", "four", "web.shop.svc.cluster.local"),
		externalName("shop", "apart", "none.cluster.local"))
	k.upstream = upstreamOf(t, "db.hosts.svc.cluster.local. 60 IN A 192.0.2.1")
	link, record := "ext.shop.svc.cluster.local. 5 IN CNAME DB.hosts.svc.cluster.local.", "db.hosts.svc.cluster.local. 60 IN A 192.0.2.1"
	check(t, k,
		lookup{name: "address", ask: "ext.shop.svc.cluster.local A", answer: []string{link, record}},
		lookup{name: "in two steps", ask: "ext2.shop.svc.cluster.local A", answer: []string{
			"ext2.shop.svc.cluster.local. 5 IN CNAME ext.shop.svc.cluster.local.", link, record}},
		lookup{name: "other family", ask: "ext.shop.svc.cluster.local AAAA", answer: []string{link}},
		lookup{name: "unknown to the next plugin, too", ask: "dead.shop.svc.cluster.local A", answer: []string{
			"dead.shop.svc.cluster.local. 5 IN CNAME none.shop.svc.cluster.local."}},
		lookup{name: "family that a target of this plugin lacks", ask: "four.shop.svc.cluster.local AAAA"},
		lookup{name: "target without fallthrough", ask: "apart.shop.svc.cluster.local A"},
	)
}

// Eleven CNAMEs are followed, as in CoreDNS, whose limit of 10 does not count the last one.
func TestExternalName_Depth(t *testing.T) {
	chain := func(n int) *Kubernetes {
		objects := []runtime.Object{namespace("shop"), service("shop", fmt.Sprint("c", n), []string{"10.0.0.1"}, tcp("", 1))}
		for i := range n {
			objects = append(objects, externalName("shop", fmt.Sprint("c", i), fmt.Sprintf("c%d.shop.svc.cluster.local", i+1)))
		}
		return answering(t, "kubernetes cluster.local", objects...)
	}
	for _, c := range []struct{ cnames, records int }{{1, 2}, {10, 11}, {11, 12}, {12, 0}, {100, 0}} {
		t.Run(fmt.Sprint(c.cnames), func(t *testing.T) {
			if m := ask(t, chain(c.cnames), "c0.shop.svc.cluster.local A"); len(m.Answer) != c.records || m.Rcode != dns.RcodeSuccess {
				t.Errorf("got %d records and %s, want %d", len(m.Answer), dns.RcodeToString[m.Rcode], c.records)
			}
		})
	}
}

func TestExternalName_Upstream(t *testing.T) {
	lone := []string{"out.shop.svc.cluster.local. 5 IN CNAME www.example.org."}
	for _, c := range []struct {
		name   string
		reply  *dns.Msg
		err    error
		answer []string
	}{
		{"NXDOMAIN: CNAME alone", &dns.Msg{MsgHdr: dns.MsgHdr{Rcode: dns.RcodeNameError}}, nil, lone},
		{"SERVFAIL: CNAME alone", &dns.Msg{MsgHdr: dns.MsgHdr{Rcode: dns.RcodeServerFailure}}, nil, lone},
		{"truncated", &dns.Msg{MsgHdr: dns.MsgHdr{Truncated: true}}, nil, lone},
		{"error: NODATA", nil, errors.New("no server"), nil},
		{"no reply: NODATA", nil, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := answering(t, "kubernetes cluster.local", namespace("shop"), externalName("shop", "out", "www.example.org"))
			k.upstream = upstreamFunc(func(name string, qtype uint16) (*dns.Msg, error) {
				if name != "www.example.org." || qtype != dns.TypeA {
					t.Errorf("asked for %s %d", name, qtype)
				}
				return c.reply, c.err
			})
			m := ask(t, k, "out.shop.svc.cluster.local A")
			sameRecords(t, "answer", m.Answer, c.answer)
			if m.Rcode != dns.RcodeSuccess {
				t.Errorf("rcode is %s", dns.RcodeToString[m.Rcode])
			}
			if want := c.reply != nil && c.reply.Truncated; m.Truncated != want {
				t.Errorf("truncated is %v, want %v", m.Truncated, want)
			}
		})
	}
}
