//go:build linux

package fastpath

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/kit"
)

const (
	waitingGauge = "nearside_kubernetes_waiting_queries"
	waitedTotal  = "nearside_kubernetes_waited_queries_total"
)

// workers returns a headless Service whose names queries wait for, with endpoints at addresses, the even ones with a hostname.
func workers(wait string, addresses ...string) string {
	return strings.Replace(headlessAt("workers", addresses...), "namespace: shop}",
		fmt.Sprintf("namespace: shop, annotations: {nearside.dev/wait-for-names: %s}}", wait), 1)
}

// startWaiting starts clusterdns with a Service without endpoints whose names are waited for.
func startWaiting(t *testing.T, wait string) (s *server, folder string) {
	t.Helper()
	folder = newCluster(t)
	manifest(t, folder, "workers.yaml", workers(wait))
	s = start(t, "clusterdns", strings.ReplaceAll(clusterBlock(folder), "FASTPATH", ""))
	kit.Eventually(t, "the start line of the fast path", func() bool { return strings.Contains(s.Output(), ": fast path for ") })
	return s, folder
}

// packed returns a query for a name of the Service.
func packed(t *testing.T, name string, qtype uint16) []byte {
	t.Helper()
	b, err := new(dns.Msg).SetQuestion(name+".shop.svc.cluster.local.", qtype).Pack()
	kit.Must(t, err)
	return b
}

// replyOf returns the reply that a client receives.
func replyOf(t *testing.T, w *wire) *dns.Msg {
	t.Helper()
	b := w.receive(t, bounded)
	m := new(dns.Msg)
	if b == nil {
		t.Fatal("no reply")
	}
	kit.Must(t, m.Unpack(b))
	return m
}

// awaitWaiting waits until a number of queries wait.
func (s *server) awaitWaiting(t *testing.T, number float64) {
	t.Helper()
	kit.Eventually(t, fmt.Sprintf("%v queries wait", number), func() bool { return s.scrape(t).Sum(waitingGauge) == number })
}

func TestWaitForEndpoint(t *testing.T) {
	s, folder := startWaiting(t, "4s")
	var clients []*wire
	for _, network := range []string{"udp", "tcp"} {
		for _, name := range []string{"ep-0.workers", "workers", "ep-9.workers"} {
			w := dial(t, network, "127.0.0.1", s)
			w.send(t, packed(t, name, dns.TypeA))
			clients = append(clients, w)
		}
	}
	s.awaitWaiting(t, float64(len(clients)))
	other := dial(t, "udp", "127.0.0.1", s)
	begin := time.Now()
	other.ask(t, packed(t, "ep-0.workers", dns.TypeMX))
	other.ask(t, packed(t, "ep-0.none", dns.TypeA))
	manifest(t, folder, "workers.yaml", workers("4s", "10.245.0.1"))
	for i, w := range clients {
		if i%3 == 2 {
			continue
		}
		if m := replyOf(t, w); len(m.Answer) != 1 || m.Answer[0].(*dns.A).A.String() != "10.245.0.1" {
			t.Fatalf("reply\n%v", m)
		}
	}
	if took := time.Since(begin); took > 3*time.Second {
		t.Errorf("answered after %s", took)
	}
	begin = time.Now()
	other.ask(t, packed(t, "ep-0.workers", dns.TypeA))
	if m := brief(t, other.ask(t, packed(t, "ep-0.workers", dns.TypeAAAA))); !strings.Contains(m, "NOERROR") {
		t.Errorf("AAAA of a name with A: %s", m)
	}
	if took := time.Since(begin); took > time.Second {
		t.Errorf("queries for an existing name took %s", took)
	}
	for _, w := range []*wire{clients[2], clients[5]} {
		if m := replyOf(t, w); m.Rcode != dns.RcodeNameError {
			t.Errorf("reply\n%v", m)
		}
	}
	s.awaitWaiting(t, 0)
	kit.Eventually(t, "the queries are counted", func() bool {
		now := s.scrape(t)
		return now.Sum(waitedTotal, "result", "answered") == 4 && now.Sum(waitedTotal, "result", "timeout") == 2
	})
}

// TestWaitRewritten: a query for a name that plugin rewrite changes does not wait for the name.
func TestWaitRewritten(t *testing.T) {
	folder := newCluster(t)
	manifest(t, folder, "workers.yaml", workers("4s"))
	s := start(t, "clusterdns", strings.ReplaceAll(clusterBlock(folder, "rewrite name exact ep-0.workers.shop.svc.cluster.local web.shop.svc.cluster.local"), "FASTPATH", ""))
	w := dial(t, "udp", "127.0.0.1", s)
	if reply := brief(t, w.ask(t, packed(t, "ep-0.workers", dns.TypeA))); !strings.HasPrefix(reply, "NOERROR 10.") {
		t.Errorf("reply %s", reply)
	}
	w.send(t, packed(t, "ep-1.workers", dns.TypeA))
	s.awaitWaiting(t, 1)
	if n := s.scrape(t).Sum(waitedTotal); n != 0 {
		t.Errorf("%v queries have waited before", n)
	}
}

