package kubernetes

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

// amid is an index that something happens to at a certain moment of a look: before or after the reader
// calls one of the methods that answers hang on.
type amid struct {
	*index.Index
	left    int // moments until then
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

func (a *amid) NamespacesGeneration() *index.Generation {
	a.moment()
	defer a.moment()
	return a.Index.NamespacesGeneration()
}

func (a *amid) AddressGeneration(ip netip.Addr) *index.Generation {
	a.moment()
	defer a.moment()
	return a.Index.AddressGeneration(ip)
}

func (a *amid) Modified() int64 {
	a.moment()
	defer a.moment()
	return a.Index.Modified()
}

// TestKept_ChangeAmidTheLook has the cluster change at any moment of a query. What is kept of that query
// has to be what one gets after the change, and after others that follow, or not to count as valid.
func TestKept_ChangeAmidTheLook(t *testing.T) {
	for seed, block := range keptBlocks {
		if !block.order {
			continue
		}
		t.Run(block.name, func(t *testing.T) {
			s, _ := newKeeping(t, allZones+" {\n"+block.options+"\n}")
			if block.inFront {
				s.withCache()
			}
			c := newChanges(uint64(seed), s.k)
			a := &amid{Index: c.ix}
			s.k.index = a
			compared := seen{}
			for step := range 3000 {
				if text, err := s.changeAmid(c, a, compared); err != nil {
					t.Fatalf("step %d, %s: %v", step, text, err)
				}
			}
			compared.require(t, "A", "PTR", "NODATA")
		})
	}
}

// changeAmid asks a question while something changes, and looks at what is kept of it then.
func (s *keeping) changeAmid(c *changes, a *amid, compared seen) (text string, err error) {
	q := c.questions(1)[0]
	query, err := new(dns.Msg).SetQuestion(q.Name, q.Qtype).Pack()
	if err != nil {
		return q.String(), err
	}
	if labels := dns.SplitDomainName(q.Name); len(labels) > 2 && strings.HasSuffix(q.Name, ".svc.cluster.local.") {
		c.focus = index.Name{Namespace: labels[1], Name: labels[0]}
	}
	text = fmt.Sprintf("asked for %s", q.String())
	a.left, a.happens = 1+c.IntN(20), func() {
		for range 1 + c.IntN(2) {
			text += "\nmeanwhile " + c.change()
		}
	}
	if _, err := reply(s.front, query, clients[0]); err != nil {
		return text, err
	}
	a.left = 0
	for range 3 {
		if err := s.compare(query, compared); err != nil {
			return text, err
		}
		text += "\nthen " + c.change()
	}
	return text, s.compare(query, compared)
}
