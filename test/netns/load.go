//go:build linux

package netns

import (
	"errors"
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

// Ask sends one query for the TXT records of a name to port 53 of a server, over "udp" or "tcp" and
// from a new port, and returns the strings of the first record of the answer. It does not retry.
func (n *Namespace) Ask(network string, server netip.Addr, name string, timeout time.Duration) ([]string, error) {
	end := time.Now().Add(timeout)
	var socket net.Conn
	if err := n.Do(func() (err error) {
		dialer := net.Dialer{Deadline: end}
		socket, err = dialer.Dial(network, netip.AddrPortFrom(server, 53).String())
		return err
	}); err != nil {
		return nil, fmt.Errorf("ask %v: %w", server, err)
	}
	record, err := exchange(socket, name, end)
	if err := errors.Join(err, socket.Close()); err != nil {
		return nil, fmt.Errorf("ask %v: %w", server, err)
	}
	return record, nil
}

// exchange asks on a connection and ignores answers to other questions.
func exchange(socket net.Conn, name string, end time.Time) ([]string, error) {
	query := new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.TypeTXT)
	connection := &dns.Conn{Conn: socket}
	if err := connection.SetDeadline(end); err != nil {
		return nil, err
	}
	if err := connection.WriteMsg(query); err != nil {
		return nil, err
	}
	for {
		reply, err := connection.ReadMsg()
		if err != nil {
			return nil, err
		}
		if reply.Id != query.Id || len(reply.Question) != 1 || reply.Question[0].Name != query.Question[0].Name {
			continue
		}
		if reply.Rcode != dns.RcodeSuccess {
			return nil, errors.New(dns.RcodeToString[reply.Rcode])
		}
		for _, r := range reply.Answer {
			if txt, ok := r.(*dns.TXT); ok {
				return txt.Txt, nil
			}
		}
		return nil, errors.New("no TXT record")
	}
}

// Load is a stream of queries for TXT records at a steady rate, none of which is sent twice. Every
// query asks for another name and comes from another port. The server says who it is in the first
// string of the record.
type Load struct {
	// From is where the queries come from.
	From *Namespace
	// Network is "udp" or "tcp".
	Network string
	// Server is asked at port 53.
	Server netip.Addr
	// PerSecond is the number of queries in a second.
	PerSecond int
	// Timeout is how long a query waits for its answer, and is lost then; 0 is a second.
	Timeout time.Duration
}

// Query is what became of one query of a load.
type Query struct {
	// Sent is when it was sent, Done when it was answered or given up.
	Sent, Done time.Time
	// By is who answered it. It is empty if the query was lost.
	By string
	// Err is why the query was lost.
	Err error
}

// Report is what became of the queries of a load, in the order in which they were sent.
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

// Start begins to send the load. It ends with Stop, or with the test.
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

// send starts one query at a time, each by its time of the schedule, so that a pause of the test
// itself does not lower the number of queries.
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

// Stop ends the load, waits until every query is answered or lost, and tells what became of them.
func (s *Stream) Stop() Report {
	s.once.Do(func() {
		close(s.stop)
		<-s.sent
		s.queries.Wait()
	})
	return s.Report()
}

// Report tells what became of the queries that are answered or lost so far.
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

// DoneBefore returns the queries that were answered or given up before a time. What was under way
// at that time is neither here nor in Since.
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

// By returns how many queries each server answered.
func (r Report) By() map[string]int {
	by := map[string]int{}
	for _, q := range r {
		if q.Err == nil {
			by[q.By]++
		}
	}
	return by
}

// Gap returns the longest time in which no query was sent that was answered. The ends of the report
// count as answered, so a report without any answer is one gap.
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

// String tells the numbers, the gap, and what the lost queries died of.
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
