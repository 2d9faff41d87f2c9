// Package leases has the leases of this process: until when it may answer the node's queries to an address. Input is the lease of
// each address, from plugin nodelocal; output is the same for readers outside of the server, such as the kernel. It has no rules
// and no sockets, and imports no plugin.
package leases

import (
	"net/netip"
	"sync"
	"time"
)

// Set has the leases of a process.
type Set struct {
	mu        sync.Mutex
	until     map[netip.AddrPort]time.Time
	followers []*func(netip.AddrPort, time.Time)
}

// Process has the leases of this process.
var Process = &Set{until: map[netip.AddrPort]time.Time{}}

// Renew extends the lease of an address; an earlier end has no effect.
func (s *Set) Renew(address netip.AddrPort, until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if until.After(s.until[address]) {
		s.set(address, until)
	}
}

// Release ends the lease of an address. When it returns, no follower answers.
func (s *Set) Release(address netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.until[address]; ok {
		s.set(address, time.Time{})
		delete(s.until, address)
	}
}

func (s *Set) set(address netip.AddrPort, until time.Time) {
	s.until[address] = until
	for _, f := range s.followers {
		(*f)(address, until)
	}
}

// Follow calls a function for each lease, now and after each change, until the returned function is called. The zero time is
// the end of a lease. The function must not block, nor call the methods of the set.
func (s *Set) Follow(changed func(address netip.AddrPort, until time.Time)) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for address, until := range s.until {
		changed(address, until)
	}
	f := &changed
	s.followers = append(s.followers, f)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for i, other := range s.followers {
			if other == f {
				s.followers = append(s.followers[:i:i], s.followers[i+1:]...)
				return
			}
		}
	}
}
