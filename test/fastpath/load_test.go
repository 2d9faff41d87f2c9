//go:build linux

package fastpath

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// question is a query of a load, with a check that returns the error of an answer, "" for none.
type question struct {
	name  string
	qtype uint16
	check func(*dns.Msg) string
}

// load sends queries to a server without end. Each worker has one query in progress.
type load struct {
	network string // udp or tcp
	stop    chan struct{}
	workers sync.WaitGroup
	asked   atomic.Int64

	mu       sync.Mutex
	problems []string
}

const (
	pause       = time.Millisecond // of a worker between two queries, as the machine is busy
	perSocket   = 25               // queries before a worker changes its source port
	mostReports = 20
)

// startLoad starts workers that send the queries of next over UDP, given the worker and the number of the query.
func startLoad(t *testing.T, address string, workers int, next func(worker, i int) question) *load {
	t.Helper()
	return startLoadOver(t, "udp", address, workers, next)
}

// startLoadOver is startLoad over UDP or TCP. Over TCP, each worker has one connection.
func startLoadOver(t *testing.T, network, address string, workers int, next func(worker, i int) question) *load {
	t.Helper()
	l := &load{network: network, stop: make(chan struct{})}
	t.Cleanup(func() { l.halt() })
	for worker := range workers {
		l.workers.Go(func() { l.work(address, func(i int) question { return next(worker, i) }) })
	}
	return l
}

func (l *load) halt() {
	l.mu.Lock()
	select {
	case <-l.stop:
	default:
		close(l.stop)
	}
	l.mu.Unlock()
	l.workers.Wait()
}

// end ends the load, and fails the test for every query that was lost or answered wrongly. It returns the number of
// queries.
func (l *load) end(t *testing.T) int {
	t.Helper()
	l.halt()
	for i, p := range l.problems {
		if i == mostReports {
			t.Errorf("and %d more", len(l.problems)-i)
			break
		}
		t.Error(p)
	}
	return int(l.asked.Load())
}

func (l *load) problem(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.problems = append(l.problems, time.Now().Format("05.000 ")+fmt.Sprintf(format, args...))
}

func (l *load) work(address string, next func(int) question) {
	var conn net.Conn
	for i := 0; ; i++ {
		select {
		case <-l.stop:
			if conn != nil {
				_ = conn.Close()
			}
			return
		case <-time.After(pause):
		}
		if i == 0 || l.network == "udp" && i%perSocket == 0 {
			if conn != nil {
				_ = conn.Close()
			}
			var err error
			if conn, err = net.Dial(l.network, address); err != nil {
				l.problem("%v", err)
				return
			}
		}
		l.asked.Add(1)
		l.ask(conn, next(i))
	}
}

func (l *load) ask(conn net.Conn, q question) {
	m := newQuery(q.name, q.qtype)
	packet, err := m.Pack()
	if err != nil {
		l.problem("%v", err)
		return
	}
	if l.network == "tcp" {
		packet = append(binary.BigEndian.AppendUint16(nil, uint16(len(packet))), packet...)
	}
	if _, err := conn.Write(packet); err != nil {
		l.problem("%s: %v", q.name, err)
		return
	}
	if err := conn.SetReadDeadline(time.Now().Add(bounded)); err != nil {
		l.problem("%s: %v", q.name, err)
		return
	}
	b := make([]byte, 4096)
	n, err := l.receive(conn, b)
	if err != nil {
		l.problem("%s, from %s: %v", q.name, conn.LocalAddr(), err)
		return
	}
	reply := new(dns.Msg)
	if err := reply.Unpack(b[:n]); err != nil {
		l.problem("%s: %v", q.name, err)
		return
	}
	if reply.Id != m.Id || !reply.Response || len(reply.Question) != 1 || reply.Question[0] != m.Question[0] {
		l.problem("asked\n%v\nand was answered\n%v", m, reply)
		return
	}
	if wrong := q.check(reply); wrong != "" {
		l.problem("%s %s: %s", q.name, dns.Type(q.qtype), wrong)
	}
}

// receive receives a message, and returns its length.
func (l *load) receive(conn net.Conn, b []byte) (int, error) {
	if l.network == "udp" {
		return conn.Read(b)
	}
	if _, err := io.ReadFull(conn, b[:2]); err != nil {
		return 0, err
	}
	return io.ReadFull(conn, b[:min(int(binary.BigEndian.Uint16(b)), len(b))])
}

// isAddress returns a check for one A record with an address.
func isAddress(address string) func(*dns.Msg) string {
	return func(m *dns.Msg) string {
		if m.Rcode != dns.RcodeSuccess || len(m.Answer) != 1 {
			return fmt.Sprintf("want %s and got\n%v", address, m)
		}
		if a, ok := m.Answer[0].(*dns.A); !ok || a.A.String() != address {
			return fmt.Sprintf("want %s and got\n%v", address, m)
		}
		return ""
	}
}

// isRcode returns a check for an answer without data.
func isRcode(rcode int) func(*dns.Msg) string {
	return func(m *dns.Msg) string {
		if m.Rcode != rcode || len(m.Answer) != 0 {
			return fmt.Sprintf("want %s and got\n%v", dns.RcodeToString[rcode], m)
		}
		return ""
	}
}
