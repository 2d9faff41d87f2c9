package forward

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"
)

// policy is the order in which upstreams are queried. It does not change its argument.
type policy interface {
	order(all []*upstream) []*upstream
}

// newPolicy returns a new policy by its name in the Corefile. Each stanza has its own.
func newPolicy(name string) (p policy, ok bool) {
	switch name {
	case "random":
		return random{}, true
	case "round_robin":
		return new(roundRobin), true
	case "sequential":
		return sequential{}, true
	}
	return nil, false
}

// random is a random order.
type random struct{}

func (random) order(all []*upstream) []*upstream {
	if len(all) < 2 {
		return all
	}
	shuffled := slices.Clone(all)
	rand.Shuffle(len(shuffled), func(i, j int) { // #nosec G404 -- it only spreads load
		shuffled[i], shuffled[j] = shuffled[j], shuffled[i]
	})
	return shuffled
}

// roundRobin makes each upstream the first in turn. The others follow in the order of the Corefile.
type roundRobin struct{ turn atomic.Uint64 }

func (r *roundRobin) order(all []*upstream) []*upstream {
	if len(all) < 2 {
		return all
	}
	i := r.turn.Add(1) % uint64(len(all))
	return slices.Concat(all[i:i+1], all[:i], all[i+1:])
}

// sequential is the order of the Corefile.
type sequential struct{}

func (sequential) order(all []*upstream) []*upstream { return all }
