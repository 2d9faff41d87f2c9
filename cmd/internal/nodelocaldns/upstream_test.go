package nodelocaldns

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// patience bounds every wait.
const patience = 10 * time.Second

// upstream is a server on loopback that answers over UDP, over TCP, or neither.
type upstream struct {
	addr    string
	queries atomic.Int64
}

// modes of TCP.
const (
	answers = iota
	refuses
	hangs
	closes
)

func startUpstream(t *testing.T, udp bool, tcp int) *upstream {
	t.Helper()
	u := &upstream{}
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, m *dns.Msg) {
		u.queries.Add(1)
		if err := w.WriteMsg(new(dns.Msg).SetRcode(m, dns.RcodeRefused)); err != nil {
			t.Logf("answer: %v", err)
		}
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u.addr = listener.Addr().String()
	if udp {
		serve(t, &dns.Server{PacketConn: packets(t, u.addr), Handler: handler})
	}
	switch tcp {
	case answers:
		serve(t, &dns.Server{Listener: listener, Handler: handler})
	case refuses:
		if err := listener.Close(); err != nil {
			t.Fatal(err)
		}
	default:
		t.Cleanup(func() { _ = listener.Close() })
		go accept(listener, tcp == closes)
	}
	return u
}

func packets(t *testing.T, addr string) net.PacketConn {
	t.Helper()
	conn, err := net.ListenPacket("udp", addr)
	if err != nil {
		t.Skipf("UDP port %s is taken: %v", addr, err)
	}
	return conn
}

func serve(t *testing.T, s *dns.Server) {
	t.Helper()
	started := make(chan struct{})
	s.NotifyStartedFunc = func() { close(started) }
	go func() {
		if err := s.ActivateAndServe(); err != nil {
			t.Logf("serve: %v", err)
		}
	}()
	<-started
	t.Cleanup(func() {
		if err := s.Shutdown(); err != nil {
			t.Errorf("shutdown: %v", err)
		}
	})
}

// accept takes connections and never answers.
func accept(l net.Listener, hangUp bool) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		if hangUp {
			_ = conn.Close()
		}
	}
}

// TestProbe asks servers on loopback.
func TestProbe(t *testing.T) {
	for _, tc := range []struct {
		name       string
		udp        bool
		tcp        int
		wantTCP    bool
		wantKnown  bool
		wantOption string
	}{
		{"both", true, answers, true, true, overTCP},
		{"TCP only", false, answers, true, true, overTCP},
		{"TCP refused", true, refuses, false, true, overUDP},
		{"TCP hangs", true, hangs, false, true, overUDP},
		{"TCP closed at once", true, closes, false, true, overUDP},
		{"neither", false, refuses, false, false, overUDP},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			u, good := startUpstream(t, tc.udp, tc.tcp), startUpstream(t, true, answers)
			p := newProber(nil)
			begin := time.Now()
			if got := p.transport([]string{good.addr, u.addr}); got != tc.wantOption {
				t.Errorf("option %s, want %s", got, tc.wantOption)
			}
			if took := time.Since(begin); took > patience {
				t.Errorf("took %s", took)
			}
			if f := p.found[u.addr]; f.tcp != tc.wantTCP || f.known != tc.wantKnown || f.tcp == (f.reason != "") {
				t.Errorf("found %+v", f)
			}
			asked := u.queries.Load()
			p.transport([]string{u.addr})
			if got := u.queries.Load(); got != asked {
				t.Errorf("asked %d times more for what is known", got-asked)
			}
			p.keep([]string{good.addr})
			if len(p.found) != 1 {
				t.Errorf("remembers %v", p.found)
			}
		})
	}
}

// clock is a time that tests let pass.
type clock struct{ waits chan chan time.Time }

func (c clock) after(time.Duration) <-chan time.Time {
	w := make(chan time.Time)
	c.waits <- w
	return w
}

// pass lets the next wait end, and returns when it has.
func (c clock) pass(t *testing.T) {
	t.Helper()
	select {
	case w := <-c.waits:
		w <- time.Time{}
	case <-time.After(patience):
		t.Fatal("nobody waits")
	}
}

// network is a pretended one.
type network struct {
	mu   sync.Mutex
	down map[string]bool // "tcp 10.0.0.1:53"
}

