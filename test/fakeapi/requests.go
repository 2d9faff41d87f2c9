package fakeapi

import (
	"maps"
	"sync"
)

// The verbs of requests. A watch which begins with the present state
// (sendInitialEvents=true) counts as a verb of its own, and so does a question
// for the resources of an API group, of a version or of all.
const (
	VerbGet       = "get"
	VerbList      = "list"
	VerbWatch     = "watch"
	VerbWatchList = "watchlist"
	VerbDiscover  = "discover"
)

// Request is a kind of request, as Requests counts them.
type Request struct {
	Verb     string // VerbGet and so on
	Resource string // such as Services; of VerbDiscover a group, or a group and version such as "about.k8s.io/v1"
	// ContentType is that of the answer's objects, such as
	// "application/vnd.kubernetes.protobuf" or
	// "application/json;as=PartialObjectMetadata".
	ContentType string
}

// requestCounts counts requests by kind.
type requestCounts struct {
	mu     sync.Mutex
	counts map[Request]int
}

func (r *requestCounts) add(kind Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.counts == nil {
		r.counts = map[Request]int{}
	}
	r.counts[kind]++
}

// Requests gives how many requests of each kind have come in, the refused ones
// too. Requests for other paths are not counted.
func (s *Server) Requests() map[Request]int {
	s.requests.mu.Lock()
	defer s.requests.mu.Unlock()
	return maps.Clone(s.requests.counts)
}

// OpenWatches gives how many watches are open on a resource, or on all when it
// is "".
func (s *Server) OpenWatches(resource string) int {
	return s.watches.count(resource)
}
