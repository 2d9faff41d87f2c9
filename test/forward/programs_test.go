//go:build linux

package forward

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/forward/rogue"
)

// bounded is the time limit of immediate events, on a busy machine.
const bounded = 10 * time.Second

// rogueHost is the address of rogue servers. Clients and nodecache send from 127.0.0.1, so that they never occupy the port
// of a server that restarts.
const rogueHost = "127.0.0.2"

// server is a running nodecache whose metrics can be read.
type server struct {
	*daemon.Process
	metrics string // address
}

// start starts nodecache with server blocks by zone, and waits until it answers. Names outside the zone test are not
// forwarded.
func start(t *testing.T, blocks ...string) *server {
	t.Helper()
	return startProgram(t, "nodecache", append(blocks, ".:PORT {\n    whoami\n}\n")...)
}

// startProgram starts a program with server blocks, and waits until it answers.
func startProgram(t *testing.T, program string, blocks ...string) *server {
	t.Helper()
	s := &server{metrics: "127.0.0.1:" + strconv.Itoa(daemon.FreePort(t))}
	s.Process = daemon.Start(t, daemon.Program(t, program), strings.ReplaceAll(strings.Join(blocks, ""), "METRICS", s.metrics))
	t.Cleanup(func() { s.wantHealthy(t) })
	return s
}

// wantHealthy fails the test if the program has ended, recovered from a panic, or had a data race.
func (s *server) wantHealthy(t *testing.T) {
	t.Helper()
	if _, err := s.Wait(0); err == nil {
		t.Error("the program has ended")
		return
	}
	if got := s.scrape(t).Sum(panics); got > 0 {
		t.Errorf("%v panics", got)
	}
	if strings.Contains(s.Output(), "DATA RACE") {
		t.Error("data race")
	}
}

// zone returns a server block for the zone test with some lines.
func zone(lines ...string) string {
	return "test:PORT {\n    prometheus METRICS\n    errors {\n        consolidate 1s .\n    }\n    " + strings.Join(lines, "\n    ") + "\n}\n"
}

// forward returns a stanza that forwards all queries to upstreams, which are separated by spaces.
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
