package topology

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/test/property"
)

// world is a random case of plain strings and maps: this oracle does not use the records of the index.
type world struct {
	nodes      map[string]map[string]string // labels of the nodes that have a record
	endpoints  []place
	node, zone string // of the caller; no node if it is unknown
	headless   bool
	policy     plainPolicy
	defaults   []string
}

type place struct {
	node, zone         string
	forNodes, forZones []string
}

type plainPolicy struct {
	keys         []string
	local, auto  bool
	distribution string
}

// choose returns the indices of the endpoints that the caller gets, as specified.
func (w *world) choose() []int {
	switch p := w.policy; {
	case !w.headless:
		return w.those(func(place) bool { return true })
	case len(p.keys) > 0:
		return w.byKeys(p.keys)
	case p.local:
		return w.those(func(e place) bool { return w.node != "" && e.node == w.node })
	case p.auto:
		return w.kubeProxy()
	case p.distribution != "":
		return w.prefer(p.distribution)
	case len(w.defaults) > 0:
		return w.byKeys(w.defaults)
	}
	return w.those(func(place) bool { return true })
}

func (w *world) those(match func(place) bool) (found []int) {
	for i, e := range w.endpoints {
		if match(e) {
			found = append(found, i)
		}
	}
	return found
}

// firstOf returns the first list that is not empty, or else all endpoints.
func (w *world) firstOf(choices ...[]int) []int {
	for _, c := range choices {
		if len(c) > 0 {
			return c
		}
	}
	return w.those(func(place) bool { return true })
}

// labels returns the known labels of a node.
func (w *world) labels(node, in string) map[string]string {
	if known, ok := w.nodes[node]; ok {
		return known
	}
	labels := map[string]string{}
	if node != "" {
		labels[hostname] = node
	}
	if in != "" {
		labels[zone] = in
	}
	return labels
}

func (w *world) byKeys(keys []string) []int {
	for _, key := range keys {
		found := w.those(func(e place) bool {
			if key == "*" {
				return true
			}
			if w.node == "" {
				return false
			}
			mine, ok := w.labels(w.node, w.zone)[key]
			its, its1 := w.labels(e.node, e.zone)[key]
			return ok && its1 && mine == its
		})
		if len(found) > 0 {
			return found
		}
	}
	return nil
}

func (w *world) kubeProxy() []int {
	if w.node == "" {
		return w.firstOf()
	}
	var choices [][]int
	if len(w.those(func(e place) bool { return len(e.forNodes) == 0 })) == 0 {
		choices = append(choices, w.those(func(e place) bool { return slices.Contains(e.forNodes, w.node) }))
	}
	if len(w.those(func(e place) bool { return len(e.forZones) == 0 })) == 0 && w.zone != "" {
		choices = append(choices, w.those(func(e place) bool { return slices.Contains(e.forZones, w.zone) }))
	}
	return w.firstOf(choices...)
}

func (w *world) prefer(what string) []int {
	if len(w.those(func(e place) bool { return len(e.forNodes)+len(e.forZones) > 0 })) > 0 {
		return w.kubeProxy()
	}
	var choices [][]int
	if what == "node" && w.node != "" {
		choices = append(choices, w.those(func(e place) bool { return e.node == w.node }))
	}
	if w.node != "" && w.zone != "" {
		choices = append(choices, w.those(func(e place) bool { return e.zone == w.zone }))
	}
	return w.firstOf(choices...)
}

var (
	someNodes = []string{"n0", "n1", "n2", "n3", "n4"}
	someZones = []string{"a", "b", "c"}
	someKeys  = []string{hostname, zone, region, rack}
)

func pick[T any](r *rand.Rand, all []T) T { return all[r.IntN(len(all))] }

// often returns a function that reports true with a random probability of this world: all, some or none of its objects
// have a property.
func often(r *rand.Rand) func() bool {
	chance := pick(r, []float64{0, 0.3, 0.8, 0.95, 1})
	return func() bool { return r.Float64() < chance }
}

func newWorld(r *rand.Rand) *world {
	w := &world{nodes: map[string]map[string]string{}, headless: r.IntN(50) > 0}
	recorded, labeled := often(r), often(r)
	for _, name := range someNodes {
		if !recorded() {
			continue
		}
		w.nodes[name] = map[string]string{}
		for _, key := range someKeys {
			if labeled() {
				w.nodes[name][key] = pick(r, someZones)
			}
		}
		if labeled() {
			w.nodes[name][hostname] = name
		}
		if r.IntN(10) == 0 {
			w.nodes[name][rack] = ""
		}
	}
	w.endpoints = newPlaces(r)
	w.policy, w.defaults = newPolicy(r), newKeys(r)
	w.drawCaller(r)
	return w
}

