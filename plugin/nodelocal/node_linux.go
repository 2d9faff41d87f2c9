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

// stepWait bounds each step that changes the kernel's state. A step that takes longer goes on by
// itself; nobody waits for it.
const stepWait = 10 * time.Second

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
	instance *instance

	cancel  context.CancelFunc // ends the goroutines
	running sync.WaitGroup
	look    chan struct{} // somebody changed the interface: look at once

	started time.Time
	keeper  keeper  // nil without rules; set before the goroutines start
	backend backend // of keeper; none without

	mu      sync.Mutex // held while the kernel's state is looked at or changed, which may take long
	leaving bool       // the kernel's state is no longer this node's to repair

	applied    atomic.Bool  // the rules have been applied once
	unanswered atomic.Int32 // addresses whose last query to the server itself was not answered
	failed     atomic.Value // the last error's text, so that it is logged once
}

func newNode(c config) *node {
	return &node{
		config: c, link: link.New(c.Interface), look: make(chan struct{}, 1),
		started: time.Now(), backend: backendNone,
	}
}

// start makes the interface and the rules, and begins to look after them. An error is one that lets
// the server not start: without addresses it can't listen.
func (n *node) start() (err error) {
	if n.instance, err = announce(n.config.Interface); err != nil {
		return err
	}
	if n.config.setupInterface {
		if err := bounded(n.firstInterface); err != nil {
			n.instance.leave()
			return err
		}
	}
	if n.config.setupRules && n.config.backend != backendNone {
		n.startRules()
	}
	n.showSetup()
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel = cancel
	if !n.config.setupInterface && !n.config.setupRules {
		return nil // the addresses may be nowhere on this node
	}
	n.unanswered.Store(int32(len(n.config.Addresses)))
	for _, a := range n.config.Addresses {
		n.running.Go(func() { n.askAlways(ctx, a) })
	}
	n.running.Go(func() { n.keep(ctx) })
	return nil
}

// bounded runs a step and waits for it no longer than stepWait.
func bounded(step func() error) error {
	done := make(chan error, 1)
	go func() { done <- step() }()
	select {
	case err := <-done:
		return err
	case <-time.After(stepWait):
		return errStepWait
	}
}

var errStepWait = fmt.Errorf("the kernel has not answered for %s", stepWait)

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
	if !r.Created && !r.Any() {
		log.Infof("Interface %s is there already: taken over", n.config.Interface)
	}
	return nil
}

// startRules finds what can keep the rules. Without any, DNS works all the same, and nftables is tried
// again.
func (n *node) startRules() {
	chosen := make(chan backendKeeper, 1)
	err := bounded(func() error {
		c, err := chooseBackend(n.config)
		chosen <- c
		return err
	})
	n.keeper, n.backend = rules.NewNFTables(n.config.Config), backendNFTables
	select {
	case c := <-chosen:
		n.keeper, n.backend = c.keeper, c.backend
		n.applied.Store(err == nil && c.backend == backendNFTables)
	default:
	}
	if err != nil {
		SetupErrors.WithLabelValues(n.errorType(err)).Inc()
		n.report(err)
	}
}

// backendKeeper is what keeps rules, with its name.
type backendKeeper struct {
	backend backend
	keeper  keeper
}

// chooseBackend returns what can keep the rules. Those of nftables are applied, as they take no traffic
// before the lease.
func chooseBackend(c config) (backendKeeper, error) {
	table := rules.NewNFTables(c.Config)
	chosen := backendKeeper{backendNFTables, table}
	var err error
	if c.backend != backendIPTables {
		if err = table.Apply(); err == nil || c.backend == backendNFTables {
			return chosen, err
		}
	}
	list, e := rules.NewIPTables(c.Config)
	if e != nil && c.backend == backendAuto {
		return chosen, errors.Join(err, e)
	}
	if e != nil {
		return backendKeeper{backendIPTables, nil}, e
	}
	if err != nil {
		log.Warningf("%v: using iptables instead", err)
	}
	log.Warning("iptables has no lease: if this process dies, its rules stay and DNS on this node fails until it runs again")
	return backendKeeper{backendIPTables, list}, nil
}

// showSetup logs and publishes what the node has.
func (n *node) showSetup() {
	kind := "none"
	if n.config.setupInterface {
		kind = string(n.link.Kind())
	}
	setupInfo.DeletePartialMatch(map[string]string{"interface": n.config.Interface})
	setupInfo.WithLabelValues(n.config.Interface, kind, string(n.backend)).Set(1)
	var fallback []string
	for _, a := range n.config.Fallback {
		fallback = append(fallback, a.String())
	}
	if len(fallback) == 0 {
		fallback = []string{"none"}
	}
	log.Infof("Addresses %s on interface %s (%s), rules by %s, fallback %s",
		join(n.config.Addresses), n.config.Interface, kind, n.backend, strings.Join(fallback, " "))
}

func join(addrs []netip.Addr) string {
	parts := make([]string, len(addrs))
	for i, a := range addrs {
		parts[i] = a.String()
	}
	return strings.Join(parts, " ")
}

// askAlways asks the server on one address whether it answers, and renews the lease while it does.
func (n *node) askAlways(ctx context.Context, addr netip.Addr) {
	a := &asker{to: netip.AddrPortFrom(addr, n.config.Port), suffix: healthSuffix(n.config.zone)}
	var l lease
	renew, answered, label := false, false, addr.String()
	for ctx.Err() == nil {
		sent, marked := time.Now(), renew && n.leases()
		err := a.ask(ctx, marked)
		if ctx.Err() != nil {
			return
		}
		var taken, lost bool
		renew, taken, lost = l.after(sent, marked, err, time.Now())
		n.publish(label, &answered, err, taken, lost)
		pause := renewal
		if err != nil || !marked && renew {
			pause = renewal / 6 // make up for the lost time
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(sent.Add(pause))):
		}
	}
}

// publish counts and logs the outcome of a query of the server to itself.
func (n *node) publish(label string, answered *bool, err error, taken, lost bool) {
	if ok := err == nil; ok != *answered {
		*answered = ok
		if ok {
			n.unanswered.Add(-1)
		} else {
			n.unanswered.Add(1)
		}
	}
	if err != nil {
		healthFailure.WithLabelValues(label).Inc()
	}
	if taken {
		leaseHeld.WithLabelValues(label).Set(1)
		log.Infof("Address %s takes the node's queries", label)
	}
	if lost {
		leaseHeld.WithLabelValues(label).Set(0)
		leasesLost.WithLabelValues(label).Inc()
		log.Warningf("Address %s has left the node's queries to cluster DNS: the server does not answer itself: %v", label, err)
	}
}

// leases returns whether rules with a lease are in the kernel.
func (n *node) leases() bool { return n.backend == backendNFTables && n.applied.Load() }

// ready returns whether the server answered itself on every address.
func (n *node) ready() bool { return n.unanswered.Load() == 0 }
