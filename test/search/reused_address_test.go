//go:build linux

package search

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// holder is a pod that has an address for some time.
type holder struct {
	name, namespace string
	options         []func(*corev1.Pod)
	list            []string
}

// testReplaced assigns an address to one pod after the other. Answers are first those for the list of the previous pod,
// then for no list, then for the list of the new pod, and never go back.
func testReplaced(t *testing.T, n *node) {
	p := n.newPod(t, "replaced", shop, clusterSearch(shop)...)
	var before *holder
	for i, h := range []holder{
		{name: "first", namespace: shop, list: clusterSearch(shop, "extra.example"), options: []func(*corev1.Pod){searches("extra.example")}},
		{name: "other-list", namespace: shop, list: clusterSearch(shop)},
		{name: "own-list", namespace: shop, list: []string{"shop.svc.cluster.local", "extra.example"}, options: []func(*corev1.Pod){policyNone("shop.svc.cluster.local", "extra.example")}},
		{name: "other-namespace", namespace: bank, list: clusterSearch(bank)},
		{name: "first", namespace: shop, list: clusterSearch(shop, "extra.example"), options: []func(*corev1.Pod){searches("extra.example")}},
	} {
		t.Run(fmt.Sprint(i, " ", h.name), func(t *testing.T) {
			if before != nil {
				n.end(t, p, before)
			}
			p.namespace, p.name = h.namespace, h.name+"-"+n.name
			n.world.put(t, podObject(p, n.name, h.options...))
			n.follow(t, p, before, &h)
			before = &h
		})
	}
}

// end ends the pod that has the address: with a grace period, and then at once.
func (n *node) end(t *testing.T, p *pod, h *holder) {
	t.Helper()
	n.world.deletePod(t, p, false)
	n.follow(t, p, h, nil)
	n.world.deletePod(t, p, true)
}

// follow sends queries until the answers are those for the list of a holder, nil for none. At first they may be those for
// the previous holder. Once an answer is for a later list, none may be for an earlier one.
func (n *node) follow(t *testing.T, p *pod, before, after *holder) {
	t.Helper()
	var lists [][]string
	if before != nil {
		lists = append(lists, before.list)
	}
	lists = append(lists, nil)
	if after != nil {
		lists = append(lists, after.list)
	}
	at := 0
	end := time.Now().Add(maxWait)
	for at < len(lists)-1 {
		var err error
		if at, err = n.latest(p, lists, at); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(end) {
			t.Fatalf("not within %s: answers for the list %q; they are for %q", maxWait, lists[len(lists)-1], lists[at])
		}
	}
	for range 20 { // the answers do not change any more
		if _, err := n.latest(p, lists, at); err != nil {
			t.Fatal(err)
		}
	}
}

// latest returns the index of the last list that an answer is for, not less than from. The store has the answers of other
// clients to these queries, which a wrong list would return.
func (n *node) latest(p *pod, lists [][]string, from int) (int, error) {
	for _, network := range []string{"udp", "tcp"} {
		for _, base := range []string{"intra-0", "only-0", "web.bank", "both-0.outside.example", "missing-0"} {
			for _, suffix := range []string{".shop.svc.cluster.local.", ".bank.svc.cluster.local."} {
				name := base + suffix
				reply, err := querier{from: p.Namespace, server: local, network: network}.send(name, "A")
				if err != nil {
					return 0, err
				}
				got, at := brief(reply), from
				for at < len(lists) && model(lists[at], name, "A") != got {
					at++
				}
				if at == len(lists) {
					return 0, fmt.Errorf("%s over %s is %q, the answer for none of the lists %q", name, network, got, lists[from:])
				}
				from = at
			}
		}
	}
	return from, nil
}

// testEnded has a pod that has ended and is still in the API, with an address that another pod has now.
func testEnded(t *testing.T, n *node) {
	for _, phase := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed} {
		t.Run(string(phase), func(t *testing.T) {
			p := n.newPod(t, strings.ToLower(string(phase)), shop, clusterSearch(shop)...)
			first := holder{list: clusterSearch(shop, "extra.example")}
			n.create(t, p, searches("extra.example"))
			n.follow(t, p, nil, &first)
			n.world.setPhase(t, p, phase)
			n.follow(t, p, &first, nil)
			second := *p
			second.namespace = bank
			n.world.put(t, podObject(&second, n.name))
			n.follow(t, p, nil, &holder{list: clusterSearch(bank)})
		})
	}
}
