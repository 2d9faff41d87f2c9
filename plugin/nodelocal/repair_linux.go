package nodelocal

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nearside-dns/nearside/plugin/nodelocal/link"
	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
)

const (
	// retryAfter is the time from a failure to the next verification, if the interval is longer.
	retryAfter = 5 * time.Second
	// verifyAgain is the same for a repair that another instance should make.
	verifyAgain = time.Second
	// youngerWait is the time for which a younger instance may leave something missing before this one repairs it.
	youngerWait = 3 * time.Second
	// firstRules is the max. time for which the rules of iptables wait for the server's first answer: self-queries to the
	// address of a Service do not reach the server without the rules.
	firstRules = 2 * time.Second
)

// repairLoop verifies and repairs interface and rules: both each interval, the interface after each change of it,
// and the rules within renewInterval after a change of nftables.
func (n *node) repairLoop(ctx context.Context) {
	if n.config.setupInterface {
		n.watchInterface(ctx)
	}
	tick := time.NewTicker(renewInterval)
	defer tick.Stop()
	timer := time.NewTimer(0)
	var generation uint32
	for {
		verify := n.verify
		select {
		case <-ctx.Done():
			return
		case <-n.interfaceDue:
			verify = n.verifyInterface
		case <-n.allDue:
		case <-timer.C:
		case <-tick.C:
			if !n.rulesDue(&generation) {
				continue
			}
			verify = n.verifyChange
		}
		if again := n.run(verify); again > 0 {
			timer.Reset(min(again, n.config.interval))
		}
	}
}

// run runs one of the verify functions, and returns the time until everything is to be verified next; 0 does not change it.
func (n *node) run(verify func() (again time.Duration, err error)) time.Duration {
	var again time.Duration
	err := bounded("verifying interface and rules", stepWait, func() (err error) {
		if !n.mu.TryLock() {
			return errNoAnswer // the previous step still waits for the kernel
		}
		defer n.mu.Unlock()
		if !n.leaving {
			again, err = verify()
		}
		return err
	})
	if err != nil { // the step may still run: its result is not read
		n.report(err)
		return retryAfter
	}
	return again
}

// rulesDue returns whether the rules are to be verified before the interval is over: nftables has changed, or the rules
// of iptables are to be applied for the first time.
func (n *node) rulesDue(generation *uint32) bool {
	switch n.backend {
	case backendIPTables:
		return !n.rulesAwaitServer() && !n.triedIPTables.Swap(true)
	case backendNFTables:
		now, err := rules.Generation()
		changed := err == nil && now != *generation
		*generation = now
		return changed
	}
	return false
}

// rulesAwaitServer returns whether it is too early for the rules of iptables, which direct queries to the server
// without a lease.
func (n *node) rulesAwaitServer() bool {
	return n.backend == backendIPTables && !n.applied.Load() && !n.ready() && time.Since(n.started) < firstRules
}

