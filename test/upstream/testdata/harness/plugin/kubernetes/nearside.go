package kubernetes

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/plugin/kubernetes/object"
	"github.com/coredns/coredns/plugin/pkg/dnsutil"
	"github.com/coredns/coredns/plugin/pkg/nearside"
	"github.com/coredns/coredns/plugin/transfer"
	"github.com/coredns/coredns/request"

	"github.com/miekg/dns"
	api "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1alpha1"
)

func newController(serverType, input string) *caddy.Controller {
	return nearside.NewController(serverType, input)
}

func kubernetesParse(c *caddy.Controller) (*Kubernetes, error) {
	k, err := coreKubernetesParse(c)
	nearside.Parsed(c, err)
	return k, err
}

var (
	program         nearside.Program
	manifest        = map[string][]byte{} // objects by kind and name, of all queries of the test
	current         atomic.Pointer[Kubernetes]
	upstreamAddress string
)

// ServeDNS sends the query to the program. Its cluster has the objects that the test's API connection returns.
func (k Kubernetes) ServeDNS(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	reply, err := k.exchange(r)
	if err != nil {
		return dns.RcodeServerFailure, err
	}
	if err := w.WriteMsg(nearside.WithoutOPT(reply)); err != nil {
		return dns.RcodeServerFailure, err
	}
	return reply.Rcode, nil
}

func (k Kubernetes) exchange(r *dns.Msg) (*dns.Msg, error) {
	if err := k.run(r.Question[0]); err != nil {
		return nil, err
	}
	return program.ExchangeTCP(r)
}

// Transfer transfers a zone from the program.
func (k Kubernetes) Transfer(zone string, serial uint32) (<-chan []dns.RR, error) {
	m := new(dns.Msg).SetAxfr(dns.Fqdn(zone))
	if err := k.run(m.Question[0]); err != nil {
		return nil, err
	}
	modified := uint32(k.APIConn.Modified(ModifiedInternal))
	if serial > 0 {
		if serial == modified {
			reply, err := program.ExchangeTCP(new(dns.Msg).SetQuestion(dns.Fqdn(zone), dns.TypeSOA))
			if err != nil {
				return nil, err
			}
			serial = reply.Answer[0].(*dns.SOA).Serial
		}
		m.SetIxfr(dns.Fqdn(zone), serial, "ns.dns.", "hostmaster.")
	}
	envelopes, err := program.Transfer(m)
	if err != nil {
		return nil, err
	}
	records := make(chan []dns.RR, 1)
	defer close(records)
	var all []dns.RR
	for e := range envelopes {
		if e.Error != nil {
			return nil, transfer.ErrNotAuthoritative
		}
		for _, rr := range e.RR {
			if soa, ok := rr.(*dns.SOA); ok { // the program's is the time of the last change
				soa.Serial = modified
			}
		}
		all = append(all, e.RR...)
	}
	records <- all
	return records, nil
}

// run starts the program for a query, again if the query needs other objects or options.
func (k Kubernetes) run(q dns.Question) error {
	current.Store(&k)
	if upstreamAddress == "" {
		upstreamAddress = nearside.Upstream(func() nearside.Handler { return next{current.Load()} })
	}
	k.collect(q)
	list := map[string]any{"apiVersion": "v1", "kind": "List"}
	items := []json.RawMessage{}
	for _, key := range sortedKeys(manifest) {
		items = append(items, manifest[key])
	}
	list["items"] = items
	text, err := json.Marshal(list)
	if err != nil {
		return err
	}
	folder := filepath.Join(os.TempDir(), "manifests-"+fmt.Sprint(os.Getpid()))
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, "cluster.json"), text, 0o600); err != nil {
		return err
	}
	return program.Use(fmt.Sprintf("# %x\n%s", sha256.Sum256(text), k.config(folder)))
}

