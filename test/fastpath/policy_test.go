//go:build linux

package fastpath

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/kit"
)

const (
	secretName = "key.test."
	secret     = "c2VjcmV0IG9mIHRoZSB0ZXN0cw=="
	policies   = "test/fastpath/policies" // the program
)

// policyBlock is a server block beside the one with the fast path.
func policyBlock(directive string) string {
	return fmt.Sprintf("policy.test:PORT {\n%s\n%s\nwhoami\n}\n", bothLoopbacks, directive)
}

// signed returns a packed query with a TSIG of a key, RFC 8945.
func signed(t *testing.T, question, key, secret string) []byte {
	t.Helper()
	m := newQuery(question, dns.TypeA)
	m.SetTsig(key, dns.HmacSHA256, 300, time.Now().Unix())
	packet, _, err := dns.TsigGenerate(m, secret, "", false)
	kit.Must(t, err)
	return packet
}

// proxied returns a packet behind a header of the PROXY protocol, version 2.
func proxied(packet []byte) []byte {
	header := append([]byte("\r\n\r\n\x00\r\nQUIT\n\x21\x12"), 0, 12)
	header = append(header, netip.MustParseAddr("192.0.2.77").AsSlice()...)
	header = append(header, netip.MustParseAddr("127.0.0.1").AsSlice()...)
	return append(append(header, 0x30, 0x39, 0, 53), packet...)
}

// outcome returns the parts of a reply that matter to a client: all except the time and the MAC of a signature.
func outcome(t *testing.T, reply []byte) string {
	t.Helper()
	if reply == nil {
		return "no reply"
	}
	m := new(dns.Msg)
	kit.Must(t, m.Unpack(reply))
	text := dns.OpcodeToString[m.Opcode] + " " + dns.RcodeToString[m.Rcode] + fmt.Sprint(len(m.Answer))
	for _, rr := range m.Answer {
		text += " " + strings.Join(strings.Fields(rr.String())[4:], " ")
	}
	if signature := m.IsTsig(); signature != nil {
		text += fmt.Sprintf(" signed by %s, error %d, %d bytes", signature.Hdr.Name, signature.Error, len(signature.MAC)/2)
	}
	return text
}

