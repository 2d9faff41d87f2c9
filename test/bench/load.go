package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/fakeapi"
)

// kind is one kind of question.
type kind struct {
	name string
	// question returns the n-th question; what is expected of the answer is its response code and
	// number of records.
	question func(fakeapi.Generated, int) (name string, qtype uint16, rcode, records int)
}

var kinds = []kind{
	{"ClusterIP A", func(g fakeapi.Generated, n int) (string, uint16, int, int) {
		return serviceName(clusterIP(g, n)), dns.TypeA, dns.RcodeSuccess, 1
	}},
	{"headless A, 10 endpoints", func(g fakeapi.Generated, n int) (string, uint16, int, int) {
		return serviceName(headless(g, n)), dns.TypeA, dns.RcodeSuccess, 10
	}},
	{"NXDOMAIN of a search path", func(g fakeapi.Generated, n int) (string, uint16, int, int) {
		return fmt.Sprintf("www.example.com.%s.svc.cluster.local.", g.Namespace(n%g.Namespaces)), dns.TypeA, dns.RcodeNameError, 0
	}},
	{"ClusterIP SRV", func(g fakeapi.Generated, n int) (string, uint16, int, int) {
		return "_http._tcp." + serviceName(clusterIP(g, n)), dns.TypeSRV, dns.RcodeSuccess, 1
	}},
	{"headless SRV, 10 endpoints", func(g fakeapi.Generated, n int) (string, uint16, int, int) {
		return "_http._tcp." + serviceName(headless(g, n)), dns.TypeSRV, dns.RcodeSuccess, 10
	}},
	{"ClusterIP PTR", func(g fakeapi.Generated, n int) (string, uint16, int, int) {
		return reverse(clusterIP(g, n).ClusterIP), dns.TypePTR, dns.RcodeSuccess, 1
	}},
	{"endpoint PTR", func(g fakeapi.Generated, n int) (string, uint16, int, int) {
		return reverse(g.PodIP(n % g.Endpoints)), dns.TypePTR, dns.RcodeSuccess, 1
	}},
}

func serviceName(s fakeapi.GeneratedService) string {
	return s.Name + "." + s.Namespace + ".svc.cluster.local."
}

func clusterIP(g fakeapi.Generated, n int) fakeapi.GeneratedService {
	for ; ; n++ {
		if s := g.Service(n % g.Services); !s.Headless {
			return s
		}
	}
}

func headless(g fakeapi.Generated, n int) fakeapi.GeneratedService {
	for ; ; n++ {
		if s := g.Service(n % g.Services); s.Headless && s.Endpoints == 10 {
			return s
		}
	}
}

func reverse(address string) string {
	name, err := dns.ReverseAddr(address)
	if err != nil {
		panic(err) // the generated addresses are valid
	}
	return name
}

// packet is a question ready to be sent, and what is expected.
type packet struct {
	bytes          []byte
	rcode, records int
}

// packets makes a fixed number of questions of a kind, spread over the cluster.
func packets(g fakeapi.Generated, k kind) ([]packet, error) {
	const distinct = 4096
	r := rand.New(rand.NewPCG(1, 2))
	all := make([]packet, distinct)
	for i := range all {
		name, qtype, rcode, records := k.question(g, r.IntN(1<<30))
		m := new(dns.Msg).SetQuestion(name, qtype).SetEdns0(4096, false)
		b, err := m.Pack()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all[i] = packet{b, rcode, records}
	}
	return all, nil
}

// clients is the number of sockets; each has one question on its way.
const clients = 32

// ask sends n questions to a port, and fails with the first answer that is not as expected.
func ask(ctx context.Context, port int, questions []packet, n int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			if err := askOne(ctx, port, questions, &next, int64(n)); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

func askOne(ctx context.Context, port int, questions []packet, next *atomic.Int64, n int64) error {
	conn, err := net.DialUDP("udp", nil, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	buffer, send := make([]byte, 4096), make([]byte, 0, 512)
	for i := next.Add(1); i <= n && ctx.Err() == nil; i = next.Add(1) {
		q := questions[i%int64(len(questions))]
		send = append(send[:0], q.bytes...)
		send[0], send[1] = byte(i>>8), byte(i)
		if err := exchange(conn, send, buffer, q); err != nil {
			return err
		}
	}
	return nil
}

// exchange sends one question, again if its answer is lost, and checks the answer.
func exchange(conn *net.UDPConn, send, buffer []byte, q packet) error {
	for try := 0; ; try++ {
		if _, err := conn.Write(send); err != nil {
			return err
		}
		n, err := receive(conn, send, buffer)
		if errors.Is(err, os.ErrDeadlineExceeded) && try < 5 {
			continue
		}
		if err != nil {
			return err
		}
		if rcode, records := int(buffer[3]&15), int(buffer[6])<<8|int(buffer[7]); n < 12 || rcode != q.rcode || records != q.records {
			return fmt.Errorf("%q: response code %d and %d records, want %d and %d", send, rcode, records, q.rcode, q.records)
		}
		return nil
	}
}

// receive waits for the answer to a question, past those to earlier ones.
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