// config returns the Corefile of the test's options.
func (k Kubernetes) config(folder string) string {
	var b strings.Builder
	line := func(format string, values ...any) { fmt.Fprintf(&b, format+"\n", values...) }
	line(".:0 {")
	if len(k.localIPs) == 0 {
		line("bind 127.0.0.1")
	}
	for _, ip := range k.localIPs {
		line("bind %s", ip)
	}
	line("kubernetes %s {", strings.Join(k.Zones, " "))
	if k.APIConn.HasSynced() {
		line("manifests %s", folder)
	} else {
		line("endpoint http://127.0.0.1:1\nstartup_timeout 10ms")
	}
	line("pods %s", k.podMode)
	line("ttl %d", k.ttl)
	if len(k.Namespaces) > 0 {
		line("namespaces %s", strings.Join(sortedKeys(k.Namespaces), " "))
	}
	if k.opts.ignoreEmptyService {
		line("ignore empty_service")
	}
	if k.opts.zonal {
		line("zonal")
	}
	if k.endpointNameMode {
		line("endpoint_pod_names")
	}
	if len(k.opts.multiclusterZones) > 0 {
		line("multicluster %s", strings.Join(k.opts.multiclusterZones, " "))
	}
	if zones := k.Fall.Zones; len(zones) > 0 {
		line("fallthrough %s", strings.Join(zones, " "))
	}
	line("}\ntransfer {\nto *\n}\nforward . %s\n}", upstreamAddress)
	return b.String()
}

func sortedKeys[V any](m map[string]V) (keys []string) {
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// next answers the program's upstream queries with the test's upstream, or else with the next plugin.
type next struct{ k *Kubernetes }

func (n next) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	if n.k.Upstream == nil {
		if n.k.Next == nil {
			return dns.RcodeRefused, nil
		}
		return n.k.Next.ServeDNS(ctx, w, r)
	}
	q := r.Question[0]
	m, err := n.k.Upstream.Lookup(ctx, request.Request{W: w, Req: r}, q.Name, q.Qtype)
	if err != nil {
		return dns.RcodeServerFailure, err
	}
	m.Id, m.Question, m.RecursionDesired = r.Id, r.Question, r.RecursionDesired
	return m.Rcode, w.WriteMsg(m)
}

// collect adds the objects that the test's API connection returns for a query.
func (k Kubernetes) collect(q dns.Question) {
	conn := k.APIConn
	services, endpoints := conn.ServiceList(), conn.EndpointsList()
	if ip := dnsutil.ExtractAddressFromReverse(q.Name); ip != "" {
		services = append(services, conn.SvcIndexReverse(ip)...)
		endpoints = append(endpoints, conn.EpIndexReverse(ip)...)
	}
	for _, e := range endpoints {
		services = append(services, conn.SvcIndex(e.Index)...)
		addSlices(e, e.Index, map[string]string{discovery.LabelServiceName: serviceOf(e.Index)})
	}
	for _, s := range services {
		addService(s)
		for _, e := range conn.EpIndex(object.ServiceKey(s.Name, s.Namespace)) {
			addSlices(e, e.Index, map[string]string{discovery.LabelServiceName: s.Name})
		}
	}
	for _, s := range conn.ServiceImportList() {
		addImport(s)
		for _, e := range conn.McEpIndex(object.ServiceImportKey(s.Name, s.Namespace)) {
			addSlices(&e.Endpoints, "import "+e.Index, map[string]string{mcs.LabelServiceName: s.Name, mcs.LabelSourceCluster: e.ClusterId})
		}
	}
	k.collectNamespace(q)
	k.collectPods(q)
}

// collectNamespace adds the namespace in a name, if the test's connection has it.
func (k Kubernetes) collectNamespace(q dns.Question) {
	for _, zone := range k.Zones {
		relative, ok := strings.CutSuffix(strings.ToLower(q.Name), "."+zone)
		labels := strings.Split(relative, ".")
		if n := len(labels); ok && n > 1 && (labels[n-1] == Svc || labels[n-1] == Pod) {
			if ns, err := k.APIConn.GetNamespaceByName(labels[n-2]); err == nil && ns != nil {
				add("Namespace", &api.Namespace{TypeMeta: typed("v1", "Namespace"), ObjectMeta: meta.ObjectMeta{Name: ns.Name}})
			}
		}
	}
}

// collectPods adds the pods with the address in a name.
func (k Kubernetes) collectPods(q dns.Question) {
	first, _, _ := strings.Cut(q.Name, ".")
	for _, ip := range []string{strings.ReplaceAll(first, "-", "."), strings.ReplaceAll(first, "-", ":")} {
		if net.ParseIP(ip) == nil {
			continue
		}
		for _, p := range k.APIConn.PodIndex(ip) {
			pod := &api.Pod{TypeMeta: typed("v1", "Pod"), ObjectMeta: meta.ObjectMeta{Name: p.Name, Namespace: p.Namespace, Labels: p.Labels}}
			pod.Status.Phase = api.PodRunning
			for _, ip := range p.PodIPs {
				pod.Status.PodIPs = append(pod.Status.PodIPs, api.PodIP{IP: ip})
			}
			pod.Status.PodIP = p.PodIPs[0]
			add("Pod", pod)
		}
	}
}

