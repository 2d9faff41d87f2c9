package nodelocal

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/leases"
	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
)

// holdLease sends self-queries to the server on one address, and renews the lease with each answer.
func (n *node) holdLease(ctx context.Context, addr netip.Addr, q *selfQuerier) {
	var l lease
	silent := silence{since: time.Now()}
	var overLoSince time.Time
	arrived, answered, label := false, false, addr.String()
	shared := netip.AddrPortFrom(addr, n.config.Port)
	for ctx.Err() == nil {
		sent := time.Now()
		err := q.query(ctx, n.hasLease())
		overLo := err != nil && n.hasLease() && q.target.IsValid() && q.exchange(ctx, "udp", false) == nil
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			healthFailures.WithLabelValues(label).Inc()
			if arrived {
				signal(n.interfaceDue) // the veth pair may have been removed
			}
		}
		arrived = err == nil
		if ok := err == nil || overLo; ok != answered {
			answered = ok
			n.countAnswered(ok)
		}
		if n.hasLease() {
			renewed := l.renewed
			e := l.update(err, time.Now, q.send)
			n.leases[addr].Store(l.held)
			n.proveBySelfQuery(addr, &overLoSince, err, overLo && !l.held)
			switch {
			case e == eventExpired:
				leases.Process.Release(shared)
				err = l.cause(err)
			case l.held:
				leases.Process.Renew(shared, l.renewed.Add(rules.Lease-expiryTolerance))
			}
			if overLo {
				err = n.rejected(addr, err)
			}
			n.publish(label, e, err, l.pause, time.Since(renewed))
			if e == eventIgnored {
				err = errIgnored
			}
		}
		if !n.hasLease() && answered {
			leases.Process.Renew(shared, sent.Add(rules.Lease)) // without nftables no lease diverts queries: only the answers of the program in the kernel expire
		}
		if silent.update(err, l.held, time.Now()) {
			if n.socketsTranslated(addr) {
				err = errTranslated
			}
			log.Warningf("Address %s not in service for %s: %v", label, silenceWait, err)
		}
		select {
		case <-ctx.Done():
		case end := <-n.notReached[addr]:
			n.endLease(addr, &l, end)
		case <-time.After(time.Until(sent.Add(l.interval()))):
		}
	}
}

// countAnswered counts an address that has begun or ceased to answer.
func (n *node) countAnswered(ok bool) {
	if ok {
		n.unanswered.Add(-1)
	} else {
		n.unanswered.Add(1)
	}
}

// publish counts and logs an event of a lease. ago is the time since the last renewal, pause the time before the lease
// can be acquired again.
func (n *node) publish(label string, e event, cause error, pause, ago time.Duration) {
	switch e {
	case eventAcquired:
		leaseHeld.WithLabelValues(label).Set(1)
		log.Infof("Lease of %s acquired: this server answers the node's queries", label)
		signal(n.allDue)
	case eventExpired:
		leaseHeld.WithLabelValues(label).Set(0)
		leasesLost.WithLabelValues(label).Inc()
		log.Warningf("Lease of %s expired: not renewed for %s: %v; cluster DNS answers until this server has answered itself for %s",
			label, ago.Round(time.Millisecond), cause, pause)
	}
}

// hasLease returns whether rules with a lease are in the kernel.
func (n *node) hasLease() bool { return n.backend == backendNFTables && n.applied.Load() }

// ready returns whether the server has answered its last self-query on every address, over lo at least: a node with a
// firewall that rejects packets on other interfaces has no lease, and an update must not wait for one there.
func (n *node) ready() bool { return n.unanswered.Load() == 0 }

// verifyLease returns an error if renewals do not reach the rules: another program may drop them or remove their mark.
func (n *node) verifyLease() (again time.Duration, err error) {
	if !n.hasLease() {
		return 0, nil
	}
	left, err := rules.Leased(n.config.Interface)
	if err != nil {
		return 0, err
	}
	for _, a := range n.config.Addresses {
		_, leased := left[a]
		held := n.leases[a].Load()
		if leased || !held {
			delete(n.missing, a.String())
			if held {
				leaseHeld.WithLabelValues(a.String()).Set(1)
			}
			continue
		}
		if _, before := n.missing[a.String()]; !before {
			n.missing[a.String()] = time.Now() // it may have been acquired after the listing
			again = verifyAgain
			continue
		}
		leaseHeld.WithLabelValues(a.String()).Set(0)
		return 0, fmt.Errorf("lease of %s missing in the kernel, so that cluster DNS answers: %w", a, errIgnored)
	}
	return again, nil
}
