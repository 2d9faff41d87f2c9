package transport

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/wire"
	"github.com/nearside-dns/nearside/test/kit"
)

// refusing serves connections whose queries without edns-tcp-keepalive are answered. It calls a function for the others.
func refusing(refuse func(*session, []byte)) func(*session) {
	return func(c *session) {
		for q := c.next(); q != nil; q = c.next() {
			if _, ok := wire.MessageOption(q, wire.OptionKeepAlive); ok {
				refuse(c, q)
			} else if !c.respond(answer(q)) {
				return
			}
		}
	}
}

// refusedWith answers with a response code.
func refusedWith(rcode byte) func(*session, []byte) {
	return func(c *session, q []byte) {
		c.respond(edit(answer(q), func(b []byte) { b[wire.RcodeAt] |= rcode }))
	}
}

// keepAliveRefusals are the ways in which old servers and firewalls refuse edns-tcp-keepalive.
var keepAliveRefusals = map[string]func(*session, []byte){
	"FORMERR":             refusedWith(dns.RcodeFormatError),
	"FORMERR and a close": func(c *session, q []byte) { refusedWith(dns.RcodeFormatError)(c, q); c.close() },
	"NOTIMP":              refusedWith(dns.RcodeNotImplemented),
	"SERVFAIL":            refusedWith(dns.RcodeServerFailure),
	"a reset":             func(c *session, _ []byte) { c.reset() },
	"no answer":           func(*session, []byte) {},
	"a connection that ends": func(c *session, _ []byte) {
		for c.next() != nil {
		}
	},
}

// A client that sent plain EDNS has its answer from a server that refuses edns-tcp-keepalive, on each connection, and so have
// clients that share the connection. Only a check decides that the option is omitted.
func TestRefusedKeepAliveIsNotSeenByClients(t *testing.T) {
	for name, refuse := range keepAliveRefusals {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var extended, checks atomic.Int32
			b := newTestbed(t, serving(t, refusing(func(c *session, q []byte) {
				extended.Add(1)
				refuse(c, q)
			})), 100, 2)
			b.setStall(20 * time.Millisecond)
			b.CheckKeepAlive = func() { checks.Add(1) }
			connection := func() {
				t.Helper()
				all := make([]*sent, 4)
				for i := range all {
					all[i] = newSent(t, "www.example.")
					all[i].Query = withOPT(t)
					all[i].sendTo(b)
				}
				for _, s := range all {
					if s.wait(); s.Err != nil || s.Reply[wire.RcodeAt]&wire.RcodeMask != 0 {
						t.Fatalf("reply %x, error %v", s.Reply, s.Err)
					}
				}
				b.retireAll()
				becomes(t, "connections", b.Metrics.Connections, 0)
			}
			for i := range int32(2) { // the client's query may have been the reason
				connection()
				connection()
				kit.Eventually(t, "a check", func() bool { return checks.Load() == i+1 })
				if n := extended.Load(); n != i+1 {
					t.Errorf("%d queries with the option, want one until the check", n)
				}
				b.clock.skip(keepAliveDoubt + time.Second)
			}
			b.KeepAliveChecked(false)
			b.clock.skip(keepAliveDoubt + time.Second)
			connection()
			if n := extended.Load(); n != 2 {
				t.Errorf("%d queries with the option, want none after the check", n)
			}
			if n := number(b.Metrics.Single); n != 0 {
				t.Errorf("%d changes to one query per connection", n)
			}
		})
	}
}
