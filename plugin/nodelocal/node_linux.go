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
	// stepWait is the max. wait for each step that changes the kernel's state. A step that takes longer continues by
	// itself.
	stepWait = 10 * time.Second
	// startWait is the same for the rules at the start: the server answers without them, and must start soon.
	startWait = 2 * time.Second
)

// ruleset is the rules of one configuration in the kernel.
type ruleset interface {
	// Apply adds the missing rules.
	Apply() error
	// Intact returns whether the rules are unchanged since Apply.
	Intact() (bool, error)
	// Rules returns the number of rules.
	Rules() int
	// Withdraw makes the rules direct no more queries to the server.
	Withdraw() error
	// Remove removes the rules.
	Remove() error
}

// node is the state of one configuration: interface, rules, leases.
type node struct {
	config   config
	link     *link.Interface
	instance *instance // nil with nothing to set up

	cancel       context.CancelFunc // ends the goroutines
	running      sync.WaitGroup
	interfaceDue chan struct{} // the interface is to be verified
	allDue       chan struct{} // everything is to be verified: an address has acquired a lease, or another node has ended
	filtersDue   chan struct{} // the packet filters of other programs are to be read
	flowsDue     chan struct{} // flows from before the rules are to be deleted

	started time.Time
	rules   ruleset // nil without rules; set before the goroutines start
	backend backend // of rules

	mu      sync.Mutex                  // locked during reads and changes of the kernel's state, which may take long
	leaving bool                        // this node may no longer repair the kernel's state
	missing map[string]time.Time        // since when the interface, the rules or an address's lease are missing in the kernel
	leases  map[netip.Addr]*atomic.Bool // whether each address has a lease, as far as this process knows

	proofs map[netip.Addr]*atomic.Int32 // that queries to an address do not arrive

	notReached map[netip.Addr]chan notReached // the ends of leases without arrivals; set before the goroutines start

	replicas atomic.Pointer[[]netip.Addr] // of cluster DNS, for the rules; nil if there were never any

	filters         map[string]bool // the packet filters that were logged last
	withoutFallback string          // the addresses without a fallback that were logged last

	triedIPTables atomic.Bool  // the first application of the rules of iptables was due
	applied       atomic.Bool  // the rules have been applied once
	unanswered    atomic.Int32 // addresses without an answer to the last self-query
	lastError     atomic.Value // text of the last error, which is logged once

	warnLegacy  sync.Once // that iptables-legacy can't be read
	warnAccepts sync.Once // that iptables is missing
	warnLacking sync.Once // that the kernel lacks features of the rules

	accepts string // the rules that accept DNS in the filter tables of iptables, and these tables, as left last
}

func newNode(c config) *node {
	n := &node{
		config: c, link: link.New(c.Interface), started: time.Now(), backend: backendNone,
		interfaceDue: make(chan struct{}, 1), allDue: make(chan struct{}, 1), filtersDue: make(chan struct{}, 1), flowsDue: make(chan struct{}, 1),
		missing: map[string]time.Time{}, leases: map[netip.Addr]*atomic.Bool{}, proofs: map[netip.Addr]*atomic.Int32{}, notReached: map[netip.Addr]chan notReached{},
	}
	for _, a := range c.Addresses {
		n.leases[a], n.proofs[a], n.notReached[a] = new(atomic.Bool), new(atomic.Int32), make(chan notReached, 1)
	}
	return n
}

// start creates the interface and the rules, and starts the goroutines that verify them and that send self-queries. With an
// error, such as a missing address, the server can't listen.
func (n *node) start() (err error) {
	setup := n.config.setupInterface || n.config.setupRules
	if setup {
		if n.instance, err = announce(n.config.Interface); err != nil {
			return err
		}
	}
	if n.config.setupInterface {
		if err := bounded("creating interface "+n.config.Interface, stepWait, n.firstInterface); err != nil {
			n.instance.leave()
			return err
		}
	}
	if n.config.setupRules && n.config.backend != backendNone {
		n.createPair()
		n.startRules()
		n.removePairWithoutLease()
	}
	n.showSetup()
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel = cancel
	n.unanswered.Store(int32(len(n.config.Addresses)))
	for _, a := range n.config.Addresses {
		q := newSelfQuerier(a, n.link.Device(), n.config.Port, healthSuffix(n.config.zone))
		if n.config.Question.Source(a).IsValid() {
			q.target = netip.AddrPortFrom(rules.QuestionTarget(a), n.config.Port)
		}
		n.running.Go(func() { n.holdLease(ctx, a, q) })
	}
	if !setup {
		return nil // there is nothing to verify
	}
	n.running.Go(func() { n.repairLoop(ctx) })
	n.running.Go(func() { n.watchFilters(ctx) })
	if n.backend == backendNFTables {
		n.running.Go(func() { n.forgetFlows(ctx) })
	}
	n.running.Go(func() { n.watchTraffic(ctx) })
	n.running.Go(func() { n.watchReplicas(ctx) })
	return nil
}

