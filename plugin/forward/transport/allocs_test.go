package transport

import (
	"testing"
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
)

// Limits of the allocations of a round trip over an open connection, as measured. The server of the test allocates nothing.
const (
	roundTripTCP = 0
	roundTripUDP = 8
)

// signal is an Owner that forwards the errors of calls.
type signal chan error

// Ended implements Owner.
func (s signal) Ended(_ *batch.Batch, call *Call) { s <- call.Err }

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
			measureRoundTrips(t, c.by, question(t, "www.example."), c.limit)
		})
	}
}

// measureRoundTrips fails the test if a query and its answer cause more allocations than a limit.
func measureRoundTrips(t *testing.T, by Carrier, query []byte, limit float64) {
	t.Helper()
	done := make(signal, 1)
	var b batch.Batch
	call := new(Call)
	if n := testing.AllocsPerRun(500, func() {
		*call = Call{Query: query, Deadline: time.Now().Add(soon), Owner: done}
		if err := by.Send(&b, call); err != nil {
			t.Fatal(err)
		}
		b.Flush()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}); n > limit {
		t.Errorf("%v allocations, the limit is %v", n, limit)
	} else {
		t.Logf("%v allocations", n)
	}
}
