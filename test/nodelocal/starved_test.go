//go:build linux

package nodelocal

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/netns"
)

// maxTurn is the maximum CPU time that TestStarvedServer leaves the server at once: after a lease has expired, the
// server waits a second before it acquires the lease again.
const maxTurn = 700 * time.Millisecond

// TestStarvedServer stops nodecache for longer than the lease lasts, again and again, with a moment of CPU time in
// between. In that time cluster DNS answers pods, and no pod waits for the stopped server.
func TestStarvedServer(t *testing.T) {
	const pauses, pause, turn = 7, 1700 * time.Millisecond, 50 * time.Millisecond
	n := newNode(t)
	configured := n.withFallback("local")
	configured.more = []string{"prometheus :9253"}
	p := n.run(t, configured)
	p.Freeze(t)
	n.waitAnswer(t, bounded, local4, "upstream")
	start := time.Now()
	stream := netns.Load{From: n.Pod[0], Network: "udp", Server: local4, PerSecond: 50}.Start(t)
	for range pauses {
		begin := time.Now()
		p.Thaw(t)
		time.Sleep(turn)
		p.Freeze(t)
		if took := time.Since(begin); took > maxTurn {
			t.Skipf("the machine is too busy: the server ran for %v", took)
		}
		time.Sleep(pause)
	}
	last := time.Now()
	p.Thaw(t)
	report := stream.Stop()
	report = report[:len(report)-len(report.Since(last))].Since(start)
	if by := report.By(); by["upstream"] == 0 || len(by) != 1 || report.Lost() > 0 {
		t.Errorf("while the server was starved: %v", report)
	}
	slow := slices.DeleteFunc(report, func(q netns.Query) bool { return q.Done.Sub(q.Sent) < pause/2 })
	if len(slow) > 0 {
		t.Errorf("%d queries waited for the server that is stopped", len(slow))
	}
	const line = "expired: not renewed for"
	waitLog(t, bounded, p, line)
	page, err := get(n.Node, "http://127.0.0.1:9253/metrics")
	if want := fmt.Sprintf("nearside_nodelocal_leases_lost_total{address=%q} 1\n", local4); err != nil || !strings.Contains(page, want) {
		t.Errorf("metrics lack %q: %v", want, err)
	}
	n.waitAnswer(t, startTimeout, local4, "local")
}
