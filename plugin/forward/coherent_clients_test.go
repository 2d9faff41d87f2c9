package forward

import (
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/test/kit"
)

// signed returns a query with a TSIG record of an unknown key, and additional records before it.
func signed(name string, before ...dns.RR) *dns.Msg {
	m := question(name)
	m.Extra = append(before, &dns.TSIG{
		Hdr:       dns.RR_Header{Name: "key.example.", Rrtype: dns.TypeTSIG, Class: dns.ClassANY},
		Algorithm: dns.HmacSHA256, MACSize: 2, MAC: "abcd",
	})
	return m
}

// TestOneClientsSignedKeepAliveLeavesTheSessionOfOthers: a client's signed queries with edns-tcp-keepalive are forwarded unchanged.
// The server resets the connection of a session with such a query: the session of the other clients remains.
func TestOneClientsSignedKeepAliveLeavesTheSessionOfOthers(t *testing.T) {
	for _, options := range []string{"coherent", "coherent\ncaller node-a", "coherent\nmax_connect_attempts 1"} {
		t.Run(fmt.Sprintf("%q", options), func(t *testing.T) {
			s := startSessions(t)
			f := chainOf(t, stanzaOf(options, s.addr))
			s.open(t, f)
			vouched := overWire(t, f, question("vouched.example."))
			if !vouched.voucher.Vouches(validity.Now()) {
				t.Fatalf("the session does not vouch: %v", vouched.err)
			}
			for i := range 5 {
				m := signed(fmt.Sprintf("signed-%d.example.", i), optOf(&dns.EDNS0_TCP_KEEPALIVE{}))
				if wrong := queryOver(f, m, i%2 == 0).wrong(m); wrong != "" {
					t.Errorf("the signed query: %s", wrong)
				}
				all := s.seen.all()
				if last := all[len(all)-1]; last.IsTsig() == nil || !hasOption(last.IsEdns0(), isKeepAlive) {
					t.Errorf("the server gets another query than the client has signed:\n%v", last)
				}
				wantRight(t, f, false, "other.example.")
			}
			if n := s.sessions(); n != 1 || !vouched.voucher.Vouches(validity.Now()) {
				t.Errorf("%d sessions; that of other clients vouches: %t", n, vouched.voucher.Vouches(validity.Now()))
			}
			if n := metric(t, "nearside_forward_fallbacks_total", "to", s.addr, "reason", "one_query_per_connection"); n != 0 {
				t.Errorf("the server was taken %v times for one that closes connections", n)
			}
		})
	}
}

// TestServerThatClosesConnectionsOfOneClient: a server closes the connection after its reply to a client's unusual query, as after one
// that it refuses. Other clients' queries share a connection that remains open, and the server counts as one that permits this.
func TestServerThatClosesConnectionsOfOneClient(t *testing.T) {
	t.Parallel()
	transfer := question("bad.example.")
	transfer.Question[0].Qtype = dns.TypeAXFR
	two, flagged := question("bad.example."), question("bad.example.")
	two.Extra = []dns.RR{txt("a."), txt("b.")}
	flagged.Authoritative = true
	for name, m := range map[string]*dns.Msg{"signed": signed("bad.example."), "two records": two, "a flag": flagged, "a transfer": transfer} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			others := map[string]bool{}
			at := script{host: nextHost(), tcp: func(w dns.ResponseWriter, r *dns.Msg) {
				if r.Question[0].Name == "bad.example." {
					_ = w.WriteMsg(new(dns.Msg).SetRcode(r, dns.RcodeRefused))
					_ = w.Close()
					return
				}
				mu.Lock()
				others[w.RemoteAddr().String()] = true
				mu.Unlock()
				_ = w.WriteMsg(addressReply(r))
			}}.address(t)
			f := chainOf(t, stanzaOf("force_tcp", at))
			for range 6 {
				if a := queryOver(f, m.Copy(), false); a.code != dns.RcodeRefused {
					t.Errorf("the unusual query: code %d, error %v", a.code, a.err)
				}
				wantRight(t, f, false, "other.example.")
			}
			mu.Lock()
			defer mu.Unlock()
			if n := metric(t, "nearside_forward_fallbacks_total", "to", at, "reason", "one_query_per_connection"); n != 0 || len(others) != 1 {
				t.Errorf("others' queries on %d connections; the server was taken %v times for one that closes them", len(others), n)
			}
		})
	}
}

// TestSessionIsOpenBeforeTheFirstQuery: the first answer after a start is valid until the session reports its end.
func TestSessionIsOpenBeforeTheFirstQuery(t *testing.T) {
	s := startSessions(t)
	f := chainOf(t, stanzaOf("coherent", s.addr))
	kit.Eventually(t, "the session vouches", func() bool { return upstreamOf(f, 0).vouches(nil) })
	if first := overWire(t, f, question("first.example.")); !first.voucher.Vouches(validity.Now()) {
		t.Errorf("error %v and voucher %v", first.err, first.voucher)
	}
}

// TestAnswersBeforeTheSessionAreFetchedAgain: a change would not be reported for answers that are older than the session.
func TestAnswersBeforeTheSessionAreFetchedAgain(t *testing.T) {
	for name, options := range map[string]string{"TCP": "coherent", "UDP": "coherent\nfallback udp"} {
		t.Run(name, func(t *testing.T) {
			s := startSessions(t)
			s.opens = make(chan struct{})
			opens := sync.OnceFunc(func() { close(s.opens) })
			defer opens()
			if name == "UDP" {
				s.mute.Store(true)
				startUDP(t, s.addr)
			}
			f := chainOf(t, stanzaOf(options, s.addr))
			upstreamOf(f, 0).tcpAgain = 10 * time.Millisecond
			wire := overWire(t, f, question("wire.example."))
			a, chain := throughChain(f, question("chain.example."))
			if wire.err != nil || a.Msg == nil || wire.voucher.Lapsed() || chain.Lapsed() {
				t.Fatalf("errors %v and %v; lapsed: %t, %t", wire.err, a.err, wire.voucher.Lapsed(), chain.Lapsed())
			}
			opens()
			s.mute.Store(false)
			kit.Eventually(t, "the older answers lapse", func() bool { return wire.voucher.Lapsed() && chain.Lapsed() })
			if wire.voucher.Vouches(validity.Now()) || chain.Ended() {
				t.Error("the session vouches for an answer that is older, or has ended it")
			}
		})
	}
}

// startUDP starts a server over UDP.
func startUDP(t *testing.T, address string) {
	t.Helper()
	c, err := net.ListenPacket("udp", address)
	kit.Must(t, err)
	kit.Run(t, &dns.Server{PacketConn: c, Handler: replies(addressReply)})
}
