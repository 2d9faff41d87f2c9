package kubernetes

import (
	"context"
	"net/netip"
	"sync"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/metadata"
	"github.com/coredns/coredns/request"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/topology"
)

// Metadata implements metadata.Provider.
func (k *Kubernetes) Metadata(ctx context.Context, state request.Request) context.Context {
	set := func(key, value string) {
		metadata.SetValueFunc(ctx, pluginName+"/"+key, func() string { return value })
	}
	if p := k.client(state.IP()); p != nil {
		set("client-namespace", p.Namespace)
		set("client-pod-name", p.Name)
		for label, value := range p.Labels.All() {
			set("client-label/"+label, value)
		}
	}
	zone := plugin.Zones(k.Zones).Matches(state.Name())
	if k.callers != nil && (zone != "" || k.primaryZone != "") { // a block of a clusterset leaves names in no zone of it to kubernetes
		from, option := state.IP(), optionOf(state.Req) // now: the server removes the option for the reply
		caller := sync.OnceValue(func() topology.Caller { c, _ := k.callerOf(from, option, false); return c })
		metadata.SetValueFunc(ctx, "nearside/caller-node", func() string { return caller().Name.String() })
		metadata.SetValueFunc(ctx, "nearside/caller-zone", func() string { return caller().Zone.String() })
	}
	if zone == "" {
		return ctx
	}
	imported := k.isClusterset(zone)
	n, err := parseName(state.Name(), zone, k.grammar(imported))
	if err != nil {
		set("parse-error", err.Error())
		return ctx
	}
	set("port-name", n.port)
	set("protocol", n.protocol)
	set("endpoint", n.endpoint)
	if imported {
		set("cluster", n.cluster)
	}
	set("service", n.object)
	set("namespace", n.namespace)
	set("kind", n.kind)
	if k.source.Zones {
		set("zone", n.zone)
	}
	return ctx
}

// client returns the pod with an address, if pods are watched; the first by namespace and name of several, as in the host
// network.
func (k *Kubernetes) client(ip string) *index.Pod {
	a, err := netip.ParseAddr(ip)
	if err != nil {
		return nil
	}
	if pods := k.index.PodsByIP(a.WithZone("").Unmap()); len(pods) > 0 {
		return pods[0]
	}
	return nil
}
