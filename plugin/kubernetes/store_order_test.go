package kubernetes

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/test/property"
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

func (a *amid) Service(namespace, name string) *index.Entry {
	a.moment()
	defer a.moment()
	return a.Index.Service(namespace, name)
}

func (a *amid) HasNamespace(name string) bool {
	a.moment()
	defer a.moment()
	return a.Index.HasNamespace(name)
}

func (a *amid) ServicesByIP(ip netip.Addr) []*index.Service {
	a.moment()
	defer a.moment()
	return a.Index.ServicesByIP(ip)
}

func (a *amid) SlicesByIP(ip netip.Addr) []*index.Slice {
	a.moment()
	defer a.moment()
	return a.Index.SlicesByIP(ip)
}

func (a *amid) PodsByIP(ip netip.Addr) []*index.Pod {
	a.moment()
	defer a.moment()
	return a.Index.PodsByIP(ip)
}

func (a *amid) NamespaceGeneration(name string) *index.Generation {
	a.moment()
	defer a.moment()
	return a.Index.NamespaceGeneration(name)
}

func (a *amid) NameGeneration(namespace, name string) *index.Generation {
	a.moment()
	defer a.moment()
	return a.Index.NameGeneration(namespace, name)
}

func (a *amid) AccessGeneration() *index.Generation {
	a.moment()
	defer a.moment()
	return a.Index.AccessGeneration()
}

func (a *amid) AddressGeneration(ip netip.Addr) *index.Generation {
	a.moment()
	defer a.moment()
	return a.Index.AddressGeneration(ip)
}

func (a *amid) NodesGeneration() *index.Generation {
	a.moment()
	defer a.moment()
	return a.Index.NodesGeneration()
}

func (a *amid) EndpointNode(ip netip.Addr) index.Symbol {
	a.moment()
	defer a.moment()
	return a.Index.EndpointNode(ip)
}

func (a *amid) PodNode(ip netip.Addr) index.Symbol {
	a.moment()
	defer a.moment()
	return a.Index.PodNode(ip)
}

func (a *amid) Import(namespace, name string) *index.Entry {
	a.moment()
	defer a.moment()
	return a.Index.Import(namespace, name)
}

func (a *amid) ClusterID() index.Symbol {
	a.moment()
	defer a.moment()
	return a.Index.ClusterID()
}

func (a *amid) Node(name index.Symbol) *index.Node {
	a.moment()
	defer a.moment()
	return a.Index.Node(name)
}

func (a *amid) NodeNamed(name string) *index.Node {
	a.moment()
	defer a.moment()
	return a.Index.NodeNamed(name)
}

func (a *amid) NodeByIP(ip netip.Addr) *index.Node {
	a.moment()
	defer a.moment()
	return a.Index.NodeByIP(ip)
}

func (a *amid) Modified() int64 {
	a.moment()
	defer a.moment()
	return a.Index.Modified()
}

// TestStored_ChangeDuringTheLookup changes the cluster at any moment of a query. The answer stored for that query must
// be that after the change, and after further changes, or not count as valid.
func TestStored_ChangeDuringTheLookup(t *testing.T) {
	for i, block := range storedBlocks {
		if !block.order {
			continue
		}
		t.Run(block.name, func(t *testing.T) {
			property.Seeds(t, uint64(i), 1, func(t *testing.T, seed uint64) {
				s, _ := newStoring(t, allZones+" {\n"+block.options+"\n}")
				if block.inFront {
					s.withCache()
				}
				c := s.changes(seed)
				a := &amid{Index: c.ix.Index}
				s.k.attach(a, s.k.status)
				compared, steps := seen{}, 3000
				if s.model != nil {
					steps = 1500 // each of which makes several queries
				}
				for step := range steps {
					if text, err := s.changeAmid(c, a, compared); err != nil {
						t.Fatalf("step %d, %s: %v", step, text, err)
					}
				}
				compared.require(t, "A", "PTR", "NODATA", "search: stored")
			})
		})
	}
}

// moments is the number of moments of which one is drawn: a query with a search list has more of them.
const moments = 28

// changeAmid sends a query, changes the cluster during it, and checks the stored answer.
func (s *storing) changeAmid(c *changes, a *amid, compared seen) (text string, err error) {
	q := c.questions(1)[0]
	m := new(dns.Msg).SetQuestion(q.Name, q.Qtype)
	from := testClients[0]
	if s.model != nil {
		from = pick(c.Rand, s.clients)
		nameCaller(c.Rand, m)
	}
	m = addList(c.Rand, m)
	query, err := m.Pack()
	if err != nil {
		return q.String(), err
	}
	if labels := dns.SplitDomainName(q.Name); len(labels) > 2 && strings.HasSuffix(q.Name, ".svc.cluster.local.") {
		c.focus = index.Name{Namespace: labels[1], Name: labels[0]}
	}
	text = fmt.Sprintf("asked for %v", m)
	a.left, a.happens = 1+c.IntN(moments), func() {
		for range 1 + c.IntN(2) {
			text += "\nmeanwhile " + c.change()
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
		text += "\nthen " + c.change()
	}
	return text, s.compareAll(query, from, compared)
}

// otherCallers are on two nodes and unknown.
var otherCallers = []client{{"10.240.1.5", 1480}, {"10.240.1.200", 1480}, {"203.0.113.5", 1480}}

// compareAll compares the stored answers for the caller of the query, and for others.
func (s *storing) compareAll(query []byte, from client, compared seen) error {
	if err := s.compare(query, from, compared); err != nil || s.model == nil {
		return err
	}
	for _, other := range otherCallers {
		if err := s.compare(query, other, compared); err != nil {
			return fmt.Errorf("for %s: %w", other.address, err)
		}
	}
	return nil
}
