package forward

import (
	"reflect"
	"slices"
	"sync"
	"testing"
)

func someUpstreams(n int) []*upstream {
	all := make([]*upstream, n)
	for i := range all {
		all[i] = new(upstream)
	}
	return all
}

func policyNamed(t *testing.T, name string) policy {
	t.Helper()
	p, ok := newPolicy(name)
	if want := map[string]policy{"random": random{}, "round_robin": new(roundRobin), "sequential": sequential{}}[name]; !ok || !reflect.DeepEqual(p, want) {
		t.Fatalf("policy %T for %s", p, name)
	}
	return p
}

// TestPolicies: each order has each upstream once, and the argument is not changed.
func TestPolicies(t *testing.T) {
	for _, name := range []string{"random", "round_robin", "sequential"} {
		t.Run(name, func(t *testing.T) {
			p := policyNamed(t, name)
			for n := range 16 {
				all := someUpstreams(n)
				before := slices.Clone(all)
				for range 3 * n {
					ordered := p.appendOrder(nil, all)
					if !slices.Equal(all, before) {
						t.Fatal("the argument is changed")
					}
					if len(ordered) != n {
						t.Fatalf("%d of %d upstreams", len(ordered), n)
					}
					for _, u := range all {
						if !slices.Contains(ordered, u) {
							t.Fatal("an upstream is missing")
						}
					}
				}
			}
			four, order := someUpstreams(4), make([]*upstream, 0, 4)
			if allocations := testing.AllocsPerRun(100, func() { p.appendOrder(order, four) }); allocations != 0 {
				t.Errorf("%v allocations for four upstreams", allocations)
			}
		})
	}
	if p, ok := newPolicy("Random"); ok {
		t.Errorf("policy %v", p)
	}
}

func TestSequential(t *testing.T) {
	all := someUpstreams(3)
	for range 5 {
		if got := policyNamed(t, "sequential").appendOrder(nil, all); !slices.Equal(got, all) {
			t.Fatal("another order")
		}
	}
}

// Only the first upstream changes; the others remain in order.
func TestRoundRobin(t *testing.T) {
	all := someUpstreams(3)
	p := policyNamed(t, "round_robin")
	for i, want := range [][]*upstream{{all[1], all[0], all[2]}, {all[2], all[0], all[1]}, {all[0], all[1], all[2]}, {all[1], all[0], all[2]}} {
		if got := p.appendOrder(nil, all); !slices.Equal(got, want) {
			t.Errorf("turn %d: another order", i)
		}
	}
}

func TestRoundRobin_Concurrent(t *testing.T) {
	const workers, turns = 8, 500
	all := someUpstreams(5)
	p := policyNamed(t, "round_robin")
	var mu sync.Mutex
	first := map[*upstream]int{}
	var wait sync.WaitGroup
	for range workers {
		wait.Go(func() {
			for range turns {
				u := p.appendOrder(nil, all)[0]
				mu.Lock()
				first[u]++
				mu.Unlock()
			}
		})
	}
	wait.Wait()
	for _, u := range all {
		if first[u] != workers*turns/len(all) {
			t.Errorf("first %d times, want %d", first[u], workers*turns/len(all))
		}
	}
}

func TestRandom(t *testing.T) {
	for n := 2; n < 5; n++ {
		all := someUpstreams(n)
		places := map[[2]int]int{}
		const draws = 6000
		for range draws {
			for place, u := range policyNamed(t, "random").appendOrder(nil, all) {
				places[[2]int{slices.Index(all, u), place}]++
			}
		}
		for i := range n {
			for place := range n {
				if got := places[[2]int{i, place}]; got < draws/n*8/10 || got > draws/n*12/10 {
					t.Errorf("upstream %d of %d was %d times at place %d, want about %d", i, n, got, place, draws/n)
				}
			}
		}
	}
}
