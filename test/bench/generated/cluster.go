// Package generated makes the objects of the large cluster that the benchmarks
// read, and the names and addresses in it.
package generated

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Cluster is a large, regular cluster for benchmarks. The same values result
// in the same objects, and a load generator that has the values can compute every
// name in it:
//
//   - Namespace n is "ns-NNN", n in three digits.
//   - Service n is "svc-NNNNN", n in five digits, in namespace n modulo
//     Namespaces. Services with n from 0 to Services-1 exist.
//   - Its cluster address is 10.96.0.0 + 1 + n, or "None" when it is headless.
//     Headless are the share Headless of the Services, evenly spread: at a
//     tenth those whose n ends in 9.
//   - A headless Service has ten endpoints, every fiftieth headless one 250,
//     whose hostnames are "svc-NNNNN-0", "svc-NNNNN-1" and so on. The other
//     endpoints are shared evenly by the other Services, and have no hostname.
//   - Pod addresses are 10.128.0.0 + 1 + p, where p counts the endpoints of all
//     Services in order.
//   - Every Service has the TCP port "http", 80, which leads to 8080.
//   - Node n is "node-NNNN", n in at least four digits, in zone n modulo 3 of "zone-a",
//     "zone-b" and "zone-c".
//   - ServiceImport n is "imp-NNNNN", n in five digits, in namespace n modulo
//     Namespaces. Imports with n from 0 to Imports-1 exist, and the share
//     Headless of them is headless, spread as with Services. The address of the
//     others is 10.112.0.0 + 1 + n.
//   - An import has ten endpoints, five each of "cluster-a" and "cluster-b",
//     and the port of a Service. The addresses are 100.64.0.0 + 1 + 10n and the
//     next nine. When it is headless, the hostnames are "imp-NNNNN-0" to
//     "imp-NNNNN-4" in either cluster.
//   - Pod object n is "pod-NNNNNN", n in six digits, in namespace n modulo
//     Namespaces, with the address of pod n. Objects with n from 0 to Pods-1
//     exist: none by default, since DNS servers read pods only when they have to.
//
// The number of endpoints is exactly Endpoints, those of imports not counted.
// Slices hold at most 100 endpoints and, like everything else, carry the labels,
// owners and managed fields which the real controllers write, so that objects
// have the size that they have in a cluster. Seed determines the rest: the nodes of
// pods, and the random parts of UIDs and of the names of pods and slices.
type Cluster struct {
	Services   int
	Endpoints  int
	Nodes      int
	Namespaces int
	Imports    int
	Pods       int
	Headless   float64 // share of the Services and of the imports, from 0 to 1
	Seed       uint64
}

const (
	headlessEndpoints    = 10  // of a headless Service
	bigHeadlessEndpoints = 250 // of every bigHeadlessEvery-th headless Service
	bigHeadlessEvery     = 50
	maxSliceEndpoints    = 100
)

// Service has the names and addresses of one Service of a Cluster.
type Service struct {
	Namespace string
	Name      string
	Headless  bool
	ClusterIP string // "None" when headless
	Endpoints int    // number of its endpoints
	FirstPod  int    // number, in the whole cluster, of its first endpoint
}

// Validate returns an error for a value that is out of range.
func (g Cluster) Validate() error {
	switch {
	case g.Services < 0 || g.Services > 100_000:
		return fmt.Errorf("services: %d is not from 0 to 100000", g.Services)
	case g.Endpoints < 0 || g.Endpoints > 8_000_000:
		return fmt.Errorf("endpoints: %d is not from 0 to 8000000", g.Endpoints)
	case g.Endpoints > 0 && g.Services == 0:
		return fmt.Errorf("endpoints: %d, but no services", g.Endpoints)
	case g.Nodes < 1 || g.Nodes > 20_000:
		return fmt.Errorf("nodes: %d is not from 1 to 20000", g.Nodes)
	case g.Namespaces < 1 || g.Namespaces > 1000:
		return fmt.Errorf("namespaces: %d is not from 1 to 1000", g.Namespaces)
	case g.Imports < 0 || g.Imports > 100_000:
		return fmt.Errorf("imports: %d is not from 0 to 100000", g.Imports)
	case g.Pods < 0 || g.Pods > 1_000_000:
		return fmt.Errorf("pods: %d is not from 0 to 1000000", g.Pods)
	case g.Headless < 0 || g.Headless > 1:
		return fmt.Errorf("headless: %g is not from 0 to 1", g.Headless)
	}
	return nil
}

// headlessBefore returns how many of the Services before n are headless, and how
// many of the imports.
func (g Cluster) headlessBefore(n int) int {
	// The small addition keeps shares like 0.1, which floats can't hold, from
	// falling below whole numbers.
	return int(float64(n)*g.Headless + 1e-9)
}

