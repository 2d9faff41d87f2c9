//go:build linux

package search

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"
)

// outsideNames are lookups of names outside of the cluster that exist only without a suffix.
var outsideNames = []lookup{
	{name: "both-#.outside.example", v4: "192.0.2.1", v6: "2001:db8::1", canonical: "both-#.outside.example", at: noSuffix},
	{name: "four-#.outside.example", v4: "192.0.2.2", canonical: "four-#.outside.example", at: noSuffix},
	{name: "alias-#.outside.example", v4: "192.0.2.3", v6: "2001:db8::3", canonical: "target-0.outside.example", at: noSuffix},
}

// outages are the ways in which cluster DNS does not answer.
var outages = []struct {
	name  string
	begin func(*tap)
}{
	{"killed", (*tap).close},
	{"failing", func(p *tap) { p.set(failing) }},
	{"silent", func(p *tap) { p.set(silent) }},
}

// testClusterDown has outages of cluster DNS: names of other servers are still found, also by musl, which gives up on
// SERVFAIL; the answer for missing names is SERVFAIL and not NXDOMAIN, since cluster DNS may have them.
func testClusterDown(t *testing.T, server *clusterServer, k kinds, all []resolver) {
	for _, tc := range outages {
		t.Run(tc.name, func(t *testing.T) {
			tc.begin(server.tap)
			defer server.mend(t)
			t.Run("lookups", func(t *testing.T) {
				for i, r := range all {
					t.Run(r.name, func(t *testing.T) {
						if i > 0 { // nodecache finds out with the first one that cluster DNS is down
							t.Parallel()
						}
						for _, l := range outsideNames {
							for _, family := range []string{"any", "4"} {
								if r.command(family, l.name) == nil {
									continue
								}
								l := l.next()
								got, err := r.resolve(k.shop, family, l.name) // packets are not counted: resolvers may retry
								kit.Must(t, err)
								l.check(t, r, family, true, got)
							}
						}
					})
				}
			})
			for _, network := range []string{"udp", "tcp"} {
				name := lookup{name: "missing-#"}.next().name + ".shop.svc.cluster.local."
				if err := (querier{from: k.shop.Namespace, server: local, network: network}).check(name, "A", "SERVFAIL"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	t.Run("mended", func(t *testing.T) {
		kit.Succeeds(t, maxWait, "cluster names are answered again", func() error {
			name := lookup{name: "missing-#"}.next().name + ".shop.svc.cluster.local."
			return querier{from: k.shop.Namespace, server: local, network: "udp"}.check(name, "A", "NXDOMAIN")
		})
	})
}

// mend ends an outage of cluster DNS.
func (p *tap) mend(t *testing.T) {
	t.Helper()
	p.set(passing)
	p.mu.Lock()
	closed := p.listener == nil
	p.mu.Unlock()
	if closed {
		p.listen(t)
	}
}

// stream is a client that sends queries continuously.
type stream struct {
	running sync.WaitGroup
	stop    chan struct{}

	mu      sync.Mutex
	answers int
	wrong   []error
}

// startStream starts a stream from a pod, for names that are expanded, both stored and new ones. Each answer has to be
// that of the pod's search list.
func startStream(t *testing.T, p *pod) *stream {
	t.Helper()
	s := &stream{stop: make(chan struct{})}
	for _, network := range []string{"udp", "tcp"} {
		s.running.Go(func() { s.send(p, network) })
	}
	t.Cleanup(func() { s.end(t) })
	return s
}

func (s *stream) send(p *pod, network string) {
	for {
		select {
		case <-s.stop:
			return
		default:
		}
		number := lookups.Add(1)
		for _, base := range []string{fmt.Sprintf("both-%d.outside.example", number), fmt.Sprintf("only-%d", number), "both-0.outside.example", "only-0", "web", "web.bank"} {
			name := base + "." + p.search[0] + "."
			a := querier{from: p.Namespace, server: local, network: network}
			err := a.check(name, "A", model(p.search, name, "A"))
			if network == "tcp" && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)) {
				err = a.check(name, "A", model(p.search, name, "A")) // a reload may reset connections
			}
			s.mu.Lock()
			if s.answers++; err != nil {
				s.wrong = append(s.wrong, err)
			}
			s.mu.Unlock()
		}
	}
}

// wait waits for a number of answers.
func (s *stream) wait(t *testing.T, n int) {
	t.Helper()
	count := func() int { s.mu.Lock(); defer s.mu.Unlock(); return s.answers }
	first := count()
	kit.Succeeds(t, maxWait, "the stream has answers", func() error {
		if got := count() - first; got < n {
			return fmt.Errorf("%d answers", got)
		}
		return nil
	})
}

// end stops the stream and fails the test if an answer was wrong.
func (s *stream) end(t *testing.T) {
	t.Helper()
	select {
	case <-s.stop:
		return
	default:
	}
	close(s.stop)
	s.running.Wait()
	for _, err := range s.wrong[:min(10, len(s.wrong))] {
		t.Error(err)
	}
	t.Logf("%d of %d answers are wrong", len(s.wrong), s.answers)
}

// reload reloads the configuration of nodecache, and waits until it has.
func (n *node) reload(t *testing.T) {
	t.Helper()
	const done = "Reloading complete"
	before := strings.Count(n.cache.Output(), done)
	n.cache.Signal(t, syscall.SIGUSR1)
	kit.Succeeds(t, maxWait, "nodecache has reloaded", func() error {
		if strings.Count(n.cache.Output(), done) == before {
			return fmt.Errorf("log:\n%s", n.cache.Output())
		}
		return nil
	})
}

// testReload reloads nodecache while pods send queries: their search lists stay known. A reload resets TCP connections that
// are not accepted yet (plugin/nodelocal/README.md); the stream retries those queries.
func testReload(t *testing.T, n *node, k kinds) {
	s := startStream(t, k.extra)
	for range 10 {
		n.reload(t)
		s.wait(t, 50)
	}
	s.end(t)
}

// testAPIDown kills the API server: the search lists of pods stay known, also over a reload.
func testAPIDown(t *testing.T, n *node, k kinds, all []resolver) {
	n.world.plane.KillAPIServer()
	s := startStream(t, k.extra)
	s.wait(t, 50)
	n.reload(t)
	s.wait(t, 50)
	s.end(t)
	for _, r := range all {
		t.Run(r.name, func(t *testing.T) {
			for _, l := range withExtra {
				lookUp(t, r, k.extra, "4", l.next(), true)
			}
		})
	}
	n.world.plane.StartAPIServer()
	t.Run("back", func(t *testing.T) {
		begin := time.Now()
		p := n.newPod(t, "late", shop, clusterSearch(shop)...)
		n.create(t, p)
		n.waitFor(t, p)
		t.Logf("the search list of a new pod is known after %v", time.Since(begin).Round(time.Millisecond))
	})
}
