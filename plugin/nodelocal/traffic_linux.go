package nodelocal

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/leases"
	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
)

// notReached is the end of a lease under which no packet of a pod has arrived.
type notReached struct {
	flow    string // such as udp4
	missing uint64 // packets
	bar     time.Duration
}

// watchTraffic ends the leases of a family if packets of pods that the rules let in do not arrive.
func (n *node) watchTraffic(ctx context.Context) {
	flows := map[string]*arrivals{}
	tick := time.NewTicker(trafficInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !n.hasLease() || !slices.ContainsFunc(n.config.Addresses, func(a netip.Addr) bool { return n.leases[a].Load() }) {
			continue
		}
		read, err := rules.ReadTraffic(n.config.Interface)
		if err != nil {
			continue // the verification of the rules reports it
		}
		for flow, t := range read {
			if flows[flow] == nil {
				flows[flow] = new(arrivals)
			}
			if t.Arrived > flows[flow].arrived {
				n.proveArrival(flow)
			}
			missing := flows[flow].missing + t.LetIn - flows[flow].letIn
			if bar := flows[flow].update(time.Now(), t.LetIn, t.Arrived); bar > 0 {
				n.signalNotReached(notReached{flow, missing, bar})
			}
		}
	}
}

// signalNotReached has each address of the flow's family end its lease.
func (n *node) signalNotReached(end notReached) {
	for _, a := range n.config.Addresses {
		if a.Is4() == strings.HasSuffix(end.flow, "4") && n.leases[a].Load() {
			select {
			case n.notReached[a] <- end:
			default: // another flow has just ended it
			}
		}
	}
}

// endLease ends the lease of an address under which no packet of a pod has arrived.
func (n *node) endLease(addr netip.Addr, l *lease, end notReached) {
	if !l.held {
		return
	}
	l.refuse(time.Now().Add(end.bar))
	n.leases[addr].Store(false)
	n.prove(addr, proofOf(end.flow), true)
	leases.Process.Release(netip.AddrPortFrom(addr, n.config.Port))
	if err := rules.EndLease(n.config.Interface, addr); err != nil {
		log.Warningf("Lease of %s not removed, and expires within %s: %v", addr, rules.Lease, err)
	}
	leaseHeld.WithLabelValues(addr.String()).Set(0)
	leasesNotReached.WithLabelValues(addr.String()).Inc()
	log.Warningf("Lease of %s ended: the rules let in %d packets of pods (%s), and none arrived within %s: another packet filter or a route prevents it; cluster DNS answers for %s; nodecache doctor names the filters that may do so",
		addr, end.missing, end.flow, notReachedWait, end.bar)
}
