//go:build linux

package fastpath

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/kit"
)

// life is a program under load whose configuration changes.
type life struct {
	*server
	corefile string // with FASTPATH and OTHER, where OTHER may be an invalid directive
	next     func(worker, i int) question
}

// bothLoopbacks is the bind directive of most Corefiles of the tests.
const bothLoopbacks = "bind 127.0.0.1 ::1"

// binds are the bind directives of every reload test. For the kernel, 0.0.0.0 and :: are the same address with two
// servers.
var binds = []string{bothLoopbacks, "bind 0.0.0.0 ::"}

// forEachLife runs a test with each program and each directive of binds.
func forEachLife(t *testing.T, test func(*testing.T, life)) {
	for name, begin := range map[string]func(*testing.T, string) life{"clusterdns": startClusterdns, "nodecache": startNodecache} {
		forEachBind(t, name, func(t *testing.T, bind string) { test(t, begin(t, bind)) })
	}
}

// forEachBind runs a test with each directive of binds.
func forEachBind(t *testing.T, name string, test func(t *testing.T, bind string)) {
	for _, bind := range binds {
		t.Run(name+"/"+bind, func(t *testing.T) { test(t, bind) })
	}
}

// startLoads starts a load over IPv4 and one over IPv6.
func (l life) startLoads(t *testing.T) (loads [2]*load) {
	t.Helper()
	for i, host := range []string{"127.0.0.1", "::1"} {
		loads[i] = startLoad(t, net.JoinHostPort(host, strconv.Itoa(l.Port)), 8, l.next)
	}
	return loads
}

// endLoads ends the loads, and fails the test for every query that was lost or answered wrongly.
func endLoads(t *testing.T, loads [2]*load) {
	t.Helper()
	t.Logf("%d queries over IPv4, %d over IPv6", loads[0].end(t), loads[1].end(t))
}

// awaitQueries waits until each of the loads has sent some more queries.
func awaitQueries(t *testing.T, loads [2]*load) {
	t.Helper()
	for _, l := range loads {
		asked := l.asked.Load()
		kit.Eventually(t, "the load continues", func() bool { return l.asked.Load() > asked+100 })
	}
}

func startClusterdns(t *testing.T, bind string) life {
	t.Helper()
	corefile := strings.Replace(clusterBlock(newCluster(t), "OTHER"), bothLoopbacks, bind, 1)
	next := func(worker, i int) question {
		switch i % 4 {
		case 0: // a new name
			return question{fmt.Sprintf("x%d-%d.shop.svc.cluster.local.", worker, i), dns.TypeA, isRcode(dns.RcodeNameError)}
		case 1:
			return question{"web.shop.svc.cluster.local.", dns.TypeA, isAddress("10.96.12.34")}
		case 2:
			return question{"db-0.db.shop.svc.cluster.local.", dns.TypeA, isAddress("10.244.1.20")}
		default:
			return question{"gone.shop.svc.cluster.local.", dns.TypeAAAA, isRcode(dns.RcodeNameError)}
		}
	}
	return life{start(t, "clusterdns", without(corefile)), corefile, next}
}

func startNodecache(t *testing.T, bind string) life {
	t.Helper()
	u := startUpstream(t, answerAddress)
	corefile := fmt.Sprintf(`.:PORT {
    %s
    errors
    prometheus METRICS
    FASTPATH
    OTHER
    cache 30
    forward . %s
}
`, bind, u.address)
	next := func(worker, i int) question {
		if i%2 == 0 {
			return question{fmt.Sprintf("x%d-%d.example.org.", worker, i), dns.TypeA, isAddress("192.0.2.1")}
		}
		return question{"www.example.org.", dns.TypeA, isAddress("192.0.2.1")}
	}
	return life{start(t, "nodecache", without(corefile)), corefile, next}
}

// without removes the placeholders of a Corefile.
func without(corefile string) string { return with(corefile, "", "") }

// with replaces the placeholders of a Corefile.
func with(corefile, fastpath, other string) string {
	return strings.NewReplacer("FASTPATH", fastpath, "OTHER", other).Replace(corefile)
}

