package nodelocal

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nearside-dns/nearside/plugin/nodelocal/link"
	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
)

// retryAfter is how long after a failure the node is looked at again, if the interval is longer.
const retryAfter = 5 * time.Second

// firstRules is how long the rules of iptables wait for the server's first answer: on the address of a
// Service it can't hear itself before they are there.
const firstRules = 2 * time.Second

// keep looks after interface and rules: each interval, at once when the interface changed, and soon
// after any change of nftables.
func (n *node) keep(ctx context.Context) {
	if n.config.setupInterface {
		n.watchInterface(ctx)
	}
	tick := time.NewTicker(renewal)
	defer tick.Stop()
	verify := time.NewTimer(0)
	var generation uint32
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.look:
		case <-verify.C:
		case <-tick.C:
			if !n.due(&generation) {
				continue
			}
		}
		wait := n.config.interval
		if err := bounded(n.verify); err != nil {
			n.report(err)
			wait = min(wait, retryAfter)
		}
		verify.Reset(wait)
	}
}

// due returns whether the rules are to be looked at before the interval is over: nftables has changed,
// or those of iptables are to be applied for the first time.
func (n *node) due(generation *uint32) bool {
	switch n.backend {
	case backendIPTables:
		return !n.applied.Load() && !n.rulesAwaitServer()
	case backendNFTables:
		now, err := rules.Generation()
		changed := err == nil && now != *generation
		*generation = now
		return changed
	}
	return false
}

// rulesAwaitServer returns whether it is too early for the rules of iptables, which take traffic at
// once.
func (n *node) rulesAwaitServer() bool {
	return n.backend == backendIPTables && !n.applied.Load() && !n.ready() && time.Since(n.started) < firstRules
}

// watchInterface has the kernel say when the interface changes. When its notifications are lost, the
// node is looked at, and they are asked for again.
func (n *node) watchInterface(ctx context.Context) {
	n.running.Go(func() {
		for ctx.Err() == nil {
			done, broken := make(chan struct{}), make(chan error, 1)
			err := n.link.Watch(done, n.poke, func(err error) {
				select {
				case broken <- err:
				default:
				}
			})
			if err == nil {
				select {
				case <-ctx.Done():
				case <-broken:
				}
			}
			close(done)
			n.poke()
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	})
}

// poke has the node looked at soon.
func (n *node) poke() {
	select {
	case n.look <- struct{}{}:
	default: // it is going to be
	}
}

// verify looks at interface and rules, and repairs them unless a younger instance does.
func (n *node) verify() error {
	if !n.mu.TryLock() {
		return errStepWait // the last step is still waiting for the kernel
	}
	defer n.mu.Unlock()
	if n.leaving {
		return nil
	}
	others, younger, err := n.instance.others()
	if err != nil {
		return err
	}
	if younger {
		return nil
	}
	if err := errors.Join(n.verifyInterface(others == 0), n.verifyRules()); err != nil {
		return err
	}
	n.failed.Store("")
	lastVerified.WithLabelValues(n.config.Interface).SetToCurrentTime()
	return nil
}

// verifyInterface repairs the interface. Addresses that it should not have are another instance's
// unless this one is alone.
func (n *node) verifyInterface(alone bool) error {
	if !n.config.setupInterface {
		return nil
	}
	r, err := n.link.Ensure(n.config.Addresses, alone)
	if err != nil {
		SetupErrors.WithLabelValues(errorInterfaceCheck).Inc()
		return err
	}
	n.logRepair(r)
	return nil
}

func (n *node) logRepair(r link.Repair) {
	if !r.Any() {
		return
	}
	what := "addresses"
	if r.Created || r.Up {
		what = "interface"
	}
	repairs.WithLabelValues(n.config.Interface, what).Inc()
	log.Warningf("Repaired interface %s: made %t, set up %t, addresses added %v, removed %v", n.config.Interface, r.Created, r.Up, r.Added, r.Removed)
}

func (n *node) verifyRules() error {
	if n.keeper == nil || n.rulesAwaitServer() {
		return nil
	}
	ok, err := n.keeper.Intact()
	if err == nil && !ok {
		if err = n.keeper.Apply(); err == nil && n.applied.Swap(true) {
			repairs.WithLabelValues(n.config.Interface, "rules").Inc()
			log.Warningf("Repaired the rules of interface %s: somebody had removed or changed them", n.config.Interface)
		}
	}
	if err != nil {
		SetupErrors.WithLabelValues(n.errorType(err)).Inc()
		return fmt.Errorf("rules: %w", err)
	}
	rulesPresent.WithLabelValues(n.config.Interface).Set(float64(n.keeper.Rules()))
	return nil
}

func (n *node) errorType(err error) string {
	switch {
	case errors.Is(err, rules.ErrLocked):
		return errorIPTablesLock
	case n.backend == backendIPTables:
		return errorIPTables
	}
	return errorNFTables
}

// report logs an error, once until it changes or is gone.
func (n *node) report(err error) {
	if text := err.Error(); n.failed.Swap(text) != text {
		log.Errorf("%v: DNS goes on; tried again every %s", err, min(n.config.interval, retryAfter))
	}
}
