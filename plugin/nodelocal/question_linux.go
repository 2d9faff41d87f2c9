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

// questionTries is how often the pair of devices is tried at the start.
const questionTries = 4

// startQuestion makes the way on which the server's queries to itself arrive as those of pods do. Without it they
// take lo, which firewalls accept whatever they do to pods.
func (n *node) startQuestion() {
	if !n.config.asksItselfByPair() {
		return
	}
	pair := link.PairOf(n.config.Interface)
	n.config.Question = rules.Question{Out: pair.Out, In: pair.In, Sources: n.questionSources()}
	if len(n.config.Question.Sources) == 0 {
		return
	}
	err := bounded("making interfaces "+pair.Out+" and "+pair.In, stepWait, func() (err error) {
		n.mu.Lock()
		defer n.mu.Unlock()
		for range questionTries { // a listing of the kernel may have been interrupted
			if _, err = n.ensureQuestion(false); err == nil {
				break
			}
			time.Sleep(catchUp)
		}
		return err
	})
	if err != nil {
		n.config.Question = rules.Question{}
		log.Warningf("Queries of the server to itself take lo: a firewall that rejects those of pods is not noticed: %v", err)
		n.removeQuestion(pair)
	}
}

// endQuestionWithoutRules removes the way again if iptables has the rules, which have no lease.
func (n *node) endQuestionWithoutRules() {
	if n.backend != backendNFTables && n.config.Question.In != "" {
		n.config.Question = rules.Question{}
		n.removeQuestion(link.PairOf(n.config.Interface))
	}
}

// removeQuestion removes the pair, unless another instance uses it.
func (n *node) removeQuestion(pair link.Pair) {
	if others, _, err := n.instance.others(); err != nil || others > 0 {
		return
	}
	if _, err := pair.Remove(); err != nil {
		log.Warningf("%v", err)
	}
}

// questionSources returns the configured sources of the families that need one.
func (n *node) questionSources() (all []netip.Addr) {
	for _, s := range n.config.questionFrom {
		q := rules.Question{Sources: []netip.Addr{s}}
		if slices.ContainsFunc(n.config.Addresses, func(a netip.Addr) bool { return q.Source(a).IsValid() }) {
			all = append(all, s)
		}
	}
	return all
}

// ensureQuestion repairs the pair and its routes.
func (n *node) ensureQuestion(exact bool) (repaired bool, err error) {
	sources := n.config.Question.Sources
	targets := make([]netip.Addr, len(sources))
	for i, s := range sources {
		targets[i] = rules.QuestionTarget(s)
	}
	return link.PairOf(n.config.Interface).Ensure(targets, sources, exact)
}

// verifyQuestion repairs the way, or removes that of an earlier configuration.
func (n *node) verifyQuestion(alone bool) error {
	if len(n.config.Question.Sources) == 0 {
		if alone {
			_, err := link.PairOf(n.config.Interface).Remove()
			return err
		}
		return nil
	}
	repaired, err := n.ensureQuestion(alone)
	if err != nil {
		SetupErrors.WithLabelValues(errorInterfaceCheck).Inc()
		return err
	}
	if repaired {
		repairs.WithLabelValues(n.config.Interface, repairedInterface).Inc()
		log.Warningf("Repaired interfaces %s and %s, by which the server queries itself", n.config.Question.Out, n.config.Question.In)
	}
	return nil
}

// rejected returns a more precise error for a query that was answered over lo, and not where it arrives as those of
// pods do. A reply of another server shows that packets pass.
func (n *node) rejected(addr netip.Addr, err error) error {
	if errors.Is(err, errIgnored) || errors.Is(err, errLate) || errors.Is(err, errOther) {
		return err
	}
	return fmt.Errorf("%w. The server answers over lo, but not what arrives on interface %s from %s: a firewall on the node may reject or drop it, and then also what pods query. Accept port %d of %s there, UDP and TCP, from pods and from this address; see the option question",
		err, n.config.Question.In, n.config.Question.Source(addr), n.config.Port, addr)
}
