package nodelocal

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nearside-dns/nearside/plugin/nodelocal/link"
	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
)

const (
	// stepWait bounds each step that changes the kernel's state. A step that takes longer goes on by
	// itself; nobody waits for it.
	stepWait = 10 * time.Second
	// startWait bounds the rules at the start: the server answers without them, and has to be up soon.
	startWait = 2 * time.Second
)

// keeper is what keeps rules in the kernel.
type keeper interface {
	// Apply puts them there; what is there stays.
	Apply() error
	// Intact returns whether they are there as Apply left them.
	Intact() (bool, error)
	// Rules returns how many they are.
	Rules() int
	// Withdraw gives the traffic back.
	Withdraw() error
	// Remove removes them.
	Remove() error
}

// node is the node's side of one configuration: interface, rules, lease.
type node struct {
	config   config
	link     *link.Interface
	instance *instance // nil if there is nothing to set up

	cancel  context.CancelFunc // ends the goroutines
	running sync.WaitGroup
	look    chan struct{} // somebody changed the interface: look at it at once
	lookAll chan struct{} // look at everything: an address has taken a lease, or another node has ended

	started time.Time
	keeper  keeper  // nil without rules; set before the goroutines start
	backend backend // of keeper; none without

	mu      sync.Mutex                  // held while the kernel's state is looked at or changed, which may take long
	leaving bool                        // the kernel's state is no longer this node's to repair
	missing map[string]time.Time        // since when what a younger instance should have put back is missing
	leases  map[netip.Addr]*atomic.Bool // which addresses have one, as far as this process knows

	filtersDue   chan struct{}   // the packet filters of others are to be evaluated
	filters      map[string]bool // the findings about them that were logged last
	unanswerable string          // the addresses without a fallback that were logged last

	tried      atomic.Bool  // to apply the rules of iptables for the first time
	applied    atomic.Bool  // the rules have been applied once
	unanswered atomic.Int32 // addresses whose last query to the server itself was not answered
	failed     atomic.Value // the last error's text, so that it is logged once

	legacyUnread sync.Once // said that old iptables can't be read
	acceptsUnset sync.Once // said that iptables is missing
}

func newNode(c config) *node {
	n := &node{
		config: c, link: link.New(c.Interface), look: make(chan struct{}, 1), lookAll: make(chan struct{}, 1), filtersDue: make(chan struct{}, 1),
		started: time.Now(), backend: backendNone,
		missing: map[string]time.Time{}, leases: map[netip.Addr]*atomic.Bool{},
	}
	for _, a := range c.Addresses {
		n.leases[a] = new(atomic.Bool)
	}
	return n
}

// start makes the interface and the rules, and begins to look after them. An error is one that lets
// the server not start: without addresses it can't listen.
func (n *node) start() (err error) {
	if !n.config.setupInterface && !n.config.setupRules {
		n.showSetup()
		return nil // the addresses may be nowhere on this node
	}
	if n.instance, err = announce(n.config.Interface); err != nil {
		return err
	}
	if n.config.setupInterface {
		if err := bounded("making interface "+n.config.Interface, stepWait, n.firstInterface); err != nil {
			n.instance.leave()
			return err
		}
	}
	if n.config.setupRules && n.config.backend != backendNone {
		n.startQuestion()
		n.startRules()
		n.endQuestionWithoutRules()
	}
	n.showSetup()
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel = cancel
	n.unanswered.Store(int32(len(n.config.Addresses)))
	for _, a := range n.config.Addresses {
		asker := newAsker(a, n.link.Device(), n.config.Port, healthSuffix(n.config.zone))
		if n.config.Question.Source(a).IsValid() {
			asker.as = netip.AddrPortFrom(rules.QuestionTarget(a), n.config.Port)
		}
		n.running.Go(func() { n.askAlways(ctx, a, asker) })
	}
	n.running.Go(func() { n.keep(ctx) })
	n.running.Go(func() { n.followFilters(ctx) })
	return nil
}

// bounded runs a step and waits for it no longer than that.
func bounded(what string, wait time.Duration, step func() error) error {
	done := make(chan error, 1)
	go func() { done <- step() }()
	select {
	case err := <-done:
		return err
	case <-time.After(wait):
		return fmt.Errorf("%s: %w for %s", what, errNoAnswer, wait)
	}
}

// errNoAnswer says that the kernel takes long, or somebody else who keeps its locks.
var errNoAnswer = errors.New("the kernel has not answered")

func (n *node) firstInterface() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	r, err := n.link.Ensure(n.config.Addresses, false)
	if err != nil {
		SetupErrors.WithLabelValues(errorInterfaceAdd).Inc()
		return err
	}
	switch kind := n.link.Kind(); {
	case kind == link.Bridge:
		log.Infof("The kernel has no dummy driver: interface %s is a bridge without ports", n.config.Interface)
	case kind == link.Loopback:
		log.Warningf("The kernel has neither a dummy nor a bridge driver: the addresses are on lo")
	}
	if !r.Any() {
		log.Infof("Interface %s is there already: taken over", n.config.Interface)
	}
	return nil
}

