//go:build linux

package fastpath

import (
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// TestExternalNamesInALoopLeaveTheServerRunning: the targets of ExternalNames lead to each other through the server, by another zone of
// the block, or by rewrite and fallthrough. The chain ends, and other names are answered.
func TestExternalNamesInALoopLeaveTheServerRunning(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		options []string
		zones   string // of kubernetes, with the options after them
		targets [2]string
	}{
		"two zones": {nil, "kubernetes cluster.local foo.local {", [2]string{"b.shop.svc.foo.local", "a.shop.svc.cluster.local"}},
		"rewrite and fallthrough": {
			[]string{"rewrite stop name suffix .alias.cluster.local .shop.svc.cluster.local"},
			"kubernetes cluster.local {\n fallthrough", [2]string{"b.alias.cluster.local", "a.alias.cluster.local"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			folder := newCluster(t)
			manifest(t, folder, "a.yaml", external("a", tc.targets[0]))
			manifest(t, folder, "b.yaml", external("b", tc.targets[1]))
			manifest(t, folder, "other.yaml", clusterIP("other", "10.96.7.9"))
			corefile := strings.ReplaceAll(clusterBlock(folder, tc.options...), "kubernetes cluster.local in-addr.arpa ip6.arpa {", tc.zones)
			p := startPair(t, "clusterdns", corefile).dial(t, "udp", "127.0.0.1")
			for _, name := range []string{"a", "b"} {
				loop := pack(t, newQuery(name+".shop.svc.cluster.local.", dns.TypeA))
				if on, off := p.ask(t, loop); on == nil || off == nil || !strings.HasPrefix(answerData(t, on), "NOERROR ") {
					t.Errorf("%s: the replies are % x and % x", name, on, off)
				}
				on, off := p.ask(t, pack(t, newQuery("other.shop.svc.cluster.local.", dns.TypeA)))
				for _, got := range []string{answerData(t, on), answerData(t, off)} {
					if want := "NOERROR [10.96.7.9]"; got != want {
						t.Errorf("another name: %s, want %s", got, want)
					}
				}
			}
		})
	}
}
