package forward

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/wire"
	"github.com/nearside-dns/nearside/test/forward/rogue"
	"github.com/nearside-dns/nearside/test/kit"
)

func TestTransports(t *testing.T) {
	t.Parallel()
	for options, want := range map[string][2]string{ // for a client's UDP, and TCP
		"":                              {"UDP", "TCP"},
		"force_tcp":                     {"TCP", "TCP"},
		"prefer_udp":                    {"UDP", "UDP"},
		"force_tcp\nprefer_udp":         {"TCP", "TCP"},
		"fallback udp":                  {"UDP", "TCP"},
		"force_tcp\nfallback udp":       {"TCP", "TCP"},
		"prefer_udp\nfallback udp":      {"UDP", "UDP"},
		"max_in_flight 1\nforce_tcp":    {"TCP", "TCP"},
		"source_address 127.0.0.1":      {"UDP", "TCP"},
		"expire 0\nforce_tcp":           {"TCP", "TCP"},
		"max_idle_conns 1\nhedge 100ms": {"UDP", "TCP"},
	} {
		for i, tcp := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, TCP %t", options, tcp), func(t *testing.T) {
				f, servers := forwardTo(t, options, good)
				wantRight(t, f, tcp, "a.example.", "b.example.")
				c := servers[0].Counts()
				if got := map[bool]string{true: "TCP", false: "UDP"}[c.TCP > 0]; got != want[i] || c.Queries() != 2 || c.UDP > 0 == (c.TCP > 0) {
					t.Errorf("%d queries over UDP, %d over TCP", c.UDP, c.TCP)
				}
			})
		}
	}
}

// TestTruncated has a server that truncates all answers over UDP.
func TestTruncated(t *testing.T) {
	t.Parallel()
	cases := concurrently(t)
	defer cases.Wait()
	truncates := &rogue.Behaviour{Truncate: true}
	for name, c := range map[string]struct {
		options   string
		server    rogue.Behaviour // over TCP
		second    *rogue.Behaviour
		tcp       bool
		truncated bool
		counted   float64 // fallbacks to TCP
	}{
		"the client repeats the query":     {"", good, nil, false, true, 0},
		"prefer_udp":                       {"prefer_udp", good, nil, false, false, 1},
		"prefer_udp, a client's TCP":       {"prefer_udp", good, nil, true, false, 1},
		"TCP refuses":                      {"prefer_udp", refusing, nil, true, true, 1},
		"TCP is silent":                    {"prefer_udp\ntimeout 300ms", silent, nil, true, true, 1},
		"TCP closes":                       {"prefer_udp", rogue.Behaviour{CloseAtOnce: true}, nil, true, true, 1},
		"TCP is slow":                      {"prefer_udp", rogue.Behaviour{Delay: 300 * time.Millisecond}, nil, true, false, 1},
		"TCP refuses, the second is good":  {"prefer_udp", refusing, &good, true, true, 1},
		"better than SERVFAIL of a second": {"prefer_udp\nhedge 50ms\ntimeout 500ms", silent, &rogue.Behaviour{Rcode: dns.RcodeServerFailure}, true, true, 1},
	} {
		cases.Run(name, func(t testing.TB) {
			c.server.OverUDP = truncates
			behaviours := []rogue.Behaviour{c.server}
			if c.second != nil {
				behaviours = append(behaviours, *c.second)
			}
			f, servers := forwardTo(t, "policy sequential\n"+c.options, behaviours...)
			m := question("a.example.")
			a := queryOver(f, m, c.tcp)
			if a.Msg == nil || a.Truncated != c.truncated || a.Id != m.Id {
				t.Errorf("message %v, error %v; want it truncated: %t", a.Msg, a.err, c.truncated)
			}
			if wrong := a.wrong(m); !c.truncated && wrong != "" {
				t.Error(wrong)
			}
			if n := metric(t, "nearside_forward_fallbacks_total", "to", servers[0].Addr, "reason", fallbackTruncated); n != c.counted {
				t.Errorf("%v fallbacks are counted, want %v", n, c.counted)
			}
		})
	}
}

