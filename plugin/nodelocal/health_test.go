package nodelocal

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
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
			to := serve(t, tc.answer, tc.network)
			a := newAsker(to.Addr(), "lo", to.Port(), right.suffix)
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

// TestLease goes through what happens to the lease of an address, query by query. Times are milliseconds.
func TestLease(t *testing.T) {
	failure := errors.New("no answer")
	type step struct {
		sent, over time.Duration // when the answer came or the wait was over
		err        error
		renew      bool // the next one is to
		want       event
	}
	// start is what a healthy server does first.
	start := []step{
		{0, 1, nil, false, nothing},
		{50, 51, nil, false, nothing},
		{100, 101, nil, false, nothing},
		{150, 151, nil, false, nothing},
		{200, 201, nil, true, nothing},
		{250, 251, nil, true, taken},
		{550, 551, nil, true, nothing},
	}
	for _, tc := range []struct {
		name  string
		steps []step
	}{
		{"taken after five answers", start},
		{"never taken without an answer", []step{
			{0, 600, failure, false, nothing},
			{600, 1200, failure, false, nothing},
			{1200, 1800, failure, false, nothing},
		}},
		{"not taken where every second query is lost", []step{
			{0, 1, nil, false, nothing},
			{50, 650, failure, false, nothing},
			{650, 651, nil, false, nothing},
			{700, 1300, failure, false, nothing},
			{1300, 1301, nil, false, nothing},
		}},
		{"kept over one lost query", append(slices.Clone(start), []step{
			{850, 1450, failure, false, nothing},
			{1450, 1451, nil, false, nothing},
			{1500, 1501, nil, false, nothing},
			{1550, 1551, nil, false, nothing},
			{1600, 1601, nil, false, nothing},
			{1650, 1651, nil, true, nothing},
			{1700, 1701, nil, true, nothing},
		}...)},
		{"ran out, and taken again", append(slices.Clone(start), []step{
			{850, 1450, failure, false, nothing},
			{1500, 1501, nil, false, nothing},
			{1550, 1551, nil, false, nothing},
			{1600, 1601, nil, false, nothing},
			{1650, 1651, nil, false, nothing},
			{1700, 1701, nil, true, nothing},
			{1900, 1901, nil, true, lostAndTaken},
			{2200, 2201, nil, true, nothing},
		}...)},
		{"lost by silence", append(slices.Clone(start), []step{
			{850, 1450, failure, false, nothing},
			{1450, 2050, failure, false, lost},
			{2050, 2650, failure, false, nothing},
		}...)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			begin := time.Unix(1000, 0)
			var l lease
			for i, s := range tc.steps {
				got := l.after(begin.Add(s.sent*time.Millisecond), l.renew(), s.err, begin.Add(s.over*time.Millisecond))
				if l.renew() != s.renew || got != s.want {
					t.Errorf("step %d: renew %t, event %d; want %t, %d", i, l.renew(), got, s.renew, s.want)
				}
			}
		})
	}
	if healthWait+(steady+1)*catchUp >= rules.Lease {
		t.Error("one lost query loses the lease")
	}
}

// TestAskTCP has a server lose TCP and get it back.
func TestAskTCP(t *testing.T) {
	right := &NodeLocal{suffix: healthSuffix(".")}
	var refuse atomic.Bool
	to := serve(t, func(w dns.ResponseWriter, r *dns.Msg) {
		if _, tcp := w.RemoteAddr().(*net.TCPAddr); tcp && refuse.Load() {
			_ = w.Close()
			return
		}
		_, _ = right.ServeDNS(context.Background(), w, r)
	}, []string{"udp", "tcp"})
	a := newAsker(to.Addr(), "lo", to.Port(), right.suffix)
	refuse.Store(true)
	for range 3 { // one of ten queries goes over TCP, but each after a failure
		if err := a.ask(context.Background(), false); err == nil || !strings.HasPrefix(err.Error(), "tcp: ") {
			t.Errorf("without TCP: %v", err)
		}
	}
	refuse.Store(false)
	for range 2 * tcpEvery {
		if err := a.ask(context.Background(), false); err != nil {
			t.Error(err)
		}
	}
}

func TestSilence(t *testing.T) {
	failure := errors.New("no answer")
	begin := time.Unix(1000, 0)
	for _, tc := range []struct {
		name  string
		after []time.Duration // the queries, all without an answer but those below 0
		held  bool
		want  int // how often it is said
	}{
		{"from the start", []time.Duration{time.Second, 4 * time.Second, 6 * time.Second, 60 * time.Second}, false, 1},
		{"not long enough", []time.Duration{time.Second, 4 * time.Second}, false, 0},
		{"an answer between", []time.Duration{4 * time.Second, -5 * time.Second, 8 * time.Second}, false, 0},
		{"after an answer", []time.Duration{6 * time.Second, -7 * time.Second, 8 * time.Second, 13 * time.Second}, false, 2},
		{"while the lease is held", []time.Duration{6 * time.Second, 20 * time.Second}, true, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, said := silence{since: begin}, 0
			for _, d := range tc.after {
				err := failure
				if d < 0 {
					err, d = nil, -d
				}
				if s.after(err, tc.held, begin.Add(d)) {
					said++
				}
			}
			if said != tc.want {
				t.Errorf("said %d times, want %d", said, tc.want)
			}
		})
	}
}
