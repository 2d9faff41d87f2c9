package main

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nearside-dns/nearside/test/bench/generated"
)

// searchCluster is the cluster of the part search. It is small: a server's work for a name does not depend on the size,
// and each server has to read it.
var searchCluster = generated.Cluster{Services: 1000, Endpoints: 10000, Nodes: 100, Namespaces: 16, Headless: 0.1, Seed: 1}

// searchPods is the number of pods on the node with the clients.
const searchPods = 32

// searchNode is the node of the clients.
func searchNode() string {
	name, _ := searchCluster.Node(0)
	return name
}

// pod is a client. Its address is one of the loopback interface, so that it can send queries.
type pod struct {
	namespace string
	number    int // of the namespace
	address   net.IP
}

func podOf(n int) pod {
	namespace := n % searchCluster.Namespaces
	return pod{searchCluster.Namespace(namespace), namespace, net.IPv4(127, 0, 1, byte(1+n))}
}

// searchList is the search list in a pod's resolv.conf.
func (p pod) searchList() []string {
	return []string{p.namespace + ".svc.cluster.local.", "svc.cluster.local.", "cluster.local.", hostDomain}
}

// podObject is the pod in the API.
func podObject(n int) runtime.Object {
	p := podOf(n)
	name := fmt.Sprintf("client-%d", n)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: name, UID: types.UID(name)},
		Spec:       corev1.PodSpec{NodeName: searchNode(), DNSPolicy: corev1.DNSClusterFirst},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: p.address.String(), PodIPs: []corev1.PodIP{{IP: p.address.String()}},
		},
	}
}

// lookup is a name that a program in a pod resolves.
type lookup struct {
	pod      pod
	name     string // without the final dot, so that the search list is used
	external bool
	want     []netip.Addr // in order
}

// The mix of names: mostly names outside the cluster, few of them frequent.
const (
	externalNames = 3000
	externalShare = 0.7
	shortShare    = 0.5  // of the cluster's names: those of the pod's own namespace, by the Service's name alone
	zipfExponent  = 1.05 // how fast names become rarer
)

// lookups makes look-ups, the same ones for the same seed. All external names have the tag, so that with a new tag no
// cache has them.
func lookups(seed uint64, tag string, n int) ([]lookup, error) {
	r := rand.New(rand.NewPCG(seed, 1))
	externals := rand.NewZipf(r, zipfExponent, 1, externalNames-1)
	services := rand.NewZipf(r, zipfExponent, 1, uint64(searchCluster.Services/searchCluster.Namespaces-1))
	all := make([]lookup, n)
	for i := range all {
		p := podOf(r.IntN(searchPods))
		if r.Float64() >= externalShare {
			all[i] = clusterLookup(p, r.Float64() < shortShare, r.IntN(searchCluster.Namespaces), int(services.Uint64()))
			continue
		}
		name := fmt.Sprintf("w%d.%s.example.com", externals.Uint64(), tag)
		want, err := externalAddresses(name)
		if err != nil {
			return nil, err
		}
		all[i] = lookup{pod: p, name: name, external: true, want: want}
	}
	return all, nil
}

// clusterLookup is the look-up of a Service: in the pod's own namespace if it is short, otherwise in another's.
func clusterLookup(p pod, short bool, namespace, service int) lookup {
	if short {
		s := serviceIn(p.number, service)
		return lookup{pod: p, name: s.Name, want: []netip.Addr{netip.MustParseAddr(s.ClusterIP)}}
	}
	s := serviceIn(namespace, service)
	return lookup{pod: p, name: s.Name + "." + s.Namespace, want: []netip.Addr{netip.MustParseAddr(s.ClusterIP)}}
}

// serviceIn returns the n-th Service of a namespace, or the next one with a cluster address.
func serviceIn(namespace, n int) generated.Service {
	for ; ; n++ {
		s := searchCluster.Service((namespace + n*searchCluster.Namespaces) % searchCluster.Services)
		if !s.Headless && s.Namespace == searchCluster.Namespace(namespace) {
			return s
		}
	}
}

// externalAddresses returns the upstream server's addresses of a name.
func externalAddresses(name string) ([]netip.Addr, error) {
	var owner [256]byte
	end, err := dns.PackDomainName(dns.Fqdn(name), owner[:], 0, nil, false)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	all := []netip.Addr{netip.AddrFrom4(addressOf(owner[:end]))}
	if address, ok := address6Of(owner[:end]); ok {
		all = append(all, netip.AddrFrom16(address))
	}
	return all, nil
}
