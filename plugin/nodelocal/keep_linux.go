package nodelocal

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"time"

	"github.com/nearside-dns/nearside/plugin/nodelocal/link"
	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
)

const (
	// retryAfter is how long after a failure the node is looked at again, if the interval is longer.
	retryAfter = 5 * time.Second
	// lookAgain is the same for what another instance should put right.
	lookAgain = time.Second
	// youngerWait is how long a younger instance has to put back what is missing. It may hang.
	youngerWait = 3 * time.Second
	// firstRules is how long the rules of iptables wait for the server's first answer: on the address
	// of a Service it can't hear itself before they are there.
	firstRules = 2 * time.Second
)

// keep looks after interface and rules: both each interval, the interface at once when it changed, and
// the rules soon after any change of nftables.
func (n *node) keep(ctx context.Context) {
	if n.config.setupInterface {
		n.watchInterface(ctx)
	}
	tick := time.NewTicker(renewal)
	defer tick.Stop()
	verify := time.NewTimer(0)
	var generation uint32
	for {
		check := n.verify
		select {
		case <-ctx.Done():
			return
		case <-n.look:
			check = n.verifyInterface
		case <-n.lookAll:
		case <-verify.C:
		case <-tick.C:
			if !n.due(&generation) {
				continue
			}
			check = n.verifyRules
		}
		if again := n.bounded(check); again > 0 {
			verify.Reset(min(again, n.config.interval))
		}
	}
}

// bounded runs one of the verify functions, and returns when everything is to be verified next.
func (n *node) bounded(check func() (again time.Duration, err error)) (again time.Duration) {
	result := make(chan time.Duration, 1)
	err := bounded("looking after interface and rules", stepWait, func() error {
		if !n.mu.TryLock() {
			return errNoAnswer // the last step still waits for the kernel
		}
		defer n.mu.Unlock()
		if n.leaving {
			return nil
		}
		again, err := check()
		result <- again
		return err
	})
	if err != nil {
		n.report(err)
		return retryAfter
	}
	select {
	case again = <-result:
	default:
	}
	return again
}

