package kernel

import (
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
)

// Reason is why the program is not attached to an interface. It is a label of a metric.
type Reason string

// Reasons.
const (
	ReasonPolicy  Reason = "policy"  // a policy engine has packet filters behind the program, or the interface is a port of Open vSwitch
	ReasonProgram Reason = "program" // another program or filter is attached
	ReasonMTU     Reason = "mtu"     // it is below 1280
	ReasonError   Reason = "error"   // the kernel refused
)

// Times of the follower.
const (
	// examineInterval is the time between examinations of the programs at attached interfaces: the kernel does not report a
	// program that is attached with tcx.
	examineInterval = 2 * time.Second
	// resyncInterval is the time between listings of all interfaces, and the max. time between readings of packet filters.
	resyncInterval = 30 * time.Second
	// settleTime is the min. age of an interface with a program. Network plugins attach theirs and create qdiscs while a pod
	// starts; with clsact they would fail if the interface had a qdisc. The pod's first queries pass to the fast path.
	settleTime = 2 * time.Second
	// logInterval is the min. time between log lines with the same reason.
	logInterval = time.Hour
)

// Options are options of Follow.
type Options struct {
	// Force attaches in spite of policy engines and other programs, and before these programs.
	Force bool
	// Log logs a line; nil for none.
	Log func(format string, args ...any)
	// Attached is called when the program is attached to an interface after it was attached to none; it may be nil.
	Attached func(State)

	clsact               bool // although the kernel has tcx
	tick, resync, settle time.Duration
	policyPause          time.Duration // max. time between readings of packet filters
	buffer               int           // receive buffer of events, bytes
	now                  func() time.Time
	findEngine           func() (Engine, error)
}

// State is the state of the interfaces of the node, for metrics.
type State struct {
	Attached int            // interfaces with the program
	Refused  map[Reason]int // interfaces without it
	// Policy is the policy engine of the node, "" without one. With Options.Force the programs are attached nevertheless.
	Policy string
	// Mode is "tcx" or "clsact".
	Mode string
}

// Interfaces attaches the program to the interfaces of the node: to lo, and to the host side of each pod's veth or netkit
// while it exists. A veth or netkit of a default route is no pod's.
type Interfaces struct {
	stop   chan struct{}
	synced chan struct{} // closed when all interfaces have been examined once
	ended  chan struct{}
	once   sync.Once
	err    error // of Close

	exit     atomic.Bool    // the process ends
	retained map[int]*entry // until the process has ended, see end

	mu       sync.Mutex
	state    State
	attached atomic.Bool
}

// Follow attaches the program to the present interfaces, and to new ones until Close. It returns before the program is attached:
// that takes the kernel some milliseconds for each interface. Its error is a *KernelError if the kernel does not permit listing
// interfaces or programs. An interface for which the kernel refuses the program is counted in State and retried. Only one Interfaces
// at a time may have the same programs.
func Follow(p Programs, o Options) (*Interfaces, error) {
	f, err := newFollower(p, o)
	if err != nil {
		return nil, err
	}
	go f.run()
	return f.Interfaces, nil
}

// newFollower prepares a follower, and examines no interface.
func newFollower(p Programs, o Options) (*follower, error) {
	o.setDefaults()
	h, err := openHook(p, o.Force, o.clsact)
	if err != nil {
		return nil, err
	}
	f := &follower{
		Interfaces: &Interfaces{stop: make(chan struct{}), synced: make(chan struct{}), ended: make(chan struct{})},
		options:    o, hook: h, entries: map[int]*entry{}, switches: map[int]bool{}, logged: map[string]time.Time{}, starting: true,
	}
	if _, err = h.links(); err == nil {
		f.subscription, err = subscribe(o.buffer)
	}
	if err != nil {
		return nil, errors.Join(err, f.end())
	}
	f.readPolicy() // before the first event
	f.publish()
	return f, nil
}

func (o *Options) setDefaults() {
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	if o.Attached == nil {
		o.Attached = func(State) {}
	}
	if o.now == nil {
		o.now = time.Now
	}
	if o.findEngine == nil {
		o.findEngine = FindEngine
	}
	if o.tick == 0 {
		o.tick, o.resync, o.settle = examineInterval, resyncInterval, settleTime
	}
	if o.policyPause == 0 {
		o.policyPause = resyncInterval
	}
	if o.buffer == 0 {
		o.buffer = eventBuffer
	}
}

// State returns the current state.
func (i *Interfaces) State() State {
	i.mu.Lock()
	defer i.mu.Unlock()
	s := i.state
	s.Refused = maps.Clone(s.Refused)
	return s
}

// Attached reports whether the program is attached to an interface.
func (i *Interfaces) Attached() bool { return i.attached.Load() }

// Close detaches the program from all interfaces. It returns after the last goroutine has ended.
func (i *Interfaces) Close() error {
	i.once.Do(func() { close(i.stop) })
	<-i.ended
	return i.err
}

// Exit is Close at the end of the process. It leaves links to the kernel, which detaches them when the process has ended: each
// takes a grace period of RCU, 14 s for 1,000 interfaces. Until then the program is announced to other instances.
func (i *Interfaces) Exit() error {
	i.exit.Store(true)
	return i.Close()
}

// follower is the goroutine of Interfaces.
type follower struct {
	*Interfaces
	options      Options
	hook         *hook
	subscription *subscription // nil after it has failed
	entries      map[int]*entry
	switches     map[int]bool // indices of Open vSwitch's interfaces
	uplinks      map[int]bool // indices of the interfaces of default routes
	policy       policy
	starting     bool      // no interface has been examined
	lost         bool      // events are missing
	next         time.Time // listing of all interfaces
	logged       map[string]time.Time
}

