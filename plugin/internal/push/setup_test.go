package push

import (
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/nearside-dns/nearside/plugin/internal/dso"
	"github.com/nearside-dns/nearside/plugin/internal/push/pushtest"
)

type generation = pushtest.Generation

// message is an element of the stream to a client.
type message struct {
	answer    bool
	handle    uint64 // of an answer
	number    uint64 // of its Generation
	handles   []uint64
	heartbeat bool
	clock     uint64
}

// conn is a Conn that records its stream.
type conn struct {
	t      testing.TB
	mu     sync.Mutex
	stream []message
}

func (c *conn) Push(b []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stream = append(c.stream, c.read(b))
}

func (c *conn) read(b []byte) (m message) {
	parsed, err := dso.Parse(b)
	primary, ok := parsed.Primary()
	if err != nil || !ok || !parsed.Unidirectional() {
		c.t.Errorf("message %x: %v", b, err)
		return m
	}
	switch primary.Type {
	case dso.Heartbeat:
		m.heartbeat = true
		m.clock, ok = dso.ReadHeartbeat(primary.Data)
	case dso.Invalidate:
		m.handles, ok = dso.ReadHandles(nil, primary.Data)
	default:
		ok = false
	}
	if !ok {
		c.t.Errorf("message %x", b)
	}
	return m
}

// take returns the stream since the last call.
func (c *conn) take() []message {
	c.mu.Lock()
	defer c.mu.Unlock()
	stream := c.stream
	c.stream = nil
	return stream
}

// invalidated returns the handles in a stream, sorted, and whether all are invalidated.
func invalidated(stream []message) (handles []uint64, all bool) {
	for _, m := range stream {
		handles = append(handles, m.handles...)
		all = all || !m.heartbeat && len(m.handles) == 0
	}
	slices.Sort(handles)
	return handles, all
}

// discard is a Conn that sends nothing.
type discard struct{}

func (discard) Push([]byte) {}

// newManual returns a Registry whose notifier the test calls.
func newManual() (*Registry, *notifier) {
	r := NewRegistry()
	r.running = true
	return r, newNotifier(r)
}

// heapGrowth returns the growth of the heap by a function, in bytes.
func heapGrowth(f func()) float64 {
	heap := func() float64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	before := heap()
	f()
	return heap() - before
}