// TestFallback has a server whose TCP fails in different ways while UDP works, and then works.
func TestFallback(t *testing.T) {
	t.Parallel()
	cases := concurrently(t)
	defer cases.Wait()
	for name, b := range map[string]rogue.Behaviour{
		"refuses": refusing, "black hole": {BlackHole: true}, "accepts and is silent": silent, "does not read": {Deaf: true}, "closes": {CloseAtOnce: true},
	} {
		for options, tcp := range map[string]bool{"force_tcp": false, "": true} {
			cases.Run(fmt.Sprintf("%s, %s", name, options), func(t testing.TB) {
				b := b // the cases of a server share b, and change it
				b.OverUDP = rogue.Well()
				f, servers := forwardTo(t, "fallback udp\n"+options, b)
				s, u := servers[0], upstreamOf(f, 0)
				u.tcpAgain = 50 * time.Millisecond
				m := question("a.example.")
				if a := queryOver(f, m, tcp); a.wrong(m) != "" || a.took > answerTime+margin {
					t.Errorf("after %v: %s", a.took, a.wrong(m))
				}
				kit.Eventually(t, "TCP counts as failed", u.tcpBad.Load)
				before := s.Counts()
				wantRight(t, f, tcp, "b.example.", "c.example.")
				if after := s.Counts(); after.TCP != before.TCP || after.UDP != before.UDP+2 {
					t.Errorf("%d queries over TCP, %d over UDP", after.TCP-before.TCP, after.UDP-before.UDP)
				}
				if n := metric(t, "nearside_forward_fallbacks_total", "to", s.Addr, "reason", fallbackUDP); n != 3 {
					t.Errorf("%v fallbacks are counted, want 3", n)
				}
				s.Behave(rogue.Behaviour{OverUDP: &rogue.Behaviour{Truncate: true}})
				kit.Eventually(t, "TCP counts as working", func() bool { return !u.tcpBad.Load() })
				wantRight(t, f, tcp, "d.example.", "e.example.")
			})
		}
	}
}

// TestFallback_Not: there is no fallback if TCP works, or UDP fails as well.
func TestFallback_Not(t *testing.T) {
	t.Parallel()
	cases := concurrently(t)
	defer cases.Wait()
	cases.Run("without the option", func(t testing.TB) {
		f, servers := forwardTo(t, "force_tcp\ntimeout 500ms", rogue.Behaviour{Refuse: true, OverUDP: rogue.Well()})
		if a := queryOver(f, question("a.example."), false); a.code != dns.RcodeServerFailure || servers[0].Counts().UDP > 0 {
			t.Errorf("code %d", a.code)
		}
	})
	cases.Run("neither works", func(t testing.TB) {
		f, servers := forwardTo(t, "force_tcp\nfallback udp\ntimeout 1s", rogue.Behaviour{Refuse: true, OverUDP: &silent})
		if a := queryOver(f, question("a.example."), false); a.code != dns.RcodeServerFailure || servers[0].Counts().UDP == 0 {
			t.Errorf("code %d, %+v", a.code, servers[0].Counts())
		}
		if upstreamOf(f, 0).tcpBad.Load() {
			t.Error("TCP counts as failed although UDP fails too")
		}
	})
	cases.Run("a slow answer among others", func(t testing.TB) {
		f, servers := forwardTo(t, "force_tcp\nfallback udp", rogue.Behaviour{Slow: 1300 * time.Millisecond})
		var slow sync.WaitGroup
		slow.Go(func() { wantRight(t, f, false, "slow.example.") })
		for i := range 30 {
			wantRight(t, f, false, fmt.Sprintf("q%d.example.", i))
			time.Sleep(50 * time.Millisecond)
		}
		slow.Wait()
		if c := servers[0].Counts(); c.UDP > 0 || c.UDPProbes > 0 || upstreamOf(f, 0).tcpCheck.Load() {
			t.Errorf("queries over UDP: %+v", c)
		}
	})
	cases.Run("a slow answer alone", func(t testing.TB) {
		f, servers := forwardTo(t, "force_tcp\nfallback udp", rogue.Behaviour{Delay: 1100 * time.Millisecond, OverUDP: &rogue.Behaviour{Delay: 300 * time.Millisecond}})
		wantRight(t, f, false, "a.example.")
		if c := servers[0].Counts(); c.TCP != 1 || c.UDP != 1 {
			t.Errorf("%+v", c)
		}
		if n := metric(t, "nearside_forward_fallbacks_total", "to", servers[0].Addr); n != 0 {
			t.Errorf("%v fallbacks are counted although TCP was first", n)
		}
	})
	cases.Run("truncated while TCP does not work", func(t testing.TB) {
		f, servers := forwardTo(t, "fallback udp", rogue.Behaviour{Refuse: true, OverUDP: &rogue.Behaviour{Truncate: true}})
		for i := range 3 {
			if a := queryOver(f, question("a.example."), true); a.Msg == nil || !a.Truncated || a.took > margin {
				t.Errorf("query %d: message %v, error %v, after %v", i, a.Msg, a.err, a.took)
			}
			kit.Eventually(t, "TCP counts as failed", upstreamOf(f, 0).tcpBad.Load)
		}
		if n := servers[0].Counts().UDP; n != 3 {
			t.Errorf("%d queries over UDP", n)
		}
	})
}

