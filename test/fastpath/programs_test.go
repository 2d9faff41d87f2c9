//go:build linux

package fastpath

import (
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/kubeapi"
)

// bounded limits the wait for an event that is due at once, on a busy machine.
const bounded = 10 * time.Second

func TestMain(m *testing.M) { kubeapi.Main(m) }

// server is a running program with metrics.
type server struct {
	*daemon.Process
	metrics string // address
}

// start starts a program with a Corefile, in which PORT stands for the port of DNS and METRICS for the
// address of metrics, and waits until it answers.
func start(t *testing.T, name, corefile string) *server {
	t.Helper()
	return startFrom(t, daemon.Program(t, name), corefile)
}

// startFrom is start with the path of a program.
func startFrom(t *testing.T, path, corefile string) *server {
	t.Helper()
	s := &server{metrics: "127.0.0.1:" + strconv.Itoa(daemon.FreePort(t))}
	s.Process = daemon.Start(t, path, s.fill(corefile))
	return s
}

func (s *server) fill(corefile string) string {
	return strings.ReplaceAll(corefile, "METRICS", s.metrics)
}

// reload has the program read another Corefile, and waits until it has.
func (s *server) reload(t *testing.T, corefile string) {
	t.Helper()
	s.reloadUntil(t, corefile, "[INFO] Reloading complete")
}

// reloadUntil is reload with the log line at the end of the reload.
func (s *server) reloadUntil(t *testing.T, corefile, line string) {
	t.Helper()
	s.Configure(t, s.fill(corefile))
	before := strings.Count(s.Output(), line)
	s.Signal(t, syscall.SIGUSR1)
	kit.Eventually(t, "a line with "+line, func() bool { return strings.Count(s.Output(), line) > before })
}

// pair is the same program twice with the same configuration, with and without the fast path.
type pair struct{ on, off *server }

// startPair starts a program with a Corefile in which FASTPATH is the place of the directive.
func startPair(t *testing.T, name, corefile string) pair {
	t.Helper()
	return startPairFrom(t, daemon.Program(t, name), corefile)
}

// startPairFrom is startPair with the path of a program.
func startPairFrom(t *testing.T, path, corefile string) pair {
	t.Helper()
	p := pair{
		on:  startFrom(t, path, strings.ReplaceAll(corefile, "FASTPATH", "")),
		off: startFrom(t, path, strings.ReplaceAll(corefile, "FASTPATH", "fastpath off")),
	}
	kit.Eventually(t, "the start line of the fast path", func() bool { return strings.Contains(p.on.Output(), ": fast path for ") })
	if strings.Contains(p.off.Output(), ": fast path for ") {
		t.Fatal("fastpath off has no effect")
	}
	return p
}

// soon waits until a condition is true, and returns false after bounded.
func soon(so func() bool) bool {
	for end := time.Now().Add(bounded); !so(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}