func typed(version, kind string) meta.TypeMeta { return meta.TypeMeta{APIVersion: version, Kind: kind} }

func add(kind string, o meta.Object) {
	text, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	manifest[kind+" "+o.GetNamespace()+"/"+o.GetName()] = text
}

func serviceOf(index string) string {
	name, _, _ := strings.Cut(index, ".")
	return name
}

// absent is the port number of CoreDNS's objects without ports.
const absent = -1

func addService(s *object.Service) {
	o := &api.Service{TypeMeta: typed("v1", "Service"), ObjectMeta: meta.ObjectMeta{Name: s.Name, Namespace: s.Namespace}}
	o.Spec.Type, o.Spec.ExternalName, o.Spec.ExternalIPs = s.Type, s.ExternalName, s.ExternalIPs
	if s.Type != api.ServiceTypeExternalName && len(s.ClusterIPs) > 0 {
		o.Spec.ClusterIP, o.Spec.ClusterIPs = s.ClusterIPs[0], s.ClusterIPs
	}
	for _, p := range s.Ports {
		if p.Port != absent {
			p.Protocol = api.Protocol(strings.ToUpper(string(p.Protocol)))
			o.Spec.Ports = append(o.Spec.Ports, p)
		}
	}
	add("Service", o)
}

func addImport(s *object.ServiceImport) {
	o := &mcs.ServiceImport{TypeMeta: typed(mcs.GroupVersion.String(), "ServiceImport"), ObjectMeta: meta.ObjectMeta{Name: s.Name, Namespace: s.Namespace}}
	o.Spec.Type, o.Spec.IPs, o.Spec.Ports = s.Type, s.ClusterIPs, []mcs.ServicePort{}
	for _, p := range s.Ports {
		p.Protocol = api.Protocol(strings.ToUpper(string(p.Protocol)))
		o.Spec.Ports = append(o.Spec.Ports, p)
	}
	add("ServiceImport", o)
}

// addSlices adds EndpointSlices: one for each subset and family.
func addSlices(e *object.Endpoints, prefix string, labels map[string]string) {
	if serviceOf(e.Index) == "" {
		return
	}
	for n, subset := range e.Subsets {
		for _, family := range []discovery.AddressType{discovery.AddressTypeIPv4, discovery.AddressTypeIPv6} {
			name := strings.ToLower(fmt.Sprintf("%s-%s-%d-%s", strings.NewReplacer(" ", "-", ".", "-").Replace(prefix), e.Name, n, family))
			o := &discovery.EndpointSlice{TypeMeta: typed("discovery.k8s.io/v1", "EndpointSlice"), AddressType: family}
			o.ObjectMeta = meta.ObjectMeta{Name: name, Namespace: e.Namespace, Labels: labels}
			for _, a := range subset.Addresses {
				if is4 := net.ParseIP(a.IP).To4() != nil; is4 == (family == discovery.AddressTypeIPv4) {
					o.Endpoints = append(o.Endpoints, endpoint(e, a))
				}
			}
			for _, p := range subset.Ports {
				if p.Port != absent {
					protocol := api.Protocol(strings.ToUpper(p.Protocol))
					o.Ports = append(o.Ports, discovery.EndpointPort{Name: &p.Name, Port: &p.Port, Protocol: &protocol})
				}
			}
			if len(o.Endpoints) > 0 {
				add("EndpointSlice", o)
			}
		}
	}
}

func endpoint(e *object.Endpoints, a object.EndpointAddress) discovery.Endpoint {
	ready := true
	one := discovery.Endpoint{Addresses: []string{a.IP}, Conditions: discovery.EndpointConditions{Ready: &ready}}
	if a.Hostname != "" {
		one.Hostname = &a.Hostname
	}
	if a.TargetRefName != "" {
		one.TargetRef = &api.ObjectReference{Kind: "Pod", Name: a.TargetRefName, Namespace: e.Namespace}
	}
	if zone := e.Zones[a.IP]; zone != "" {
		one.Zone = &zone
	}
	return one
}