// TestWaitAgain: the negative answer after the time is not repeated to queries that have not waited.
func TestWaitAgain(t *testing.T) {
	const wait = 300 * time.Millisecond
	s, _ := startWaiting(t, "300ms")
	for _, network := range []string{"udp", "tcp"} {
		for i := range 3 {
			w := dial(t, network, "127.0.0.1", s)
			begin := time.Now()
			reply := brief(t, w.ask(t, packed(t, "ep-0.workers", dns.TypeA)))
			if took := time.Since(begin); !strings.Contains(reply, "NXDOMAIN") || took < wait || took > wait+bounded/4 {
				t.Errorf("%s, query %d: %s after %s", network, i, reply, took)
			}
		}
	}
}

// TestWaitingAtReload: a reload, and the end of the program, answer waiting queries at once.
func TestWaitingAtReload(t *testing.T) {
	s, folder := startWaiting(t, "4s")
	corefile := strings.ReplaceAll(clusterBlock(folder), "FASTPATH", "")
	udp, tcp := dial(t, "udp", "127.0.0.1", s), dial(t, "tcp", "127.0.0.1", s)
	s.expectAtOnce(t, "reload", func() { s.reload(t, strings.Replace(corefile, "ttl 30", "ttl 20", 1)) }, udp, tcp)
	s.expectAtOnce(t, "exit", func() { s.Signal(t, syscall.SIGTERM) }, udp, tcp)
}

// expectAtOnce has two queries wait, and expects their answers after a change.
func (s *server) expectAtOnce(t *testing.T, what string, change func(), clients ...*wire) {
	t.Helper()
	for _, w := range clients {
		w.send(t, packed(t, "ep-0.workers", dns.TypeA))
	}
	s.awaitWaiting(t, float64(len(clients)))
	begin := time.Now()
	change()
	for _, w := range clients {
		if m := replyOf(t, w); m.Rcode != dns.RcodeNameError {
			t.Errorf("%s: reply\n%v", what, m)
		}
	}
	if took := time.Since(begin); took > 3*time.Second {
		t.Errorf("%s: answered after %s", what, took)
	}
}

// TestWaitThroughNodecache has the query of a client wait behind a node's cache, for longer than its read_timeout.
func TestWaitThroughNodecache(t *testing.T) {
	s, folder := startWaiting(t, "4s")
	cache := startCache(t, s, "read_timeout 500ms")
	w := dial(t, "udp", "127.0.0.1", cache)
	w.send(t, packed(t, "ep-0.workers", dns.TypeA))
	kit.Eventually(t, "a query waits", func() bool { return s.scrape(t).Sum(waitingGauge) > 0 })
	time.Sleep(time.Second) // the next attempt waits, too
	manifest(t, folder, "workers.yaml", workers("4s", "10.245.0.1"))
	if m := replyOf(t, w); len(m.Answer) != 1 {
		t.Fatalf("reply\n%v", m)
	}
}

// TestWaitAgainBehindCaches has clients of one node's cache: each query waits for a name, also after the negative answer to another
// client, and while another one waits. All are answered once the endpoint exists.
func TestWaitAgainBehindCaches(t *testing.T) {
	for name, tt := range map[string]struct {
		coherent string
		caches   int
	}{
		"one cache":          {"", 1},
		"with a session":     {"coherent", 1},
		"a cache in between": {"", 2},
	} {
		t.Run(name, func(t *testing.T) {
			folder := newCluster(t)
			manifest(t, folder, "workers.yaml", workers("1s"))
			manifest(t, folder, "later.yaml", strings.ReplaceAll(workers("4s"), "workers", "later"))
			corefile := strings.ReplaceAll(clusterBlock(folder), "FASTPATH", "")
			s := start(t, "clusterdns", strings.Replace(corefile, "zonal\n", "zonal\n        "+tt.coherent+"\n", 1))
			cache := s
			for range tt.caches {
				cache = startCache(t, cache, tt.coherent)
			}
			expectWaits(t, s, cache, time.Second)

			clients := []*wire{dial(t, "udp", "127.0.0.1", s), dial(t, "udp", "127.0.0.1", cache), dial(t, "tcp", "127.0.0.1", cache)}
			for i, w := range clients {
				w.send(t, packed(t, "ep-0.later", dns.TypeA))
				kit.Eventually(t, "the queries wait", func() bool { return s.scrape(t).Sum(waitingGauge) >= float64(min(i+1, 2)) })
			}
			manifest(t, folder, "later.yaml", strings.ReplaceAll(workers("4s", "10.245.0.1"), "workers", "later"))
			var first time.Time
			for i, w := range clients {
				if m := replyOf(t, w); len(m.Answer) != 1 {
					t.Fatalf("client %d: reply\n%v", i, m)
				}
				if i == 0 {
					first = time.Now()
				}
			}
			took := time.Since(first)
			t.Logf("the clients of the cache are answered %s after that of clusterdns", took)
			if took > time.Second {
				t.Error("they have waited on")
			}
		})
	}
}

