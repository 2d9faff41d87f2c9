package topology

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

// Labels of nodes.
const (
	hostname = "kubernetes.io/hostname"
	zone     = "topology.kubernetes.io/zone"
	region   = "topology.kubernetes.io/region"
	rack     = "example.com/rack"
)

// nodeMap implements Nodes and counts lookups.
type nodeMap struct {
	nodes map[index.Symbol]*index.Node
	asked int
}

func (m *nodeMap) Node(name index.Symbol) *index.Node {
	m.asked++
	return m.nodes[name]
}

// newNodeMap returns nodes with labels.
func newNodeMap(all map[string]map[string]string) *nodeMap {
	m := &nodeMap{nodes: map[index.Symbol]*index.Node{}}
	for name, labels := range all {
		n := &index.Node{Name: index.NewSymbol(name)}
		for k, v := range labels {
			n.Labels = append(n.Labels, index.Label{Key: index.NewSymbol(k), Value: index.NewSymbol(v)})
		}
		m.nodes[n.Name] = n
	}
	return m
}

// caller returns a caller on a node, in the zone of the node's label, or else in the given one.
func (m *nodeMap) caller(node, in string) Caller {
	c := Caller{Name: index.NewSymbol(node), Zone: index.NewSymbol(in)}
	if c.Node = m.nodes[c.Name]; c.Node != nil {
		c.Zone, _ = c.Node.Label(index.NewSymbol(zone))
	}
	return c
}

// symbols returns the Symbols of strings, nil for none.
func symbols(all ...string) []index.Symbol {
	var s []index.Symbol
	for _, a := range all {
		s = append(s, index.NewSymbol(a))
	}
	return s
}

// endpointsOf returns endpoints for texts such as "w1 node=a1 zone=a forNodes=a1,a2 forZones=a": the name, and the
// fields of the EndpointSlice.
func endpointsOf(t *testing.T, texts []string) []Endpoint {
	t.Helper()
	var all []Endpoint
	for i, text := range texts {
		fields := strings.Fields(text)
		e := index.Endpoint{Name: fields[0]}
		for _, f := range fields[1:] {
			key, value, _ := strings.Cut(f, "=")
			kit.Must(t, set(&e, key, value))
		}
		all = append(all, Endpoint{Endpoint: e, Slice: &index.Slice{Ports: []index.Port{{Number: int32(i + 1)}}}})
	}
	return all
}

func set(e *index.Endpoint, key, value string) error {
	hints := func() *index.Hints {
		if e.Hints == nil {
			e.Hints = &index.Hints{}
		}
		return e.Hints
	}
	switch key {
	case "node":
		e.Node = index.NewSymbol(value)
	case "zone":
		e.Zone = index.NewSymbol(value)
	case "forNodes":
		hints().Nodes = symbols(strings.Split(value, ",")...)
	case "forZones":
		hints().Zones = symbols(strings.Split(value, ",")...)
	case "noHints":
		hints() // present and empty
	default:
		return fmt.Errorf("an endpoint has no %q", key)
	}
	return nil
}

// names returns the names of the endpoints, in order.
func names(all []Endpoint) string {
	var s []string
	for _, c := range all {
		s = append(s, c.Endpoint.Name)
	}
	return strings.Join(s, " ")
}
