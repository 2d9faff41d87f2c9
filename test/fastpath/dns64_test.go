//go:build linux

package fastpath

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/miekg/dns"
)

// TestTranslateAllAnswersIPv6OnlyNames: plugin dns64 with translate_all translates the A records of a name, and answers with the AAAA
// records of a name without A records, with and without the fast path, before an answer is stored and after.
func TestTranslateAllAnswersIPv6OnlyNames(t *testing.T) {
	folder := newCluster(t)
	manifest(t, folder, "six.yaml", clusterIP("six", "fd00:10:96::6"))
	manifest(t, folder, "four.yaml", clusterIP("four", "10.96.7.4"))
	manifest(t, folder, "dual.yaml", strings.Replace(clusterIP("dual", "10.96.7.8"), `["10.96.7.8"]`, `["10.96.7.8", "fd00:10:96::8"]`, 1))
	manifest(t, folder, "alias.yaml", external("alias", "six.shop.svc.cluster.local"))
	clusterDNS := start(t, "clusterdns", strings.ReplaceAll(clusterBlock(folder), "FASTPATH", ""))
	const translateAll = "dns64 {\nallow_ipv4\ntranslate_all\n}"
	for _, tc := range []struct{ name, program, corefile string }{
		{"kubernetes", "clusterdns", clusterBlock(folder, translateAll)},
		{"cache and kubernetes", "clusterdns", clusterBlock(folder, translateAll, "cache 30")},
		{"cache and forward", "nodecache", cacheBlock(&upstream{address: fmt.Sprintf("127.0.0.1:%d", clusterDNS.Port)}, translateAll, "cache 30")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			udp := startPair(t, tc.program, tc.corefile).dial(t, "udp", "127.0.0.1")
			for name, want := range map[string]string{
				"six":   "NOERROR [fd00:10:96::6]",
				"four":  "NOERROR [64:ff9b::a60:704]",
				"dual":  "NOERROR [64:ff9b::a60:708]",
				"alias": "NOERROR [six.shop.svc.cluster.local. fd00:10:96::6]",
				"none":  "NXDOMAIN []",
			} {
				for range 3 {
					on, off := udp.ask(t, pack(t, newQuery(name+".shop.svc.cluster.local.", dns.TypeAAAA)))
					if on, off := answerData(t, on), answerData(t, off); on != want || off != want {
						t.Errorf("%s: %s with the fast path and %s without, want %s", name, on, off, want)
					}
				}
			}
		})
	}
}

// answerData returns the code of a reply and the data of its answer.
func answerData(t *testing.T, reply []byte) string {
	t.Helper()
	m := new(dns.Msg)
	kit.Must(t, m.Unpack(reply))
	data := []string{}
	for _, rr := range m.Answer {
		data = append(data, dns.Field(rr, 1))
	}
	return fmt.Sprintf("%s %v", dns.RcodeToString[m.Rcode], data)
}
