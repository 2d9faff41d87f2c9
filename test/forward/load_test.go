//go:build linux

package forward

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/forward/rogue"
)

const (
	// budget is the max time of a query by default.
	budget = 5 * time.Second
	// margin is added to the budget for a busy machine.
	margin = 2500 * time.Millisecond
	// maxDatagram is the buffer of a client: far more than a reply has. Hundreds of clients with buffers of 64 KiB would cost
	// the race detector more CPU than the load itself.
	maxDatagram = 4096
	// maxReports is the max number of queries of a load that are reported one by one.
	maxReports = 5
)

// load is a number of queries for different names, each sent once by its own client.
type load struct {
	queries int           // 300 by default
	slow    int           // every n-th name begins with "slow"; 0 is none
	tcp     int           // every n-th query is sent over TCP; 0 is none
	pace    time.Duration // between two queries; 250 us by default
	wait    time.Duration // for an answer; budget and margin by default
	edns    bool          // the queries have EDNS
	host    string        // format of the names with a number, for an upstream with fixed names
}

// outcome is the reply to a query. err is set if no reply arrived in time.
type outcome struct {
	name    string
	want    netip.Addr
	network string
	edns    bool
	took    time.Duration
	reply   *dns.Msg
	err     error
}

var loads atomic.Int64 // number of the last load: part of its names

func (l load) defaults() load {
	if l.queries == 0 {
		l.queries = 300
	}
	if l.pace == 0 {
		l.pace = 250 * time.Microsecond
	}
	if l.wait == 0 {
		l.wait = budget + margin
	}
	return l
}

// names returns the names of a load, in random letter case.
func (l load) names() []string {
	run := loads.Add(1)
	names := make([]string, l.queries)
	for i := range names {
		kind := "name"
		if l.slow > 0 && i%l.slow == 0 {
			kind = "slow"
		}
		name := fmt.Sprintf("%s-%d-%d.test.", kind, run, i)
		if l.host != "" {
			name = fmt.Sprintf(l.host, i)
		}
		names[i] = anyCase(name)
	}
	return names
}

func anyCase(name string) string {
	b := []byte(name)
	for i, c := range b {
		if c >= 'a' && c <= 'z' && rand.IntN(2) == 0 {
			b[i] = c - 'a' + 'A'
		}
	}
	return string(b)
}

// begin starts all queries, and returns a function that waits for their outcomes.
func (l load) begin(s *server) func() outcomes {
	l = l.defaults()
	all := make(outcomes, l.queries)
	var clients sync.WaitGroup
	begun := make(chan struct{})
	go func() {
		defer close(begun)
		for i, name := range l.names() {
			o := &all[i]
			*o = outcome{name: name, want: rogue.Address(name), edns: l.edns, network: "udp"}
			if l.tcp > 0 && i%l.tcp == l.tcp-1 {
				o.network = "tcp"
			}
			clients.Go(func() { o.query(s.Addr, l.wait) })
			time.Sleep(l.pace)
		}
	}()
	return func() outcomes {
		<-begun
		clients.Wait()
		return all
	}
}

// run sends all queries and waits for the outcomes.
func (l load) run(s *server) outcomes { return l.begin(s)() }

// query sends one query for the addresses of the name.
func (o *outcome) query(address string, wait time.Duration) {
	begin := time.Now()
	m := new(dns.Msg).SetQuestion(o.name, dns.TypeA)
	if o.edns {
		m.SetEdns0(1232, false)
	}
	o.reply, o.err = exchange(o.network, address, m, begin.Add(wait))
	o.took = time.Since(begin)
}

// exchange sends a query once and returns its reply.
func exchange(network, address string, query *dns.Msg, deadline time.Time) (*dns.Msg, error) {
	packet, err := query.Pack()
	if err != nil {
		return nil, err
	}
	conn, err := net.DialTimeout(network, address, time.Until(deadline))
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // the reply is already read
	if err := conn.SetDeadline(deadline); err != nil {
		return nil, err
	}
	if network == "tcp" {
		packet = append(binary.BigEndian.AppendUint16(nil, uint16(len(packet))), packet...)
	}
	if _, err := conn.Write(packet); err != nil {
		return nil, err
	}
	packet, err = receive(conn, network)
	if err != nil {
		return nil, err
	}
	reply := new(dns.Msg)
	if err := reply.Unpack(packet); err != nil {
		return nil, err
	}
	if reply.Id != query.Id || len(reply.Question) != 1 || reply.Question[0] != query.Question[0] {
		return reply, errors.New("the reply does not match the query")
	}
	return reply, nil
}

// receive reads one message.
func receive(conn net.Conn, network string) ([]byte, error) {
	if network == "udp" {
		b := make([]byte, maxDatagram)
		n, err := conn.Read(b)
		return b[:n], err
	}
	var length [2]byte
	if _, err := io.ReadFull(conn, length[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint16(length[:]))
	_, err := io.ReadFull(conn, b)
	return b, err
}

// problem returns the error of an outcome, "" for the right answer.
func (o outcome) problem() string {
	switch {
	case errors.Is(o.err, os.ErrDeadlineExceeded):
		return "no reply"
	case o.err != nil:
		return o.err.Error()
	case o.reply.Rcode != dns.RcodeSuccess:
		return dns.RcodeToString[o.reply.Rcode]
	case len(o.reply.Answer) == 0:
		return "no records"
	}
	for _, rr := range o.reply.Answer {
		if a, ok := rr.(*dns.A); ok && strings.EqualFold(rr.Header().Name, o.name) && a.A.String() == o.want.String() {
			return ""
		}
	}
	return "wrong answer: " + o.reply.Answer[0].String()
}

// outcomes are the outcomes of the queries of a load.
type outcomes []outcome

// wantRight fails the test if a query did not get its right answer.
func (all outcomes) wantRight(t *testing.T) {
	t.Helper()
	all.want(t, "")
}

// wantRcode fails the test if a query got neither its right answer nor the response code, and returns the number of
// queries with each. A query without a reply fails the test.
func (all outcomes) wantRcode(t *testing.T, rcode int) (right, others int) {
	t.Helper()
	return all.want(t, dns.RcodeToString[rcode])
}

// want fails the test if an outcome has a problem other than the tolerated one.
func (all outcomes) want(t *testing.T, tolerated string) (right, others int) {
	t.Helper()
	var bad []string
	for _, o := range all {
		switch problem := o.problem(); problem {
		case "":
			right++
		case tolerated:
			others++
		default:
			bad = append(bad, fmt.Sprintf("%s over %s after %s: %s", o.name, o.network, o.took.Round(time.Millisecond), problem))
		}
	}
	if len(bad) > 0 {
		t.Errorf("%d of %d queries failed:\n%s", len(bad), len(all), strings.Join(bad[:min(len(bad), maxReports)], "\n"))
	}
	return right, others
}
