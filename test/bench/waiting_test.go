package main

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// TestFlood has a server that answers ten queries, each twice.
func TestFlood(t *testing.T) {
	var answered atomic.Int64
	server := serveDNS(t, func(w dns.ResponseWriter, r *dns.Msg) {
		if !strings.HasSuffix(r.Question[0].Name, "-test."+deadZone) {
			return // it is not answered then
		}
		if answered.Add(1) > 10 {
			return
		}
		m := new(dns.Msg).SetRcode(r, dns.RcodeServerFailure)
		_ = w.WriteMsg(m) // an answer that is lost is counted
		_ = w.WriteMsg(m) // the second one is not counted
	})
	done, err := flood{clients: 5, each: 4, over: 20 * time.Millisecond, wait: time.Second}.run(t.Context(), int(server.Port()), "test")
	if err != nil || done.sent != 20 || done.soon != 10 || done.late != 0 || done.lost() != 10 {
		t.Errorf("%+v, error %v", done, err)
	}
}

func TestFloodCount(t *testing.T) {
	began := time.Now()
	c := floodClient{sent: []time.Time{began, began, began}}
	for _, answer := range []struct {
		id    int
		after time.Duration
	}{{0, waitingSoonLimit - 1}, {1, waitingSoonLimit}, {1, 2 * waitingSoonLimit}, {9, 0}} {
		c.count(answer.id, began.Add(answer.after))
	}
	if c.done.soon != 1 || c.done.late != 1 {
		t.Errorf("%+v", c.done)
	}
}

func TestSumDrops(t *testing.T) {
	const text = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  100: 0100007F:1F90 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 1 2 0000000000000000 3
  101: 0100007F:1F90 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 2 2 0000000000000000 4
  102: 0100007F:1F91 0100007F:1F90 07 00000000:00000000 00:00000000 00000000     0        0 3 2 0000000000000000 9
  103: 0100007F:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4 2 0000000000000000 many
`
	for _, c := range []struct {
		name string
		port int
		want int
		err  bool
	}{
		{"two sockets", 0x1f90, 7, false},
		{"one socket", 0x1f91, 9, false},
		{"none", 1, 0, false},
		{"no number", 53, 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, err := sumDrops(text, c.port); got != c.want || (err != nil) != c.err {
				t.Errorf("%d, error %v; want %d", got, err, c.want)
			}
		})
	}
}
