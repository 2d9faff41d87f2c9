package nodelocal

import (
	"time"

	"github.com/nearside-dns/nearside/plugin/nodelocal/link"
	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
)

// drainWait bounds how long a leaving server goes on reading what has arrived before it left.
const drainWait = time.Second

// endLoops ends the goroutines. The lease is not renewed any more.
func (n *node) endLoops() {
	n.cancel()
	n.running.Wait()
}

// handOver ends the node. The kernel's state goes to the other instances: the next configuration's in
// a reload, or another process's. Without one it is removed.
func (n *node) handOver() {
	n.endLoops()
	n.instance.leave()
	n.remove()
}

// leave gives the traffic back before the server stops: the lease is withdrawn, or left to another
// instance; what has arrived is read. Interface and rules stay until the answers are out.
func (n *node) leave() {
	n.endLoops()
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
	if err := bounded(n.keeper.Withdraw); err != nil {
		log.Warningf("The lease was not withdrawn: %v; it runs out by itself within %s", err, rules.Lease)
		return
	}
	for _, a := range n.config.Addresses {
		leaseHeld.WithLabelValues(a.String()).Set(0)
	}
}

// remove removes rules and interface, unless they are to be kept or another instance needs them.
func (n *node) remove() {
	err := bounded(func() error {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.leaving = true
		if n.config.keep {
			return nil
		}
		return ifLast(n.config.Interface, n.removeAll)
	})
	if err != nil {
		log.Errorf("Removing interface %s and its rules: %v; nodecache cleanup removes what is left", n.config.Interface, err)
	}
}

func (n *node) removeAll() {
	if n.keeper != nil {
		if err := n.keeper.Remove(); err != nil {
			log.Errorf("%v; nodecache cleanup removes what is left", err)
		}
	}
	if !n.config.setupInterface {
		return
	}
	if _, err := link.Remove(n.config.Interface, n.config.Addresses); err != nil {
		log.Errorf("%v; nodecache cleanup removes what is left", err)
	}
	log.Infof("Interface %s and its rules are removed", n.config.Interface)
}