// TestReload changes the configuration under load, many times.
func TestReload(t *testing.T) {
	forEachLife(t, func(t *testing.T, s life) {
		loads := s.startLoads(t)
		for _, step := range []struct {
			name            string
			fastpath, other string
			ended           string // log line at the end of the reload
			hits            bool   // whether the fast path is on then
		}{
			{"the same", "", "", "[INFO] Reloading complete", true},
			{"another limit", "fastpath {\nmax_concurrent 100\n}", "", "[INFO] Reloading complete", true},
			{"off", "fastpath off", "", "[INFO] Reloading complete", false},
			{"off again", "fastpath off", "", "[INFO] Reloading complete", false},
			{"broken while off", "", "nonsense", "Not reloaded", false},
			{"on", "fastpath on", "", "[INFO] Reloading complete", true},
			{"broken", "", "nonsense", "Not reloaded", true},
			{"broken at the start", "", "forward . /none/resolv.conf", "Not reloaded", true},
			{"broken off", "fastpath off", "health 127.0.0.1:1:1", "Not reloaded", true},
			{"off with a plugin", "", "loadbalance round_robin {\nprefer 10.0.0.0/8\n}", "[INFO] Reloading complete", false},
			{"on again", "", "", "[INFO] Reloading complete", true},
			{"the same again", "", "", "[INFO] Reloading complete", true},
		} {
			s.reloadUntil(t, with(s.corefile, step.fastpath, step.other), step.ended)
			before := s.scrape(t).Sum(answeredTotal)
			awaitQueries(t, loads)
			if grown := s.scrape(t).Sum(answeredTotal) - before; (grown > 0) != step.hits {
				t.Errorf("%s: the fast path has answered %v queries", step.name, grown)
			}
		}
		endLoads(t, loads)
	})
}

// TestConsecutiveReloads reloads many times, and waits only for the end of each reload.
func TestConsecutiveReloads(t *testing.T) {
	forEachLife(t, func(t *testing.T, s life) {
		loads := s.startLoads(t)
		for i := range 10 {
			s.reload(t, with(s.corefile, []string{"", "fastpath off"}[i%2], ""))
		}
		for range 10 {
			s.reload(t, without(s.corefile))
		}
		endLoads(t, loads)
	})
}

// TestManyZones starts and reloads programs with many zones in one server block, and with networks, of which CoreDNS makes a zone for
// each 8 or 16 bits. Every query is answered.
func TestManyZones(t *testing.T) {
	u := startUpstream(t, answerAddress)
	var numbered strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&numbered, "z%d.example.org:PORT ", i)
	}
	for _, tc := range []struct{ name, program, zones, other string }{
		{"numbered", "nodecache", numbered.String(), ""}, // without prometheus, which takes seconds in CoreDNS as well
		{"networks", "clusterdns", "example.org:PORT 10.128.0.0/9:PORT 100.64.0.0/10:PORT 192.168.0.0/17:PORT", "prometheus METRICS"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			corefile := fmt.Sprintf("%s {\n%s\nerrors\n%s\ncache\nforward . %s\n}\n", tc.zones, bothLoopbacks, tc.other, u.address)
			next := func(worker, i int) question {
				return question{fmt.Sprintf("x%d.z%d.example.org.", worker, i%10_000), dns.TypeA, isAddress("192.0.2.1")}
			}
			s := life{start(t, tc.program, corefile), corefile, next}
			loads := s.startLoads(t)
			s.reload(t, corefile)
			awaitQueries(t, loads)
			endLoads(t, loads)
		})
	}
}

// TestReloadOfAddresses drops addresses of a program under load, and adds them again: queries to the remaining ones are
// answered. For the kernel they are one address, so no client notices which of the servers is running.
func TestReloadOfAddresses(t *testing.T) {
	const all = "bind 0.0.0.0 ::"
	for name, begin := range map[string]func(*testing.T, string) life{"clusterdns": startClusterdns, "nodecache": startNodecache} {
		t.Run(name, func(t *testing.T) {
			s := begin(t, all)
			loads := s.startLoads(t)
			for _, step := range []struct {
				bind, fastpath string
				hits           bool // whether the fast path is on then
			}{
				{"bind ::", "", true},
				{"bind ::", "fastpath off", false},
				{"bind ::", "", true},
				{all, "", true},
				{"bind 0.0.0.0", "", true},
				{"bind 0.0.0.0", "fastpath off", false},
				{all, "", true},
				{"", "", true},
				{all, "", true},
				{all, "fastpath off", false},
				{"bind ::", "fastpath off", false},
				{all, "", true},
			} {
				s.reload(t, with(strings.Replace(s.corefile, all, step.bind, 1), step.fastpath, ""))
				before := s.scrape(t).Sum(answeredTotal)
				awaitQueries(t, loads)
				if grown := s.scrape(t).Sum(answeredTotal) - before; (grown > 0) != step.hits {
					t.Errorf("%q %q: the fast path has answered %v queries", step.bind, step.fastpath, grown)
				}
			}
			endLoads(t, loads)
		})
	}
}

// heldZone has the names whose answers are held back.
const heldZone = ".example.org."

