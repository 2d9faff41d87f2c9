package index

import (
	"net/netip"
	"strings"
)

// Tenants is what the pods with an address have in common.
type Tenants struct {
	// Pod is one of them, nil if there is none.
	Pod *Pod
	// HostNetwork is true if one of them has the addresses of its node, Alike if the search list of all follows from
	// the same, Ending if all are about to go.
	HostNetwork, Alike, Ending bool
}

// TenantsOf returns what is known of the pods with an address. It does not allocate.
func (ix *Index) TenantsOf(a netip.Addr) Tenants {
	t := Tenants{Alike: true, Ending: true}
	for n := ix.podIPs.bucket(a).Load(); n != nil; n = n.next {
		if n.key != a {
			continue
		}
		p := n.val
		if t.Pod == nil {
			t.Pod = p
		}
		t.HostNetwork = t.HostNetwork || p.HostNetwork
		t.Alike = t.Alike && p.Namespace == t.Pod.Namespace && p.DNS.Equal(t.Pod.DNS)
		t.Ending = t.Ending && p.Ending
	}
	return t
}

// Pods returns how many pods there are.
func (ix *Index) Pods() int {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	return len(ix.podsByName)
}

// maxPodDNS is how many of what pods say of their resolvers are remembered, to be shared.
const maxPodDNS = 1 << 12

// sharedDNS returns the one record of all that say the same: search paths are remembered by it. The mutex is held.
func (ix *Index) sharedDNS(d *PodDNS) *PodDNS {
	if d == nil {
		return nil
	}
	key := d.Policy + " " + strings.Join(d.Searches, " ")
	if shared, ok := ix.podDNS[key]; ok {
		return shared
	}
	if len(ix.podDNS) >= maxPodDNS {
		clear(ix.podDNS) // those in use stay, and others that say the same get their own
	}
	ix.podDNS[key] = d
	return d
}
