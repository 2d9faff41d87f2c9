package nodelocal

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/dnstest"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
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
		{"from a pod", "cluster.local.", "7.nodelocal-health.cluster.local.", "10.1.0.2", next, dns.RcodeNameError, true, false},
		{"another name", "cluster.local.", "web.shop.svc.cluster.local.", "127.0.0.1", next, dns.RcodeNameError, true, false},
		{"the suffix itself", "cluster.local.", "nodelocal-health.cluster.local.", "127.0.0.1", next, dns.RcodeNameError, true, false},
		{"of another zone", ".", "7.nodelocal-health.cluster.local.", "127.0.0.1", next, dns.RcodeNameError, true, false},
		{"another name without a next plugin", ".", "example.com.", "127.0.0.1", nil, dns.RcodeRefused, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := &NodeLocal{Next: tc.next, suffix: healthSuffix(tc.zone)}
			m := new(dns.Msg).SetQuestion(tc.question, dns.TypeTXT)
			w := dnstest.NewRecorder(&test.ResponseWriter{RemoteIP: tc.remote})
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

// TestAsk asks real servers on loopback.
func TestAsk(t *testing.T) {
	right := &NodeLocal{suffix: healthSuffix(".")}
	for _, tc := range []struct {
		name    string
		answer  dns.HandlerFunc
		network []string
		want    error
		fails   bool
	}{
		{"right", func(w dns.ResponseWriter, r *dns.Msg) { _, _ = right.ServeDNS(context.Background(), w, r) }, []string{"udp", "tcp"}, nil, false},
		{"UDP only", func(w dns.ResponseWriter, r *dns.Msg) { _, _ = right.ServeDNS(context.Background(), w, r) }, []string{"udp"}, nil, true},
		{"another server", func(w dns.ResponseWriter, r *dns.Msg) { _ = w.WriteMsg(new(dns.Msg).SetReply(r)) }, []string{"udp", "tcp"}, errOther, true},
		{"refused", func(w dns.ResponseWriter, r *dns.Msg) { _ = w.WriteMsg(new(dns.Msg).SetRcode(r, dns.RcodeRefused)) }, []string{"udp", "tcp"}, errOther, true},
		{"silence", func(dns.ResponseWriter, *dns.Msg) {}, []string{"udp", "tcp"}, nil, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := &asker{to: serve(t, tc.answer, tc.network), suffix: right.suffix}
			err := a.ask(context.Background(), false)
			if (err != nil) != tc.fails || tc.want != nil && !errors.Is(err, tc.want) {
				t.Errorf("error %v, want %v", err, tc.want)
			}
		})
	}
}

// serve answers on a port of the loopback address until the end of the test.
func serve(t *testing.T, answer dns.HandlerFunc, networks []string) netip.AddrPort {
	t.Helper()
	packets, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	to := packets.LocalAddr().(*net.UDPAddr).AddrPort()
	for _, network := range networks {
		s := &dns.Server{Handler: answer, PacketConn: packets}
		if network == "tcp" {
			s.PacketConn = nil
			if s.Listener, err = net.Listen("tcp", to.String()); err != nil {
				t.Skip("the port is taken for TCP")
			}
		}
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		go func() { _ = s.ActivateAndServe() }()
		<-started
		t.Cleanup(func() {
			if err := s.Shutdown(); err != nil {
				t.Error(err)
			}
		})
	}
	return to
}

// TestLease goes through what happens to the lease of an address, query by query.
func TestLease(t *testing.T) {
	failure := errors.New("no answer")
	type step struct {
		at, answered       time.Duration // sent, and when the answer came or the wait was over
		err                error
		renew, taken, lost bool
	}
	for _, tc := range []struct {
		name  string
		steps []step
	}{
		{"taken by the second answer", []step{
			{0, 1, nil, true, false, false},
			{300, 301, nil, true, true, false},
			{600, 601, nil, true, false, false},
		}},
		{"never taken without an answer", []step{
			{0, 600, failure, false, false, false},
			{600, 1200, failure, false, false, false},
			{1200, 1800, failure, false, false, false},
		}},
		{"kept over one lost query", []step{
			{0, 1, nil, true, false, false},
			{300, 301, nil, true, true, false},
			{600, 1200, failure, false, false, false},
			{1200, 1201, nil, true, false, false},
			{1250, 1251, nil, true, false, false},
		}},
		{"lost by silence, and taken again", []step{
			{0, 1, nil, true, false, false},
			{300, 301, nil, true, true, false},
			{600, 1200, failure, false, false, false},
			{1200, 1800, failure, false, false, true},
			{1800, 2400, failure, false, false, false},
			{2400, 2401, nil, true, false, false},
			{2450, 2451, nil, true, true, false},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			start := time.Unix(1000, 0)
			var l lease
			renew := false
			for i, s := range tc.steps {
				var taken, lost bool
				renew, taken, lost = l.after(start.Add(s.at*time.Millisecond), renew, s.err, start.Add(s.answered*time.Millisecond))
				if renew != s.renew || taken != s.taken || lost != s.lost {
					t.Errorf("step %d: renew %t, taken %t, lost %t; want %t, %t, %t", i, renew, taken, lost, s.renew, s.taken, s.lost)
				}
			}
		})
	}
	if healthWait+renewal >= rules.Lease {
		t.Error("one lost query loses the lease")
	}
}