// TestConnection_Silent: a connection without answers is replaced after read_timeout, or once UDP shows that the server
// works.
func TestConnection_Silent(t *testing.T) {
	t.Parallel()
	cases := concurrently(t)
	defer cases.Wait()
	for options, overUDP := range map[string]bool{"fallback udp\ntimeout 4s\nread_timeout 500ms": true, "read_timeout 700ms": false} {
		cases.Run(options, func(t testing.TB) {
			var mu sync.Mutex
			first, seen := "", 0
			at := script{
				udp: replies(addressReply),
				tcp: func(w dns.ResponseWriter, r *dns.Msg) {
					mu.Lock()
					defer mu.Unlock()
					if first == "" {
						first = w.RemoteAddr().String()
					}
					if w.RemoteAddr().String() == first {
						if seen++; seen > 1 {
							return
						}
					}
					if overUDP && r.Question[0].Name == "b.example." {
						return // on a busy machine the next connection could be earlier than UDP
					}
					_ = w.WriteMsg(addressReply(r)) // the client may be gone
				},
			}.address(t)
			f := chainOf(t, stanzaOf("force_tcp\n"+options, at))
			wantRight(t, f, false, "a.example.", "b.example.", "c.example.", "d.example.")
			mu.Lock()
			defer mu.Unlock()
			counted := map[bool]float64{true: 1}[overUDP]
			if n := metric(t, "nearside_forward_fallbacks_total", "to", at, "reason", fallbackUDP); n != counted || seen != 2 {
				t.Errorf("%v fallbacks, want %v; %d queries on the first connection, want 2", n, counted, seen)
			}
		})
	}
}

// TestWrongAnswers: answers that do not match the query are dropped and counted.
func TestWrongAnswers(t *testing.T) {
	t.Parallel()
	cases := concurrently(t)
	defer cases.Wait()
	for name, c := range map[string]struct {
		wrong  rogue.Wrong
		reason string
	}{
		"id": {rogue.WrongID, "id"}, "question": {rogue.WrongQuestion, "question"}, "type": {rogue.WrongType, "question"},
		"direction": {rogue.WrongDirection, "malformed"}, "empty": {rogue.Empty, "malformed"}, "short": {rogue.Short, "malformed"}, "noise": {rogue.Noise, ""},
	} {
		for _, tcp := range []bool{false, true} {
			proto := map[bool]string{true: protoTCP, false: protoUDP}[tcp]
			count := func(t testing.TB, s *rogue.Server) float64 {
				labels := []string{"to", s.Addr, "proto", proto}
				if c.reason != "" {
					labels = append(labels, "reason", c.reason)
				}
				return metric(t, "nearside_forward_dropped_answers_total", labels...)
			}
			cases.Run(name+" alone, "+proto, func(t testing.TB) {
				f, servers := forwardTo(t, "timeout 1s", rogue.Behaviour{Wrong: c.wrong, OnlyWrong: true})
				if a := queryOver(f, question("a.example."), tcp); a.Msg != nil || a.code != dns.RcodeServerFailure || a.took > time.Second+margin {
					t.Errorf("message %v, code %d, after %v", a.Msg, a.code, a.took)
				}
				if count(t, servers[0]) == 0 {
					t.Error("the dropped answers are not counted")
				}
			})
			cases.Run(name+", then another server, "+proto, func(t testing.TB) {
				f, servers := forwardTo(t, "policy sequential\nread_timeout 200ms", rogue.Behaviour{Wrong: c.wrong, OnlyWrong: true}, good)
				wantRight(t, f, tcp, "a.example.")
				if count(t, servers[0]) == 0 {
					t.Error("the dropped answers are not counted")
				}
			})
			cases.Run(name+" before the right one, "+proto, func(t testing.TB) {
				f, servers := forwardTo(t, "", rogue.Behaviour{Wrong: c.wrong})
				wantRight(t, f, tcp, "a.example.", "B.example.", "c.eXaMple.")
				if n := count(t, servers[0]); n < 3 {
					t.Errorf("%v dropped answers are counted", n)
				}
			})
		}
	}
}

