package kubernetes

import (
	"errors"
	"net/netip"

	"github.com/nearside-dns/nearside/plugin/internal/exposed"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

var errNoServices = errors.New("the kubernetes block has only zones of a clusterset, and reads no Services: want a zone of the cluster")

// Exposed returns the Services as clients outside of the cluster reach them, for plugin k8s_external. They can be read from
// the time that the server answers.
func (k *Kubernetes) Exposed() (exposed.Services, error) {
	if k.source.ImportsOnly {
		return nil, errNoServices
	}
	return exposedServices{k}, nil
}

// exposedServices implements exposed.Services. Options namespaces, namespace_labels, labels, noendpoints and
// endpoint_pod_names apply; ignore and topology do not, as in CoreDNS.
type exposedServices struct{ k *Kubernetes }

// Modified implements store.Serial.
func (x exposedServices) Modified() int64 { return x.k.index.Modified() }

// Synced implements exposed.Services. Names outside of the cluster's zones are not answered from a snapshot.
func (x exposedServices) Synced() bool {
	complete, stale := x.k.state(false)
	return complete && !stale
}

// tracked calls a lookup, and adds its dependencies to a validity, unless that is nil.
func (x exposedServices) tracked(v *validity.Validity, lookup func(*dependencies)) {
	if v == nil {
		lookup(nil)
		return
	}
	d := newDependencies(x.k.index)
	lookup(d)
	v.Join(&d.validity)
}

// Find implements exposed.Services.
func (x exposedServices) Find(n exposed.Name, headless bool, v *validity.Validity) (targets []exposed.Target, exists bool) {
	x.tracked(v, func(d *dependencies) { targets, exists = x.find(&n, headless, d) })
	return targets, exists
}

func (x exposedServices) find(n *exposed.Name, headless bool, d *dependencies) (targets []exposed.Target, exists bool) {
	if !x.k.selects(n.Namespace) {
		return nil, false
	}
	if n.Service == "" {
		d.onNamespace(n.Namespace)
		return nil, x.k.index.HasNamespace(n.Namespace)
	}
	name := objectName{
		kind: labelService, namespace: n.Namespace, object: n.Service, endpoint: n.Endpoint, port: n.Port, protocol: n.Protocol,
	}
	e := d.onObject(x.k.index, &name)
	if e == nil {
		return nil, false
	}
	switch s := e.Service; {
	case s.External != nil: // for any label before the Service, as in CoreDNS
		name.endpoint = ""
		for _, a := range s.External.IPs {
			targets = appendTargets(targets, &name, exposed.Target{Addr: a}, s.Ports)
		}
		for _, host := range s.External.Hosts {
			targets = appendTargets(targets, &name, exposed.Target{Host: host}, s.Ports)
		}
	case headless && (s.Kind == index.Headless || n.Endpoint != ""):
		f := result{name: name, entry: e}
		for ep, slice := range f.endpoints() {
			targets = appendTargets(targets, &name, exposed.Target{Addr: ep.Addr, Endpoint: ep.Label()}, slice.Ports)
		}
	}
	return targets, len(targets) > 0
}

// appendTargets appends a target for each port that the name matches.
func appendTargets(to []exposed.Target, n *objectName, t exposed.Target, ports []index.Port) []exposed.Target {
	if len(ports) == 0 {
		ports = noPorts
	}
	for _, p := range ports {
		if n.matches(p) {
			t.Port, t.PortName, t.Protocol = p.Number, p.Name.String(), p.Protocol.String()
			to = append(to, t)
		}
	}
	return to
}

// At implements exposed.Services.
func (x exposedServices) At(reverse string, v *validity.Validity) (names []exposed.Name) {
	a, ok := addressOf(reverse)
	x.tracked(v, func(d *dependencies) {
		if !ok {
			return
		}
		d.onAddress(a)
		for _, s := range x.k.index.ServicesByExternalIP(a) {
			if x.k.exposes(s.Namespace) {
				names = append(names, exposed.Name{Namespace: s.Namespace, Service: s.Name})
			}
		}
	})
	return names
}

// All implements exposed.Services.
func (x exposedServices) All() (names []exposed.Name) {
	for _, e := range x.k.index.Services() {
		if x.k.exposes(e.Service.Namespace) {
			names = append(names, exposed.Name{Namespace: e.Service.Namespace, Service: e.Service.Name})
		}
	}
	return names
}

// NameServers implements exposed.Services.
func (x exposedServices) NameServers(headless bool) (addrs []netip.Addr) {
	seen := newAddressSet(0)
	add := func(a netip.Addr) {
		if seen.add(a) {
			addrs = append(addrs, a)
		}
	}
	inCluster := false
	for _, ip := range x.k.localIPs {
		for _, sl := range x.k.index.SlicesByIP(ip) {
			inCluster = true
			e := x.k.index.Service(sl.Namespace, sl.Service)
			if e == nil {
				continue
			}
			if headless && e.Service.Kind == index.Headless {
				for e := range sl.All() {
					add(e.Addr)
				}
			} else if e.Service.External != nil {
				for _, a := range e.Service.External.IPs {
					add(a)
				}
			}
		}
	}
	if !inCluster {
		for _, ip := range x.k.localIPs {
			add(ip)
		}
	}
	return addrs
}
