package rogue

import "sync"

// Counts are the numbers of queries, answers and connections since the start of a server or the last ResetCounts. Queries
// for the root count as probes, not as queries: they are health checks.
type Counts struct {
	UDP, TCP        int            // queries
	UDPProbes       int            // queries for the root over UDP
	TCPProbes       int            // queries for the root over TCP
	Answers         int            // sent or begun, without wrong ones
	Malformed       int            // packets that are not a query with one question
	Names           map[string]int // queries by name, in the letter case of the query
	Connections     int            // accepted
	Open            int            // open connections
	MaxOpen         int            // max of Open
	PerConnection   []int          // queries on each connection, in the order of accept
	InFlight        int            // unanswered queries over TCP
	MaxInFlight     int            // max of InFlight
	MaxOnConnection int            // max of unanswered queries on one connection
}

// Queries returns the number of queries, without probes.
func (c Counts) Queries() int { return c.UDP + c.TCP }

// Probes returns the number of queries for the root.
func (c Counts) Probes() int { return c.UDPProbes + c.TCPProbes }

// ledger updates the counts.
type ledger struct {
	mu     sync.Mutex
	counts Counts
	first  int // number of the first connection in PerConnection
	next   int // number of the next connection
}

// Counts returns the current counts.
func (s *Server) Counts() Counts {
	l := &s.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.counts
	c.PerConnection = append([]int(nil), c.PerConnection...)
	c.Names = make(map[string]int, len(l.counts.Names))
	for name, n := range l.counts.Names {
		c.Names[name] = n
	}
	return c
}

// ResetCounts sets the counts to zero, except those of open connections and queries in flight. PerConnection omits
// connections that are already open.
func (s *Server) ResetCounts() {
	l := &s.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	open, inFlight := l.counts.Open, l.counts.InFlight
	l.counts = Counts{Open: open, MaxOpen: open, InFlight: inFlight, MaxInFlight: inFlight, Names: map[string]int{}}
	l.first = l.next
}

// opened counts a connection and returns its number.
func (l *ledger) opened() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts.Connections++
	l.counts.Open++
	l.counts.MaxOpen = max(l.counts.MaxOpen, l.counts.Open)
	l.counts.PerConnection = append(l.counts.PerConnection, 0)
	l.next++
	return l.next - 1
}

func (l *ledger) closed(unanswered int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts.Open--
	l.counts.InFlight -= unanswered
}

// datagram counts a query over UDP.
func (l *ledger) datagram(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if name == "." {
		l.counts.UDPProbes++
		return
	}
	l.counts.UDP++
	l.counts.Names[name]++
}

// frame counts a query over TCP. inFlight is the number of unanswered queries on its connection, with this one.
func (l *ledger) frame(name string, connection, inFlight int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := &l.counts
	c.InFlight++
	if name == "." {
		c.TCPProbes++
		return
	}
	c.TCP++
	c.Names[name]++
	c.MaxInFlight = max(c.MaxInFlight, c.InFlight)
	c.MaxOnConnection = max(c.MaxOnConnection, inFlight)
	if connection >= l.first {
		c.PerConnection[connection-l.first]++
	}
}

// answered counts an answer.
func (l *ledger) answered(tcp bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts.Answers++
	if tcp {
		l.counts.InFlight--
	}
}

func (l *ledger) malformed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts.Malformed++
}
