package kubernetes

import (
	"errors"
	"net/netip"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/kubernetes/clients"
	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

var errNoClusterZone = errors.New("search lists need a zone of the cluster: the kubernetes block has only zones of a clusterset")

var errPodsNotWatched = errors.New("search lists need watched pods: the kubernetes block needs pods verified")

// SearchLists returns the search lists of pods by address, for plugin autopath. The server's own resolv.conf, read at the
// time of the call, stands for those of the nodes.
func (k *Kubernetes) SearchLists() (searchlist.Finder, error) {
	if k.primaryZone == "" {
		return nil, errNoClusterZone
	}
	if k.pods != podsVerified {
		return nil, errPodsNotWatched
	}
	host, err := searchlist.ReadResolvConf(k.resolvConf)
	if err != nil {
		log.Warningf("search lists of pods lack the search list of the node: %v", err)
	}
	return clients.New(clientPods{k}, k.podStatus, k.primaryZone, func() []string { return host }), nil
}

// podStatus returns the state of the source. Before attach, pods are not synced: autopath starts before this plugin.
func (k *Kubernetes) podStatus() []source.Status {
	if !k.attached.Load() {
		return []source.Status{{Resource: source.Pods}}
	}
	return k.status()
}

// clientPods implements clients.Pods. There are no pods before attach.
type clientPods struct{ k *Kubernetes }

// TenantsOf implements clients.Pods.
func (p clientPods) TenantsOf(a netip.Addr) index.Tenants {
	if !p.k.attached.Load() {
		return index.Tenants{}
	}
	return p.k.index.TenantsOf(a)
}
