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
	// budget is how long a query may take if the Corefile does not say otherwise.
	budget = 5 * time.Second
	// margin is what a busy machine may take besides.
	margin = 2500 * time.Millisecond
	// mostReports is how many queries of a load are reported one by one.
	mostReports = 5
)

// load is a number of queries for names that differ, each by a client of its own that asks once.
type load struct {
	queries int           // 300 if it is not said
	slow    int           // of every so many, one has a name that begins with "slow"; 0 is none
	tcp     int           // of every so many, one comes over TCP; 0 is none
	pace    time.Duration // between two queries; 250 us if it is not said
	wait    time.Duration // for an answer; the default budget and margin if it is not said
	edns    bool          // whether the queries have EDNS
	host    string        // a format of the names, given the number, if the upstream knows no others
}

// outcome is what became of a query. err is set if there was no reply in time.
type outcome struct {
	name    string
	want    netip.Addr
	network string
	edns    bool
	took    time.Duration
	reply   *dns.Msg
	err     error
}

var loads atomic.Int64 // that have been run: names differ between them

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

// names returns the names of a load, in letters of any case.
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

// begin asks all queries, and returns what waits for the outcomes.
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
			clients.Go(func() { o.ask(s.Addr, l.wait) })
			time.Sleep(l.pace)
		}
	}()
	return func() outcomes {
		<-begun
		clients.Wait()
		return all
	}
}

// run asks all queries and waits for the outcomes.
func (l load) run(s *server) outcomes { return l.begin(s)() }

// ask asks once for the addresses of the name.
func (o *outcome) ask(address string, wait time.Duration) {
	begin := time.Now()
	query := new(dns.Msg).SetQuestion(o.name, dns.TypeA)
	if o.edns {
		query.SetEdns0(1232, false)
	}
	o.reply, o.err = exchange(o.network, address, query, begin.Add(wait))
	o.took = time.Since(begin)
}

// exchange sends a query once and returns the reply to it.
func exchange(network, address string, query *dns.Msg, deadline time.Time) (*dns.Msg, error) {
	packet, err := query.Pack()
	if err != nil {
		return nil, err
	}
	conn, err := net.DialTimeout(network, address, time.Until(deadline))
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // the answer counts
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
		return reply, errors.New("the reply is not to the query")
	}
	return reply, nil
}

// receive reads one message.
func receive(conn net.Conn, network string) ([]byte, error) {
	b := make([]byte, 65536)
	if network == "udp" {
		n, err := conn.Read(b)
		return b[:n], err
	}
	if _, err := io.ReadFull(conn, b[:2]); err != nil {
		return nil, err
	}
	b = b[:binary.BigEndian.Uint16(b)]
	_, err := io.ReadFull(conn, b)
	return b, err
}

// problem says what is wrong with the outcome for a query that could be answered, or "".
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

// outcomes are what became of the queries of a load.
type outcomes []outcome

// wantRight fails the test for every query that did not get its right answer.
func (all outcomes) wantRight(t *testing.T) {
	t.Helper()
	all.want(t, "")
}

// wantRcode fails the test for every query that got neither its right answer nor this response code, and
// returns how many got each. There is to be a reply to each in any case.
func (all outcomes) wantRcode(t *testing.T, rcode int) (right, others int) {
	t.Helper()
	return all.want(t, dns.RcodeToString[rcode])
}

// want fails the test for every problem but this one.
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
		t.Errorf("%d of %d queries went wrong:\n%s", len(bad), len(all), strings.Join(bad[:min(len(bad), mostReports)], "\n"))
	}
	return right, others
}