// TestUnreadable has a server whose answers are malformed after the header and question: a name is a pointer to itself.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	cases := concurrently(t)
	defer cases.Wait()
	certificate := rogue.NewCertificate(t, "127.0.0.1")
	for proto, options := range map[string]string{protoUDP: "", protoTCP: "force_tcp", protoTLS: "tls " + certificate.CA} {
		cases.Run(proto, func(t testing.TB) {
			broken := script{tcp: func(w dns.ResponseWriter, r *dns.Msg) {
				b, err := new(dns.Msg).SetReply(r).Pack()
				if err != nil {
					t.Error(err)
				}
				b[wire.ANCountAt+1] = 1
				_, _ = w.Write(append(b, 0xc0, byte(len(b)), 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 192, 0, 2, 1)) // the client may be gone
			}}
			prefix := ""
			if proto == protoTLS {
				broken.tls, prefix = certificate.Config, "tls://"
			}
			at, second := broken.address(t), rogue.Start(t, good)
			f := chainOf(t, stanzaOf("policy sequential\n"+options, prefix+at, second.Addr))
			wantRight(t, f, false, "a.example.")
			want := 1.0
			if proto == protoUDP {
				want = 2 // the first one may be damaged on the way, or forged
			}
			if n := metric(t, "nearside_forward_dropped_answers_total", "to", at, "proto", proto, "reason", "malformed"); n != want {
				t.Errorf("%v dropped answers are counted, want %v", n, want)
			}
		})
	}
}

// TestBareRefusal: the question of the query is added to an answer without one.
func TestBareRefusal(t *testing.T) {
	t.Parallel()
	for _, code := range []int{dns.RcodeFormatError, dns.RcodeServerFailure, dns.RcodeNotImplemented, dns.RcodeRefused} {
		for _, tcp := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, TCP %t", dns.RcodeToString[code], tcp), func(t *testing.T) {
				f, _ := forwardTo(t, "", rogue.Behaviour{Bare: true, Rcode: code})
				m := question("a.eXample.")
				if a := queryOver(f, m, tcp); a.Msg == nil || a.code != code || a.Id != m.Id || !slices.Equal(a.Question, m.Question) {
					t.Errorf("message %v, error %v", a.Msg, a.err)
				}
			})
		}
	}
	t.Run("NOERROR", func(t *testing.T) {
		f, _ := forwardTo(t, "timeout 200ms", rogue.Behaviour{Bare: true})
		if a := queryOver(f, question("a.example."), true); a.Msg != nil {
			t.Errorf("message %v", a.Msg)
		}
	})
}

// keepAliveOf returns the edns-tcp-keepalive options of a message.
func keepAliveOf(m *dns.Msg) (all []dns.EDNS0) {
	if o := m.IsEdns0(); o != nil {
		for _, option := range o.Option {
			if option.Option() == dns.EDNS0TCPKEEPALIVE {
				all = append(all, option)
			}
		}
	}
	return all
}

