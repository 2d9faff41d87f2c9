package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

// checkClients is the number of sockets of a check; each has one question in flight.
const checkClients = 32

// check sends every question to a server once, and fails with the first answer that is not as expected. It returns the
// lowest TTL of the answers' records, in seconds.
func check(ctx context.Context, s *server, l *load) (ttl uint32, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c := checker{server: s, questions: l.packets}
	c.lowest.Store(math.MaxUint32)
	var wg sync.WaitGroup
	for range checkClients {
		wg.Go(func() {
			if err := c.ask(ctx); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	return c.lowest.Load(), context.Cause(ctx)
}

// checker is a check in progress.
type checker struct {
	*server
	questions []packet
	next      atomic.Int64
	lowest    atomic.Uint32
}

// ask sends the questions that no other client has sent yet.
func (c *checker) ask(ctx context.Context) error {
	conn, err := net.DialUDP("udp", nil, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: c.port})
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	buffer, send := make([]byte, 4096), make([]byte, 0, 512)
	for ctx.Err() == nil {
		i := int(c.next.Add(1)) - 1
		if i >= len(c.questions) {
			return nil
		}
		send = append(send[:0], c.questions[i].bytes...)
		send[0], send[1] = byte(i>>8), byte(i)
		answer, err := exchange(conn, send, buffer)
		if err != nil {
			return err
		}
		if err := c.judge(c.questions[i], answer); err != nil {
			return err
		}
	}
	return nil
}

// judge compares an answer with the expected one, and records its TTLs.
func (c *checker) judge(q packet, answer []byte) error {
	var m dns.Msg
	if err := m.Unpack(answer); err != nil {
		return fmt.Errorf("%q: %w", q.bytes, err)
	}
	if !m.Response || len(m.Question) != 1 {
		return fmt.Errorf("%q: no response to it: %s", q.bytes, &m)
	}
	if c.name == nameEcho {
		return nil // has no records
	}
	if m.Rcode != q.rcode || len(m.Answer) != q.records {
		return fmt.Errorf("%q: response code %d and %d records, want %d and %d", m.Question[0].Name, m.Rcode, len(m.Answer), q.rcode, q.records)
	}
	if q.address != nil {
		if a, ok := m.Answer[0].(*dns.A); !ok || !a.A.Equal(q.address) {
			return fmt.Errorf("%q: answer %q, want the address %s", m.Question[0].Name, m.Answer[0], q.address)
		}
	}
	for _, r := range m.Answer {
		for ttl := r.Header().Ttl; ; {
			if old := c.lowest.Load(); old <= ttl || c.lowest.CompareAndSwap(old, ttl) {
				break
			}
		}
	}
	return nil
}

// exchange sends one question, again if its answer is lost, and returns the answer.
func exchange(conn *net.UDPConn, send, buffer []byte) ([]byte, error) {
	for try := 0; ; try++ {
		if _, err := conn.Write(send); err != nil {
			return nil, err
		}
		n, err := receive(conn, send, buffer)
		if errors.Is(err, os.ErrDeadlineExceeded) && try < 5 {
			continue
		}
		return buffer[:n], err
	}
}

// receive waits for the answer to a question, and skips those to earlier ones.
func receive(conn *net.UDPConn, send, buffer []byte) (n int, err error) {
	if err := conn.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		return 0, err
	}
	for {
		n, err = conn.Read(buffer)
		if err != nil || n >= 2 && buffer[0] == send[0] && buffer[1] == send[1] {
			return n, err
		}
	}
}
