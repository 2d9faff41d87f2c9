package nodelocal

import (
	"context"
	"errors"
	"os/exec"
	"slices"

	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
)

// removePredecessors removes rules of iptables that node-local-dns, or nodecache with iptables, has left for the
// addresses: they exclude packets from kube-proxy's NAT with or without a lease. Rules that accept packets stay: they
// do no harm, and a firewall of the node may depend on them.
func (n *node) removePredecessors() error {
	if n.backend != backendNFTables {
		return nil
	}
	found, unread := rules.Predecessors(context.Background(), n.config.Addresses)
	if errors.Is(unread, exec.ErrNotFound) {
		n.warnLegacy.Do(func() { log.Warningf("Rules of node-local-dns in iptables-legacy would stay: %v", unread) })
		unread = nil
	}
	found = slices.DeleteFunc(found, func(r rules.PredecessorRule) bool { return !r.Untracks() })
	if len(found) == 0 {
		return wrap("find rules of node-local-dns", unread)
	}
	removed, err := rules.RemovePredecessors(context.Background(), found)
	if removed > 0 {
		log.Infof("Removed %d rules of iptables that node-local-dns or an earlier configuration had left; the first was %s", removed, found[0])
	}
	return wrap("remove rules of node-local-dns", errors.Join(unread, err))
}

// verifyAccepts adds rules that accept DNS to the filter tables of iptables, if nftables has the other rules: a firewall
// there would drop queries of pods with or without a lease.
func (n *node) verifyAccepts() error {
	if n.backend != backendNFTables {
		return nil
	}
	accepts, err := rules.NewAccepts(n.config.Config)
	if errors.Is(err, exec.ErrNotFound) {
		n.warnAccepts.Do(func() {
			log.Warningf("This node has a filter table of iptables, and no program iptables to accept DNS in it: if the table drops unknown packets, allow port %d to the addresses (%v)", n.config.Port, err)
		})
		return nil
	}
	complete := false
	for i := 0; i < 2 && err == nil && !complete; i++ { // a rule may be removed meanwhile; iptables-legacy adds none to iptables-nft
		if err = accepts.Apply(); err == nil {
			n.accepts, complete, err = rules.AcceptsState(context.Background(), n.config.Addresses)
		}
	}
	return wrap("accept DNS in the filter table of iptables", err)
}

// restoreAccepts adds the rules of verifyAccepts again if another program has removed some from iptables-nft, or has
// created a table there. It runs no program otherwise, since kube-proxy changes nftables often.
func (n *node) restoreAccepts() error {
	if n.backend != backendNFTables {
		return nil
	}
	state, _, err := rules.AcceptsState(context.Background(), n.config.Addresses)
	if err != nil || state == n.accepts {
		return err
	}
	n.accepts = state // verifyAccepts does not set it without the program iptables
	return n.verifyAccepts()
}

// removeAccepts removes the rules of verifyAccepts.
func (n *node) removeAccepts() error {
	if n.backend != backendNFTables {
		return nil
	}
	accepts, err := rules.NewAccepts(n.config.Config)
	if err != nil {
		return nil // without iptables there are none
	}
	return accepts.Remove()
}
