package forward

import (
	"math/rand/v2"
	"sync/atomic"
)

// policy is the order in which upstreams are queried.
type policy interface {
	// appendOrder appends all upstreams in order to dst.
	appendOrder(dst, all []*upstream) []*upstream
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

func (random) appendOrder(dst, all []*upstream) []*upstream {
	n := len(dst)
	dst = append(dst, all...)
	for i := n; i < len(dst)-1; i++ {
		j := i + rand.IntN(len(dst)-i) // #nosec G404 -- it only spreads load
		dst[i], dst[j] = dst[j], dst[i]
	}
	return dst
}

// roundRobin makes each upstream the first in turn. The others follow in the order of the Corefile.
type roundRobin struct{ turn atomic.Uint64 }

func (r *roundRobin) appendOrder(dst, all []*upstream) []*upstream {
	if len(all) < 2 {
		return append(dst, all...)
	}
	i := r.turn.Add(1) % uint64(len(all))
	return append(append(append(dst, all[i]), all[:i]...), all[i+1:]...)
}

// sequential is the order of the Corefile.
type sequential struct{}

func (sequential) appendOrder(dst, all []*upstream) []*upstream { return append(dst, all...) }
