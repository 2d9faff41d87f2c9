//go:build linux

package forward

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/forward/rogue"
)

// bounded is how long something may take that is to happen at once, on a busy machine.
const bounded = 10 * time.Second

// rogueHost is where rogue servers are. Clients and nodecache send from 127.0.0.1, so that they never
// have a port that a server comes back to.
const rogueHost = "127.0.0.2"

// atOnce is how many tests run at the same time if the command line does not say it: they wait most of the
// time.
const atOnce = "4"

// TestMain removes the program that the tests have built.
func TestMain(m *testing.M) {
	flag.Parse()
	const parallel = "test.parallel"
	said := false
	flag.Visit(func(f *flag.Flag) { said = said || f.Name == parallel })
	if !said {
		if err := flag.Set(parallel, atOnce); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
	os.Exit(daemon.Main(m))
}

// server is a running nodecache whose metrics can be read.
type server struct {
	*daemon.Process
	metrics string // address
}

// start starts nodecache with the blocks that zone returned, and waits until it answers. Names outside
// of test are not forwarded.
func start(t *testing.T, blocks ...string) *server {
	t.Helper()
	s := &server{metrics: "127.0.0.1:" + strconv.Itoa(daemon.FreePort(t))}
	all := strings.Join(append(blocks, ".:PORT {\n    whoami\n}\n"), "")
	s.Process = daemon.Start(t, daemon.Program(t, "nodecache"), strings.ReplaceAll(all, "METRICS", s.metrics))
	t.Cleanup(func() { s.wantSound(t) })
	return s
}

// wantSound fails the test if the program has survived a panic, or had a race.
func (s *server) wantSound(t *testing.T) {
	t.Helper()
	if _, err := s.Wait(0); err == nil {
		t.Error("nodecache has ended")
		return
	}
	if got := s.scrape(t).Sum(panics); got > 0 {
		t.Errorf("%v panics", got)
	}
	if strings.Contains(s.Output(), "DATA RACE") {
		t.Error("nodecache had a race")
	}
}

// zone is a server block for test with these lines.
func zone(lines ...string) string {
	return "test:PORT {\n    prometheus METRICS\n    errors {\n        consolidate 1s .\n    }\n    " + strings.Join(lines, "\n    ") + "\n}\n"
}

// forward is a stanza that forwards everything to upstreams, separated by spaces.
func forward(to string, options ...string) string {
	if len(options) == 0 {
		return "forward . " + to
	}
	return "forward . " + to + " {\n        " + strings.Join(options, "\n        ") + "\n    }"
}

// rogueServer starts a rogue server.
func rogueServer(t *testing.T, b rogue.Behaviour) *rogue.Server {
	t.Helper()
	return rogue.StartAt(t, rogue.Options{Host: rogueHost}, b)
}

// within waits until something is so.
func within(t *testing.T, limit time.Duration, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !so(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", limit, what)
		}
	}
}
