// Package clients finds the search list of a client by its address: the clients are the pods of an index, either all
// pods of the cluster (in cluster DNS) or those of one node (NodeClients, in a node's cache). Input is pods by address and
// the node's resolv.conf; output is a searchlist.Finder. It sends no DNS queries and imports no plugin.
package clients

import (
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

// Pods returns pods by address. An index.Index implements it.
type Pods interface {
	TenantsOf(a netip.Addr) index.Tenants
}

// maxSilence is the age of the source's last event from which on pods count as outdated. A working watch has an event
// or a bookmark, or is restarted by its watchdog, within 180 seconds.
const maxSilence = 3 * time.Minute

// statusInterval is the time between checks of the source's status.
const statusInterval = time.Second

// Clients is the searchlist.Finder for pods.
type Clients struct {
	zone   string
	pods   Pods
	status func() []source.Status
	host   func() []string
	now    func() time.Time

	checked  atomic.Int64 // time of the last check of status, in nanoseconds since 1970
	outdated atomic.Bool

	mu    sync.Mutex
	lists atomic.Pointer[lists]
}

// lists caches the lists of pods. A change of the node's search list empties the cache.
type lists struct {
	host []string
	list map[podDNS]*searchlist.List // nil for a pod without a list
}

// podDNS is the part of a pod's record that its list depends on.
type podDNS struct {
	namespace string
	dns       *index.PodDNS
}

// maxCached bounds the lists cached.
const maxCached = 1 << 13

// New returns a Finder for the pods of a cluster with a zone, fully qualified. status returns the state of the
// pods' source. host returns the search list of the nodes; an unchanged list is the same slice.
func New(pods Pods, status func() []source.Status, zone string, host func() []string) *Clients {
	c := &Clients{zone: zone, pods: pods, status: status, host: host, now: time.Now}
	c.lists.Store(&lists{})
	return c
}

// Zone implements searchlist.Finder.
func (c *Clients) Zone() string { return c.zone }

// Find implements searchlist.Finder.
func (c *Clients) Find(from netip.Addr) (*searchlist.List, searchlist.Unknown) {
	t := c.pods.TenantsOf(from.WithZone("").Unmap())
	switch {
	case t.HostNetwork:
		return nil, searchlist.HostNetwork
	case c.isOutdated():
		return nil, searchlist.Outdated
	case t.Pod == nil:
		return nil, searchlist.NoPod
	case !t.Alike:
		return nil, searchlist.Ambiguous
	case t.Ending:
		return nil, searchlist.Ending
	}
	if l := c.list(podDNS{t.Pod.Namespace, t.Pod.DNS}); l != nil {
		return l, searchlist.Known
	}
	return nil, searchlist.NoList
}

// NdotsOf returns the option ndots of the resolver of a client whose list Find returns.
func (c *Clients) NdotsOf(client netip.Addr) int {
	if t := c.pods.TenantsOf(client.WithZone("").Unmap()); t.Pod != nil {
		return int(t.Pod.Ndots)
	}
	return searchlist.DefaultNdots
}

// isOutdated reports whether the index may lack changes of pods.
func (c *Clients) isOutdated() bool {
	now := c.now()
	last := c.checked.Load()
	if age := now.UnixNano() - last; age >= 0 && age < int64(statusInterval) {
		return c.outdated.Load()
	}
	watched, late := false, false
	for _, s := range c.status() {
		if s.Resource == source.Pods {
			watched, late = true, late || !s.Synced || s.Frozen || now.Sub(s.Heard) > maxSilence
		}
	}
	outdated := !watched || late
	c.outdated.Store(outdated)
	if !outdated {
		c.checked.Store(now.UnixNano()) // while outdated, every query checks, so that the first one after recovery sees it
	}
	return outdated
}

// list returns the search list of a pod, or nil.
func (c *Clients) list(pod podDNS) *searchlist.List {
	host, cached := c.host(), c.lists.Load()
	if sameSlice(cached.host, host) {
		if l, ok := cached.list[pod]; ok {
			return l
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	cached = c.lists.Load()
	next := &lists{host: host, list: map[podDNS]*searchlist.List{}}
	if sameSlice(cached.host, host) && len(cached.list) < maxCached {
		maps.Copy(next.list, cached.list)
	}
	suffixes := searchlist.OfPod(pod.namespace, (*searchlist.PodDNS)(pod.dns), c.zone, host)
	l := searchlist.NewForPods(pod.namespace, suffixes)
	next.list[pod] = l
	c.lists.Store(next)
	return l
}

// sameSlice reports whether two slices share their memory, or are both empty.
func sameSlice(a, b []string) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}
