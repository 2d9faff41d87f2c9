//go:build amd64 || arm64

package fastpath

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/coredns/coredns/plugin/pkg/transport"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/fastpath/kernel"
	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/leases"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// kernelAnswers is the program that answers in the kernel, while a server block has option kernel.
type kernelAnswers struct {
	mu         sync.Mutex
	table      *kernel.Table // nil while no block has the option, and if it cannot be loaded
	interfaces *kernel.Interfaces
	forced     bool                   // the program is attached with option force
	failure    string                 // the last logged reason for not loading
	unfollow   func()                 // ends the calls of setLease; nil before the first listener
	listeners  map[*listener]struct{} // whose servers have the option
	numbers    sync.Map               // netip.AddrPort -> int, the number of the listener in the table
}

func newKernelAnswers() *kernelAnswers { return &kernelAnswers{listeners: map[*listener]struct{}{}} }

// kernelListener is a listener whose queries the kernel may answer.
type kernelListener struct {
	table      *kernel.Table
	interfaces *kernel.Interfaces
	number     int
	epoch      uint32
}

// leaseWait is the time without a lease after which a line is logged: nodelocal acquires one within seconds.
const leaseWait = 30 * time.Second

// serve has the kernel answer queries to a listener from the answers of its present server. The answers of the replaced server end
// first.
func (k *kernelAnswers) serve(l *listener) {
	k.mu.Lock()
	defer k.mu.Unlock()
	old := l.kernel.Swap(nil)
	if old != nil && old.table == k.table {
		old.table.Clear(old.number)
	}
	s := l.server.Load()
	wanted := s.wantsKernel()
	_, ok := ownAddress(l.address)
	if !wanted || !ok {
		if wanted {
			log.Warningf("%s: the kernel answers no queries: the server listens on all addresses; set bind to the node-local ones", l.address)
		}
		k.unlisten(l, old)
		return
	}
	k.listeners[l] = struct{}{}
	if err := k.open(s.kernelForced); err != nil {
		k.shut()
		kernelMetrics.loaded(false)
		if reason := err.Error(); reason != k.failure {
			log.Errorf("The kernel answers no queries: %v", err)
			k.failure = reason
		}
		return
	}
	k.failure = ""
	for other := range k.listeners {
		if other != l && other.kernel.Load() == nil { // a failure has ended its answers
			k.listen(other)
		}
	}
	k.listen(l) // last: if two listeners have the same address, the table accepts only offers of the one that was added last
	before := k.unfollow
	k.unfollow = leases.Process.Follow(k.setLease) // Follow calls setLease for the present leases, too
	if before != nil {                             // after Follow, so that no release is missed
		before()
	}
}

// listen has the program answer queries to a listener.
func (k *kernelAnswers) listen(l *listener) {
	address, _ := ownAddress(l.address)
	n, err := k.table.Listen(address)
	if err != nil {
		log.Warningf("%s: %v", l.address, err)
		return
	}
	k.numbers.Store(address, n)
	served := &kernelListener{table: k.table, interfaces: k.interfaces, number: n, epoch: k.table.Clear(n)}
	l.kernel.Store(served)
	time.AfterFunc(leaseWait, func() { k.checkLease(l, served) })
}

// checkLease logs that there was no lease for a listener, for which plugin nodelocal may not be configured.
func (k *kernelAnswers) checkLease(l *listener, served *kernelListener) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.kernel.Load() == served && served.table == k.table && !k.table.Leased(served.number) {
		log.Warningf("%s: the kernel answers no queries: plugin nodelocal holds no lease of the address", l.address)
	}
}

// unlisten ends the answers of the kernel to queries of a listener.
func (k *kernelAnswers) unlisten(l *listener, old *kernelListener) {
	delete(k.listeners, l)
	if old == nil || old.table != k.table {
		return
	}
	for other := range k.listeners {
		if served := other.kernel.Load(); served != nil && served.number == old.number {
			return // it has the same address: the next configuration's listener was open before this one was closed
		}
	}
	if address, ok := ownAddress(l.address); ok {
		k.numbers.Delete(address)
	}
	k.table.Unlisten(old.number)
}

// remove ends the answers of the kernel to queries of listeners that close, and unloads the program after the last listener.
func (k *kernelAnswers) remove(closing []*listener) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, l := range closing {
		k.unlisten(l, l.kernel.Swap(nil))
	}
	if len(k.listeners) == 0 {
		k.shut()
		kernelMetrics.unused()
	}
}

// setLease sets the end of the lease of a listener.
func (k *kernelAnswers) setLease(address netip.AddrPort, until time.Time) {
	if n, ok := k.numbers.Load(address); ok {
		number, _ := n.(int)
		k.table.SetLease(number, until)
	}
}

// open loads the program, and attaches it to the interfaces of pods. After an error, shut has to be called.
func (k *kernelAnswers) open(forced bool) (err error) {
	if err := kernel.CheckBudget(store.Shared); err != nil {
		return err // a reload may have changed the budget
	}
	switch {
	case k.table == nil:
		if k.table, err = kernel.NewTable(store.Shared); err != nil {
			return err
		}
	case k.forced == forced:
		return nil
	default:
		err, k.interfaces = k.interfaces.Close(), nil
		if err != nil {
			return fmt.Errorf("detach the program: %w", err)
		}
	}
	interfaces, err := kernel.Follow(k.table.Programs(), kernel.Options{Force: forced, Log: log.Warningf, Attached: func(s kernel.State) {
		log.Infof("The program that answers in the kernel is attached to %d interfaces by %s", s.Attached, s.Mode)
	}})
	if err != nil {
		return err
	}
	k.interfaces, k.forced = interfaces, forced
	for l := range k.listeners {
		if old := l.kernel.Load(); old != nil {
			l.kernel.Store(&kernelListener{table: k.table, interfaces: interfaces, number: old.number, epoch: old.epoch})
		}
	}
	kernelMetrics.set(k.table, k.interfaces)
	kernelMetrics.loaded(true)
	return nil
}