func newPlaces(r *rand.Rand) []place {
	placed, zoned, hintedNodes, hintedZones := often(r), often(r), often(r), often(r)
	all := make([]place, r.IntN(7))
	for i := range all {
		if placed() {
			all[i].node = pick(r, someNodes)
		}
		if zoned() {
			all[i].zone = pick(r, someZones)
		}
		if hintedNodes() {
			all[i].forNodes = someOf(r, someNodes)
		}
		if hintedZones() {
			all[i].forZones = someOf(r, someZones)
		}
		if i > 0 && r.IntN(6) == 0 {
			all[i] = all[i-1]
		}
	}
	return all
}

func someOf(r *rand.Rand, all []string) (some []string) {
	for range r.IntN(3) {
		some = append(some, pick(r, all))
	}
	return some
}

func newKeys(r *rand.Rand) []string {
	keys := slices.Clone(someKeys)
	r.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	keys = keys[:r.IntN(len(keys)+1)]
	if r.IntN(3) == 0 {
		keys = append(keys, "*")
	}
	return keys
}

func newPolicy(r *rand.Rand) (p plainPolicy) {
	if r.IntN(3) == 0 {
		p.keys = newKeys(r)
	}
	p.local, p.auto = r.IntN(6) == 0, r.IntN(3) == 0
	p.distribution = pick(r, []string{"", "zone", "node"})
	return p
}

func (w *world) drawCaller(r *rand.Rand) {
	if r.IntN(8) == 0 {
		return
	}
	w.node = pick(r, someNodes)
	if labels, ok := w.nodes[w.node]; ok {
		w.zone = labels[zone]
	} else if r.IntN(3) > 0 {
		w.zone = pick(r, someZones)
	}
}

// selectable returns the endpoints as records of the index.
func (w *world) selectable() []Endpoint {
	var all []Endpoint
	for i, p := range w.endpoints {
		e := index.Endpoint{Name: fmt.Sprint("w", i), Node: index.NewSymbol(p.node), Zone: index.NewSymbol(p.zone)}
		if len(p.forNodes)+len(p.forZones) > 0 || i%2 == 0 {
			e.Hints = &index.Hints{Nodes: symbols(p.forNodes...), Zones: symbols(p.forZones...)}
		}
		all = append(all, Endpoint{Endpoint: e, Slice: &index.Slice{Ports: []index.Port{{Number: int32(i + 1)}}}})
	}
	return all
}

func (w *world) service() *index.Service {
	s := &index.Service{Kind: index.ClusterIP, Topology: &index.Topology{
		Keys: symbols(w.policy.keys...), Local: w.policy.local, Auto: w.policy.auto,
		Distribution: map[string]index.Distribution{"zone": index.PreferSameZone, "node": index.PreferSameNode}[w.policy.distribution],
	}}
	if w.headless {
		s.Kind = index.Headless
	}
	if reflect.DeepEqual(*s.Topology, index.Topology{}) {
		s.Topology = nil
	}
	return s
}

// TestSelectRandom compares Select with the oracle in random clusters, and Explain with Select. The result has the same pointers in the same
// order, and the records are unchanged.
func TestSelectRandom(t *testing.T) {
	property.Seeds(t, 0, 25_000, func(t *testing.T, seed uint64) {
		w := newWorld(rand.New(rand.NewPCG(seed, 0)))
		nodes, all, again := newNodeMap(w.nodes), w.selectable(), w.selectable()
		var want []Endpoint
		for _, i := range w.choose() {
			want = append(want, all[i])
		}
		p := PolicyOf(w.service(), symbols(w.defaults...))
		got := p.Select(nodes, nodes.caller(w.node, w.zone), slices.Clone(all))
		same := func(a, b Endpoint) bool { return a.Endpoint == b.Endpoint && a.Slice == b.Slice }
		if !slices.EqualFunc(got, want, same) {
			t.Fatalf("policy %s: got %q, want %q of\n%+v", p, names(got), names(want), *w)
		}
		if wrong := explainsSelect(p, nodes, nodes.caller(w.node, w.zone), all, got); wrong != "" {
			t.Fatalf("policy %s explained: %s", p, wrong)
		}
		if !p.Filters() && len(got) != len(all) {
			t.Fatalf("a policy that filters nothing left %d of %d", len(got), len(all))
		}
		if !reflect.DeepEqual(all, again) {
			t.Fatalf("policy %s: the endpoints were changed", p)
		}
	})
}