// startRules finds what can keep the rules. Without any, DNS works all the same, and they are tried
// again.
func (n *node) startRules() {
	chosen := make(chan backendKeeper, 1)
	err := bounded("applying rules", startWait, func() error {
		c, err := chooseBackend(n.config)
		chosen <- c
		return err
	})
	select {
	case c := <-chosen:
		n.keeper, n.backend = c.keeper, c.backend
		n.applied.Store(err == nil && c.backend == backendNFTables)
	default: // too slow to know; iptables is slow, so that it is not waited for
		n.keeper, n.backend = rules.NewNFTables(n.config.Config), backendNFTables
	}
	if n.backend == backendIPTables {
		log.Warning("iptables has no lease: if this process dies, its rules stay and DNS on this node fails until it runs again")
	}
	if err != nil {
		SetupErrors.WithLabelValues(n.errorType(err)).Inc()
		n.report(err)
	}
}

// backendKeeper is what keeps rules, with its name.
type backendKeeper struct {
	backend backend
	keeper  keeper // nil if it can't be had
}

// chooseBackend returns what can keep the rules. Those of nftables are applied, as they take no traffic
// before the lease. Only where the kernel has no nftables is iptables the choice of auto: any other
// trouble may pass, and would cost the lease for good.
func chooseBackend(c config) (backendKeeper, error) {
	if c.backend != backendIPTables {
		table := rules.NewNFTables(c.Config)
		err := table.Apply()
		if err == nil || c.backend == backendNFTables || !rules.Unsupported(err) {
			return backendKeeper{backendNFTables, table}, err
		}
		log.Warningf("%v: using iptables instead", err)
	}
	list, err := rules.NewIPTables(c.Config)
	if err != nil {
		return backendKeeper{backendIPTables, nil}, err
	}
	return backendKeeper{backendIPTables, list}, nil
}

// showSetup logs and publishes what the node has.
func (n *node) showSetup() {
	kind := "none"
	if n.config.setupInterface {
		kind = string(n.link.Kind())
	}
	setupInfo.DeletePartialMatch(map[string]string{"interface": n.config.Interface})
	for _, a := range n.config.Addresses {
		leaseHeld.WithLabelValues(a.String()) // 0 is worth seeing too
		leasesLost.WithLabelValues(a.String())
		healthFailure.WithLabelValues(a.String())
	}
	for _, what := range []string{repairedInterface, repairedAddresses, repairedRules} {
		repairs.WithLabelValues(n.config.Interface, what)
	}
	way := "lo"
	if len(n.config.Question.Sources) > 0 {
		way = "veth"
	}
	setupInfo.WithLabelValues(n.config.Interface, kind, string(n.backend), way).Set(1)
	fallback := "none"
	if len(n.config.Fallback) > 0 {
		fallback = join(n.config.Fallback)
	}
	log.Infof("Addresses %s on interface %s (%s), rules by %s, fallback %s",
		join(n.config.Addresses), n.config.Interface, kind, n.backend, fallback)
}

func join(addrs []netip.Addr) string {
	parts := make([]string, len(addrs))
	for i, a := range addrs {
		parts[i] = a.String()
	}
	return strings.Join(parts, " ")
}

// askAlways queries the server on one address, and renews the lease with each answer.
func (n *node) askAlways(ctx context.Context, addr netip.Addr, a *asker) {
	var l lease
	silent := silence{since: time.Now()}
	arrived, answered, label := false, false, addr.String()
	for ctx.Err() == nil {
		sent := time.Now()
		err := a.ask(ctx, n.hasLease())
		overLo := err != nil && n.hasLease() && a.as.IsValid() && a.exchange(ctx, "udp", false) == nil
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			healthFailure.WithLabelValues(label).Inc()
			if arrived {
				signal(n.look) // the pair of devices may have been removed
			}
		}
		arrived = err == nil
		if ok := err == nil || overLo; ok != answered {
			answered = ok
			n.countAnswered(ok)
		}
		if n.hasLease() {
			since := l.renewed
			e := l.after(err, time.Now, a.send)
			n.leases[addr].Store(l.held)
			if e == lost {
				err = l.cause(err)
			}
			if overLo {
				err = n.rejected(addr, err)
			}
			n.publish(label, e, err, l.pause, time.Since(since))
			if e == ignored {
				err = errIgnored
			}
		}
		if silent.after(err, l.held, time.Now()) {
			log.Warningf("Address %s does not take the node's queries: for %s, %v", label, silenceWait, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(sent.Add(l.interval()))):
		}
	}
}

// countAnswered notes that an address has begun to answer, or ceased.
func (n *node) countAnswered(ok bool) {
	if ok {
		n.unanswered.Add(-1)
	} else {
		n.unanswered.Add(1)
	}
}

// publish counts and logs what has become of a lease that was renewed some time ago.
func (n *node) publish(label string, e event, cause error, pause, ago time.Duration) {
	switch e {
	case taken:
		leaseHeld.WithLabelValues(label).Set(1)
		log.Infof("Address %s takes the node's queries", label)
		signal(n.lookAll)
	case lost:
		leaseHeld.WithLabelValues(label).Set(0)
		leasesLost.WithLabelValues(label).Inc()
		log.Warningf("Address %s has left the node's queries to cluster DNS: its lease was not renewed for %s: %v. It takes them again when it has answered for %s",
			label, ago.Round(time.Millisecond), cause, pause)
	}
}

// hasLease returns whether rules with a lease are in the kernel.
func (n *node) hasLease() bool { return n.backend == backendNFTables && n.applied.Load() }

// ready returns whether the server answered itself on every address, over lo at least: a node whose firewall rejects
// what arrives on other interfaces has no lease, and an update must not wait for one there.
func (n *node) ready() bool { return n.unanswered.Load() == 0 }
