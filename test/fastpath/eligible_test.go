//go:build linux

package fastpath

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
)

const (
	plain4  = "cluster.local:PORT" // the key of a block
	address = "dns://127.0.0.1:PORT"
)

// TestEligible starts programs and checks the log lines about server blocks with the fast path.
func TestEligible(t *testing.T) {
	folder := newCluster(t)
	weights := filepath.Join(folder, "weights")
	kit.Write(t, weights, "web.shop.svc.cluster.local\n10.96.12.34 1\n")
	// block returns a server block with a plugin that answers, and others.
	block := func(key, answers string, others ...string) string {
		bind := "bind 127.0.0.1"
		if len(others) > 0 && strings.HasPrefix(others[0], "bind ") {
			bind = ""
		}
		return fmt.Sprintf("%s {\n%s\n%s\n%s\n}\n", key, bind, answers, strings.Join(others, "\n"))
	}
	kubernetes := fmt.Sprintf("kubernetes cluster.local {\nmanifests %s\n}", folder)
	const (
		cache   = "cache 30"
		forward = "forward . 127.0.0.1:1"
		with    = address + ": fast path for "
		none    = address + ": no fast path for "
	)
	for _, tc := range []struct {
		name, program, corefile string
		want                    []string // lines
		not                     string   // none of these
	}{
		{"kubernetes", "clusterdns", block(plain4, kubernetes), []string{with + "cluster.local."}, none},
		{"kubernetes with transparent plugins", "clusterdns",
			block(".:PORT", kubernetes, "errors", "loop", "metadata", "prometheus 127.0.0.1:0", "transfer {\nto *\n}", "loadbalance", forward), []string{with + "."}, none},
		{"cache", "nodecache", block(".:PORT", cache, forward), []string{with + "."}, none},
		{"off", "clusterdns", block(plain4, kubernetes, "fastpath off"), []string{none + "cluster.local.: directive fastpath is off"}, with},
		{"on", "clusterdns", block(plain4, kubernetes, "fastpath on"), []string{with + "cluster.local."}, none},
		{"limit", "clusterdns", block(plain4, kubernetes, "fastpath {\nmax_concurrent 5\n}"), []string{with + "cluster.local."}, none},
		{"no plugin that stores answers", "nodecache", block(".:PORT", forward, "fastpath"),
			[]string{none + ".: neither cache nor kubernetes is configured"}, with},
		{"log", "clusterdns", block(plain4, kubernetes, "log"), []string{none + "cluster.local.: plugin log has to see every query"}, with},
		{"log of errors", "clusterdns", block(plain4, kubernetes, "log . {\nclass error\n}"), []string{with + "cluster.local."}, none},
		{"log of the zone", "clusterdns", block(plain4, kubernetes, "log local"), []string{none + "cluster.local.: plugin log has to see every query"}, with},
		{"log of another zone", "clusterdns", block(plain4, kubernetes, "log example.org"), []string{with + "cluster.local."}, none},
		{"log of a smaller zone", "clusterdns", block(plain4, kubernetes, "log shop.svc.cluster.local"), []string{with + "cluster.local."}, none},
		{"rewrite", "clusterdns", block(plain4, kubernetes, "rewrite name a.example b.example"), []string{with + "cluster.local."}, none},
		{"rewrite of aliases", "clusterdns", block(plain4, kubernetes, "rewrite cname exact a.example. b.example."),
			[]string{none + "cluster.local.: plugin rewrite has to see every query, because of a rule of cname, edns0 or metadata"}, with},
		{"rewrite of options", "clusterdns", block(plain4, kubernetes, "rewrite edns0 local set 0xffee 0x61626364"),
			[]string{none + "cluster.local.: plugin rewrite has to see every query, because of a rule of cname, edns0 or metadata"}, with},
		{"template", "clusterdns", block(plain4, kubernetes, "template IN A x.cluster.local {\nrcode NXDOMAIN\n}"),
			[]string{none + "cluster.local.: plugin template may answer before kubernetes or change its answers, and there is no cache"}, with},
		{"template with cache", "clusterdns", block(plain4, kubernetes, cache, "template IN A x.cluster.local {\nrcode NXDOMAIN\n}"), []string{with + "cluster.local."}, none},
		{"bufsize with kernel", "clusterdns", block(plain4, kubernetes, "bufsize 1232", "fastpath {\nkernel on\n}"),
			[]string{with + "cluster.local.", address + ": the kernel answers no queries for cluster.local.: plugin bufsize limits the UDP size of clients"},
			"The program that answers in the kernel"},
		{"bufsize", "clusterdns", block(plain4, kubernetes, "bufsize 1232"), []string{with + "cluster.local."}, ": the kernel answers no queries"},
		{"tls first", "clusterdns", block("tls://cluster.local:0 "+plain4, kubernetes), []string{with + "cluster.local."}, none},
		{"minimal", "clusterdns", block(plain4, kubernetes, "minimal"),
			[]string{none + "cluster.local.: plugin minimal may answer before kubernetes or change its answers, and there is no cache"}, with},
		{"acl", "clusterdns", block(plain4, kubernetes, cache, "acl {\nallow\n}"), []string{none + "cluster.local.: plugin acl has to see every query"}, with},
		{"siit", "clusterdns", block(plain4, kubernetes, cache, "siit"), []string{none + "cluster.local.: plugin siit has to see every query"}, with},
		{"view", "clusterdns", block(plain4, kubernetes, cache, "view internal {\nexpr true\n}"), []string{none + "cluster.local.: plugin view has to see every query"}, with},
		{"whoami", "clusterdns", block(plain4, kubernetes, "whoami"), []string{with + "cluster.local."}, none},
		{"loadbalance", "clusterdns", block(plain4, kubernetes, "loadbalance"), []string{with + "cluster.local."}, none},
		{"loadbalance round_robin", "clusterdns", block(plain4, kubernetes, "loadbalance round_robin"), []string{with + "cluster.local."}, none},
		{"loadbalance weighted", "clusterdns", block(plain4, kubernetes, "loadbalance weighted "+weights),
			[]string{none + "cluster.local.: plugin loadbalance has another policy than round_robin"}, with},
		{"loadbalance with prefer", "clusterdns", block(plain4, kubernetes, "loadbalance round_robin {\nprefer 10.0.0.0/8\n}"),
			[]string{none + "cluster.local.: plugin loadbalance has another policy than round_robin"}, with},
		{"hosts without cache", "clusterdns", block(plain4, kubernetes, "hosts {\n192.0.2.1 a.cluster.local\nfallthrough\n}"),
			[]string{none + "cluster.local.: plugin hosts may answer before kubernetes or change its answers, and there is no cache"}, with},
		{"hosts with cache", "clusterdns", block(plain4, kubernetes, "hosts {\n192.0.2.1 a.cluster.local\nfallthrough\n}", cache),
			[]string{with + "cluster.local."}, none},
		{"one block of several is prevented", "clusterdns",
			block(plain4, kubernetes) + block("example.org:PORT", cache, forward, "log") + block("example.net:PORT example.com:PORT", cache, forward, "fastpath off"),
			[]string{
				with + "cluster.local.",
				none + "example.org.: plugin log has to see every query",
				none + "example.com. example.net.: directive fastpath is off",
			}, ""},
		{"several blocks", "clusterdns", block(plain4, kubernetes) + block(".:PORT", cache, forward), []string{with + ". cluster.local."}, none},
		{"two addresses", "clusterdns", block(plain4, kubernetes, "bind 127.0.0.1 ::1"),
			[]string{with + "cluster.local.", "dns://[::1]:PORT: fast path for cluster.local."}, none},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			p := daemon.Start(t, daemon.Program(t, tc.program), tc.corefile)
			fill := func(s string) string { return strings.ReplaceAll(s, "PORT", fmt.Sprint(p.Port)) }
			for _, want := range tc.want {
				kit.Eventually(t, fill(want), func() bool { return strings.Count(p.Output(), "plugin/fastpath: "+fill(want)+"\n") == 1 })
			}
			if tc.not != "" && strings.Contains(p.Output(), fill(tc.not)) {
				t.Errorf("%q in\n%s", fill(tc.not), p.Output())
			}
		})
	}
}

