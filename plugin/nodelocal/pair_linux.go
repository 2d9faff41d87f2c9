package nodelocal

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/nearside-dns/nearside/plugin/nodelocal/link"
	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
)

// pairTries is the max. number of attempts to create the pair of devices at the start, pairPause apart.
const (
	pairTries = 4
	pairPause = 25 * time.Millisecond
)

// createPair creates the pair of devices through which self-queries arrive as queries of pods do. Without the pair they
// use lo, on which firewalls accept all packets.
func (n *node) createPair() {
	if !n.config.queriesItselfByPair() {
		return
	}
	pair := link.PairOf(n.config.Interface)
	n.config.Question = rules.Question{Out: pair.Out, In: pair.In, Sources: n.selfQuerySources()}
	if len(n.config.Question.Sources) == 0 {
		return
	}
	err := bounded("creating interfaces "+pair.Out+" and "+pair.In, stepWait, func() (err error) {
		n.mu.Lock()
		defer n.mu.Unlock()
		for range pairTries { // another change of interfaces may have interrupted a listing
			if _, err = n.ensurePair(false); err == nil {
				break
			}
			time.Sleep(pairPause)
		}
		return err
	})
	if err != nil {
		n.config.Question = rules.Question{}
		log.Warningf("Self-queries use lo: a firewall that rejects queries of pods is not detected: %v", err)
		n.removePair(pair)
	}
}

// removePairWithoutLease removes the pair again if the backend is iptables, which has no lease.
func (n *node) removePairWithoutLease() {
	if n.backend != backendNFTables && n.config.Question.In != "" {
		n.config.Question = rules.Question{}
		n.removePair(link.PairOf(n.config.Interface))
	}
}

// removePair removes the pair, unless another instance uses it.
func (n *node) removePair(pair link.Pair) {
	if others, _, err := n.instance.others(); err != nil || others > 0 {
		return
	}
	if err := pair.Remove(); err != nil {
		log.Warningf("%v", err)
	}
}

// selfQuerySources returns the configured sources of self-queries, of the families that need one.
func (n *node) selfQuerySources() (all []netip.Addr) {
	for _, s := range n.config.questionFrom {
		q := rules.Question{Sources: []netip.Addr{s}}
		if slices.ContainsFunc(n.config.Addresses, func(a netip.Addr) bool { return q.Source(a).IsValid() }) {
			all = append(all, s)
		}
	}
	return all
}

// ensurePair creates or repairs the pair and its routes.
func (n *node) ensurePair(exact bool) (repaired bool, err error) {
	sources := n.config.Question.Sources
	targets := make([]netip.Addr, len(sources))
	for i, s := range sources {
		targets[i] = rules.QuestionTarget(s)
	}
	return link.PairOf(n.config.Interface).Ensure(targets, sources, exact)
}

// verifyPair repairs the pair, or removes that of an earlier configuration.
func (n *node) verifyPair(alone bool) error {
	if len(n.config.Question.Sources) == 0 {
		if alone {
			return link.PairOf(n.config.Interface).Remove()
		}
		return nil
	}
	repaired, err := n.ensurePair(alone)
	if err != nil {
		SetupErrors.WithLabelValues(errorInterfaceCheck).Inc()
		return err
	}
	if repaired {
		repairs.WithLabelValues(n.config.Interface, repairedInterface).Inc()
		log.Warningf("Repaired interfaces %s and %s, which self-queries use", n.config.Question.Out, n.config.Question.In)
	}
	return nil
}

// rejected returns a more precise error for a self-query that is answered over lo but not if it arrives as queries of pods
// do. A reply of another server shows that packets pass.
func (n *node) rejected(addr netip.Addr, err error) error {
	if errors.Is(err, errIgnored) || errors.Is(err, errLate) || errors.Is(err, ErrOtherServer) {
		return err
	}
	return fmt.Errorf("%w; the server answers over lo, but not queries that arrive on interface %s from %s: a firewall of the node may reject or drop them, and queries of pods too; accept port %d of %s there, UDP and TCP, from pods and from this address (see the option question)",
		err, n.config.Question.In, n.config.Question.Source(addr), n.config.Port, addr)
}