// TestKeepAlive: edns-tcp-keepalive (RFC 7828 section 3.2.1) and cookies (RFC 7873 section 5) are not forwarded, other options are.
func TestKeepAlive(t *testing.T) {
	t.Parallel()
	for _, tcp := range []bool{false, true} {
		t.Run(fmt.Sprintf("TCP %t", tcp), func(t *testing.T) {
			var seen sight
			at := script{tcp: replies(func(r *dns.Msg) *dns.Msg {
				seen.add(r)
				m := addressReply(r)
				m.SetEdns0(1232, false)
				m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_TCP_KEEPALIVE{Timeout: 300, Length: 2}, cookie(), &dns.EDNS0_NSID{Nsid: "ab"}}
				return m
			})}.address(t)
			f := chainOf(t, stanzaOf("", at))
			for i := range 2 {
				m := question("a.example.").SetEdns0(1232, true)
				m.IsEdns0().Option = []dns.EDNS0{cookie(), &dns.EDNS0_TCP_KEEPALIVE{Timeout: 77, Length: 2}, &dns.EDNS0_NSID{}}
				before := m.String()
				a := queryOver(f, m, tcp)
				if wrong := a.wrong(m); wrong != "" {
					t.Fatal(wrong)
				}
				if m.String() != before {
					t.Errorf("the client's query is now %v", m)
				}
				if len(keepAliveOf(a.Msg)) > 0 || len(a.IsEdns0().Option) != 1 {
					t.Errorf("query %d: the client gets %v", i, a.IsEdns0())
				}
				received := seen.all()[i]
				if len(received.IsEdns0().Option)-len(keepAliveOf(received)) != 1 || !received.IsEdns0().Do() {
					t.Errorf("query %d: the server gets %v", i, received.IsEdns0())
				}
				// The first query of a connection has nearside's own option.
				own := keepAliveOf(received)
				if want := tcp && i == 0; len(own) == 1 != want || want && own[0].(*dns.EDNS0_TCP_KEEPALIVE).Timeout != 0 {
					t.Errorf("query %d: the server gets %v", i, own)
				}
			}
		})
	}
}

// TestPlainEDNSBehindBoxThatRefusesKeepAlive: the option edns-tcp-keepalive, which is refused by old servers and firewalls, does not
// fail the query of a client that has not sent it, and is omitted after a check.
func TestPlainEDNSBehindBoxThatRefusesKeepAlive(t *testing.T) {
	t.Parallel()
	refuse := func(rcode int) dns.HandlerFunc {
		return replies(func(r *dns.Msg) *dns.Msg { return new(dns.Msg).SetRcode(r, rcode) })
	}
	for name, refuse := range map[string]dns.HandlerFunc{
		"FORMERR": refuse(dns.RcodeFormatError), "NOTIMP": refuse(dns.RcodeNotImplemented), "SERVFAIL": refuse(dns.RcodeServerFailure),
		"a reset": func(w dns.ResponseWriter, _ *dns.Msg) { _ = w.Close() }, "no answer": func(dns.ResponseWriter, *dns.Msg) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var extended, plainChecks atomic.Int32
			answer := replies(addressReply)
			at := script{tcp: func(w dns.ResponseWriter, r *dns.Msg) {
				switch check := r.Question[0].Qtype == dns.TypeNS; {
				case r.IsEdns0() != nil && len(keepAliveOf(r)) > 0:
					if !check {
						extended.Add(1)
					}
					refuse(w, r)
					return
				case check:
					plainChecks.Add(1)
				}
				answer(w, r)
			}}.address(t)
			f := chainOf(t, stanzaOf("force_tcp\nmax_in_flight 1", at))
			query := func(i int) {
				m := question(fmt.Sprintf("q%d.example.", i)).SetEdns0(1232, false)
				if wrong := queryOver(f, m, true).wrong(m); wrong != "" {
					t.Error(wrong)
				}
			}
			query(0)
			kit.Eventually(t, "the checks", func() bool { return plainChecks.Load() == 2 })
			var wait sync.WaitGroup
			for i := range 10 { // each on its own connection
				wait.Go(func() { query(i) })
			}
			wait.Wait()
			if n := extended.Load(); n != 1 {
				t.Errorf("%d queries with the option", n)
			}
		})
	}
}

// TestTSIG: a signed message is forwarded unchanged, except for its id (RFC 8945 section 5.5).
func TestTSIG(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]bool{"alone": false, "with edns-tcp-keepalive and a cookie": true} {
		for _, tcp := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, TCP %t", name, tcp), func(t *testing.T) {
				var seen sight
				at := script{tcp: replies(func(r *dns.Msg) *dns.Msg { seen.add(r); return addressReply(r) })}.address(t)
				f := chainOf(t, stanzaOf("", at))
				m := question("a.example.")
				if options {
					m.SetEdns0(1232, false)
					m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_TCP_KEEPALIVE{}, cookie()}
				}
				m.SetTsig("key.example.", dns.HmacSHA256, 300, time.Now().Unix())
				wire, _, err := dns.TsigGenerate(m, "c2VjcmV0", "", false)
				kit.Must(t, err)
				m = new(dns.Msg)
				kit.Must(t, m.Unpack(wire))
				if wrong := queryOver(f, m, tcp).wrong(m); wrong != "" {
					t.Fatal(wrong)
				}
				got := seen.all()[0]
				got.Id = m.Id
				packed := kit.Pack(t, got)
				if string(packed) != string(wire) {
					t.Errorf("the server gets\n%v\nwant\n%v", got, m)
				}
			})
		}
	}
}

