package index

import (
	"net/netip"
	"strings"
)

// Tenants summarizes the pods with an address.
type Tenants struct {
	// Pod is one of them, nil if there is none.
	Pod *Pod
	// HostNetwork is true if one of the pods is in the host network.
	HostNetwork bool
	// Alike is true if namespace and DNS settings are the same for all of them, and so the search list.
	Alike bool
	// Ending is true if all of them are about to lose the address.
	Ending bool
}

// TenantsOf summarizes the pods with an address. It does not allocate.
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

// Pods returns the number of pods.
func (ix *Index) Pods() int {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	return len(ix.podsByName)
}

// maxPodDNS bounds the DNS settings that are shared.
const maxPodDNS = 1 << 12

// sharedDNS returns the record that pods with equal DNS settings share: its pointer is a key of cached search lists. The mutex
// is held.
func (ix *Index) sharedDNS(d *PodDNS) *PodDNS {
	if d == nil {
		return nil
	}
	key := d.Policy + " " + strings.Join(d.Searches, " ")
	if shared, ok := ix.podDNS[key]; ok {
		return shared
	}
	if len(ix.podDNS) >= maxPodDNS {
		clear(ix.podDNS) // pods retain the cleared records; later pods with equal settings share new ones
	}
	ix.podDNS[key] = d
	return d
}
