package dnssec

import (
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/kit"
)

// delv runs BIND's delv, which validates itself with the key of a zone as the trust anchor, and returns its output.
func delv(t *testing.T, server, zone string, key *dns.DNSKEY, name string, qtype uint16) string {
	t.Helper()
	anchors := filepath.Join(t.TempDir(), "anchors")
	text := fmt.Sprintf("trust-anchors { %q static-key %d %d %d %q; };\n", zone, key.Flags, key.Protocol, key.Algorithm, key.PublicKey)
	kit.Write(t, anchors, text)
	host, port, err := net.SplitHostPort(server)
	kit.Must(t, err)
	// A failed validation is in the output.
	args := []string{"@" + host, "-p", port, "-a", anchors, "+root=" + zone, name, dns.TypeToString[qtype]}
	out, _ := exec.CommandContext(t.Context(), "delv", args...).CombinedOutput()
	return string(out)
}

// testDelv has delv validate replies of a server, with the zone's keys and with others.
func testDelv(t *testing.T, server string, own, foreign *signer) {
	t.Helper()
	kit.Require(t, "delv")
	for _, q := range []struct {
		name  string
		qtype uint16
		want  string
	}{
		{"web.shop.svc.cluster.local.", dns.TypeA, "; fully validated\nweb.shop.svc.cluster.local."},
		{"pods.shop.svc.cluster.local.", dns.TypeSRV, "; fully validated\npods.shop.svc.cluster.local."},
		{"web.shop.svc.cluster.local.", dns.TypeAAAA, "; negative response, fully validated"},
		{"none.shop.svc.cluster.local.", dns.TypeA, "; negative response, fully validated"},
	} {
		if out := delv(t, server, own.zone, own.keys[0], q.name, q.qtype); !strings.Contains(out, q.want) {
			t.Errorf("delv %s %s: want %q in\n%s", q.name, dns.TypeToString[q.qtype], q.want, out)
		}
		out := delv(t, server, own.zone, foreign.keys[0], q.name, q.qtype)
		if strings.Contains(out, "validated") || !strings.Contains(out, "resolution failed") {
			t.Errorf("delv %s %s with another key:\n%s", q.name, dns.TypeToString[q.qtype], out)
		}
	}
}