// TestPoliciesOfListeners has a server block that changes which datagrams are accepted, and one with a cache, on one
// listener: at the start, and after a reload. Every datagram gets the same reply as without the fast path.
func TestPoliciesOfListeners(t *testing.T) {
	u := startUpstream(t, answerAddress)
	cached := fmt.Sprintf(".:PORT {\n%s\nprometheus METRICS\nerrors\nFASTPATH\ncache 30\nforward . %s\n}\n", bothLoopbacks, u.address)
	asUpdate := newQuery("policy.test.", dns.TypeSOA)
	asUpdate.Opcode = dns.OpcodeUpdate
	asStatus := newQuery("policy.test.", dns.TypeSOA)
	asStatus.Opcode = dns.OpcodeStatus
	packets := map[string][]byte{
		"plain":                     pack(t, newQuery("www.example.org.", dns.TypeA)),
		"plain, policy.test":        pack(t, newQuery("x.policy.test.", dns.TypeA)),
		"forged key":                signed(t, "www.example.org.", "forged.test.", secret),
		"forged MAC":                signed(t, "www.example.org.", secretName, "Zm9yZ2Vk"),
		"forged key, policy.test":   signed(t, "x.policy.test.", "forged.test.", secret),
		"forged MAC, policy.test":   signed(t, "x.policy.test.", secretName, "Zm9yZ2Vk"),
		"right key":                 signed(t, "www.example.org.", secretName, secret),
		"right key, policy.test":    signed(t, "x.policy.test.", secretName, secret),
		"PROXY":                     proxied(pack(t, newQuery("www.example.org.", dns.TypeA))),
		"UPDATE":                    pack(t, asUpdate),
		"STATUS":                    pack(t, asStatus),
		"UPDATE without a question": {0, 7, 5 << 3, 0, 0, 0, 0, 0, 0, 0, 0, 0},
	}
	for _, tc := range []struct{ name, directive, reason string }{
		{"tsig", "tsig {\nsecret " + secretName + " " + secret + "\nrequire all\n}", "a server block of this listener has TSIG secrets (plugin tsig)"},
		// A server without secrets has a fast path; its plugins accept no signature.
		{"tsig without secrets", "tsig {\nrequire all\n}", ""},
		{"proxyproto", "proxyproto {\nallow 127.0.0.1/32 ::1/128\n}", "a server block of this listener expects the PROXY protocol (plugin proxyproto)"},
		{"update", "update", "a server block of this listener accepts other opcodes than QUERY and NOTIFY"},
	} {
		for _, reload := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, reload %t", tc.name, reload), func(t *testing.T) {
				with, begin := cached+policyBlock(tc.directive), cached+policyBlock(tc.directive)
				if reload {
					begin = cached + policyBlock("")
				}
				p := pair{
					on:  start(t, policies, strings.ReplaceAll(begin, "FASTPATH", "")),
					off: start(t, policies, strings.ReplaceAll(begin, "FASTPATH", "fastpath off")),
				}
				if reload {
					w := p.dial(t, "udp", "127.0.0.1")
					for range 3 {
						w.ask(t, packets["plain"])
					}
					if p.on.scrape(t).Sum(answeredTotal) == 0 {
						t.Fatal("no fast path before the reload")
					}
					p.on.reload(t, strings.ReplaceAll(with, "FASTPATH", ""))
					p.off.reload(t, strings.ReplaceAll(with, "FASTPATH", "fastpath off"))
				}
				line := fmt.Sprintf("dns://127.0.0.1:%d: no fast path for .: %s\n", p.on.Port, tc.reason)
				if tc.reason != "" {
					kit.Eventually(t, line, func() bool { return strings.Count(p.on.Output(), line) == 1 })
				}
				before := p.on.scrape(t)
				for _, host := range []string{"127.0.0.1", "::1"} {
					for _, name := range slices.Sorted(maps.Keys(packets)) {
						for _, network := range []string{"udp", "tcp"} {
							w := p.dial(t, network, host)
							for range 2 {
								on, off := w.ask(t, packets[name])
								if got, want := outcome(t, on), outcome(t, off); got != want {
									t.Errorf("%s to %s over %s: %q, want %q as without the fast path", name, host, network, got, want)
								}
							}
						}
					}
				}
				if n := p.on.scrape(t).Since(before).Sum(answeredTotal); n != 0 && tc.reason != "" {
					t.Errorf("%v queries were answered by the fast path", n)
				}
				p.on.reload(t, strings.ReplaceAll(cached, "FASTPATH", ""))
				w := dial(t, "udp", "127.0.0.1", p.on)
				for range 3 {
					w.ask(t, packets["plain"])
				}
				kit.Eventually(t, "the fast path is on again", func() bool { return p.on.scrape(t).Since(before).Sum(answeredTotal) > 0 })
			})
		}
	}
}

// TestPreventedBlockStoresNothing has server blocks without the fast path, and one with it. The former may not use the
// budget of stored answers.
func TestPreventedBlockStoresNothing(t *testing.T) {
	folder := newCluster(t)
	kubernetes := fmt.Sprintf("kubernetes cluster.local {\nmanifests %s\n}\n", folder)
	block := fmt.Sprintf(".:PORT {\n%s\nprometheus METRICS\n%%s\n%s}\n", bothLoopbacks, kubernetes)
	other := fmt.Sprintf("other.test:PORT {\n%s\ncache\nforward . 127.0.0.1:1\n}\n", bothLoopbacks)
	for _, tc := range []struct {
		name, corefile string
		stored         bool
	}{
		{"one block", fmt.Sprintf(block, "") + other, true},
		{"two views", fmt.Sprintf(block, "view addresses {\nexpr type() == 'A'\n}") + fmt.Sprintf(block, "") + other, false},
		{"TSIG secrets beside it", fmt.Sprintf(block, "") + other + policyBlock("tsig {\nsecret "+secretName+" "+secret+"\nrequire all\n}"), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := start(t, policies, tc.corefile)
			kit.Eventually(t, "the start lines", func() bool { return strings.Contains(s.Output(), "fast path for ") })
			udp := dial(t, "udp", "127.0.0.1", s)
			for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
				for range 2 {
					udp.ask(t, pack(t, newQuery("web.shop.svc.cluster.local.", qtype)))
				}
			}
			if bytes := s.scrape(t).Sum("nearside_cache_bytes"); (bytes > 0) != tc.stored {
				t.Errorf("%v bytes of answers are stored", bytes)
			}
		})
	}
}
