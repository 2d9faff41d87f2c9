package topology

import (
	"slices"
	"testing"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

// explainsSelect returns the difference between the decisions of Explain and of Select, "" for none.
func explainsSelect(p Policy, nodes Nodes, c Caller, all, selected []Endpoint) string {
	var got []Endpoint
	verdicts := p.Explain(nodes, c, all)
	leftOut := false
	for _, v := range verdicts {
		if v.Selected {
			got = append(got, v.Endpoint)
		}
		if v.Selected && leftOut {
			return "a selected endpoint is after one that is left out"
		}
		leftOut = !v.Selected
		if (v.Reason == "") != !p.Filters() {
			return "an endpoint has no reason, or one without a policy: " + v.Reason
		}
	}
	if len(verdicts) != len(all) || !slices.Equal(got, selected) {
		return "other endpoints than those of Select"
	}
	return ""
}

// reasonsOf returns the decision about each endpoint in the order of the names, as "+ reason" or "- reason".
func reasonsOf(verdicts []Verdict) map[string]string {
	all := map[string]string{}
	for _, v := range verdicts {
		sign := "- "
		if v.Selected {
			sign = "+ "
		}
		all[v.Name] = sign + v.Reason
	}
	return all
}

func TestExplain(t *testing.T) {
	own, other := index.NewSymbol("own"), index.NewSymbol("other")
	for _, tt := range []struct {
		name      string
		topology  *index.Topology
		clusters  bool   // own cluster first; the endpoint w2 is in another cluster, the others in the caller's
		node, in  string // of the caller
		endpoints []string
		want      map[string]string
	}{
		{name: "no policy", node: "a1", endpoints: []string{"w1 node=a1"}, want: map[string]string{"w1": "+ "}},
		{name: "local", topology: &index.Topology{Local: true}, node: "a1", endpoints: []string{"w1 node=a1", "w2 node=b1", "w3"},
			want: map[string]string{"w1": "+ on the caller's node", "w2": "- node b1 is not the caller's, a1", "w3": "- its node is unknown"}},
		{name: "local, unknown caller", topology: &index.Topology{Local: true}, endpoints: []string{"w1 node=a1"},
			want: map[string]string{"w1": "- the caller's node is unknown"}},
		{name: "hints for zones", topology: &index.Topology{Auto: true}, node: "a1", endpoints: hintedZones, want: map[string]string{
			"w1": "+ hint a, the caller is in a", "w2": "- hint b, the caller is in a", "w3": "+ hint a, b, the caller is in a"}},
		{name: "hints for nodes", topology: &index.Topology{Auto: true}, node: "a1", endpoints: hintedNodes, want: map[string]string{
			"w1": "+ hint a1, the caller is on a1", "w2": "- hint b1, a2, the caller is on a1", "w3": "+ hint a1, a2, the caller is on a1"}},
		{name: "hints, unknown caller", topology: &index.Topology{Auto: true}, endpoints: hintedZones[:1], want: map[string]string{
			"w1": "+ fallback: the caller's node is unknown, all are selected"}},
		{name: "hints, a caller without a zone", topology: &index.Topology{Auto: true}, node: "bare", endpoints: hintedZones[:1], want: map[string]string{
			"w1": "+ fallback: the caller's zone is unknown, all are selected"}},
		{name: "hints for another zone", topology: &index.Topology{Auto: true}, node: "a1", endpoints: hintedZones[1:2], want: map[string]string{
			"w2": "+ fallback: no endpoint has a hint for a, all are selected"}},
		{name: "hints for another node", topology: &index.Topology{Auto: true}, node: "bare", endpoints: hintedNodes[:1], want: map[string]string{
			"w1": "+ fallback: no endpoint has a hint for bare, all are selected"}},
		{name: "an endpoint without hints", topology: &index.Topology{Auto: true}, node: "a1", endpoints: oneWithoutZones[1:], want: map[string]string{
			"w2": "+ fallback: 1 of 2 endpoints have no hint for a zone, all are selected", "w3": "+ fallback: 1 of 2 endpoints have no hint for a zone, all are selected"}},
		{name: "same zone", topology: &index.Topology{Distribution: index.PreferSameZone}, node: "a1",
			endpoints: []string{"w1 node=a2 zone=a", "w2 node=b1 zone=b", "w3"}, want: map[string]string{
				"w1": "+ in the caller's zone", "w2": "- zone b, the caller is in a", "w3": "- its zone is unknown, the caller is in a"}},
		{name: "same zone with hints", topology: &index.Topology{Distribution: index.PreferSameZone}, node: "a1", endpoints: hintedZones[:2],
			want: map[string]string{"w1": "+ hint a, the caller is in a", "w2": "- hint b, the caller is in a"}},
		{name: "same node", topology: &index.Topology{Distribution: index.PreferSameNode}, node: "a1",
			endpoints: []string{"w1 node=a1 zone=a", "w2 node=a2 zone=a"}, want: map[string]string{"w1": "+ on the caller's node", "w2": "- node a2 is not the caller's, a1"}},
		{name: "same node, in the zone only", topology: &index.Topology{Distribution: index.PreferSameNode}, node: "a1",
			endpoints: []string{"w1 node=b1 zone=b", "w2 node=a2 zone=a"}, want: map[string]string{"w1": "- zone b, the caller is in a", "w2": "+ in the caller's zone"}},
		{name: "elsewhere only", topology: &index.Topology{Distribution: index.PreferSameNode}, node: "a1", endpoints: []string{"w1 node=b1 zone=b"},
			want: map[string]string{"w1": "+ fallback: no endpoint is in a, all are selected"}},
		{name: "same zone, a caller without one", topology: &index.Topology{Distribution: index.PreferSameZone}, node: "bare", endpoints: []string{"w1 node=b1 zone=b"},
			want: map[string]string{"w1": "+ fallback: the caller's zone is unknown, all are selected"}},
		{name: "same zone, unknown caller", topology: &index.Topology{Distribution: index.PreferSameZone}, endpoints: []string{"w1 node=b1 zone=b"},
			want: map[string]string{"w1": "+ fallback: the caller's node is unknown, all are selected"}},
		{name: "keys, the first that matches", topology: keysOf(rack, zone), node: "a2", endpoints: []string{"w1 node=a1 zone=a", "w2 node=b1 zone=b", "w3 node=bare"},
			want: map[string]string{"w1": "+ label " + zone + " is a, as the caller's", "w2": "- label " + zone + " is b, the caller's is a",
				"w3": "- its node has no known label " + zone + ", the caller's is a"}},
		{name: "keys, none matches", topology: keysOf(rack, zone), node: "a2", endpoints: []string{"w2 node=b1 zone=b"},
			want: map[string]string{"w2": "- label " + rack + " is r1, the caller's is r2; label " + zone + " is b, the caller's is a"}},
		{name: "keys with *", topology: keysOf(rack, "*"), node: "a2", endpoints: []string{"w2 node=b1 zone=b"},
			want: map[string]string{"w2": "+ fallback: no endpoint matches a key before *, all are selected"}},
		{name: "keys, unknown caller", topology: keysOf(rack), endpoints: []string{"w2 node=b1"}, want: map[string]string{"w2": "- the caller's node is unknown"}},
		{name: "keys, no label of the caller", topology: keysOf(rack), node: "bare", endpoints: []string{"w2 node=b1"},
			want: map[string]string{"w2": "- the caller's node has no label of the keys"}},
		{name: "cluster", clusters: true, node: "a1", endpoints: []string{"w1", "w2"},
			want: map[string]string{"w1": "+ in the caller's cluster own", "w2": "- cluster other, the caller is in own"}},
		{name: "cluster, elsewhere only", clusters: true, node: "a1", endpoints: []string{"w2"},
			want: map[string]string{"w2": "+ fallback: no endpoint of cluster own is selected, all are selected"}},
		{name: "cluster and node", clusters: true, topology: &index.Topology{Local: true}, node: "a1", endpoints: []string{"w1 node=a1", "w2 node=a1", "w3 node=a2"},
			want: map[string]string{"w1": "+ on the caller's node", "w2": "- cluster other, the caller is in own", "w3": "- node a2 is not the caller's, a1"}},
		{name: "cluster and hints, an endpoint without hints", clusters: true, topology: &index.Topology{Auto: true}, node: "a1", endpoints: []string{"w1 forZones=b", "w2 forZones=a", "w3"},
			want: map[string]string{"w1": "+ fallback: 1 of 2 endpoints have no hint for a zone, all are selected", "w2": "- cluster other, the caller is in own",
				"w3": "+ fallback: 1 of 2 endpoints have no hint for a zone, all are selected"}},
		{name: "cluster and node, elsewhere only", clusters: true, topology: &index.Topology{Local: true}, node: "a1", endpoints: []string{"w2 node=a1"},
			want: map[string]string{"w2": "- no endpoint of cluster own is selected; its node is in cluster other"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := PolicyOf(&index.Service{Kind: index.Headless, Topology: tt.topology}, nil)
			nodes, all := cluster(), endpointsOf(t, tt.endpoints)
			c := nodes.caller(tt.node, tt.in)
			if tt.clusters {
				p, c.Cluster = p.OwnClusterFirst(), own
				for _, e := range all {
					if e.Slice.Cluster = own; e.Name == "w2" {
						e.Slice.Cluster = other
					}
				}
			}
			got := reasonsOf(p.Explain(nodes, c, all))
			for name, want := range tt.want {
				if got[name] != want {
					t.Errorf("%s: %q, want %q", name, got[name], want)
				}
			}
			if wrong := explainsSelect(p, nodes, c, all, p.Select(nodes, c, slices.Clone(all))); wrong != "" || len(got) != len(tt.want) {
				t.Errorf("%d endpoints, want %d; %s", len(got), len(tt.want), wrong)
			}
		})
	}
}

// TestReasonTexts asserts that every reason is put in words.
func TestReasonTexts(t *testing.T) {
	for r, text := range reasonTexts {
		if text == nil {
			t.Errorf("no text of reason %d", r)
		}
	}
	if len(reasonTexts) != int(byLabel)+1 {
		t.Errorf("texts of %d reasons, want %d", len(reasonTexts), byLabel+1)
	}
}