func (n *network) set(down bool, networks ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, name := range networks {
		n.down[name+" 10.0.0.1:53"] = down
	}
}

func (n *network) exchange(network, server string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down[network+" "+server] {
		return errors.New("no answer")
	}
	return nil
}

// TestProbeAgain lets time pass: what changes has to be seen twice, and a server that is away says
// nothing of TCP.
func TestProbeAgain(t *testing.T) {
	c, net := clock{make(chan chan time.Time)}, &network{down: map[string]bool{}}
	changes := make(chan struct{}, 10)
	p := newProber(func() { changes <- struct{}{} })
	p.after, p.exchange = c.after, net.exchange
	servers := []string{"10.0.0.1:53", "10.0.0.2:53"}
	expect := func(step, option string, changed int) {
		t.Helper()
		got := len(changes)
		for range got {
			<-changes
		}
		if o := p.transport(servers); o != option || got != changed {
			t.Errorf("%s: option %s after %d changes, want %s after %d", step, o, got, option, changed)
		}
	}
	expect("at the start", overTCP, 0)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.run(ctx)
	}()
	// Each step ends where run waits again, so the last wait of a step is let pass by the next.
	round := func(n int) {
		for range n {
			c.pass(t)
		}
	}
	round(1) // nothing changed, waits for the next
	net.set(true, "tcp")
	round(1) // seen once
	net.set(false, "tcp")
	round(1) // not seen again
	expect("lost once", overTCP, 0)
	net.set(true, "tcp")
	round(3) // waits for a round again, twice seen, and one more to be sure that it is done
	expect("refused", overUDP, 1)
	net.set(true, "udp")
	round(1)
	expect("away", overUDP, 0)
	net.set(false, "tcp", "udp")
	round(probeUDP + 2) // one that is asked over UDP is not asked in each round
	expect("mended", overTCP, 1)
	net.set(true, "tcp", "udp")
	round(2)
	expect("away again", overTCP, 0)
	stop()
	select {
	case <-ended:
	case w := <-c.waits:
		_ = w
		<-ended
	case <-time.After(patience):
		t.Fatal("does not end")
	}
}

// TestProbeRounds counts how often servers are asked: one that is asked over TCP in each round.
func TestProbeRounds(t *testing.T) {
	c, asked := clock{make(chan chan time.Time)}, map[string]int{}
	var mu sync.Mutex
	p := newProber(nil)
	p.after = c.after
	p.exchange = func(network, server string) error {
		mu.Lock()
		defer mu.Unlock()
		asked[network+" "+server]++
		if network == "tcp" && server == "slow:53" {
			return errors.New("no answer")
		}
		return nil
	}
	p.transport([]string{"good:53", "slow:53"})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.run(ctx)
	}()
	for range 2 * probeUDP {
		c.pass(t)
	}
	w := <-c.waits // the last round is over
	stop()
	close(w)
	<-ended
	for name, want := range map[string]int{"tcp good:53": 1 + 2*probeUDP, "udp good:53": 0, "tcp slow:53": 3, "udp slow:53": 3} {
		if got := asked[name]; got != want {
			t.Errorf("%s was asked %d times, want %d", name, got, want)
		}
	}
}

// TestProbeUnknown has a server that is away at the start: UDP until it is known.
func TestProbeUnknown(t *testing.T) {
	net := &network{down: map[string]bool{"tcp 10.0.0.1:53": true, "udp 10.0.0.1:53": true}}
	p := newProber(nil)
	p.exchange = net.exchange
	servers := []string{"10.0.0.1:53"}
	if got := p.transport(servers); got != overUDP {
		t.Errorf("option %s", got)
	}
	net.set(false, "udp")
	all := func(string, finding) bool { return true }
	if p.accept(p.different(all)) {
		t.Error("to be reloaded for what is in use already")
	}
	if f := p.found["10.0.0.1:53"]; !f.known || !strings.Contains(f.reason, "no answer") {
		t.Errorf("found %+v", f)
	}
	net.set(false, "tcp")
	if !p.accept(p.different(all)) {
		t.Error("not to be reloaded")
	}
	if got := p.transport(servers); got != overTCP {
		t.Errorf("option %s", got)
	}
}