// watchInterface has the interface verified after each change of it. When notifications of the kernel are lost, it
// has the interface verified, and watches again.
func (n *node) watchInterface(ctx context.Context) {
	n.running.Go(func() {
		for ctx.Err() == nil {
			watch, end := context.WithCancel(ctx)
			if err := n.link.Watch(n.config.Addresses, watch.Done(), func() { signal(n.interfaceDue) }, func(error) { end() }); err == nil {
				signal(n.interfaceDue) // changes before the watch were not reported
				<-watch.Done()
			}
			end()
			signal(n.interfaceDue)
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	})
}

// poke has everything verified soon.
func (n *node) poke() { signal(n.allDue) }

// signal wakes the receiver of a channel. A second signal before it wakes has no effect.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// verify verifies everything, and repairs it unless a younger instance does.
func (n *node) verify() (again time.Duration, err error) {
	again = n.config.interval
	for _, verify := range []func() (time.Duration, error){n.verifyInterface, n.verifyRules, n.verifyLease} {
		soon, e := verify()
		if soon > 0 {
			again = min(again, soon)
		}
		err = errors.Join(err, e)
	}
	err = errors.Join(err, n.removePredecessors(), n.verifyAccepts())
	signal(n.filtersDue)
	if err != nil {
		return retryAfter, err
	}
	n.lastError.Store("")
	lastVerified.WithLabelValues(n.config.Interface).SetToCurrentTime()
	return again, nil
}

// verifyInterface repairs the interface. Surplus addresses are removed only without other instances, which may have
// added them.
func (n *node) verifyInterface() (again time.Duration, err error) {
	if !n.config.setupInterface {
		return 0, nil
	}
	others, younger, err := n.instance.others()
	if err != nil {
		return 0, err
	}
	if younger {
		missing := func() (bool, error) { return link.Missing(n.link.Device()) }
		if mine, again, err := n.standIn("interface", missing); !mine {
			return again, err
		}
	}
	r, err := n.link.Ensure(n.config.Addresses, others == 0)
	if err != nil {
		SetupErrors.WithLabelValues(errorInterfaceCheck).Inc()
		return 0, err
	}
	n.logRepair(r)
	return 0, n.verifyPair(others == 0)
}

// verifyChange repairs the rules, and those that accept DNS in other tables, after a change of nftables.
func (n *node) verifyChange() (again time.Duration, err error) {
	again, err = n.verifyRules()
	return again, errors.Join(err, n.restoreAccepts())
}

// standIn returns whether this instance makes a repair that a younger one has not made for youngerWait.
func (n *node) standIn(what string, missing func() (bool, error)) (mine bool, again time.Duration, err error) {
	is, err := missing()
	if err != nil || !is {
		delete(n.missing, what)
		return false, 0, err
	}
	since, ok := n.missing[what]
	if !ok {
		since = time.Now()
		n.missing[what] = since
	}
	return time.Since(since) >= youngerWait, verifyAgain, nil
}

func (n *node) logRepair(r link.Repair) {
	switch {
	case !r.Any():
		return
	case !r.Created && !r.Up && len(r.Added) == 0:
		log.Infof("Interface %s: removed addresses of an earlier configuration: %s", n.config.Interface, join(r.Removed))
		return
	}
	what := repairedAddresses
	if r.Created || r.Up {
		what = repairedInterface
	}
	repairs.WithLabelValues(n.config.Interface, what).Inc()
	log.Warningf("Repaired interface %s: created %t, set up %t, addresses added %v, removed %v", n.config.Interface, r.Created, r.Up, r.Added, r.Removed)
}

// verifyRules repairs the rules.
func (n *node) verifyRules() (again time.Duration, err error) {
	if n.rules == nil || n.rulesAwaitServer() {
		return 0, nil
	}
	err = n.applyReplicas()
	ok := true
	if err == nil {
		ok, err = n.rules.Intact()
	}
	if err == nil && !ok {
		again, err = n.repairRules()
	}
	if err != nil {
		SetupErrors.WithLabelValues(n.errorType(err)).Inc()
		rulesPresent.WithLabelValues(n.config.Interface).Set(0)
		return 0, fmt.Errorf("rules: %w", err)
	}
	rulesPresent.WithLabelValues(n.config.Interface).Set(float64(n.rules.Rules()))
	if t, is := n.rules.(*rules.NFTables); is && len(t.Lacking()) > 0 {
		n.warnLacking.Do(func() { log.Warningf("Rules without what the kernel lacks: %s", strings.Join(t.Lacking(), "; ")) })
	}
	return again, nil
}

func (n *node) repairRules() (again time.Duration, err error) {
	_, younger, err := n.instance.others()
	if err != nil {
		return 0, err
	}
	if younger && n.backend == backendNFTables {
		missing := func() (bool, error) { return rules.Missing(n.config.Interface) }
		if mine, again, err := n.standIn("rules", missing); !mine {
			return again, err
		}
	}
	if err := n.rules.Apply(); err != nil {
		return 0, err
	}
	signal(n.flowsDue)
	if n.applied.Swap(true) {
		repairs.WithLabelValues(n.config.Interface, repairedRules).Inc()
		log.Warningf("Repaired the rules of interface %s: another program had removed or changed them", n.config.Interface)
	} else if n.backend == backendIPTables {
		for _, a := range n.config.Addresses {
			leaseHeld.WithLabelValues(a.String()).Set(1) // these rules apply whether or not the server answers
		}
	}
	return 0, nil
}

// flowsWait is the max. time for deleting flows.
const flowsWait = 30 * time.Second

// forgetFlows deletes flows from before the rules, each time after the rules were applied. It has its own goroutine, since
// it may take longer than the step that applies rules.
func (n *node) forgetFlows(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.flowsDue:
		}
		limited, cancel := context.WithTimeout(ctx, flowsWait)
		err := n.config.ForgetFlows(limited)
		cancel()
		if err != nil && ctx.Err() == nil {
			log.Warningf("A client that queried before the rules were there may get no answer from the fallback on the same port, until 30 s after its last query: %v", err)
		}
	}
}

// wrap returns an error with the failed operation, nil for none.
func wrap(operation string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", operation, err)
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

// report logs an error, unless it is the last one again.
func (n *node) report(err error) {
	text := err.Error()
	if n.lastError.Swap(text) == text {
		return
	}
	if errors.Is(err, link.ErrNoIPv6) {
		six := slices.DeleteFunc(slices.Clone(n.config.Addresses), netip.Addr.Is4)
		text += "; this server answers no queries to " + join(six)
	}
	log.Errorf("%s; retry every %s", text, min(n.config.interval, retryAfter))
}
