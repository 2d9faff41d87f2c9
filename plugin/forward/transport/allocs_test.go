package transport

import (
	"testing"
	"time"
)

// Limits of the allocations of a round trip over an open connection, as measured: the call, the answer, the flight, and
// for UDP the goroutine and its query. The server of the test allocates nothing.
const (
	roundTripTCP = 4
	roundTripUDP = 8
)

func TestAllocations(t *testing.T) {
	tcp := newTestbed(t, serving(t, func(c *session) {
		buf := make([]byte, 512)
		for {
			n, err := c.Read(buf)
			if err != nil {
				return
			}
			buf[4] |= 0x80 // of the flags, after the length prefix
			if _, err := c.Write(buf[:n]); err != nil {
				return
			}
		}
	}), 100, 2)
	tcp.tick = time.Hour // checks of connections do not count
	s := newUDPServer(t)
	udp := newDatagrams(t, s)
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		for {
			select {
			case p := <-s.packets:
				p.query[2] |= 0x80
				if _, err := s.WriteToUDP(p.query, p.from); err != nil {
					return
				}
			case <-stop:
				return
			}
		}
	}()
	for _, c := range []struct {
		name  string
		by    Carrier
		limit float64
	}{
		{"TCP", tcp.Pool, roundTripTCP},
		{"UDP", udp, roundTripUDP + 4}, // of the test's server
	} {
		t.Run(c.name, func(t *testing.T) {
			query := question(t, "www.example.")
			done := make(chan *Call, 1)
			if n := testing.AllocsPerRun(500, func() {
				c.by.Send(&Call{Query: query, Deadline: time.Now().Add(soon), Done: done})
				if call := <-done; call.Err != nil {
					t.Error(call.Err)
				}
			}); n > c.limit {
				t.Errorf("%v allocations, the limit is %v", n, c.limit)
			} else {
				t.Logf("%v allocations", n)
			}
		})
	}
}
