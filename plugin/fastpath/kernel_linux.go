//go:build amd64 || arm64

package fastpath

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/coredns/coredns/plugin/pkg/transport"

	"github.com/nearside-dns/nearside/plugin/fastpath/kernel"
	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/internal/leases"
)

// kernelAnswers is the program that answers in the kernel, while a server block has option kernel.
type kernelAnswers struct {
	mu         sync.Mutex
	table      *kernel.Table // nil while no block has the option, and if it cannot be loaded
	interfaces *kernel.Interfaces
	forced     bool // the interfaces are those of option force
	failed     bool // to load, which is logged once
	unfollow   func()
	// numbers are those of the listeners in the table.
	numbers sync.Map // netip.AddrPort -> int
}

var inKernel kernelAnswers

// kernelListener is a listener whose queries the kernel may answer.
type kernelListener struct {
	table  *kernel.Table
	number int
	epoch  uint32
}

// serve has the kernel answer queries to a listener from the answers of its present server, or ends these answers.
func (k *kernelAnswers) serve(l *listener) {
	k.mu.Lock()
	defer k.mu.Unlock()
	wanted, forced := l.server.Load().wantsKernel()
	address, ok := ownAddress(l.address)
	if !wanted || !ok {
		if old := l.kernel.Swap(nil); old != nil {
			old.table.Clear(old.number)
		}
		if wanted {
			log.Warningf("%s: the kernel answers no queries: a server that listens on all addresses has no node-local one: set bind", l.address)
		}
		return
	}
	if !k.open(forced) {
		return
	}
	n, err := k.table.Listen(address)
	if err != nil {
		log.Warningf("%s: %v", l.address, err)
		return
	}
	k.numbers.Store(address, n)
	l.kernel.Store(&kernelListener{table: k.table, number: n, epoch: k.table.Clear(n)})
	if k.unfollow != nil {
		k.unfollow()
	}
	k.unfollow = leases.Process.Follow(k.setLease) // which calls it for the present leases, too
}

// remove ends the answers of the kernel to queries of a listener that closes, and all of them if no listener has any.
func (k *kernelAnswers) remove(closing []*listener, left map[string]*listener) {
	k.mu.Lock()
	for _, l := range closing {
		if old := l.kernel.Swap(nil); old != nil && old.table == k.table {
			old.table.Clear(old.number)
			old.table.SetLease(old.number, time.Time{})
		}
	}
	k.mu.Unlock()
	for _, l := range left {
		if l.kernel.Load() != nil {
			return
		}
	}
	k.close()
}

// setLease sets the end of the lease of a listener.
func (k *kernelAnswers) setLease(address netip.AddrPort, until time.Time) {
	if n, ok := k.numbers.Load(address); ok {
		number, _ := n.(int)
		k.table.SetLease(number, until)
	}
}

// open loads the program, and attaches it to the interfaces of pods.
func (k *kernelAnswers) open(forced bool) bool {
	if k.table != nil && k.forced == forced {
		return true
	}
	err := k.load(forced)
	if err != nil && !k.failed {
		log.Errorf("The kernel answers no queries: %v", err)
	}
	k.failed = err != nil
	return err == nil
}

func (k *kernelAnswers) load(forced bool) (err error) {
	if k.table == nil {
		if k.table, err = kernel.NewTable(answers.Shared); err != nil {
			return err
		}
	} else if err := k.interfaces.Close(); err != nil {
		return fmt.Errorf("detach the program: %w", err)
	}
	k.interfaces, err = kernel.Follow(k.table.Programs(), kernel.Options{Force: forced, Log: log.Infof})
	if err != nil {
		err = errors.Join(err, k.table.Close()) // nothing is attached
		k.table = nil
		return err
	}
	k.forced = forced
	kernelMetrics.set(k.table, k.interfaces)
	return nil
}

// close ends all answers of the kernel.
func (k *kernelAnswers) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.table == nil {
		return
	}
	if k.unfollow != nil {
		k.unfollow()
	}
	kernelMetrics.set(nil, nil)
	if err := k.interfaces.Close(); err != nil {
		log.Errorf("Detach the program that answers in the kernel: %v", err)
	}
	if err := k.table.Close(); err != nil {
		log.Errorf("Unload the program that answers in the kernel: %v", err)
	}
	k.table, k.interfaces, k.unfollow = nil, nil, nil
	k.numbers.Clear()
}

// ownAddress returns the address of a server in CoreDNS's form, false if it has none of its own.
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
	if !rt.kernel || r.viewed || q.Search != nil || q.Caller != 0 || q.Notify || !e.ToCopy() {
		return
	}
	o := kernel.Offer{
		Entry: e, Listener: l.number, Epoch: l.epoch, Shuffle: rt.shuffle, Client: client,
		Question: kernel.Question{Name: append([]byte(nil), answers.KeyName(r.key[:r.keyLen])...), Type: q.Type, DO: q.DO, CD: q.CD},
		Counter:  newKernelCounter(rt.counters, e, q, r.lookup.counters),
	}
	if rt.search != nil {
		o.Lists = rt.search
		if o.Question.List = rt.search.ListOf(client); o.Question.List == 0 {
			return // the metrics count the reason why it is unknown
		}
	}
	l.table.Offer(o)
}

// kernelCounter counts answers of the kernel as those of readers.
type kernelCounter struct {
	hit      hit
	query    int // length of a query without an OPT record
	options  uint16
	counters [3]answers.Counter
}

func newKernelCounter(c *counters, e *answers.Entry, q *answers.Query, each [3]answers.Counter) *kernelCounter {
	k := &kernelCounter{query: answers.HeaderLen + q.NameLen + 4, counters: each}
	plain := *q
	plain.EDNS = false
	k.hit.set(c, e, &plain, e.Plain.Rcode(), netip.IPv4Unspecified(), k.query)
	if len(e.Options) > 0 {
		k.options = uint16(answers.OptLen + len(e.Options)) // #nosec G115 -- short
	}
	return k
}

// Count implements kernel.Counter.
func (k *kernelCounter) Count(a kernel.Answered) {
	h := k.hit
	if a.EDNS {
		h.requestSize += answers.OptLen
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