// slow starts a program that forwards to a server which holds back its answers. Options are those of forward.
func slow(t *testing.T, bind, fastpath string, options ...string) (*server, *gate) {
	t.Helper()
	g := newGate(t)
	u := startUpstream(t, func(w dns.ResponseWriter, r *dns.Msg) {
		if strings.HasSuffix(r.Question[0].Name, heldZone) {
			g.pass(r.Question[0].Name)
		}
		answerAddress(w, r)
	})
	corefile := strings.Replace(clusterBlock(newCluster(t), fmt.Sprintf("forward . %s {\n%s\n}", u.address, strings.Join(options, "\n"))), bothLoopbacks, bind, 1)
	return start(t, "clusterdns", strings.ReplaceAll(corefile, "FASTPATH", fastpath)), g
}

// burst sends queries for different names from one socket, and returns the socket.
func burst(t *testing.T, address string, names []string) net.Conn {
	t.Helper()
	conn, err := net.Dial("udp", address)
	kit.Must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	for _, name := range names {
		if _, err := conn.Write(pack(t, newQuery(name, dns.TypeA))); err != nil {
			t.Fatal(err)
		}
	}
	return conn
}

// answered reads count answers, and returns their names.
func answered(t *testing.T, conn net.Conn, count int) (names map[string]bool) {
	t.Helper()
	names = map[string]bool{}
	b := make([]byte, 4096)
	for len(names) < count {
		kit.Must(t, conn.SetReadDeadline(time.Now().Add(bounded)))
		n, err := conn.Read(b)
		if err != nil {
			t.Errorf("after %d of %d answers: %v", len(names), count, err)
			return names
		}
		m := new(dns.Msg)
		if err := m.Unpack(b[:n]); err != nil || len(m.Question) != 1 {
			t.Fatalf("%v: %v", m, err)
		}
		if wrong := isAddress("192.0.2.1")(m); wrong != "" {
			t.Error(wrong)
		}
		names[m.Question[0].Name] = true
	}
	return names
}

// unique returns count new names.
func unique(count int) (names []string) {
	mark := rand.Uint32()
	for i := range count {
		names = append(names, fmt.Sprintf("x%d-%d%s", i, mark, heldZone))
	}
	return names
}

// TestReloadWithSlowUpstream ends servers and programs while a slow upstream has queries.
func TestReloadWithSlowUpstream(t *testing.T) {
	const queries = 300
	for _, tc := range []struct {
		name string
		end  func(t *testing.T, s *server, begun func())
	}{
		{"stop", func(t *testing.T, s *server, begun func()) {
			s.Signal(t, syscall.SIGTERM)
			kit.Eventually(t, "the stop begins", func() bool { return strings.Contains(s.Output(), "SIGTERM: Shutting down") })
			begun()
			if code, err := s.Wait(2 * bounded); code != 0 || err != nil {
				t.Errorf("exit code %d: %v", code, err)
			}
		}},
		{"reload", func(t *testing.T, s *server, begun func()) {
			before := strings.Count(s.Output(), "[INFO] Reloading complete")
			s.Signal(t, syscall.SIGUSR1)
			kit.Eventually(t, "the reload begins", func() bool { return strings.Contains(s.Output(), "SIGUSR1: Reloading") })
			begun()
			kit.Eventually(t, "the reload ends", func() bool { return strings.Count(s.Output(), "[INFO] Reloading complete") > before })
		}},
	} {
		forEachBind(t, tc.name, func(t *testing.T, bind string) {
			s, g := slow(t, bind, "")
			// A socket's buffer has room for this number of unread answers.
			var conns []net.Conn
			for range 6 {
				conns = append(conns, burst(t, s.Addr, unique(queries/6)))
			}
			kit.Eventually(t, "the slow server has all queries", func() bool { return g.count() == queries })
			tc.end(t, s, func() {
				time.AfterFunc(200*time.Millisecond, g.open) // the program is ending
			})
			for _, conn := range conns {
				answered(t, conn, queries/6)
			}
		})
	}
}

// TestStopWithUnreadQueries ends a program that has not read its queries yet.
func TestStopWithUnreadQueries(t *testing.T) {
	const queries = 200
	for _, tc := range []struct {
		name   string
		signal syscall.Signal
	}{
		{"stop", syscall.SIGTERM},
		{"reload", syscall.SIGUSR1},
	} {
		forEachBind(t, tc.name, func(t *testing.T, bind string) {
			s, g := slow(t, bind, "")
			g.open()
			s.Signal(t, syscall.SIGSTOP)
			var conns []net.Conn // several, so that every socket of the program receives some
			for range 10 {
				conns = append(conns, burst(t, s.Addr, unique(queries/10)))
			}
			s.Signal(t, tc.signal)
			s.Signal(t, syscall.SIGCONT)
			for _, conn := range conns {
				answered(t, conn, queries/10)
			}
			if tc.signal == syscall.SIGTERM {
				if code, err := s.Wait(2 * bounded); code != 0 || err != nil {
					t.Errorf("exit code %d: %v", code, err)
				}
			}
		})
	}
}
