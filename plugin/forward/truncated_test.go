package forward

import (
	"bytes"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// TestReplyThatEndsInsideARecord: over UDP such a reply is truncated, with or without the flag: the client retries over TCP.
func TestReplyThatEndsInsideARecord(t *testing.T) {
	t.Parallel()
	for name, flag := range map[string]bool{"with TC": true, "without TC": false} {
		for _, missing := range []int{1, 5, 20} {
			t.Run(fmt.Sprint(name, ", missing ", missing), func(t *testing.T) {
				t.Parallel()
				reply := func(m *dns.Msg, tcp bool) []byte {
					b := pack(t, m)
					if tcp {
						return b
					}
					if flag {
						b[wire.FlagsAt] |= wire.TC
					}
					return bytes.Clone(b[:len(b)-missing])
				}
				bothWays(t, "", reply, func(t *testing.T, f *Forward, _ *atomic.Int32, tcp bool, query func(*dns.Msg) answer) {
					m := question("odd.example.org.")
					a := query(m)
					if tcp {
						if wrong := a.wrong(m); wrong != "" {
							t.Error(wrong)
						}
						return
					}
					if a.Msg == nil || !a.Truncated || len(a.Answer) > 0 {
						t.Errorf("code %d, error %v, message %v; want a truncated one", a.code, a.err, a.Msg)
					}
				})
				bothWays(t, "prefer_udp", reply, func(t *testing.T, _ *Forward, _ *atomic.Int32, _ bool, query func(*dns.Msg) answer) {
					m := question("odd.example.org.")
					if wrong := query(m).wrong(m); wrong != "" {
						t.Error(wrong)
					}
				})
			})
		}
	}
}

// TestReplyWithoutItsLastRecordsIsTruncated has counts of more records than the reply has: it is not complete over TCP either.
func TestReplyWithoutItsLastRecordsIsTruncated(t *testing.T) {
	t.Parallel()
	reply := func(m *dns.Msg, _ bool) []byte {
		b := pack(t, m)
		b[wire.ANCountAt+1] = 3
		return b
	}
	bothWays(t, "", reply, func(t *testing.T, _ *Forward, odd *atomic.Int32, _ bool, query func(*dns.Msg) answer) {
		if a := query(question("odd.example.org.")); a.Msg == nil || !a.Truncated {
			t.Errorf("code %d, error %v, message %v; want a truncated one", a.code, a.err, a.Msg)
		}
		if n := odd.Load(); n != 1 {
			t.Errorf("%d queries, want 1", n)
		}
	})
}
