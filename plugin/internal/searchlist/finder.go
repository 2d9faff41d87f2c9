package searchlist

import "net/netip"

// Unknown is the reason why the search list of a client is unknown.
type Unknown int

// The reasons; Known is the zero value.
const (
	Known       Unknown = iota
	NoPod               // no pod with the address is known
	HostNetwork         // the address is the node's: host-network pods and the node's own processes share it
	Ambiguous           // pods with different lists share the address
	Ending              // the pod is being deleted, and its address may be reused soon
	NoList              // the pod has no search list
	Outdated            // pods are not synced, or their source has been silent for too long
	Reasons             // number of values
)

// String returns the reason as a metric label.
func (u Unknown) String() string {
	return [Reasons]string{"", "no_pod", "host_network", "ambiguous", "ending", "no_search_list", "outdated"}[u]
}

// DefaultNdots is the number of dots from which resolvers of pods query a name itself first, as the kubelet sets it.
const DefaultNdots = 5

// Finder returns the search lists of clients.
type Finder interface {
	// Find returns the list of the client with an address, or the reason why it is unknown. It takes no lock for a
	// known list.
	Find(from netip.Addr) (*List, Unknown)
	// Zone returns the zone of the cluster, fully qualified, "" if unknown.
	Zone() string
}
