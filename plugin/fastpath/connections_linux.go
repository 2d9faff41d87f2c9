package fastpath

import (
	"cmp"
	"math"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Default limits of the connections over TCP.
const (
	// defaultConnections limits the connections of the process, unless half the limit of open files is lower. A connection
	// has 1 KB in the process and some kilobytes in the kernel.
	defaultConnections = 10000
	// defaultClientConnections limits the connections of a client: a source address.
	defaultClientConnections = 150
)

// Limits of the bytes in buffers of connections that wait for the rest of a query, for a free place or for a client that
// does not read. A buffer of freeBuffer bytes does not count. Clients with more than reservedBuffered bytes share half of
// maxBuffered.
const (
	maxBuffered       = 32 << 20
	maxClientBuffered = 4 << 20
	reservedBuffered  = 256 << 10
	freeBuffer        = 512
)

// streamTable has the connections of all listeners.
type streamTable struct {
	mu         sync.Mutex
	pollers    []*poller
	next       int // index of the poller of the next connection
	limit      int
	perClient  int
	reduced    int // the last limit that was logged as below the configured one
	open       int
	sources    map[netip.Addr]*source
	buffered   atomic.Int64
	lastLogged atomic.Int64 // time of the last log line about a failure to accept
}

func newStreamTable() *streamTable {
	return &streamTable{limit: defaultConnections, perClient: defaultClientConnections, sources: map[netip.Addr]*source{}}
}

// source is a client with connections.
type source struct {
	connections []*connection
	buffered    atomic.Int64
}

// start starts a poller for each CPU that the process may use, once.
func (t *streamTable) start() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.pollers) < min(runtime.GOMAXPROCS(0), maxReaders) {
		p, err := newPoller()
		if err != nil {
			return err
		}
		t.pollers = append(t.pollers, p)
		go p.run()
	}
	return nil
}

// resize sets the limits for a configuration; 0 is the default.
func (t *streamTable) resize(limit, perClient int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if perClient == 0 {
		perClient = defaultClientConnections
	}
	wanted, files := limit, openFiles()
	if limit = possibleConnections(wanted, files); limit < wanted && limit != t.reduced {
		t.reduced = limit
		log.Warningf("max_connections %d: the limit of %d open files permits %d connections; a further one closes an idle one", wanted, files, limit)
	}
	t.limit, t.perClient = limit, min(perClient, limit)
}

// possibleConnections returns the limit of connections, given the configured one (0 for the default) and the limit of open files.
// By default, half of the open files remain for sockets to upstreams; with a configured limit, an eighth.
func possibleConnections(configured int, files uint64) int {
	limit, share := configured, files-files/8
	if configured == 0 {
		limit, share = defaultConnections, files/2
	}
	return max(1, int(min(uint64(limit), share))) // #nosec G115 -- at most limit, which is positive
}

// openFiles returns the limit of open files of the process.
func openFiles() uint64 {
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) != nil {
		return math.MaxInt64
	}
	return files.Cur
}

// add adds a connection. If a limit is reached, it closes the one that has been idle for the longest time, of the client or
// of the process.
func (t *streamTable) add(c *connection) {
	t.mu.Lock()
	s := t.sources[c.client]
	if s == nil {
		s = new(source)
		t.sources[c.client] = s
	}
	var victim *connection
	reason := closedForClient
	if len(s.connections) >= t.perClient {
		victim = longestIdle(s.connections)
	} else if t.open >= t.limit {
		victim, reason = t.oldest(), closedForProcess
	}
	c.source, c.poller = s, t.pollers[t.next%len(t.pollers)]
	t.next++
	t.open++
	s.connections = append(s.connections, c)
	t.mu.Unlock()
	c.listener.connections.Add(1)
	c.listener.server.Load().metrics.connections.Inc()
	if victim != nil {
		victim.abort(reason)
	}
	c.poller.add(c)
}

func (t *streamTable) remove(c *connection) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open--
	t.buffered.Add(-int64(c.held))
	c.source.buffered.Add(-int64(c.held))
	c.held = 0
	s := c.source
	i := slices.Index(s.connections, c)
	last := len(s.connections) - 1
	s.connections[i] = s.connections[last]
	s.connections[last] = nil
	if s.connections = s.connections[:last]; last == 0 {
		delete(t.sources, c.client)
	}
}

// hold sets the bytes in the buffers of a connection, whose mutex is locked, and reports whether they are within the limits.
func (t *streamTable) hold(c *connection, bytes int) bool {
	if bytes <= freeBuffer {
		bytes = 0
	}
	change := int64(bytes - c.held)
	if change == 0 {
		return true
	}
	c.held = bytes
	own, all := c.source.buffered.Add(change), t.buffered.Add(change)
	limit := int64(maxBuffered)
	if own > reservedBuffered {
		limit /= 2
	}
	return change < 0 || own <= maxClientBuffered && all <= limit
}

// oldest returns the connection of one poller that has been idle for the longest time: of the first poller, from next on, with a
// connection without a session; if there is none, of the first with any. The connections are distributed evenly. The mutex is locked.
func (t *streamTable) oldest() (oldest *connection) {
	for i := range t.pollers {
		c := t.pollers[(t.next+i)%len(t.pollers)].oldest()
		switch {
		case c == nil:
		case !c.session.notifies():
			return c
		case oldest == nil:
			oldest = c
		}
	}
	return oldest
}

// longestIdle returns the connection that has been idle for the longest time.
func longestIdle(connections []*connection) *connection {
	return slices.MinFunc(connections, func(a, b *connection) int { return cmp.Compare(a.idleSince(), b.idleSince()) })
}

// connectionsOf returns the connections of a listener.
func (t *streamTable) connectionsOf(l *listener) (all []*connection) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.sources {
		for _, c := range s.connections {
			if c.listener == l {
				all = append(all, c)
			}
		}
	}
	return all
}
