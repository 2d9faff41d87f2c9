package kubernetes

import (
	"net/netip"
	"strings"

	"github.com/coredns/coredns/plugin/pkg/dnsutil"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

func isForward(zone string) bool { return !isReverse(zone) }

// isReverse reports whether a zone has reverse names: in-addr.arpa., ip6.arpa. or a zone below one of them.
func isReverse(zone string) bool {
	zone = strings.ToLower(zone)
	return isReverseTree(zone) || dnsutil.IsReverse(zone) > 0
}

// isReverseTree reports whether a zone has all reverse names of a family. CoreDNS accepts it as the only zone of kubernetes.
func isReverseTree(zone string) bool { return zone == "in-addr.arpa." || zone == "ip6.arpa." }

// addressOf returns the address of a reverse name.
func addressOf(name string) (a netip.Addr, ok bool) {
	a, err := netip.ParseAddr(dnsutil.ExtractAddressFromReverse(name))
	if err != nil {
		return a, false
	}
	// Labels that are not one digit or octet may look like an address when they are joined.
	again, err := dns.ReverseAddr(a.String())
	return a, err == nil && again == name
}

// findAddress looks up a reverse name.
func (k *Kubernetes) findAddress(name string, d *dependencies) result {
	a, ok := addressOf(name)
	if !ok {
		return result{}
	}
	d.onAddress(a)
	targets := k.ptrTargets(a)
	if len(targets) == 0 {
		return result{}
	}
	return result{kind: reverseName, targets: targets}
}

// ptrTargets returns the targets of an address's PTR records: the Service with this ClusterIP, or else each endpoint of a
// headless or ClusterIP Service with this address.
func (k *Kubernetes) ptrTargets(a netip.Addr) (targets []string) {
	if k.primaryZone == "" {
		return nil
	}
	for _, s := range k.index.ServicesByIP(a) {
		if k.exposes(s.Namespace) {
			return []string{serviceName(s, k.primaryZone)}
		}
	}
	seen := set[string]{}
	for _, sl := range k.index.SlicesByIP(a) {
		e := k.index.Service(sl.Namespace, sl.Service)
		if e == nil || e.Service.Kind == index.ExternalName || !k.exposes(sl.Namespace) {
			continue
		}
		for ep := range sl.All() {
			if ep.Addr == a {
				if name := ep.Label() + "." + serviceName(e.Service, k.primaryZone); len(name) <= maxName && seen.add(name) {
					targets = append(targets, name)
				}
			}
		}
	}
	return targets
}