// startCache starts a node's cache in front of a server.
func startCache(t *testing.T, upstream *server, options string) *server {
	t.Helper()
	return start(t, "nodecache", fmt.Sprintf(`.:PORT {
    bind 127.0.0.1
    prometheus METRICS
    cache 30
    forward . 127.0.0.1:%d {
        force_tcp
        %s
    }
}
`, upstream.Port, options))
}

// expectWaits has two clients query a cache for a name that does not appear, one after the other, and a third one while the second
// waits: each waits for the whole time.
func expectWaits(t *testing.T, s, cache *server, wait time.Duration) {
	t.Helper()
	type query struct {
		*wire
		begin time.Time
	}
	ask := func() query {
		q := query{dial(t, "udp", "127.0.0.1", cache), time.Now()}
		q.send(t, packed(t, "ep-0.workers", dns.TypeA))
		return q
	}
	expect := func(what string, q query) {
		m := replyOf(t, q.wire)
		if took := time.Since(q.begin); m.Rcode != dns.RcodeNameError || took < wait {
			t.Errorf("%s client: %s after %s", what, dns.RcodeToString[m.Rcode], took)
		}
	}
	expect("first", ask())
	second := ask()
	s.awaitWaiting(t, 1)
	time.Sleep(wait / 3)
	third := ask()
	expect("second", second)
	expect("third", third)
}

// TestNoWaitWithoutFastPath: where a plugin has to see every query, no query waits.
func TestNoWaitWithoutFastPath(t *testing.T) {
	folder := newCluster(t)
	manifest(t, folder, "workers.yaml", workers("4s"))
	corefile := strings.ReplaceAll(clusterBlock(folder, "log"), "FASTPATH", "")
	for name, more := range map[string]string{"one block": "", "beside another": "example.org:PORT {\n bind 127.0.0.1 ::1\n cache 30\n forward . 127.0.0.1:1\n}\n"} {
		t.Run(name, func(t *testing.T) {
			s := start(t, "clusterdns", corefile+more)
			begin := time.Now()
			for _, network := range []string{"udp", "tcp"} {
				if reply := brief(t, dial(t, network, "127.0.0.1", s).ask(t, packed(t, "ep-0.workers", dns.TypeA))); reply != "NXDOMAIN" {
					t.Errorf("%s: %s", network, reply)
				}
			}
			if took := time.Since(begin); took > 3*time.Second {
				t.Errorf("answered after %s", took)
			}
		})
	}
}

// TestWaitInSession has queries of a session wait: their answers have handles, except the negative ones after the time, which no
// cache stores.
func TestWaitInSession(t *testing.T) {
	for name, more := range map[string]string{"by generation": "", "with cache": "cache 3600"} {
		t.Run(name, func(t *testing.T) {
			folder := newCluster(t)
			manifest(t, folder, "workers.yaml", workers("300ms"))
			corefile := strings.ReplaceAll(clusterBlock(folder, more), "FASTPATH", "")
			s := start(t, "clusterdns", strings.Replace(corefile, "zonal\n", "zonal\n        coherent\n", 1))
			c := openSession(t, s)
			const first, third = "ep-0.workers.shop.svc.cluster.local.", "ep-2.workers.shop.svc.cluster.local."
			for range 3 {
				begin := time.Now()
				text, handles := c.ask(t, first, dns.TypeA)
				if took := time.Since(begin); text != "NXDOMAIN" || len(handles) > 0 || took < 300*time.Millisecond {
					t.Fatalf("%q with handles %v after %s", text, handles, took)
				}
			}
			manifest(t, folder, "workers.yaml", workers("4s", "10.245.0.1"))
			kit.Eventually(t, "the endpoint has a name", func() bool {
				text, handles := c.ask(t, first, dns.TypeA)
				return text == "NOERROR 10.245.0.1" && len(handles) > 0
			})
			go func() {
				if soon(func() bool { return s.scrape(t).Sum(waitingGauge) == 1 }) {
					manifest(t, folder, "workers.yaml", workers("4s", "10.245.0.1", "10.245.0.2", "10.245.0.3"))
				}
			}()
			if text, handles := c.ask(t, third, dns.TypeA); text != "NOERROR 10.245.0.3" || len(handles) == 0 {
				t.Errorf("%q with handles %v", text, handles)
			}
			closing := openSession(t, s)
			q := newQuery("ep-9.workers.shop.svc.cluster.local.", dns.TypeA).SetEdns0(1232, false)
			q.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_LOCAL{Code: optionHandles}}
			closing.write(t, pack(t, q))
			s.awaitWaiting(t, 1)
			begin := time.Now()
			kit.Must(t, closing.Close())
			s.awaitWaiting(t, 0)
			if took := time.Since(begin); took > 3*time.Second {
				t.Errorf("a query of a closed session waits for %s", took)
			}
		})
	}
}
