//go:build linux

package netns

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// Ask sends one query for the TXT records of a name to port 53 of a server, over "udp" or "tcp" and from a new port. It
// returns the strings of the first record of the answer, and does not retry.
func (n *Namespace) Ask(network string, server netip.Addr, name string, timeout time.Duration) ([]string, error) {
	return n.AskFrom(nil, network, server, name, timeout)
}

// AskFrom is Ask from a local address with a port; nil is a new port.
func (n *Namespace) AskFrom(local net.Addr, network string, server netip.Addr, name string, timeout time.Duration) ([]string, error) {
	query := new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.TypeTXT)
	dialer := net.Dialer{Timeout: timeout, LocalAddr: local}
	reply, err := n.exchange(dialer, network, netip.AddrPortFrom(server, 53).String(), query)
	if err != nil {
		return nil, fmt.Errorf("query to %v: %w", server, err)
	}
	if len(reply.Question) != 1 || reply.Question[0].Name != query.Question[0].Name {
		return nil, fmt.Errorf("query to %v: reply to another query", server)
	}
	if reply.Rcode != dns.RcodeSuccess {
		return nil, fmt.Errorf("query to %v: %s", server, dns.RcodeToString[reply.Rcode])
	}
	for _, r := range reply.Answer {
		if txt, ok := r.(*dns.TXT); ok {
			return txt.Txt, nil
		}
	}
	return nil, fmt.Errorf("query to %v: no TXT record", server)
}

// Load is a stream of queries for TXT records at a steady rate, without retries. Every query has another name and another
// source port. The first string of the record is the name of the server.
type Load struct {
	// From is the namespace of the client.
	From *Namespace
	// Network is "udp" or "tcp".
	Network string
	// Server is the address of the server; the port is 53.
	Server netip.Addr
	// PerSecond is the number of queries per second.
	PerSecond int
	// Timeout is the time after which a query without a reply is lost; 0 is a second.
	Timeout time.Duration
}

// Query is the result of one query of a load.
type Query struct {
	// Sent is the time of the query, Done the time of the reply or the failure.
	Sent, Done time.Time
	// By is the name of the server that answered, empty for a lost query.
	By string
	// Err is the cause of the loss.
	Err error
}

// Report has the results of the queries of a load, by the time of the query.
type Report []Query

// Stream is a load that is being sent.
type Stream struct {
	stop chan struct{}
	sent chan struct{} // closed when no more queries are sent
	once sync.Once

	queries sync.WaitGroup
	mu      sync.Mutex
	report  Report
}

// Start starts the load. It ends with Stop, or with the test.
func (l Load) Start(t testing.TB) *Stream {
	t.Helper()
	if l.Timeout == 0 {
		l.Timeout = time.Second
	}
	s := &Stream{stop: make(chan struct{}), sent: make(chan struct{})}
	go s.send(l)
	t.Cleanup(func() { s.Stop() })
	return s
}

// send starts each query at its scheduled time, so that a pause of the test process does not change their number.
func (s *Stream) send(l Load) {
	defer close(s.sent)
	start := time.Now()
	for i := 0; ; i++ {
		due := start.Add(time.Duration(i) * time.Second / time.Duration(l.PerSecond))
		select {
		case <-s.stop:
			return
		case <-time.After(time.Until(due)):
		}
		s.queries.Go(func() { s.query(l, fmt.Sprintf("q%d.load.test.", i)) })
	}
}

func (s *Stream) query(l Load, name string) {
	q := Query{Sent: time.Now()}
	record, err := l.From.Ask(l.Network, l.Server, name, l.Timeout)
	q.Done, q.Err = time.Now(), err
	if err == nil {
		q.By = record[0]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report = append(s.report, q)
}

// Stop ends the load, waits until every query is answered or lost, and returns the report.
func (s *Stream) Stop() Report {
	s.once.Do(func() {
		close(s.stop)
		<-s.sent
		s.queries.Wait()
	})
	return s.Report()
}

// Report returns the results of the queries that are answered or lost until now.
func (s *Stream) Report() Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	sorted := slices.Clone(s.report)
	slices.SortFunc(sorted, func(a, b Query) int { return a.Sent.Compare(b.Sent) })
	return sorted
}

// Since returns the queries that were sent after a time.
func (r Report) Since(start time.Time) Report {
	first, _ := slices.BinarySearchFunc(r, start, func(q Query, t time.Time) int { return q.Sent.Compare(t) })
	return r[first:]
}

// DoneBefore returns the queries that were answered or lost before a time. Queries in flight at that time are neither in
// this report nor in that of Since.
func (r Report) DoneBefore(end time.Time) Report {
	return slices.DeleteFunc(slices.Clone(r), func(q Query) bool { return !q.Done.Before(end) })
}

// Lost returns the number of queries without an answer.
func (r Report) Lost() (n int) {
	for _, q := range r {
		if q.Err != nil {
			n++
		}
	}
	return n
}

// By returns the number of queries that each server answered.
func (r Report) By() map[string]int {
	by := map[string]int{}
	for _, q := range r {
		if q.Err == nil {
			by[q.By]++
		}
	}
	return by
}

// Gap returns the longest time between the sending of two answered queries. The first and the last query count as answered,
// so that a report without any answer is one gap.
func (r Report) Gap() (longest time.Duration) {
	if len(r) == 0 {
		return 0
	}
	last := r[0].Sent
	for i, q := range r {
		if q.Err == nil || i == len(r)-1 {
			longest = max(longest, q.Sent.Sub(last))
			last = q.Sent
		}
	}
	return longest
}

// String returns the number of queries, the servers, the causes of losses, and the gap.
func (r Report) String() string {
	causes := map[string]int{}
	for _, q := range r {
		if q.Err != nil {
			text := q.Err.Error()
			causes[text[strings.LastIndexByte(text, ':')+1:]]++
		}
	}
	return fmt.Sprintf("%d queries, answered by %v, %d lost%v, longest gap %v",
		len(r), r.By(), r.Lost(), causes, r.Gap().Round(time.Millisecond))
}