// entry is an interface on which the program may answer.
type entry struct {
	link     netlink.Link
	since    time.Time
	attached *attachment
	refusal  Reason // "" while it is attached or too young
}

func (f *follower) run() {
	defer close(f.ended)
	f.tick()
	f.publish()
	close(f.synced)
	ticker := time.NewTicker(f.options.tick)
	defer ticker.Stop()
	for {
		var events chan event
		if f.subscription != nil {
			events = f.subscription.events
		}
		select {
		case <-f.stop:
			f.err = f.end()
			return
		case e, ok := <-events:
			if ok {
				f.apply(e)
			} else {
				_ = f.unsubscribe() // the last event had the cause
			}
		case <-ticker.C:
			f.tick()
		}
		f.publish()
	}
}

// unsubscribe closes the subscription. The next tick makes another one.
func (f *follower) unsubscribe() (err error) {
	if f.subscription != nil {
		err = f.subscription.close()
	}
	f.subscription, f.lost = nil, true
	return err
}

// end detaches the program from all interfaces.
func (f *follower) end() error {
	err := f.unsubscribe()
	if f.exit.Load() && !f.hook.clsact { // filters outlive the process
		f.retained = f.entries // else finalizers would close the links before the process ends
		return err
	}
	for _, e := range f.entries {
		err = errors.Join(err, f.detach(e))
	}
	return errors.Join(err, f.hook.close())
}

// publish updates the state for metrics.
func (f *follower) publish() {
	s := State{Refused: map[Reason]int{}, Policy: f.policy.String(), Mode: f.hook.mode()}
	for _, e := range f.entries {
		switch {
		case e.attached != nil:
			s.Attached++
		case e.refusal != "":
			s.Refused[e.refusal]++
		}
	}
	f.mu.Lock()
	f.state = s
	f.mu.Unlock()
	if attached := s.Attached > 0; f.attached.Swap(attached) != attached && attached {
		f.options.Attached(s)
	}
}

// apply processes a change of an interface.
func (f *follower) apply(e event) {
	known := f.entries[e.index]
	switch {
	case e.err != nil:
		f.logRarely("events", "Notifications of changed interfaces were lost, all interfaces are listed again: %v", e.err)
		f.lost = true
	case e.link == nil && known == nil:
	case e.link == nil:
		f.examine(known, true)
	case e.removed:
		delete(f.switches, e.index)
		f.remove(e.index)
	case e.link.Type() == kindSwitch:
		f.switches[e.index] = true
	default:
		f.update(e.link)
	}
}

// tick examines attached and new interfaces, and lists all interfaces and packet filters when it is time.
func (f *follower) tick() {
	now := f.options.now()
	if uplinks, err := f.hook.uplinks(); err == nil && !maps.Equal(uplinks, f.uplinks) { // sync returns the error
		f.lost = true
	}
	if f.lost || !now.Before(f.next) {
		if err := f.sync(); err != nil {
			f.logRarely("list", "Interfaces are not listed, and retried in %s: %v", f.options.resync, err)
		}
		return
	}
	if f.policyDue(now) && f.readPolicy() {
		f.examineAll()
		return
	}
	for _, e := range f.entries {
		if f.stopped() {
			return
		}
		if e.attached != nil || e.refusal == "" {
			f.examine(e, false)
		}
	}
}

// sync lists all interfaces and packet filters.
func (f *follower) sync() (err error) {
	f.next = f.options.now().Add(f.options.resync)
	f.lost = false
	if f.subscription == nil {
		if f.subscription, err = subscribe(f.options.buffer); err != nil {
			return err
		}
	}
	links, err := f.hook.links()
	if err != nil {
		return err
	}
	uplinks, err := f.hook.uplinks()
	if err != nil {
		return err // the last known ones remain
	}
	f.uplinks = uplinks
	f.hook.forget()
	f.switches = switches(links)
	if f.policyDue(f.options.now()) {
		f.readPolicy()
	}
	present := make(map[int]bool, len(links))
	for _, l := range links {
		if f.stopped() {
			return nil
		}
		present[l.Attrs().Index] = true
		f.update(l)
	}
	for index := range f.entries {
		if !present[index] {
			f.remove(index)
		}
	}
	f.starting = false
	return nil
}

func (f *follower) stopped() bool {
	select {
	case <-f.stop:
		return true
	default:
		return false
	}
}

// update processes the current attributes of an interface.
func (f *follower) update(l netlink.Link) {
	index := l.Attrs().Index
	if !candidate(l, f.uplinks) {
		f.remove(index)
		return
	}
	e := f.entries[index]
	if e == nil {
		e = &entry{}
		if !f.starting {
			e.since = f.options.now()
		}
		f.entries[index] = e
	}
	e.link = l
	f.examine(e, true)
}

// remove processes that an interface has been removed, or is no candidate any longer.
func (f *follower) remove(index int) {
	e := f.entries[index]
	if e == nil {
		return
	}
	delete(f.entries, index)
	if err := f.detach(e); err != nil {
		f.logRarely("detach", "%v", err)
	}
}

func (f *follower) examineAll() {
	for _, e := range f.entries {
		if f.stopped() {
			return
		}
		f.examine(e, true)
	}
}

func (f *follower) detach(e *entry) error {
	if e.attached == nil {
		return nil
	}
	a := e.attached
	e.attached = nil
	return f.hook.detach(a)
}

// logRarely logs a line, unless it has logged one with the same key in the last logInterval.
func (f *follower) logRarely(key, format string, args ...any) {
	if last, ok := f.logged[key]; !ok || f.options.now().Sub(last) >= logInterval {
		f.logged[key] = f.options.now()
		f.options.Log(format, args...)
	}
}
