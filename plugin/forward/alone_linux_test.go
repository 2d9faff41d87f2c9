package forward

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

// TestUnusualQueriesLeaveNoLocalPortsInUse: each query with an unusual flag has its own connection, which this side closes. No local port
// waits for the end of such a connection, and another client's query is answered.
func TestUnusualQueriesLeaveNoLocalPortsInUse(t *testing.T) {
	t.Parallel()
	at := script{host: nextHost(), tcp: replies(addressReply)}.address(t)
	f := chainOf(t, stanzaOf("force_tcp", at))
	for range 20 {
		m := question("unusual.example.")
		m.Authoritative = true
		if wrong := queryOver(f, m, false).wrong(m); wrong != "" {
			t.Fatal(wrong)
		}
	}
	wantRight(t, f, false, "other.example.")
	to := netip.MustParseAddrPort(at)
	ip := to.Addr().As4()
	waiting := fmt.Sprintf(" %02X%02X%02X%02X:%04X 06 ", ip[3], ip[2], ip[1], ip[0], to.Port()) // remote address, and the state TIME_WAIT
	kit.Eventually(t, "the connections are closed", func() bool { return metric(t, "nearside_forward_connections", "to", at, "proto", "tcp") == 1 })
	table := kit.Read(t, "/proc/self/net/tcp")
	if n := strings.Count(table, waiting); n > 0 {
		t.Errorf("%d local ports wait for the end of their connection", n)
	}
}
