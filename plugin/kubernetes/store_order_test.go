package kubernetes

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

// amid is an index that calls a function at a certain moment of a lookup: before or after a call of a method that
// validity depends on.
type amid struct {
	*index.Index
	left    int // moments until the call
	happens func()
}

// moment is called before and after each method.
func (a *amid) moment() {
	if a.left--; a.left == 0 {
		a.happens()
	}
}

// around calls a method of the index with a moment before and one after it.
func around[T any](a *amid, method func() T) T {
	a.moment()
	defer a.moment()
	return method()
}

func around1[A, T any](a *amid, method func(A) T, arg A) T {
	return around(a, func() T { return method(arg) })
}

func around2[A, B, T any](a *amid, method func(A, B) T, one A, two B) T {
	return around(a, func() T { return method(one, two) })
}

func (a *amid) Service(namespace, name string) *index.Entry {
	return around2(a, a.Index.Service, namespace, name)
}

func (a *amid) HasNamespace(name string) bool {
	return around1(a, a.Index.HasNamespace, name)
}

func (a *amid) ServicesByIP(ip netip.Addr) []*index.Service {
	return around1(a, a.Index.ServicesByIP, ip)
}

func (a *amid) SlicesByIP(ip netip.Addr) []*index.Slice {
	return around1(a, a.Index.SlicesByIP, ip)
}

func (a *amid) PodsByIP(ip netip.Addr) []*index.Pod {
	return around1(a, a.Index.PodsByIP, ip)
}

func (a *amid) NamespaceGeneration(name string) *index.Generation {
	return around1(a, a.Index.NamespaceGeneration, name)
}

func (a *amid) NameGeneration(namespace, name string) *index.Generation {
	return around2(a, a.Index.NameGeneration, namespace, name)
}

func (a *amid) AccessGeneration() *index.Generation {
	return around(a, a.Index.AccessGeneration)
}

func (a *amid) AddressGeneration(ip netip.Addr) *index.Generation {
	return around1(a, a.Index.AddressGeneration, ip)
}

func (a *amid) NodesGeneration() *index.Generation {
	return around(a, a.Index.NodesGeneration)
}

func (a *amid) EndpointNode(ip netip.Addr) index.Symbol {
	return around1(a, a.Index.EndpointNode, ip)
}

func (a *amid) PodNode(ip netip.Addr) index.Symbol {
	return around1(a, a.Index.PodNode, ip)
}

func (a *amid) Import(namespace, name string) *index.Entry {
	return around2(a, a.Index.Import, namespace, name)
}

func (a *amid) ClusterID() index.Symbol {
	return around(a, a.Index.ClusterID)
}

func (a *amid) Node(name index.Symbol) *index.Node {
	return around1(a, a.Index.Node, name)
}

func (a *amid) NodeNamed(name string) *index.Node {
	return around1(a, a.Index.NodeNamed, name)
}

func (a *amid) NodeByIP(ip netip.Addr) *index.Node {
	return around1(a, a.Index.NodeByIP, ip)
}

func (a *amid) Modified() int64 {
	return around(a, a.Index.Modified)
}

// TestStored_ChangeDuringTheLookup changes the cluster at any moment of a query. The answer stored for that query must
// be that after the change, and after further changes, or not count as valid.
func TestStored_ChangeDuringTheLookup(t *testing.T) {
	inOrder(t, func(t *testing.T, b *storedBlock, seed uint64) {
		s, _, c := b.start(t, seed)
		a := &amid{Index: c.common().ix.Index}
		s.k.attach(a, s.k.status)
		compared, steps := seen{}, 3000
		if s.model != nil || b.imports {
			steps = 1500 // each of which makes several queries
		}
		for step := range steps {
			if text, err := s.changeAmid(c, a, compared); err != nil {
				t.Fatalf("step %d, %s: %v", step, text, err)
			}
		}
		b.requires(t, compared, []string{"A", "NODATA", "search: stored"}, []string{"PTR"}, nil)
	})
}

// moments is the number of moments of which one is drawn: a query with a search list has more of them.
const moments = 28

// amidQuery draws a packed query and its client: in a cluster without ServiceImports the most frequent form.
func (s *storing) amidQuery(r *rand.Rand, q dns.Question) ([]byte, client, error) {
	from := s.client(r)
	if s.imports != nil {
		query, err := s.queryOf(r, q.Name, q.Qtype)
		return query, from, err
	}
	m := new(dns.Msg).SetQuestion(q.Name, q.Qtype)
	if s.model != nil {
		nameCaller(r, m)
	}
	query, err := addList(r, m).Pack()
	return query, from, err
}

// changeAmid sends a query, changes the cluster during it, and checks the stored answer.
func (s *storing) changeAmid(cluster randomCluster, a *amid, compared seen) (text string, err error) {
	q, c := cluster.questions(1)[0], cluster.common()
	query, from, err := s.amidQuery(c.Rand, q)
	if err != nil {
		return q.String(), err
	}
	if labels := dns.SplitDomainName(q.Name); len(labels) > 4 {
		c.focus = index.Name{Namespace: labels[len(labels)-4], Name: labels[len(labels)-5]}
	}
	text = fmt.Sprintf("asked for %v", q)
	a.left, a.happens = 1+c.IntN(moments), func() {
		for range 1 + c.IntN(2) {
			text += "\nmeanwhile " + cluster.change()
		}
	}
	if _, err := packedReply(s.front, query, from); err != nil {
		return text, err
	}
	a.left = 0
	for range 3 {
		if err := s.compareAll(query, from, compared); err != nil {
			return text, err
		}
		text += "\nthen " + cluster.change()
	}
	return text, s.compareAll(query, from, compared)
}

// otherCallers are on two nodes and unknown.
var otherCallers = []client{{"10.240.1.5", 1480}, {"10.240.1.200", 1480}, {"203.0.113.5", 1480}}

// compareAll compares the stored answers for the caller of the query, and for others.
func (s *storing) compareAll(query []byte, from client, compared seen) error {
	if err := s.compare(query, from, compared); err != nil || s.model == nil && s.imports == nil {
		return err
	}
	for _, other := range otherCallers {
		if err := s.compare(query, other, compared); err != nil {
			return fmt.Errorf("for %s: %w", other.address, err)
		}
	}
	return nil
}
