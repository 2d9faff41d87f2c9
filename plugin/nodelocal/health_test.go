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
			err := a.ask(context.Background(), true)
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

// leaseBed is the lease of a process with a fake clock, and the element in the kernel.
type leaseBed struct {
	lease
	clock   time.Time
	expires time.Time // of the element
	ignores bool      // the rules are not there
	marks   []int     // of the datagrams that were sent
}

func (b *leaseBed) inKernel() bool { return b.clock.Before(b.expires) }

func (b *leaseBed) send(mark int) bool {
	b.marks = append(b.marks, mark)
	if b.ignores || mark == rules.RenewalMark && !b.inKernel() {
		return false
	}
	b.expires = b.clock.Add(rules.Lease)
	return true
}

// query processes the outcome of a query that took a time, and waits until the next one.
func (b *leaseBed) query(took time.Duration, err error) event {
	sent := b.clock
	b.clock = sent.Add(took)
	e := b.after(err, func() time.Time { return b.clock }, b.send)
	if next := sent.Add(b.interval()); next.After(b.clock) {
		b.clock = next
	}
	return e
}

// takeLease has the server answer until the lease is taken.
func (b *leaseBed) takeLease(t *testing.T) {
	t.Helper()
	for range 200 {
		if b.query(time.Millisecond, nil) == taken {
			return
		}
	}
	t.Fatal("the lease is not taken")
}

func newLeaseBed() *leaseBed { return &leaseBed{clock: time.Unix(1000, 0)} }

var errSilent = errors.New("no answer")

// TestHungServerLosesPodsWithinASecond lets the process live and the server cease to answer, at any time between two
// queries. The lease in the kernel ends a second after the last answer at most.
func TestHungServerLosesPodsWithinASecond(t *testing.T) {
	for hangs := 5 * time.Second; hangs < 6*time.Second; hangs += 7 * time.Millisecond {
		b := newLeaseBed()
		start := b.clock
		var answered time.Time
		losses := 0
		for b.clock.Sub(start) < 20*time.Second {
			took, err := time.Millisecond, error(nil)
			if b.clock.Sub(start) >= hangs {
				took, err = healthWait, errSilent
			} else {
				answered = b.clock.Add(took)
			}
			if b.query(took, err) == lost {
				losses++
			}
		}
		if without := b.expires.Sub(start.Add(hangs)); without <= 0 || without > rules.Lease {
			t.Errorf("the server hangs after %s: the lease ends %s later", hangs, without)
		}
		if after := b.expires.Sub(answered); after > rules.Lease {
			t.Errorf("the server hangs after %s: the lease ends %s after the last answer", hangs, after)
		}
		if losses != 1 {
			t.Errorf("the server hangs after %s: %d losses", hangs, losses)
		}
	}
}

// TestLease goes through what happens to the lease of an address, query by query.
func TestLease(t *testing.T) {
	const quick = time.Millisecond
	type step struct {
		took time.Duration
		err  error
		want event
	}
	answers := func(n int, last event) (all []step) {
		for range n - 1 {
			all = append(all, step{quick, nil, nothing})
		}
		return append(all, step{quick, nil, last})
	}
	held := answers(steady, taken)
	for _, tc := range []struct {
		name   string
		steps  []step
		leased bool // in the kernel at the end
	}{
		{"taken after five answers", held, true},
		{"renewed", append(held, answers(10, nothing)...), true},
		{"never taken without an answer", []step{{healthWait, errSilent, nothing}, {healthWait, errSilent, nothing}}, false},
		{"not taken where every second query is lost", slices.Repeat([]step{{quick, nil, nothing}, {healthWait, errSilent, nothing}}, 10), false},
		{"kept over one lost query", slices.Concat(held, []step{{healthWait, errSilent, nothing}}, answers(steady, nothing)), true},
		{"lost where every second query is lost", slices.Concat(held, []step{
			{healthWait, errSilent, nothing}, {quick, nil, nothing}, {healthWait, errSilent, lost}, {quick, nil, nothing}, {healthWait, errSilent, nothing},
		}), false},
		{"an answer after the lease has expired renews nothing", append(held, step{rules.Lease, nil, lost}), false},
		{"not taken at once after the loss", slices.Concat(held, []step{{rules.Lease, nil, lost}}, answers(steady, nothing)), false},
		{"not taken while the server is stopped again and again", slices.Concat(held, []step{{rules.Lease, nil, lost}}, slices.Repeat([]step{{2 * rules.Lease, nil, nothing}, {quick, nil, nothing}}, 10)), false},
		{"taken again after a second", slices.Concat(held, []step{{rules.Lease, nil, lost}}, answers(steady-1, nothing), answers(4, taken)), true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newLeaseBed()
			for i, s := range tc.steps {
				if got := b.query(s.took, s.err); got != s.want {
					t.Errorf("step %d: event %d, want %d", i, got, s.want)
				}
			}
			b.clock = b.clock.Add(-b.interval()) // the end of the last query
			if b.inKernel() != tc.leased || b.held != tc.leased {
				t.Errorf("at the end: in the kernel %t, here %t; want %t", b.inKernel(), b.held, tc.leased)
			}
		})
	}
	if renewal+healthWait+(steady-1)*catchUp >= rules.Lease-tick {
		t.Error("one lost query loses the lease")
	}
}

