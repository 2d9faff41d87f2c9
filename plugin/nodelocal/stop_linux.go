package nodelocal

import (
	"net/netip"
	"slices"
	"time"

	"github.com/nearside-dns/nearside/plugin/nodelocal/link"
	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
)

// drainWait bounds how long a leaving server goes on reading what has arrived before it left.
const drainWait = time.Second

// endLoops ends the goroutines. The lease is not renewed any more.
func (n *node) endLoops() {
	if n.cancel != nil {
		n.cancel()
	}
	n.running.Wait()
}

// leave gives the traffic back before the server stops: the lease is withdrawn, or left to another
// instance; what has arrived is read. Interface and rules stay until the answers are out: finish.
func (n *node) leave() {
	n.endLoops()
	if n.instance == nil {
		return
	}
	n.instance.leave()
	others, _, err := n.instance.others()
	if err != nil {
		log.Warningf("Other instances are not known: %v", err)
	}
	if others == 0 {
		n.withdraw()
	}
	drain(n.config.Addresses, n.config.Port, others > 0, drainWait)
}

func (n *node) withdraw() {
	if n.keeper == nil || n.config.keep && n.backend == backendIPTables {
		return
	}
	if err := bounded("withdrawing the lease", stepWait, n.keeper.Withdraw); err != nil {
		log.Warningf("The node's queries are not given back yet: %v", err)
		return
	}
	for _, a := range n.config.Addresses {
		leaseHeld.WithLabelValues(a.String()).Set(0)
	}
}

// finish removes rules and interface, unless they are to be kept or another instance needs them.
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
		log.Errorf("%v; nodecache cleanup removes what is left", err)
	}
}

// handOver ends the node in a reload: its place is another one's of this process, if that has the same
// interface. The metrics of addresses that nobody has any more end.
func (n *node) handOver(successors []*node) {
	var kept []netip.Addr
	for _, s := range successors {
		kept = append(kept, s.config.Addresses...)
		if s.config.Interface == n.config.Interface && n.keeper != nil && s.backend != n.backend {
			// Rules of iptables would take the traffic past the lease.
			if err := bounded("removing the rules of "+string(n.backend), stepWait, n.keeper.Remove); err != nil {
				log.Errorf("%v", err)
			}
		}
	}
	n.finish()
	for _, a := range n.config.Addresses {
		if slices.Contains(kept, a) {
			continue
		}
		for _, v := range []interface{ DeleteLabelValues(...string) bool }{leaseHeld, leasesLost, healthFailure} {
			v.DeleteLabelValues(a.String())
		}
	}
}

// removeAll removes the rules, and then the interface: without it, what is left of the rules would send
// packets nowhere.
func (n *node) removeAll() {
	if n.keeper != nil {
		if err := n.keeper.Remove(); err != nil {
			log.Errorf("%v; nodecache cleanup removes what is left", err)
			return
		}
	}
	if n.backend == backendNFTables {
		n.removeAccepts()
	}
	var onLoopback []netip.Addr
	if n.link.Kind() == link.Loopback {
		onLoopback = n.config.Addresses
	}
	if n.config.setupInterface {
		if _, err := link.Remove(n.config.Interface, onLoopback); err != nil {
			log.Errorf("%v; nodecache cleanup removes what is left", err)
			return
		}
	} else if _, err := link.PairOf(n.config.Interface).Remove(); err != nil { // of an earlier configuration
		log.Errorf("%v; nodecache cleanup removes what is left", err)
		return
	}
	log.Infof("Interface %s and its rules are removed", n.config.Interface)
}

// removeAccepts removes what verifyAccepts has put there.
func (n *node) removeAccepts() {
	accepts, err := rules.NewAccepts(n.config.Config)
	if err != nil {
		return // without iptables there are none
	}
	if err := accepts.Remove(); err != nil {
		log.Errorf("%v; nodecache cleanup removes what is left", err)
	}
}
