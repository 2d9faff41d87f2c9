package transport

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	crand "crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"

	"context"

	"github.com/nearside-dns/nearside/test/property"
)

// randomServer serves a connection in one of many ways: with right answers, and with messages that answer no query.
func randomServer(seed uint64) func(*session) {
	return func(c *session) {
		r := rand.New(rand.NewPCG(seed, uint64(c.number)))
		mood := r.IntN(10)
		queries, done := make(chan []byte), make(chan struct{})
		defer close(done)
		go func() {
			defer close(queries)
			for q := c.next(); q != nil; q = c.next() {
				select {
				case queries <- q:
				case <-done:
					return
				}
			}
		}()
		var held [][]byte
		for n := 0; ; n++ {
			var q []byte
			select {
			case q = <-queries:
				if q == nil {
					return
				}
			case <-time.After(time.Duration(5+r.IntN(20)) * time.Millisecond):
				if len(held) == 0 || !c.respond(held...) {
					return
				}
				held = nil
				continue
			}
			held = append(held, answer(q))
			switch what := r.IntN(200); {
			case mood == 0 && n > r.IntN(50):
				return
			case mood == 1 && n > r.IntN(50):
				c.reset()
				return
			case what == 0:
				_, _ = c.Write([]byte{0, 99, 1})
				return
			case what < 5:
				c.respond([]byte{1, 2, 3}, edit(answer(q), func(b []byte) { setID(b, uint16(r.Uint32())) }))
			case what < 8:
				held[len(held)-1] = edit(answer(q), func(b []byte) { b[13] ^= 0x20 })
			case what < 10:
				held = held[:len(held)-1] // never answered
			case mood == 2:
				time.Sleep(time.Duration(r.IntN(2000)) * time.Microsecond)
			case mood < 6:
				r.Shuffle(len(held), func(i, j int) { held[i], held[j] = held[j], held[i] })
			}
			if mood == 2 || len(held) > r.IntN(20) {
				for _, m := range held {
					if !c.respond(m) {
						return
					}
				}
				held = nil
			}
		}
	}
}

// With any behaviour of the server, each call that is not cancelled returns once, with its own answer or an error, and no
// connection remains at the end.
func TestRandom(t *testing.T) {
	for i, c := range []struct {
		name               string
		depth, connections int
		calls              int // minimum
	}{
		{"few connections", 50, 2, 2000},
		{"one connection", 1000, 1, 2000},
		{"no pipelining", 1, 2, 1000},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			property.Seeds(t, uint64(i), 1, func(t *testing.T, seed uint64) {
				b := newTestbed(t, serving(t, randomServer(seed)), c.depth, c.connections)
				b.stall, b.maxStall, b.backoff = 2*time.Millisecond, 5*time.Millisecond, time.Millisecond
				b.minSerial, b.maxSerial, b.prompt = 20*time.Millisecond, 100*time.Millisecond, 20*time.Millisecond
				b.MaxAge, b.MaxIdle = 50*time.Millisecond, 3
				const workers = 16
				var answered, failed, cancelled atomic.Int32
				var end sync.WaitGroup
				for w := range workers {
					end.Go(func() {
						r := rand.New(rand.NewPCG(seed, uint64(w)<<32))
						// A busy machine answers fewer in time, and needs more calls.
						for i := 0; i < c.calls/workers || i < 10*c.calls/workers && answered.Load() < int32(c.calls); i++ {
							randomCall(t, b, r, fmt.Sprintf("a%s.%s.example.", letters(w), letters(i)), &answered, &failed, &cancelled)
						}
					})
				}
				end.Wait()
				t.Logf("%d answered, %d failed, %d cancelled, %d connections", answered.Load(), failed.Load(), cancelled.Load(), b.accepted.Load())
				if answered.Load() < int32(c.calls) {
					t.Errorf("%d of %d calls were answered, %d failed, %d were cancelled", answered.Load(), c.calls, failed.Load(), cancelled.Load())
				}
				b.Pool.Close()
				b.wantClosed()
				noneLeftOf(t, b)
				if n := b.waitingNow(); n != 0 {
					t.Errorf("%d calls wait", n)
				}
			})
		})
	}
}

// randomCall sends some calls and checks their results.
func randomCall(t *testing.T, b *testbed, r *rand.Rand, name string, answered, failed, cancelled *atomic.Int32) {
	calls := make([]*sent, 1+r.IntN(6))
	for i := range calls {
		calls[i] = newSent(t, letters(i)+name)
		calls[i].Alone = r.IntN(100) == 0
		if i > 0 && r.IntN(10) == 0 {
			calls[i].Elsewhere(calls[0].Call)
		}
		calls[i].sendTo(b)
	}
	for _, s := range calls {
		switch what := r.IntN(20); what {
		case 0:
			b.Cancel(s.Call)
		case 1:
			b.State(s.Call)
		}
		patience := time.Duration(1+r.IntN(30)) * time.Millisecond
		for late := 0; s != nil; late++ {
			select {
			case got := <-s.done:
				switch {
				case got.Err == nil:
					answered.Add(1)
					if nameOf(got.Reply) != s.name || id(got.Reply) != id(s.Query) {
						t.Errorf("%s got the answer for %s", s.name, nameOf(got.Reply))
					}
				default:
					failed.Add(1)
					if !errors.Is(got.Err, errClosed) && !refused(got.Err) {
						t.Errorf("%s: %v", s.name, got.Err)
					}
				}
				b.Cancel(s.Call)
				if len(s.done) > 0 {
					t.Errorf("%s returned twice", s.name)
				}
				s = nil
			case <-time.After(patience):
				b.Late(s.Call)
				if late > 0 {
					b.Cancel(s.Call)
					cancelled.Add(1)
					s = nil
				}
			}
		}
	}
}

// certificate returns a self-signed certificate for 127.0.0.1.
func certificate(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	kit.Must(t, err)
	is := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(crand.Reader, is, is, &key.PublicKey, key)
	kit.Must(t, err)
	parsed, err := x509.ParseCertificate(der)
	kit.Must(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// Queries share a TLS connection; its packets are counted.
func TestTLS(t *testing.T) {
	t.Parallel()
	own, roots := certificate(t)
	s := serving(t, func(c *session) {
		secure := tls.Server(c.TCPConn, &tls.Config{Certificates: []tls.Certificate{own}})
		for {
			var length [2]byte
			if _, err := readFull(secure, length[:]); err != nil {
				return
			}
			q := make([]byte, int(length[0])<<8|int(length[1]))
			if _, err := readFull(secure, q); err != nil {
				return
			}
			if _, err := secure.Write(frame(answer(q))); err != nil {
				return
			}
		}
	})
	b := newTestbed(t, s, 100, 2)
	plain := b.Dial
	b.Dial = func(ctx context.Context) (net.Conn, error) {
		c, err := plain(ctx)
		if err != nil {
			return nil, err
		}
		secure := tls.Client(c, &tls.Config{RootCAs: roots, ServerName: "127.0.0.1"})
		return secure, secure.HandshakeContext(ctx)
	}
	allAnswered(b.sendAll(100, "n"))
	b.Pool.Close()
	b.wantClosed()
	if n := b.accepted.Load(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
	if n := number(b.Metrics.Sent); n < 3 || n > 300 {
		t.Errorf("%d packets", n)
	}
}

func readFull(c net.Conn, b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		var more int
		more, err = c.Read(b[n:])
		n += more
	}
	return n, err
}