// exit ends all answers of the kernel at the end of the process. It does not wait until links of tcx are detached: nodelocal still
// has to remove its rules and its interface.
func (k *kernelAnswers) exit() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.end((*kernel.Interfaces).Exit)
	clear(k.listeners)
	kernelMetrics.unused()
}

// shut unloads the program.
func (k *kernelAnswers) shut() { k.end((*kernel.Interfaces).Close) }

// end unloads the program. The answers end first: detaching the program from all interfaces takes longer.
func (k *kernelAnswers) end(detach func(*kernel.Interfaces) error) {
	if k.unfollow != nil {
		k.unfollow()
	}
	kernelMetrics.set(nil, nil)
	for l := range k.listeners {
		l.kernel.Store(nil)
	}
	k.numbers.Clear()
	if k.table != nil {
		k.table.EndLeases()
	}
	if k.interfaces != nil {
		if err := detach(k.interfaces); err != nil {
			log.Errorf("Detach the program that answers in the kernel: %v", err)
		}
	}
	if k.table != nil {
		if err := k.table.Close(); err != nil {
			log.Errorf("Unload the program that answers in the kernel: %v", err)
		}
	}
	k.table, k.interfaces, k.unfollow = nil, nil, nil
}

// ownAddress parses a server's address, which is in CoreDNS's form. It returns false for a wildcard and for an address with a zone.
func ownAddress(server string) (a netip.AddrPort, ok bool) {
	host, port, err := net.SplitHostPort(strings.TrimPrefix(server, transport.DNS+"://"))
	if err != nil {
		return a, false
	}
	a, err = netip.ParseAddrPort(net.JoinHostPort(host, port))
	return a, err == nil && a.IsValid() && !a.Addr().IsUnspecified() && a.Addr().Zone() == ""
}

// offer offers the entry of the last lookup for a copy in the kernel.
func (r *reader) offer(l *kernelListener, client netip.Addr) {
	q, rt, e := &r.query, r.route, r.entry
	if !rt.kernel || r.viewed || q.Search != nil || q.Caller != 0 || q.Notify || !kernel.Fits(e) || !l.interfaces.Attached() || !e.ToCopy() {
		return
	}
	if q.Type == dns.TypeAAAA && rt.dns64 != nil && translates(rt.dns64, e, q) {
		return // a copy is for clients of both families
	}
	name := store.KeyName(r.key[:r.keyLen])
	list, ok := uint32(0), true
	if rt.search != nil {
		if list, ok = listFor(rt.search, client, name, e); !ok {
			return
		}
	}
	o := kernel.Offer{
		Entry: e, Listener: l.number, Epoch: l.epoch, Shuffle: rt.shuffle, Client: client,
		Question: kernel.Question{Name: append([]byte(nil), name...), Type: q.Type, DO: q.DO, CD: q.CD, List: list},
		Counter:  newKernelCounter(rt.counters, e, q, r.lookup.counters),
	}
	if list != 0 {
		o.Lists = rt.search
	}
	l.table.Offer(o)
}

// listFor returns the search list with which a client's query for a name has found an entry. It returns false if the list has
// changed since, and if it is unknown: queries with an unknown list have to reach autopath, which counts them by reason.
func listFor(searches block.Searches, client netip.Addr, name []byte, e *store.Entry) (list uint32, ok bool) {
	list = searches.ListOf(client)
	search := searches.Search(client, name)
	if list == 0 || list != searches.ListOf(client) {
		return 0, false
	}
	if found := e.List(); found != 0 {
		return list, found == search.List
	}
	return list, search.List == 0 || e.Plain.HasData()
}

// kernelCounter counts answers of the kernel as those of readers.
type kernelCounter struct {
	hit      hit
	query    int // length of a query without an OPT record
	options  uint16
	counters [3]store.Counter
}

func newKernelCounter(c *counters, e *store.Entry, q *wire.Query, each [3]store.Counter) *kernelCounter {
	k := &kernelCounter{query: q.QuestionEnd(), counters: each}
	plain := *q
	plain.EDNS = false
	k.hit.set(c, e, &plain, e.Plain.Rcode(), netip.IPv4Unspecified(), k.query)
	if len(e.Options) > 0 {
		k.options = uint16(wire.OPTLen + len(e.Options)) // #nosec G115 -- short
	}
	return k
}

// Count implements kernel.Counter.
func (k *kernelCounter) Count(a kernel.Answered) {
	h := k.hit
	if a.EDNS {
		h.requestSize += wire.OPTLen
		h.responseSize += k.options
	}
	if a.IPv6 {
		h.family = 1
	}
	h.countMany(a.Number, a.Took)
	for _, c := range k.counters {
		if c != nil {
			for range a.Number {
				c.Inc()
			}
		}
	}
	if a.Beyond && h.cached && h.counters.cache != nil {
		h.counters.lookup().BeyondTTL.Add(float64(a.Number))
	}
}