// TestTransfer: a zone transfer has its own connection.
func TestTransfer(t *testing.T) {
	t.Parallel()
	for _, options := range []string{"", "prefer_udp", "force_tcp", "fallback udp\nforce_tcp"} {
		for _, qtype := range []uint16{dns.TypeAXFR, dns.TypeIXFR} {
			t.Run(options+" "+dns.TypeToString[qtype], func(t *testing.T) {
				f, servers := forwardTo(t, options, good)
				wantRight(t, f, true, "a.example.")
				before := servers[0].Counts()
				for range 2 {
					m := new(dns.Msg).SetQuestion("example.", qtype)
					if a := queryOver(f, m, false); a.Msg == nil || a.Id != m.Id {
						t.Errorf("error %v", a.err)
					}
				}
				wantRight(t, f, true, "b.example.")
				after := servers[0].Counts()
				limit := 2
				if before.TCP == 0 {
					limit = 3
				}
				if n := after.Connections - before.Connections; after.TCP-before.TCP < 2 || n < 2 || n > limit {
					t.Errorf("%d more connections, %d queries over TCP", n, after.TCP-before.TCP)
				}
				kit.Eventually(t, "only one connection is open", func() bool { return servers[0].Counts().Open <= 1 })
			})
		}
	}
}

// TestMany: queries with the same id share connections, and each gets its own answer.
func TestMany(t *testing.T) {
	t.Parallel()
	measured(t, func(t testing.TB) {
		f, servers := forwardTo(t, "force_tcp", rogue.Behaviour{Shuffle: 50 * time.Millisecond})
		var wait sync.WaitGroup
		for i := range 300 {
			wait.Go(func() {
				m := question(fmt.Sprintf("q%d.example.", i))
				m.Id = 4711
				if wrong := queryOver(f, m, false).wrong(m); wrong != "" {
					t.Error(wrong)
				}
			})
		}
		wait.Wait()
		if c := servers[0].Counts(); c.TCP != 300 || c.Connections > 2 || c.UDP > 0 {
			t.Errorf("%d queries over TCP, %d over UDP, on %d connections", c.TCP, c.UDP, c.Connections)
		}
	})
}

// TestLong has a long query and an answer longer than a datagram.
func TestLong(t *testing.T) {
	t.Parallel()
	at := script{tcp: replies(func(r *dns.Msg) *dns.Msg {
		m := addressReply(r)
		for range 200 {
			m.Extra = append(m.Extra, &dns.TXT{Hdr: dns.RR_Header{Name: r.Question[0].Name, Rrtype: dns.TypeTXT, Class: dns.ClassINET}, Txt: []string{strings.Repeat("x", 250)}})
		}
		return m
	})}.address(t)
	f := chainOf(t, stanzaOf("force_tcp", at))
	for range 2 {
		m := question("a.example.").SetEdns0(1232, false)
		m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_PADDING{Padding: make([]byte, 3000)}}
		a := queryOver(f, m, false)
		if wrong := a.wrong(m); wrong != "" || len(a.Extra) != 200 {
			t.Error(wrong)
		}
	}
}

// TestTransferOverQUIC: the transport carries no zone transfer. The upstream has not failed, and is not tried again.
func TestTransferOverQUIC(t *testing.T) {
	t.Parallel()
	f := chainOf(t, stanzaOf("", "quic://127.0.0.1:1"))
	m := new(dns.Msg).SetAxfr("a.example.")
	code, err := f.ServeDNS(t.Context(), &test.ResponseWriter{TCP: true}, m)
	if code != dns.RcodeNotImplemented || err == nil {
		t.Errorf("code %s, error %v, want NOTIMP", dns.RcodeToString[code], err)
	}
	if u := upstreamOf(f, 0); u.doubted() {
		t.Errorf("upstream %s counts as failed", u.address)
	}
}
