package forward

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// Data of HTTPS records that package dns refuses, RFC 9460 section 2.2: with a hint of 3 bytes, and with keys in the wrong order.
const (
	shortHint = "0001" + "00" + "00040003c00002"
	unordered = "0001" + "00" + "00040004c0000201" + "00010003026832"
)

// httpsRecord returns an HTTPS record with any data in hexadecimal.
func httpsRecord(name, data string) dns.RR {
	return &dns.RFC3597{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeHTTPS, Class: dns.ClassINET, Ttl: 300}, Rdata: data}
}

// packedScript returns a server whose replies to names that begin with "odd" are those of a function for the reply of a good server,
// and the number of these.
func packedScript(t testing.TB, reply func(m *dns.Msg, tcp bool) []byte) (s script, odd *atomic.Int32) {
	odd = new(atomic.Int32)
	handler := func(tcp bool) dns.HandlerFunc {
		return func(w dns.ResponseWriter, r *dns.Msg) {
			m := addressReply(r)
			if !strings.HasPrefix(r.Question[0].Name, "odd") {
				_ = w.WriteMsg(m) // the client may be gone
				return
			}
			odd.Add(1)
			_, _ = w.Write(reply(m, tcp))
		}
	}
	return script{udp: handler(false), tcp: handler(true), host: nextHost()}, odd
}

// pack packs a message.
func pack(t testing.TB, m *dns.Msg) []byte {
	t.Helper()
	b, err := m.Pack()
	if err != nil {
		t.Error(err)
	}
	return b
}

// bothWays runs a test of both ways of a query, over UDP and TCP. Another client is served after it.
func bothWays(t *testing.T, options string, reply func(m *dns.Msg, tcp bool) []byte, test func(t *testing.T, f *Forward, odd *atomic.Int32, tcp bool, query func(*dns.Msg) answer)) {
	t.Helper()
	for _, tcp := range []bool{false, true} {
		for _, wire := range []bool{false, true} {
			name := map[bool]string{false: "UDP, ", true: "TCP, "}[tcp] + map[bool]string{false: "chain", true: "wire form"}[wire]
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s, odd := packedScript(t, reply)
				f := chainOf(t, stanzaOf(options, s.address(t)))
				test(t, f, odd, tcp, func(m *dns.Msg) answer {
					if !wire {
						return queryWith(context.Background(), f, m, tcp)
					}
					a, ok := exchangeOver(f, m, tcp)
					if !ok {
						t.Error("the query is for the plugin chain")
					}
					return a
				})
				wantRight(t, f, tcp, "other.example.org.")
				if upstreamOf(f, 0).doubted() {
					t.Error("the upstream is doubted")
				}
			})
		}
	}
}

// TestHTTPSRecordWithAShortHintReachesTheClient: records are passed on unchanged, like those of unknown types (RFC 3597 section 3).
func TestHTTPSRecordWithAShortHintReachesTheClient(t *testing.T) {
	t.Parallel()
	for name, data := range map[string]string{"short hint": shortHint, "unordered": unordered} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reply := func(m *dns.Msg, _ bool) []byte {
				m.Answer = []dns.RR{httpsRecord(m.Question[0].Name, data)}
				return pack(t, m)
			}
			bothWays(t, "", reply, func(t *testing.T, _ *Forward, odd *atomic.Int32, _ bool, query func(*dns.Msg) answer) {
				m := new(dns.Msg).SetQuestion("odd.eXample.org.", dns.TypeHTTPS).SetEdns0(1232, true)
				a := query(m)
				if a.Msg == nil || len(a.Answer) != 1 || a.Answer[0].String() != httpsRecord("odd.eXample.org.", data).String() {
					t.Errorf("code %d, error %v, message %v", a.code, a.err, a.Msg)
				}
				if n := odd.Load(); n != 1 {
					t.Errorf("%d queries, want 1", n)
				}
			})
		})
	}
}

// TestMalformedReplyFailsAtOnce has a reply with a compression pointer to itself: the upstream gets one query over TCP, and two over
// UDP, where the reply may be damaged or forged.
func TestMalformedReplyFailsAtOnce(t *testing.T) {
	t.Parallel()
	reply := func(m *dns.Msg, _ bool) []byte {
		m.Answer = nil
		b := pack(t, m)
		b[wire.ANCountAt+1] = 1
		b = append(b, 0xc0, byte(len(b)), 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 192, 0, 2, 1)
		return b
	}
	bothWays(t, "fallback udp", reply, func(t *testing.T, f *Forward, odd *atomic.Int32, tcp bool, query func(*dns.Msg) answer) {
		if a := query(question("odd.example.org.")); a.Msg != nil || a.code != dns.RcodeServerFailure {
			t.Errorf("code %d, error %v, message %v", a.code, a.err, a.Msg)
		}
		want := map[bool]int32{false: 2, true: 1}[tcp]
		if n := odd.Load(); n != want {
			t.Errorf("%d queries, want %d", n, want)
		}
		if n := metric(t, "nearside_forward_dropped_answers_total", "to", upstreamOf(f, 0).address, "reason", "malformed"); n != float64(want) {
			t.Errorf("%v malformed answers are counted, want %d", n, want)
		}
	})
}
