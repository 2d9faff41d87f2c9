package differential

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/coredns/coredns/plugin/pkg/dnsutil"
	"github.com/miekg/dns"
	"go.yaml.in/yaml/v3"
)

// objects returns the objects of a question as YAML: Services and slices with one of its labels as their name, and those
// with its address.
func (d *difference) objects() string {
	labels := dns.SplitDomainName(strings.ToLower(d.q.name))
	ip := addressOf(d.q.name)
	about := func(ips []string) bool {
		return slices.ContainsFunc(ips, func(text string) bool {
			a, err := netip.ParseAddr(text)
			return err == nil && (a == ip || slices.Contains(labels, dashed(text)))
		})
	}
	var b strings.Builder
	write := func(kind string, obj any) {
		text, err := toYAML(obj)
		if err != nil {
			text = err.Error()
		}
		b.WriteString("--- # " + kind + "\n" + text)
	}
	for _, s := range d.c.services {
		if slices.Contains(labels, s.Name) && slices.Contains(labels, s.Namespace) || about(clusterIPs(s)) {
			write("Service", s)
		}
	}
	for _, s := range d.c.slices {
		var ips []string
		for i := range s.Endpoints {
			ips = append(ips, s.Endpoints[i].Addresses...)
		}
		if slices.Contains(labels, serviceOf(s)) && slices.Contains(labels, s.Namespace) || isReverse(d.q.name) && about(ips) {
			if len(ips) > 20 {
				s = s.DeepCopy()
				s.Endpoints = s.Endpoints[:5]
				write(fmt.Sprintf("EndpointSlice, the first 5 endpoints of %d", len(ips)), s)
				continue
			}
			write("EndpointSlice", s)
		}
	}
	if d.isClusterset(d.zoneOf(d.q.name)) {
		for _, s := range d.c.imports {
			if slices.Contains(labels, s.Name) && slices.Contains(labels, s.Namespace) {
				write("ServiceImport", s)
			}
		}
		for _, s := range d.c.imported {
			if slices.Contains(labels, importOf(s)) && slices.Contains(labels, s.Namespace) {
				write("EndpointSlice, imported", s)
			}
		}
	}
	for _, p := range d.c.pods {
		var ips []string
		for _, ip := range p.Status.PodIPs {
			ips = append(ips, ip.IP)
		}
		if slices.Contains(labels, "pod") && about(ips) {
			write("Pod", p)
		}
	}
	b.WriteString("--- # namespaces that exist:")
	for _, ns := range d.c.pools.namespaces {
		if d.c.namespaces[ns] {
			b.WriteString(" " + ns)
		}
	}
	return b.String() + "\n"
}

// toYAML returns an object with the field names of the API.
func toYAML(obj any) (string, error) {
	text, err := json.Marshal(obj)
	if err != nil {
		return "", err
	}
	var fields map[string]any
	if err := json.Unmarshal(text, &fields); err != nil {
		return "", err
	}
	out, err := yaml.Marshal(fields)
	return string(out), err
}

// addressOf returns CoreDNS's address of a name in a reverse zone; also of some names that have none.
func addressOf(name string) netip.Addr {
	a, err := netip.ParseAddr(dnsutil.ExtractAddressFromReverse(strings.ToLower(name)))
	if err != nil {
		return netip.Addr{}
	}
	return a
}

// isAddress reports whether a name is the reverse name of an address.
func isAddress(name string) bool {
	exact, err := dns.ReverseAddr(addressOf(name).String())
	return err == nil && exact == strings.ToLower(name)
}
