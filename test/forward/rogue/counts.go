package rogue

import "sync"

// Counts are what the clients of a server did since it started or ResetCounts. Queries for the root are
// counted as probes, not as queries: that is what health checks ask for.
type Counts struct {
	UDP, TCP         int            // queries
	UDPProbes        int            // queries for the root over UDP
	TCPProbes        int            // and over TCP
	Answers          int            // sent or begun, but for wrong ones
	Malformed        int            // packets that are no query with one question
	Names            map[string]int // how often each name was asked for, as it was written
	Connections      int            // accepted
	Open             int            // connections, now
	MostOpen         int            // connections, at one time
	PerConnection    []int          // queries on each connection, in the order of the first
	InFlight         int            // queries that came over TCP and have no answer yet
	MostInFlight     int            // of them, on all connections at one time
	MostOnConnection int            // of them, on one connection at one time
}

// Queries returns the number of queries, without probes.
func (c Counts) Queries() int { return c.UDP + c.TCP }

// Probes returns the number of queries for the root.
func (c Counts) Probes() int { return c.UDPProbes + c.TCPProbes }

// ledger keeps the counts.
type ledger struct {
	mu     sync.Mutex
	counts Counts
	first  int // the number of the connection that PerConnection begins with
	next   int // the number of the next connection
}

// Counts returns what the clients have done.
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

// ResetCounts begins to count anew. What is open or in flight stays so; queries that come on connections
// that were open before are not in PerConnection.
func (s *Server) ResetCounts() {
	l := &s.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	open, inFlight := l.counts.Open, l.counts.InFlight
	l.counts = Counts{Open: open, MostOpen: open, InFlight: inFlight, MostInFlight: inFlight, Names: map[string]int{}}
	l.first = l.next
}

// opened counts a connection and returns its number.
func (l *ledger) opened() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts.Connections++
	l.counts.Open++
	l.counts.MostOpen = max(l.counts.MostOpen, l.counts.Open)
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

// frame counts a query over TCP on a connection that has this many in flight with it.
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
	c.MostInFlight = max(c.MostInFlight, c.InFlight)
	c.MostOnConnection = max(c.MostOnConnection, inFlight)
	if connection >= l.first {
		c.PerConnection[connection-l.first]++
	}
}

// answered counts an answer, over TCP or not.
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
