package push

import (
	"net/netip"
	"runtime"
	"testing"
	"time"
)

const (
	nodes  = 15000
	topics = 200 // of a session
)

// fleet opens the sessions of a large cluster, one from each node, of which each subscribes to its part of the Generations.
func fleet(r *Registry, sessions int, generations []generation) (all []*Subscriber) {
	for i := range sessions {
		s := r.Open(discard{}, netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})) // #nosec G115 -- below 65536
		for k := range min(topics, len(generations)) {
			s.Subscribe(&generations[(i+k*k)%len(generations)])
		}
		all = append(all, s)
	}
	return all
}

// TestMemory asserts the memory of sessions and of subscriptions, and that it is released.
func TestMemory(t *testing.T) {
	sessions := nodes
	if testing.Short() || underRace { // whose figures are those of a session
		sessions /= 10
	}
	r, n := newManual()
	var all []*Subscriber
	idle := heapGrowth(func() { all = fleet(r, sessions, nil) })
	if each := idle / float64(sessions); each > 256 {
		t.Errorf("%.0f bytes for a session", each)
	} else {
		t.Logf("%.0f bytes for a session", each)
	}
	for _, s := range all {
		s.Close()
	}
	generations := make([]generation, 5000)
	used := heapGrowth(func() { all = fleet(r, sessions, generations) }) - idle
	subscriptions := r.Statistics().Subscriptions
	if subscriptions < sessions*topics/2 {
		t.Fatalf("%d subscriptions", subscriptions)
	}
	if each := used / float64(subscriptions); each > 100 {
		t.Errorf("%.1f bytes for each of %d subscriptions", each, subscriptions)
	} else {
		t.Logf("%.1f bytes for each of %d subscriptions", each, subscriptions)
	}
	tests := []struct {
		name string
		end  func()
	}{
		{"changes", func() {
			for i := range generations {
				generations[i].Advance()
			}
			n.invalidate()
		}},
		{"reload", func() { r.Revoke(); n.invalidate() }},
		{"most sessions closed", func() {
			for _, s := range all[len(all)/50:] {
				s.Close()
			}
			all = fleet(r, sessions-len(all)+len(all)/50, nil)
		}},
	}
	for _, tt := range tests {
		growth := heapGrowth(func() {
			for i, s := range all {
				for k := range topics {
					s.Subscribe(&generations[(i+k*k)%len(generations)])
				}
			}
			tt.end()
			n.affected, n.message = nil, nil
		})
		if share := growth / used; share > -0.8 && tt.name == "changes" || share > 0.2 {
			t.Errorf("after %s, the memory has grown by %.2f of the subscriptions'", tt.name, share)
		}
	}
	runtime.KeepAlive(generations)
}

// TestNoAllocations asserts that heartbeats and renewed subscriptions allocate nothing, and an invalidation little.
func TestNoAllocations(t *testing.T) {
	var now time.Duration
	r := NewRegistry()
	r.running = true
	r.now = func() time.Duration { return now }
	r.Offer(func() bool { return true })
	n := newNotifier(r)
	generations := make([]generation, topics)
	all := fleet(r, 1000, generations)
	beat := func() { now += step; n.beat() }
	for range parts {
		beat()
	}
	if allocations := testing.AllocsPerRun(2*parts, beat); allocations != 0 {
		t.Errorf("%.0f allocations for heartbeats", allocations)
	}
	if allocations := testing.AllocsPerRun(100, func() { all[0].Subscribe(&generations[0]) }); allocations != 0 {
		t.Errorf("%.0f allocations for a subscription that exists", allocations)
	}
	change := func() {
		generations[0].Advance()
		n.invalidate()
		for _, s := range all {
			s.Subscribe(&generations[0])
		}
	}
	change()
	// The race detector makes the pool of topics forget some.
	if allocations := testing.AllocsPerRun(10, change); allocations > float64(len(all))/2 {
		t.Errorf("%.0f allocations for a change", allocations)
	}
}

// BenchmarkHeartbeats measures one interval of a large cluster without connections.
func BenchmarkHeartbeats(b *testing.B) {
	var now time.Duration
	r := NewRegistry()
	r.running = true
	r.now = func() time.Duration { return now }
	r.Offer(func() bool { return true })
	n := newNotifier(r)
	fleet(r, nodes, nil)
	for b.Loop() {
		for range parts {
			now += step
			n.beat()
		}
	}
}

// BenchmarkChange measures the notification of all sessions of a large cluster without connections.
func BenchmarkChange(b *testing.B) {
	r, n := newManual()
	generations := make([]generation, topics)
	all := fleet(r, nodes, generations)
	for b.Loop() {
		generations[0].Advance()
		n.invalidate()
		b.StopTimer()
		for _, s := range all {
			s.Subscribe(&generations[0])
		}
		b.StartTimer()
	}
}
