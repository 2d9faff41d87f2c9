package path

import (
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

// Unknown is why no search list is known of a client.
type Unknown int

// The reasons. The zero value is that it is known.
const (
	Known       Unknown = iota
	NoPod               // no pod is known with the address
	HostNetwork         // pods of the host network have it, and what else runs on the node
	Ambiguous           // pods have it whose lists differ
	Ending              // the pod with it is about to go, and the address may be another's soon
	NoList              // the pod has no search list
	Outdated            // pods have not been read, or nothing has been heard of them for too long
	Reasons
)

// String returns the reason as metrics have it.
func (u Unknown) String() string {
	return [Reasons]string{"", "no_pod", "host_network", "ambiguous", "ending", "no_search_list", "outdated"}[u]
}

// Finder tells the search list of clients.
type Finder interface {
	// Find returns the list of the client with an address, or why none is known. It takes no lock for a list that
	// is known.
	Find(from netip.Addr) (*Path, Unknown)
	// Zone returns the zone of the cluster, fully qualified, "" if it is not known.
	Zone() string
}

// Pods are those of an index.Index.
type Pods interface {
	TenantsOf(a netip.Addr) index.Tenants
}

// maxSilence is how long what was read of pods is believed without word from the source. A watch that works is
// heard of within the 90 seconds after which its watchdog asks, and within as long again.
const maxSilence = 3 * time.Minute

// lookEvery is how often it is found out how long ago the source was heard of.
const lookEvery = time.Second

// Clients is the Finder for pods.
type Clients struct {
	zone   string
	pods   Pods
	status func() []source.Status
	host   func() []string
	now    func() time.Time

	looked   atomic.Int64 // when status was looked at, in nanoseconds since 1970
	outdated atomic.Bool

	mu    sync.Mutex
	lists atomic.Pointer[lists]
}

// lists are the paths that pods have been found to have.
type lists struct {
	host  []string
	paths map[saying]*Path // nil if a list is empty
}

// saying is what a pod says that its list follows from.
type saying struct {
	namespace string
	dns       *index.PodDNS
}

// maxLists bounds the lists that are remembered.
const maxLists = 1 << 13

// NewClients returns a Finder for pods of a cluster with a zone, fully qualified. status tells how far the source of
// the pods is in step; host returns the search list of the nodes, the same slice as long as it is the same list.
func NewClients(pods Pods, status func() []source.Status, zone string, host func() []string) *Clients {
	c := &Clients{zone: zone, pods: pods, status: status, host: host, now: time.Now}
	c.lists.Store(&lists{})
	return c
}

// Zone implements Finder.
func (c *Clients) Zone() string { return c.zone }

// Find implements Finder.
func (c *Clients) Find(from netip.Addr) (*Path, Unknown) {
	t := c.pods.TenantsOf(from.WithZone("").Unmap())
	switch {
	case t.HostNetwork:
		return nil, HostNetwork
	case c.isOutdated():
		return nil, Outdated
	case t.Pod == nil:
		return nil, NoPod
	case !t.Alike:
		return nil, Ambiguous
	case t.Ending:
		return nil, Ending
	}
	if p := c.of(saying{t.Pod.Namespace, t.Pod.DNS}); p != nil {
		return p, Known
	}
	return nil, NoList
}

// isOutdated reports whether what is known of pods may be so no more.
func (c *Clients) isOutdated() bool {
	now := c.now()
	last := c.looked.Load()
	if age := now.UnixNano() - last; age >= 0 && age < int64(lookEvery) {
		return c.outdated.Load()
	}
	read, late := false, false
	for _, s := range c.status() {
		if s.Resource == source.Pods {
			read, late = true, late || !s.Synced || s.Frozen || now.Sub(s.Heard) > maxSilence
		}
	}
	outdated := !read || late
	c.outdated.Store(outdated)
	if !outdated {
		c.looked.Store(now.UnixNano()) // else every query looks, so that the end of it is seen at once
	}
	return outdated
}

// of returns the path that follows from what a pod says, or nil.
func (c *Clients) of(s saying) *Path {
	host, l := c.host(), c.lists.Load()
	if sameSlice(l.host, host) {
		if p, ok := l.paths[s]; ok {
			return p
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	l = c.lists.Load()
	next := &lists{host: host, paths: map[saying]*Path{}}
	if sameSlice(l.host, host) && len(l.paths) < maxLists {
		maps.Copy(next.paths, l.paths)
	}
	p := newPath(namespaceOf(s.namespace), List(s.namespace, s.dns, c.zone, host))
	next.paths[s] = p
	c.lists.Store(next)
	return p
}

// sameSlice reports whether two slices are the same memory, or both empty.
func sameSlice(a, b []string) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}