// TestOneBlockPrevented queries names of a block with the fast path and of one without it, on one listener.
func TestOneBlockPrevented(t *testing.T) {
	folder := newCluster(t)
	other := strings.Replace(clusterBlock(folder, "acl {\nallow\n}"), ".:PORT", "svc.cluster.local:PORT", 1)
	s := start(t, "clusterdns", strings.ReplaceAll(clusterBlock(folder)+other, "FASTPATH", ""))
	for _, tc := range []struct {
		name  string
		qtype uint16
		hits  int
	}{
		{"10-244-1-20.shop.pod.cluster.local.", dns.TypeA, 2},
		{"34.12.96.10.in-addr.arpa.", dns.TypePTR, 2},
		{"web.shop.svc.cluster.local.", dns.TypeA, 0},
		{"db.shop.SVC.cluster.local.", dns.TypeA, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := s.scrape(t)
			udp := dial(t, "udp", "127.0.0.1", s)
			for range 3 {
				udp.ask(t, pack(t, newQuery(tc.name, tc.qtype)))
			}
			now := s.counted(t, before, 3).Since(before)
			if hits, rest := int(now.Sum(answeredTotal)), int(now.Sum(handedOverTotal)); hits != tc.hits || hits+rest != 3 {
				t.Errorf("%d of 3 queries were answered by the fast path and %d handed over, want %d answered", hits, rest, tc.hits)
			}
		})
	}
}