// due returns whether the rules are to be looked at before the interval is over: nftables has changed,
// or those of iptables are to be applied for the first time.
func (n *node) due(generation *uint32) bool {
	switch n.backend {
	case backendIPTables:
		return !n.rulesAwaitServer() && !n.tried.Swap(true)
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
			err := n.link.Watch(done, func() { signal(n.look) }, func(err error) {
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
			signal(n.look)
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	})
}

// poke has everything looked at soon.
func (n *node) poke() { signal(n.lookAll) }

// signal wakes who waits for it, and is no more if it has not been heard yet.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// verify looks at everything, and repairs it unless a younger instance does.
func (n *node) verify() (again time.Duration, err error) {
	first, err := n.verifyInterface()
	second, e := n.verifyRules()
	third, e2 := n.verifyLease()
	err = errors.Join(err, e, e2, n.removePredecessors(), n.verifyAccepts())
	signal(n.filtersDue)
	if err != nil {
		return retryAfter, err
	}
	n.failed.Store("")
	lastVerified.WithLabelValues(n.config.Interface).SetToCurrentTime()
	again = n.config.interval
	for _, d := range []time.Duration{first, second, third} {
		if d > 0 {
			again = min(again, d)
		}
	}
	return again, nil
}

// verifyInterface repairs the interface. Addresses that it should not have are another instance's
// unless this one is alone.
func (n *node) verifyInterface() (again time.Duration, err error) {
	if !n.config.setupInterface {
		return 0, nil
	}
	others, younger, err := n.instance.others()
	if err != nil {
		return 0, err
	}
	if younger {
		gone := func() (bool, error) {
			s, err := link.Read(n.link.Device())
			return err == nil && s.Kind == "", err
		}
		if mine, again, err := n.stand("interface", gone); !mine {
			return again, err
		}
	}
	r, err := n.link.Ensure(n.config.Addresses, others == 0)
	if err != nil {
		SetupErrors.WithLabelValues(errorInterfaceCheck).Inc()
		return 0, err
	}
	n.logRepair(r)
	return 0, n.verifyQuestion(others == 0)
}

// stand returns whether this instance is to do what a younger one should have done: put back what has
// been gone for some time.
func (n *node) stand(what string, gone func() (bool, error)) (mine bool, again time.Duration, err error) {
	is, err := gone()
	if err != nil || !is {
		delete(n.missing, what)
		return false, 0, err
	}
	since, ok := n.missing[what]
	if !ok {
		since = time.Now()
		n.missing[what] = since
	}
	return time.Since(since) >= youngerWait, lookAgain, nil
}

func (n *node) logRepair(r link.Repair) {
	switch {
	case !r.Any():
		return
	case !r.Created && !r.Up && len(r.Added) == 0:
		log.Infof("Addresses of an earlier configuration are removed from interface %s: %s", n.config.Interface, join(r.Removed))
		return
	}
	what := repairedAddresses
	if r.Created || r.Up {
		what = repairedInterface
	}
	repairs.WithLabelValues(n.config.Interface, what).Inc()
	log.Warningf("Repaired interface %s: made %t, set up %t, addresses added %v, removed %v", n.config.Interface, r.Created, r.Up, r.Added, r.Removed)
}

// verifyRules repairs the rules.
func (n *node) verifyRules() (again time.Duration, err error) {
	if n.keeper == nil || n.rulesAwaitServer() {
		return 0, nil
	}
	ok, err := n.keeper.Intact()
	if err == nil && !ok {
		again, err = n.repairRules()
	}
	if err != nil {
		SetupErrors.WithLabelValues(n.errorType(err)).Inc()
		rulesPresent.WithLabelValues(n.config.Interface).Set(0)
		return 0, fmt.Errorf("rules: %w", err)
	}
	rulesPresent.WithLabelValues(n.config.Interface).Set(float64(n.keeper.Rules()))
	return again, nil
}

func (n *node) repairRules() (again time.Duration, err error) {
	_, younger, err := n.instance.others()
	if err != nil {
		return 0, err
	}
	if younger && n.backend == backendNFTables {
		gone := func() (bool, error) { return rules.Missing(n.config.Interface) }
		if mine, again, err := n.stand("rules", gone); !mine {
			return again, err
		}
	}
	if err := n.keeper.Apply(); err != nil {
		return 0, err
	}
	if n.applied.Swap(true) {
		repairs.WithLabelValues(n.config.Interface, repairedRules).Inc()
		log.Warningf("Repaired the rules of interface %s: somebody had removed or changed them", n.config.Interface)
	} else if n.backend == backendIPTables {
		for _, a := range n.config.Addresses {
			leaseHeld.WithLabelValues(a.String()).Set(1) // its rules take the traffic, come what may
		}
	}
	return 0, nil
}

// removePredecessors removes rules of iptables that node-local-dns, or nodecache with iptables, has left
// for the addresses: they keep packets from kube-proxy whether or not there is a lease. Those that only
// accept packets stay: they do no harm, and a firewall of the node may need them.
func (n *node) removePredecessors() error {
	if n.backend != backendNFTables {
		return nil
	}
	found, unread := rules.Predecessors(context.Background(), n.config.Addresses)
	if errors.Is(unread, exec.ErrNotFound) {
		n.legacyUnread.Do(func() {
			log.Warningf("The node has tables of the old iptables, and no iptables-legacy is here to look for rules of node-local-dns: %v", unread)
		})
		unread = nil
	}
	found = slices.DeleteFunc(found, func(r rules.PredecessorRule) bool { return !r.Untracks() })
	if len(found) == 0 {
		return named("look for rules of node-local-dns", unread)
	}
	removed, err := rules.RemovePredecessors(context.Background(), found)
	if removed > 0 {
		log.Infof("%d rules of iptables are removed that node-local-dns or an earlier configuration had left, the first was %s", removed, found[0])
	}
	return named("remove rules of node-local-dns", errors.Join(unread, err))
}

// verifyAccepts accepts DNS in the filter tables of iptables, if the node has any and nftables keeps the
// other rules: a firewall there would drop what pods ask, lease or not.
func (n *node) verifyAccepts() error {
	if n.backend != backendNFTables {
		return nil
	}
	accepts, err := rules.NewAccepts(n.config.Config)
	if errors.Is(err, exec.ErrNotFound) {
		n.acceptsUnset.Do(func() {
			log.Warningf("The node has a filter table of iptables, and no iptables is here to accept DNS in it: if it drops what it does not know, allow port %d to the addresses (%v)", n.config.Port, err)
		})
		return nil
	}
	if err == nil {
		err = accepts.Apply()
	}
	return named("accept DNS in the filter table of iptables", err)
}

// named returns an error with what was tried, nil for none.
func named(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// verifyLease looks whether renewals reach the rules: something else on the node may take away their
// mark, or the packets.
func (n *node) verifyLease() (again time.Duration, err error) {
	if !n.hasLease() {
		return 0, nil
	}
	left, err := rules.Leased(n.config.Interface)
	if err != nil {
		return 0, err
	}
	for _, a := range n.config.Addresses {
		_, has := left[a]
		held := n.leases[a].Load()
		if has || !held {
			delete(n.missing, a.String())
			if held {
				leaseHeld.WithLabelValues(a.String()).Set(1)
			}
			continue
		}
		if _, before := n.missing[a.String()]; !before {
			n.missing[a.String()] = time.Now() // it may just have been taken
			again = lookAgain
			continue
		}
		leaseHeld.WithLabelValues(a.String()).Set(0)
		return 0, fmt.Errorf("address %s leaves the node's queries to cluster DNS: renewals of its lease do not reach the rules; another table of nftables may drop them or change their mark before priority raw", a)
	}
	return again, nil
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