// bounded runs a step, and returns after wait even if the step has not ended.
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

// errNoAnswer is the error of a step that the kernel, or a process that holds its locks, delays.
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
		log.Infof("Interface %s is a bridge without ports: the kernel has no dummy driver", n.config.Interface)
	case kind == link.Loopback:
		log.Warningf("Addresses are on lo: the kernel has neither a dummy nor a bridge driver")
	}
	if !r.Any() {
		log.Infof("Interface %s exists already, and is used", n.config.Interface)
	}
	return nil
}

// startRules chooses the backend and applies the rules. If that fails, DNS works without them, and they are applied
// later.
func (n *node) startRules() {
	var chosen backend
	var applied ruleset
	err := bounded("applying rules", startWait, func() (err error) {
		chosen, applied, err = chooseBackend(n.config)
		return err
	})
	if errors.Is(err, errNoAnswer) { // of nftables, whose step may still run; iptables would be slower
		n.rules, n.backend = rules.NewNFTables(n.config.Config), backendNFTables
	} else {
		n.rules, n.backend = applied, chosen
		n.applied.Store(err == nil && chosen == backendNFTables)
		signal(n.flowsDue)
	}
	if n.backend == backendIPTables {
		log.Warning("iptables has no lease: if this process dies, its rules stay and DNS on this node fails until it runs again")
	}
	if err != nil {
		SetupErrors.WithLabelValues(n.errorType(err)).Inc()
		n.report(err)
	}
}

// chooseBackend returns the backend with its rules, which are nil if it can't be used. It applies rules of nftables, which
// have no effect without a lease. auto is iptables only if the kernel has no nftables: any other error may be temporary,
// and iptables would cost the lease for good.
func chooseBackend(c config) (backend, ruleset, error) {
	if c.backend != backendIPTables {
		table := rules.NewNFTables(c.Config)
		err := table.Apply()
		if err == nil || c.backend == backendNFTables || !rules.Unsupported(err) {
			return backendNFTables, table, err
		}
		log.Warningf("%v: using iptables instead", err)
	}
	list, err := rules.NewIPTables(c.Config)
	if err != nil {
		return backendIPTables, nil, err
	}
	return backendIPTables, list, nil
}

// showSetup logs the setup of the node, and sets its metrics.
func (n *node) showSetup() {
	kind := "none"
	if n.config.setupInterface {
		kind = string(n.link.Kind())
	}
	setupInfo.DeletePartialMatch(map[string]string{"interface": n.config.Interface})
	for _, a := range n.config.Addresses {
		leaseHeld.WithLabelValues(a.String()) // the series begins at 0
		leasesLost.WithLabelValues(a.String())
		leasesNotReached.WithLabelValues(a.String())
		healthFailures.WithLabelValues(a.String())
	}
	for _, what := range []string{repairedInterface, repairedAddresses, repairedRules} {
		repairs.WithLabelValues(n.config.Interface, what)
	}
	path := "lo"
	if len(n.config.Question.Sources) > 0 {
		path = "veth"
	}
	setupInfo.WithLabelValues(n.config.Interface, kind, string(n.backend), path).Set(1)
	fallback := "none"
	if len(n.config.Fallback) > 0 {
		fallback = join(n.config.Fallback)
	}
	log.Infof("Addresses %s on interface %s (%s), rules by %s, fallback %s",
		join(n.config.Addresses), n.config.Interface, kind, n.backend, fallback)
}

// join returns addresses with spaces between them.
func join(addrs []netip.Addr) string { return strings.Trim(fmt.Sprint(addrs), "[]") }
