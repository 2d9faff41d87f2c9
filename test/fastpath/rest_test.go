//go:build linux

package fastpath

import (
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/daemon"
)

// restCorefile is that of node-local-dns, with an upstream that does not answer.
const restCorefile = `cluster.local:PORT {
    errors
    cache {
        success 9984 30
        denial 9984 5
    }
    reload
    bind 127.0.0.1
    forward . 127.0.0.1:1 {
        force_tcp
    }
    prometheus METRICS
}
in-addr.arpa:PORT ip6.arpa:PORT .:PORT {
    errors
    cache 30
    reload
    bind 127.0.0.1
    forward . 127.0.0.1:1 {
        force_tcp
    }
    prometheus METRICS
}
`

// TestMemoryAtRest measures the resident memory of nodecache after the start and after a reload.
func TestMemoryAtRest(t *testing.T) {
	const limit = 22e6
	s := startFrom(t, daemon.ProgramWithoutRace(t, "nodecache"), restCorefile)
	check := func(when string) {
		t.Helper()
		var memory float64
		for end := time.Now().Add(bounded); time.Now().Before(end); time.Sleep(time.Second) {
			if memory = float64(memoryOf(t, s.Pid(), "VmRSS")); memory <= limit {
				t.Logf("%.1f MB %s", memory/1e6, when)
				return
			}
		}
		t.Errorf("%.1f MB of resident memory %s, want at most %.0f", memory/1e6, when, limit/1e6)
	}
	time.Sleep(5 * time.Second)
	check("after the start")
	s.reload(t, restCorefile+"# changed\n")
	time.Sleep(5 * time.Second)
	check("after a reload")
}