// TestInvalidArguments starts programs with invalid directives.
func TestInvalidArguments(t *testing.T) {
	for _, tc := range []struct {
		name, directive string
		line            int    // of the error
		want            string // in the error
	}{
		{"unknown argument", "fastpath maybe", 2, `invalid fastpath "maybe": want on, off or nothing`},
		{"two arguments", "fastpath on off", 2, `invalid fastpath "on" "off": want on, off or nothing`},
		{"twice", "fastpath on\nfastpath off", 3, "duplicate fastpath: want one in a server block"},
		{"unknown option", "fastpath {\nfaster\n}", 3, `unknown option "faster": want one of kernel, max_concurrent`},
		{"no number", "fastpath {\nmax_concurrent\n}", 3, "invalid max_concurrent: want a number from 1 to 1048576"},
		{"two numbers", "fastpath {\nmax_concurrent 1 2\n}", 3, `invalid max_concurrent "1" "2": want a number from 1 to 1048576`},
		{"zero", "fastpath {\nmax_concurrent 0\n}", 3, `invalid max_concurrent "0": want a number from 1 to 1048576`},
		{"negative", "fastpath {\nmax_concurrent -1\n}", 3, `invalid max_concurrent "-1": want`},
		{"too many", "fastpath {\nmax_concurrent 1048577\n}", 3, `invalid max_concurrent "1048577": want`},
		{"text", "fastpath {\nmax_concurrent many\n}", 3, `invalid max_concurrent "many": want`},
		{"kernel", "fastpath {\nkernel yes\n}", 3, `invalid kernel "yes": want on, off or force`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			p := daemon.Launch(t, daemon.Program(t, "clusterdns"), ".:PORT {\n"+tc.directive+"\n}\n")
			code, err := p.Wait(2 * bounded)
			kit.Must(t, err)
			where := fmt.Sprintf("%s:%d - ", p.Corefile, tc.line)
			if output := p.Output(); code != 1 || strings.Count(output, "\n") != 1 || !strings.Contains(output, tc.want) || !strings.Contains(output, where) {
				t.Errorf("exit code %d and %q, want 1 and one line with %q and %q", code, output, where, tc.want)
			}
		})
	}
}
