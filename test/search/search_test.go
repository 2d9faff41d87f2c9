//go:build linux

package search

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// kinds are the pods that a node has in the tests of resolvers.
type kinds struct{ shop, bank, extra, own *pod }

// newKinds makes one pod of each kind, in the API too.
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

// create makes the pod in the API, on this node.
func (n *node) create(t *testing.T, p *pod, options ...func(*corev1.Pod)) {
	t.Helper()
	p.name = p.String() + "-" + n.name
	n.world.put(t, podObject(p, n.name, options...))
}

// TestWithoutExpansion looks names up as they always were: it is what all else is compared with, by the same table.
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
				server.become(failing)
				defer server.become(passing)
				l := lookup{name: "both-#.outside.example"}.next() // which musl does not come to
				if got, _, err := named(all, "musl").lookup(k.shop, "any", l.name); err != nil || got.failure != "again" {
					t.Errorf("musl says %q, error %v", got, err)
				}
			})
		})
	}
}

// named returns the resolver of a name.
func named(all []resolving, name string) resolving {
	return all[slices.IndexFunc(all, func(r resolving) bool { return r.name == name })]
}

// lookUp has all resolvers look everything up in all pods.
func (k kinds) lookUp(t *testing.T, all []resolving, expanded bool) {
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

// lookUp fails the test if a resolver does not say what it is to say, or sends another number of packets for it.
func lookUp(t *testing.T, r resolving, p *pod, family string, l lookup, expanded bool) {
	t.Helper()
	sent := wantOutcome(t, r, p, family, l, expanded)
	if want := l.packets(family, len(p.search), expanded); l.want(r, family, expanded).failure == "" && len(sent) != want {
		t.Errorf("%s for %s: %d packets left the pod, want %d: %v", l.name, family, len(sent), want, sent)
	}
}

// wantOutcome fails the test if a resolver does not say what it is to say, and returns what it sent.
func wantOutcome(t *testing.T, r resolving, p *pod, family string, l lookup, expanded bool) []query {
	t.Helper()
	got, sent, err := r.lookup(p, family, l.name)
	if err != nil {
		t.Errorf("%s for %s: %v", l.name, family, err)
		return nil
	}
	want := l.want(r, family, expanded)
	if got.canonical == "" { // not told, or nothing found
		want.canonical = ""
	}
	got.canonical = strings.ToLower(got.canonical)
	if got != want {
		t.Errorf("%s for %s: got %q, want %q", l.name, family, got, want)
	}
	return sent
}
