package nodelocal

import (
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/leases"
	"github.com/nearside-dns/nearside/plugin/nodelocal/link"
)

// drainWait is the max. time for which a stopping server reads queries that have arrived before.
const drainWait = time.Second

// endLoops ends the goroutines, and so the renewal of the lease.
func (n *node) endLoops() {
	if n.cancel != nil {
		n.cancel()
	}
	n.running.Wait()
}

// leave releases the leases before the server stops, unless another instance has the addresses, and waits until the
// server has read the queries that have arrived. Interface and rules stay until the answers are sent: see finish.
func (n *node) leave() {
	n.endLoops()
	for _, a := range n.config.Addresses {
		leases.Process.Release(netip.AddrPortFrom(a, n.config.Port))
	}
	if n.instance == nil {
		return
	}
	n.instance.leave()
	others, _, err := n.instance.others()
	if err != nil {
		log.Warningf("Other instances are unknown: %v", err)
	}
	if others == 0 {
		n.withdraw()
	}
	drain(n.config.Addresses, n.config.Port, others > 0, drainWait)
}

func (n *node) withdraw() {
	if n.rules == nil || n.config.keep && n.backend == backendIPTables {
		return
	}
	if err := bounded("releasing the leases", stepWait, n.rules.Withdraw); err != nil {
		log.Warningf("Leases not released, which expire by themselves: %v", err)
		return
	}
	for _, a := range n.config.Addresses {
		leaseHeld.WithLabelValues(a.String()).Set(0)
	}
}

// finish removes rules and interface, unless the option keep is set or another instance needs them.
func (n *node) finish() {
	n.endLoops()
	if n.instance == nil {
		return
	}
	n.instance.leave()
	err := bounded("removing interface "+n.config.Interface, stepWait, func() error {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.leaving = true
		if n.config.keep {
			return nil
		}
		return ifLast(n.config.Interface, n.removeAll)
	})
	if err != nil {
		log.Errorf("%v; nodecache cleanup removes the rest", err)
	}
}

// handOver ends the node in a reload, of which the successors are the nodes that stay. It ends the metrics of addresses
// that none of them has.
func (n *node) handOver(successors []*node) {
	var used []netip.Addr
	for _, s := range successors {
		used = append(used, s.config.Addresses...)
		if s.config.Interface == n.config.Interface && n.rules != nil && s.backend != n.backend {
			// Rules of iptables would direct queries to the server without a lease.
			if err := bounded("removing the rules of "+string(n.backend), stepWait, n.rules.Remove); err != nil {
				log.Errorf("%v", err)
			}
		}
	}
	n.finish()
	for _, a := range n.config.Addresses {
		shared := func(s *node) bool { return s.config.Port == n.config.Port && slices.Contains(s.config.Addresses, a) }
		if !slices.ContainsFunc(successors, shared) {
			leases.Process.Release(netip.AddrPortFrom(a, n.config.Port))
		}
		if slices.Contains(used, a) {
			continue
		}
		for _, v := range []interface{ DeleteLabelValues(...string) bool }{leaseHeld, leasesLost, leasesNotReached, healthFailures} {
			v.DeleteLabelValues(a.String())
		}
	}
}

// removeAll removes the rules, and then the interface: without it, rules that are left would break queries.
func (n *node) removeAll() error {
	if n.rules != nil {
		if err := n.rules.Remove(); err != nil {
			return err
		}
	}
	accepts := n.removeAccepts()
	if err := n.removeInterface(); err != nil {
		return errors.Join(accepts, err)
	}
	log.Infof("Interface %s and its rules are removed", n.config.Interface)
	return accepts
}

// removeInterface removes the interface and its pair, which may be of an earlier configuration.
func (n *node) removeInterface() error {
	if !n.config.setupInterface {
		return link.PairOf(n.config.Interface).Remove()
	}
	var onLoopback []netip.Addr
	if n.link.Kind() == link.Loopback {
		onLoopback = n.config.Addresses
	}
	return link.Remove(n.config.Interface, onLoopback)
}
