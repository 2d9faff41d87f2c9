//go:build linux

package search

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// kinds are the pods of a node, by the kind of their search list.
type kinds struct{ shop, bank, extra, own *pod }

// newKinds creates one pod of each kind, also in the API.
func (n *node) newKinds(t *testing.T) kinds {
	t.Helper()
	k := kinds{
		shop:  n.newPod(t, "shop", shop, clusterSearch(shop)...),
		bank:  n.newPod(t, "bank", bank, clusterSearch(bank)...),
		extra: n.newPod(t, "extra", shop, clusterSearch(shop, "extra.example")...),
		own:   n.newPod(t, "own", shop, "shop.svc.cluster.local", "extra.example"),
	}
	n.create(t, k.shop)
	n.create(t, k.bank)
	n.create(t, k.extra, searches("extra.example"))
	n.create(t, k.own, policyNone("shop.svc.cluster.local", "extra.example"))
	return k
}

// create creates the pod in the API, on this node.
func (n *node) create(t *testing.T, p *pod, options ...func(*corev1.Pod)) {
	t.Helper()
	p.name = p.String() + "-" + n.name
	n.world.put(t, podObject(p, n.name, options...))
}

// TestWithoutExpansion has resolvers walk the search list themselves: the reference for the other tests, with the same
// lookups.
func TestWithoutExpansion(t *testing.T) {
	w := newWorld(t)
	all := resolvers(t)
	for _, tc := range []struct {
		name  string
		start func(*testing.T) *clusterServer
	}{{"clusterdns", w.startOurs}, {"CoreDNS", w.startStock}} {
		t.Run(tc.name, func(t *testing.T) {
			n := w.newNode(t)
			server := tc.start(t)
			n.startCache(t, server, corefile("", ""))
			k := n.newKinds(t)
			k.lookUp(t, all, false)
			t.Run("cluster DNS fails", func(t *testing.T) {
				server.set(failing)
				defer server.set(passing)
				l := lookup{name: "both-#.outside.example"}.next() // musl gives up before this candidate
				if got, _, err := named(all, "musl").lookup(k.shop, "any", l.name); err != nil || got.failure != "again" {
					t.Errorf("musl: got %q, error %v", got, err)
				}
			})
		})
	}
}

// named returns the resolver with a name.
func named(all []resolver, name string) resolver {
	return all[slices.IndexFunc(all, func(r resolver) bool { return r.name == name })]
}

// lookUp runs all lookups by all resolvers in all pods.
func (k kinds) lookUp(t *testing.T, all []resolver, expanded bool) {
	t.Helper()
	for _, tc := range []struct {
		pod     *pod
		lookups []lookup
	}{{k.shop, common}, {k.bank, inBank}, {k.extra, withExtra}, {k.own, ownList}} {
		if tc.pod == nil {
			continue
		}
		for _, r := range all {
			t.Run(tc.pod.String()+"/"+r.name, func(t *testing.T) {
				for _, l := range tc.lookups {
					for _, family := range families {
						if r.command(family, l.name) != nil {
							lookUp(t, r, tc.pod, family, l.next(), expanded)
						}
					}
				}
			})
		}
	}
}

// lookUp fails the test if a lookup has a wrong outcome or sends a wrong number of packets.
func lookUp(t *testing.T, r resolver, p *pod, family string, l lookup, expanded bool) {
	t.Helper()
	sent := wantOutcome(t, r, p, family, l, expanded)
	if want := l.packets(family, len(p.search), expanded); l.want(r, family, expanded).failure == "" && len(sent) != want {
		t.Errorf("%s for %s: %d packets left the pod, want %d: %v", l.name, family, len(sent), want, sent)
	}
}

// wantOutcome fails the test if a lookup has a wrong outcome, and returns the queries that were sent.
func wantOutcome(t *testing.T, r resolver, p *pod, family string, l lookup, expanded bool) []query {
	t.Helper()
	got, sent, err := r.lookup(p, family, l.name)
	if err != nil {
		t.Errorf("%s for %s: %v", l.name, family, err)
		return nil
	}
	l.check(t, r, family, expanded, got)
	return sent
}

// check compares the outcome of a resolver with that of the lookup.
func (l lookup) check(t *testing.T, r resolver, family string, expanded bool, got outcome) {
	t.Helper()
	want := l.want(r, family, expanded)
	if got.canonical == "" { // not returned by the resolver, or not found
		want.canonical = ""
	}
	got.canonical = strings.ToLower(got.canonical)
	if got != want {
		t.Errorf("%s for %s: got %q, want %q", l.name, family, got, want)
	}
}