// headless reports whether the n-th Service is headless, and the n-th import.
func (g Cluster) headless(n int) bool { return g.headlessBefore(n+1) > g.headlessBefore(n) }

// headlessNeed returns the endpoints of the first k headless Services.
func (g Cluster) headlessNeed(k int) int {
	big := (k + bigHeadlessEvery - 1) / bigHeadlessEvery
	return k*headlessEndpoints + big*(bigHeadlessEndpoints-headlessEndpoints)
}

// podsBefore returns how many endpoints the Services before n have.
func (g Cluster) podsBefore(n int) int {
	headless := g.headlessBefore(g.Services)
	others := g.Services - headless
	rest := g.Endpoints - g.headlessNeed(headless)
	if rest < 0 || others == 0 {
		// Too few, or all Services are headless: each gets the same number.
		return share(g.Endpoints, g.Services, n)
	}
	k := g.headlessBefore(n)
	return g.headlessNeed(k) + share(rest, others, n-k)
}

// share returns the sum of the first k of n even parts of a total.
func share(total, n, k int) int {
	if n == 0 {
		return 0
	}
	return total/n*k + min(total%n, k)
}

// Service returns the n-th Service.
func (g Cluster) Service(n int) Service {
	s := Service{
		Namespace: g.Namespace(n % g.Namespaces),
		Name:      fmt.Sprintf("svc-%05d", n),
		Headless:  g.headless(n),
		FirstPod:  g.podsBefore(n),
	}
	s.Endpoints = g.podsBefore(n+1) - s.FirstPod
	s.ClusterIP = "None"
	if !s.Headless {
		s.ClusterIP = addressAfter("10.96.0.0", n)
	}
	return s
}

// Hostname returns the hostname of the i-th endpoint of a headless Service. Its
// address is that of pod FirstPod+i.
func (s Service) Hostname(i int) string { return fmt.Sprintf("%s-%d", s.Name, i) }

// Namespace returns the name of the n-th namespace.
func (g Cluster) Namespace(n int) string { return fmt.Sprintf("ns-%03d", n) }

// PodIP returns the address of the n-th pod of the cluster.
func (g Cluster) PodIP(n int) string { return addressAfter("10.128.0.0", n) }

// Node returns the name and zone of the n-th node.
func (g Cluster) Node(n int) (name, zone string) {
	return fmt.Sprintf("node-%04d", n), []string{"zone-a", "zone-b", "zone-c"}[n%3]
}

// addressAfter returns the IPv4 address which is 1 + n after first.
func addressAfter(first string, n int) string {
	b := netip.MustParseAddr(first).As4()
	v := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	v += uint32(n) + 1
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}).String()
}

// Each calls use with every object of the cluster: namespaces, nodes, each Service
// before its slices, each import before its slices, and pods. It stops at the first
// error. Callers may store the objects, and change them.
func (g Cluster) Each(use func(runtime.Object) error) error {
	if err := g.Validate(); err != nil {
		return fmt.Errorf("generate: %w", err)
	}
	for n := range g.Namespaces {
		if err := use(g.namespaceObject(n)); err != nil {
			return err
		}
	}
	for n := range g.Nodes {
		if err := use(g.nodeObject(n)); err != nil {
			return err
		}
	}
	for n := range g.Services {
		if err := useWithSlices(use, g.ServiceObject(n), g.SliceObjects(n)); err != nil {
			return err
		}
	}
	for n := range g.Imports {
		if err := useWithSlices(use, g.ImportObject(n), g.ImportSliceObjects(n)); err != nil {
			return err
		}
	}
	for n := range g.Pods {
		if err := use(g.PodObject(n)); err != nil {
			return err
		}
	}
	return nil
}

func useWithSlices(use func(runtime.Object) error, owner runtime.Object, slices []*discoveryv1.EndpointSlice) error {
	if err := use(owner); err != nil {
		return err
	}
	for _, slice := range slices {
		if err := use(slice); err != nil {
			return err
		}
	}
	return nil
}

// random returns a source of randomness for the n-th object of a kind, so that
// each can be made without the others.
func (g Cluster) random(kind uint64, n int) *rand.Rand {
	return rand.New(rand.NewPCG(g.Seed, kind<<32|uint64(n)))
}

// suffix returns a random ending of n characters, as generated names have it.
func suffix(r *rand.Rand, n int) string {
	const alphabet = "bcdfghjklmnpqrstvwxz2456789"
	b := make([]byte, n)
	for i := range b {
		b[i] = alphabet[r.IntN(len(alphabet))]
	}
	return string(b)
}

// uid returns a random UID.
func uid(r *rand.Rand) string {
	a, b := r.Uint64(), r.Uint64()
	return fmt.Sprintf("%08x-%04x-4%03x-a%03x-%012x", uint32(a>>32), uint16(a>>16), a&0xfff, b>>52, b&0xffffffffffff)
}
