//go:build !race

// Under the race detector, package sync drops pooled objects at random.

package forward

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/dso"
	"github.com/nearside-dns/nearside/plugin/internal/vouch"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
	"github.com/nearside-dns/nearside/test/kit"
)

// counting is a Receiver that counts results.
type counting struct {
	failed, answered atomic.Int64
}

// Receive implements wirechain.Receiver.
func (c *counting) Receive(_ *batch.Batch, _ *wire.Reply, _ *vouch.Voucher, _ int, err error) {
	if err != nil {
		c.failed.Add(1)
	} else {
		c.answered.Add(1)
	}
}

// packedQuery returns a packed query for a name, and its fields.
func packedQuery(t testing.TB, name string) (wire.Query, []byte) {
	t.Helper()
	packed, err := question(name).Pack()
	var q wire.Query
	if err != nil || !q.Parse(packed) {
		t.Fatalf("%s: %v", name, err)
	}
	return q, packed
}

// listenTCP returns a server with a handler for connections.
func listenTCP(t testing.TB, serve func(net.Conn)) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	kit.Must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				serve(c)
				_ = c.Close()
			}()
		}
	}()
	return l.Addr().String()
}

// inUse returns the bytes of the heap and of stacks in use.
func inUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// TestMemory: a query in flight to a silent upstream over TCP takes less than maxInFlightBytes of heap and stacks. Measured:
// 1,376 bytes.
func TestMemory(t *testing.T) {
	const queries, maxInFlightBytes = 10000, 2000
	at := listenTCP(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	f := chainOf(t, stanzaOf("force_tcp\ncaller node-a zone-1\nmax_in_flight 20000\ntimeout 8s\nread_timeout 8s\nmax_fails 0", at))
	each := f.memoryOf(t, queries, at)
	t.Logf("%d bytes for each query; an exchange has %d", each, unsafe.Sizeof(exchange{}))
	if each >= maxInFlightBytes {
		t.Errorf("%d bytes for each query in flight, want less than %d", each, maxInFlightBytes)
	}
	if n := runtime.NumGoroutine(); n > 1000 {
		t.Errorf("%d goroutines", n)
	}
}

// answerAll answers the queries of a connection, all of one read by one write.
func answerAll(c net.Conn) {
	buf, have := make([]byte, 64<<10), 0
	for {
		n, err := c.Read(buf[have:])
		if err != nil {
			return
		}
		have += n
		end := 0
		for have-end >= 2 && have-end >= 2+int(binary.BigEndian.Uint16(buf[end:])) {
			buf[end+4] |= 0x80
			end += 2 + int(binary.BigEndian.Uint16(buf[end:]))
		}
		if _, err := c.Write(buf[:end]); err != nil {
			return
		}
		have = copy(buf, buf[end:have])
	}
}

// answerWithHandle is answerAll with a session, and with a handle in each answer: the data of the last option, which requests
// notification.
func answerWithHandle(c net.Conn) {
	buf, out := make([]byte, 4<<10), make([]byte, 0, 4<<10)
	have := 0
	for {
		n, err := c.Read(buf[have:])
		if err != nil {
			return
		}
		have += n
		for have >= 2 && have >= 2+int(binary.BigEndian.Uint16(buf)) {
			end := 2 + int(binary.BigEndian.Uint16(buf))
			m := append(out[:2], buf[2:end]...)
			have = copy(buf, buf[end:have])
			if dso.IsDSO(m[2:]) {
				m = dso.AppendSessionResponse(m[:2], binary.BigEndian.Uint16(m[2:]), dso.Opening{Instance: 1})
			} else {
				m[4] |= 0x80
				opt := m[2+wire.QuestionEnd(m[2:]):]
				binary.BigEndian.PutUint16(opt[wire.OPTLen-2:], binary.BigEndian.Uint16(opt[wire.OPTLen-2:])+8)
				m[len(m)-1] = 8
				m = append(m, 0, 0, 0, 0, 0, 0, 0, handle)
			}
			binary.BigEndian.PutUint16(m, uint16(len(m)-2))
			if _, err := c.Write(m); err != nil {
				return
			}
		}
	}
}

// signalling is a Receiver that signals results.
type signalling chan error

// Receive implements wirechain.Receiver.
func (s signalling) Receive(_ *batch.Batch, _ *wire.Reply, _ *vouch.Voucher, _ int, err error) {
	s <- err
}

// TestExchange_Allocs: a query over an open connection and its reply cause no allocations.
func TestExchange_Allocs(t *testing.T) {
	at := listenTCP(t, answerAll)
	for _, options := range []string{"force_tcp\ncaller node-a zone-1", "coherent\ncaller node-a zone-1"} {
		f := chainOf(t, stanzaOf(options, at))
		if n := exchangeAllocs(t, f); n > 0 {
			t.Errorf("%s: %v allocations", options, n)
		}
	}
}

// maxCoherentAllocs is the maximum number of allocations for an answer with a handle that the session has: the voucher and its
// handles.
const maxCoherentAllocs = 2

// TestExchange_CoherentAllocs limits the allocations of a query whose answer has a handle.
func TestExchange_CoherentAllocs(t *testing.T) {
	at := listenTCP(t, answerWithHandle)
	f := chainOf(t, stanzaOf("coherent\ncaller node-a zone-1", at))
	_ = exchangeAllocs(t, f)
	kit.Eventually(t, "the session is open", func() bool { return metric(t, "nearside_forward_coherence_sessions", "to", at) == 1 })
	if got := overWire(t, f, question("www.example.org.")); got.voucher == nil {
		t.Error("the answer has no handle")
	}
	if n := exchangeAllocs(t, f); n > maxCoherentAllocs {
		t.Errorf("%v allocations, the limit is %v", n, maxCoherentAllocs)
	}
}

// exchangeAllocs returns the number of allocations for a query and its reply.
func exchangeAllocs(t *testing.T, f *Forward) float64 {
	t.Helper()
	q, packed := packedQuery(t, "www.example.org.")
	done := make(signalling, 1)
	var b batch.Batch
	return testing.AllocsPerRun(1000, func() {
		f.Exchange(&b, &q, packed, false, done)
		b.Flush()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// pacing is a Receiver that returns permissions to send.
type pacing chan struct{}

// Receive implements wirechain.Receiver.
func (p pacing) Receive(_ *batch.Batch, _ *wire.Reply, _ *vouch.Voucher, _ int, _ error) {
	p <- struct{}{}
}

// BenchmarkExchange measures a query and its reply, with many in flight, including the cost of a server in this process.
func BenchmarkExchange(b *testing.B) {
	for _, perFlush := range []int{1, 8} {
		b.Run(fmt.Sprintf("%d queries for each flush", perFlush), func(b *testing.B) {
			at := listenTCP(b, answerAll)
			f := chainOf(b, stanzaOf("force_tcp\ncaller node-a zone-1", at))
			q, packed := packedQuery(b, "www.example.org.")
			b.SetParallelism(1)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				const inFlight = 100
				room := make(pacing, inFlight)
				for range inFlight {
					room <- struct{}{}
				}
				var output batch.Batch
				n := 0
				for pb.Next() {
					select {
					case <-room:
					default:
						output.Flush()
						<-room
					}
					f.Exchange(&output, &q, packed, false, room)
					if n++; n%perFlush == 0 {
						output.Flush()
					}
				}
				output.Flush()
				for range inFlight {
					<-room
				}
			})
		})
	}
}

// TestMemory_UDP: a query in flight to a silent upstream over UDP takes less than maxInFlightBytes of heap and stacks.
func TestMemory_UDP(t *testing.T) {
	const queries, maxInFlightBytes = 3000, 3000
	p, err := net.ListenPacket("udp", "127.0.0.1:0")
	kit.Must(t, err)
	defer func() { _ = p.Close() }()
	f := chainOf(t, stanzaOf("prefer_udp\ncaller node-a zone-1\ntimeout 8s\nread_timeout 8s\nmax_fails 0", p.LocalAddr().String()))
	each := f.memoryOf(t, queries, p.LocalAddr().String())
	t.Logf("%d bytes for each query", each)
	if each >= maxInFlightBytes {
		t.Errorf("%d bytes for each query in flight, want less than %d", each, maxInFlightBytes)
	}
}

// memoryOf returns the bytes of heap and stacks for each of some queries in flight.
func (f *Forward) memoryOf(t *testing.T, queries int, at string) int {
	t.Helper()
	results := new(counting)
	q, packed := packedQuery(t, "www.example.org.")
	sent := 0
	send := func(n int) {
		var b batch.Batch
		for sent < n {
			for end := min(n, sent+500); sent < end; sent++ { // more may wait for the handshake
				if !f.Exchange(&b, &q, packed, false, results) {
					t.Fatal("not forwarded")
				}
				b.Flush()
			}
			// Copies may be in flight too.
			kit.Eventually(t, "queries are in flight", func() bool { return metric(t, "nearside_forward_in_flight", "to", at) >= float64(sent) })
		}
	}
	send(1)
	before := inUse()
	send(queries)
	each := int(inUse()-before) / queries
	if n := results.failed.Load(); n != 0 {
		t.Errorf("%d queries failed", n)
	}
	f.stop()
	kit.Eventually(t, "no query is in flight", func() bool { return metric(t, "nearside_forward_in_flight", "to", at) == 0 })
	return each
}
