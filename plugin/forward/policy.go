package forward

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"
)

// newPolicy returns the policy of a name. Each stanza has one of its own.
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

// random asks in any order.
type random struct{}

func (random) String() string { return "random" }

func (random) order(all []*upstream) []*upstream {
	if len(all) < 2 || len(all) == 2 && rand.IntN(2) == 0 { // #nosec G404 -- it only spreads load
		return all
	}
	if len(all) == 2 {
		return []*upstream{all[1], all[0]}
	}
	shuffled := slices.Clone(all)
	for i := len(shuffled) - 1; i > 0; i-- {
		j := rand.IntN(i + 1) // #nosec G404 -- it only spreads load
		shuffled[i], shuffled[j] = shuffled[j], shuffled[i]
	}
	return shuffled
}

// roundRobin lets each upstream be the first in turn. The others follow in the order of the Corefile.
type roundRobin struct{ turn atomic.Uint64 }

func (*roundRobin) String() string { return "round_robin" }

func (r *roundRobin) order(all []*upstream) []*upstream {
	if len(all) < 2 {
		return all
	}
	i := r.turn.Add(1) % uint64(len(all))
	if i == 0 {
		return all
	}
	turned := make([]*upstream, 0, len(all))
	turned = append(turned, all[i])
	turned = append(turned, all[:i]...)
	return append(turned, all[i+1:]...)
}

// sequential asks in the order of the Corefile.
type sequential struct{}

func (sequential) String() string { return "sequential" }

func (sequential) order(all []*upstream) []*upstream { return all }