// TestStarvedServerWaitsLonger starves a server again and again: it takes the lease again later each time, until it has
// had the lease for a while.
func TestStarvedServerWaitsLonger(t *testing.T) {
	b := newLeaseBed()
	b.takeLease(t)
	var pauses []time.Duration
	for range 8 {
		if e := b.query(2*rules.Lease, nil); e != lost {
			t.Fatalf("event %d, want %d", e, lost)
		}
		at := b.clock
		b.takeLease(t)
		pauses = append(pauses, b.clock.Sub(at).Truncate(time.Second))
	}
	if want := []time.Duration{1, 2, 4, 8, 16, 30, 30, 30}; !slices.EqualFunc(pauses, want, func(a, b time.Duration) bool { return a == b*time.Second }) {
		t.Errorf("pauses %v, want %v seconds", pauses, want)
	}
	for end := b.clock.Add(stablePeriod); b.clock.Before(end); {
		b.query(time.Millisecond, nil)
	}
	b.query(2*rules.Lease, nil)
	if b.pause != firstPause {
		t.Errorf("after a stable period: pause %s, want %s", b.pause, firstPause)
	}
}

// TestFlushedLease flushes nftables while the server answers: that is no reason to wait.
func TestFlushedLease(t *testing.T) {
	b := newLeaseBed()
	b.takeLease(t)
	b.expires = time.Time{}
	if e := b.query(time.Millisecond, nil); e != nothing || !b.inKernel() || !b.held {
		t.Errorf("event %d, in the kernel %t, here %t; want the lease back", e, b.inKernel(), b.held)
	}
	b.expires, b.ignores = time.Time{}, true
	if e := b.query(time.Millisecond, nil); e != ignored || !b.held {
		t.Errorf("without rules: event %d, held %t", e, b.held)
	}
	b.clock = b.clock.Add(rules.Lease)
	if e := b.query(time.Millisecond, nil); e != lost || !errors.Is(b.cause(nil), errIgnored) {
		t.Errorf("without rules for long: event %d, cause %v", e, b.cause(nil))
	}
	// The kernel counts jiffies: the lease ends there a moment earlier.
	b = newLeaseBed()
	b.takeLease(t)
	b.clock = b.renewed.Add(rules.Lease - 6*time.Millisecond)
	b.expires = b.clock.Add(-time.Millisecond)
	if e := b.query(time.Millisecond, nil); e != lost || b.inKernel() {
		t.Errorf("a lease that has just expired: event %d, in the kernel %t", e, b.inKernel())
	}
	// A process that is stopped between its decision and the datagram: only the kernel can know.
	b = newLeaseBed()
	b.takeLease(t)
	b.marks = nil
	at := b.clock
	times := []time.Time{at, at.Add(2 * rules.Lease)}
	now := func() time.Time { b.clock, times = times[0], times[min(1, len(times)-1):]; return b.clock }
	b.expires = time.Time{}
	if e := b.after(nil, now, b.send); e != lost || b.inKernel() || !slices.Equal(b.marks, []int{rules.RenewalMark}) {
		t.Errorf("stopped before the renewal: event %d, in the kernel %t, marks %#x", e, b.inKernel(), b.marks)
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
		if err := a.ask(context.Background(), true); err == nil || !strings.HasPrefix(err.Error(), "tcp: ") {
			t.Errorf("without TCP: %v", err)
		}
	}
	refuse.Store(false)
	for range 2 * tcpEvery {
		if err := a.ask(context.Background(), true); err != nil {
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
