package nodelocal

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/dnstest"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"
)

func TestServeDNS(t *testing.T) {
	next := plugin.HandlerFunc(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
		m := new(dns.Msg)
		m.SetRcode(r, dns.RcodeNameError)
		return m.Rcode, w.WriteMsg(m)
	})
	for _, tc := range []struct {
		name, zone, question, remote string
		next                         plugin.Handler
		rcode                        int
		written, healthy             bool
	}{
		{"health", "cluster.local.", "7.nodelocal-health.cluster.local.", "127.0.0.1", next, dns.RcodeSuccess, true, true},
		{"health in capitals", "cluster.local.", "7.NodeLocal-Health.CLUSTER.local.", "127.0.0.1", next, dns.RcodeSuccess, true, true},
		{"health over IPv6", "cluster.local.", "7.nodelocal-health.cluster.local.", "::1", next, dns.RcodeSuccess, true, true},
		{"health of the root", ".", "7.nodelocal-health.", "127.0.0.1", next, dns.RcodeSuccess, true, true},
		{"health without a next plugin", ".", "7.nodelocal-health.", "127.0.0.1", nil, dns.RcodeSuccess, true, true},
		{"health from itself", "cluster.local.", "7.nodelocal-health.cluster.local.", "fe80::53%nodelocaldns", next, dns.RcodeSuccess, true, true},
		{"from a pod", "cluster.local.", "7.nodelocal-health.cluster.local.", "10.1.0.2", next, dns.RcodeNameError, true, false},
		{"another name", "cluster.local.", "web.shop.svc.cluster.local.", "127.0.0.1", next, dns.RcodeNameError, true, false},
		{"the suffix itself", "cluster.local.", "nodelocal-health.cluster.local.", "127.0.0.1", next, dns.RcodeNameError, true, false},
		{"of another zone", ".", "7.nodelocal-health.cluster.local.", "127.0.0.1", next, dns.RcodeNameError, true, false},
		{"another name without a next plugin", ".", "example.com.", "127.0.0.1", nil, dns.RcodeRefused, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := &NodeLocal{Next: tc.next, suffix: healthSuffix(tc.zone), addresses: []netip.Addr{netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("fe80::53")}}
			m := new(dns.Msg).SetQuestion(tc.question, dns.TypeTXT)
			ip, zone, _ := strings.Cut(tc.remote, "%")
			w := dnstest.NewRecorder(&test.ResponseWriter{RemoteIP: ip, Zone: zone})
			rcode, err := n.ServeDNS(context.Background(), w, m)
			if err != nil || rcode != tc.rcode {
				t.Errorf("%s, %v; want %s", dns.RcodeToString[rcode], err, dns.RcodeToString[tc.rcode])
			}
			if (w.Msg != nil) != tc.written {
				t.Fatalf("written: %v", w.Msg)
			}
			if w.Msg != nil && healthy(w.Msg) != tc.healthy {
				t.Errorf("healthy: %t\n%s", !tc.healthy, w.Msg)
			}
		})
	}
	t.Run("another type", func(t *testing.T) {
		n := &NodeLocal{suffix: healthSuffix(".")}
		w := dnstest.NewRecorder(&test.ResponseWriter{RemoteIP: "127.0.0.1"})
		if _, err := n.ServeDNS(context.Background(), w, new(dns.Msg).SetQuestion("7.nodelocal-health.", dns.TypeA)); err != nil {
			t.Fatal(err)
		}
		if w.Msg.Rcode != dns.RcodeSuccess || len(w.Msg.Answer) != 0 {
			t.Errorf("answer %s", w.Msg)
		}
	})
}
