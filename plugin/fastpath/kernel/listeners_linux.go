//go:build amd64 || arm64

package kernel

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"

	"github.com/nearside-dns/nearside/plugin/internal/validity"
)

// EndLeases ends all answers: the program passes all packets on.
func (t *Table) EndLeases() {
	for i := range maxListeners {
		atomic.StoreUint64(&t.control.Until[i], 0)
	}
}

// errListeners is the error of a listener, or of a port, above the limit.
var errListeners = errors.New("too many addresses or ports")

// Listen makes the program answer queries to an address, while SetLease permits it, and returns its number. It
// refuses more than 32 addresses, and more than 4 ports.
func (t *Table) Listen(address netip.AddrPort) (number int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	free := -1
	for i := range maxListeners {
		i = (t.listener + 1 + i) % maxListeners
		switch a := t.listening[i]; {
		case a == address:
			return i, nil
		case free < 0 && !a.IsValid():
			free = i
		}
	}
	if free < 0 || !t.addPort(address.Port()) {
		return 0, fmt.Errorf("answer in the kernel at %s: %w: at most %d and %d", address, errListeners, maxListeners, maxPorts)
	}
	atomic.StoreUint64(&t.control.Until[free], 0)
	t.control.Searches[free] = 0
	key := answerListenerKey{Address: addressKey(address.Addr()), Port: bigEndian(address.Port())}
	if err := t.objects.Listeners.Put(key, uint32(free)); err != nil { // #nosec G115 -- below maxListeners
		return 0, fmt.Errorf("answer in the kernel at %s: %w", address, err)
	}
	t.listening[free], t.listener = address, free
	return free, nil
}

// Unlisten ends the answers to an address, whose number may become that of another one.
func (t *Table) Unlisten(number int) {
	t.SetLease(number, time.Time{})
	t.Clear(number)
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.listening[number]
	if !a.IsValid() {
		return
	}
	err := t.objects.Listeners.Delete(answerListenerKey{Address: addressKey(a.Addr()), Port: bigEndian(a.Port())})
	if err == nil || errors.Is(err, ebpf.ErrKeyNotExist) {
		t.listening[number] = netip.AddrPort{} // else the address keeps the number, and has no lease
	}
}

// addPort adds a port, in place of one without a listener if there is no room.
func (t *Table) addPort(port uint16) bool {
	free := -1
	for i := range t.control.Ports {
		switch p := t.control.Ports[i]; {
		case p == bigEndian(port):
			return true
		case free < 0 && (p == 0 || !t.listensOn(p)):
			free = i
		}
	}
	if free >= 0 {
		t.control.Ports[free] = bigEndian(port)
	}
	return free >= 0
}

// listensOn reports whether a listener has a port, in network order.
func (t *Table) listensOn(port uint16) bool {
	return slices.ContainsFunc(t.listening[:], func(a netip.AddrPort) bool { return a.IsValid() && bigEndian(a.Port()) == port })
}

// Leased reports whether SetLease has set a lease of a listener and has not ended it. The lease may have expired.
func (t *Table) Leased(number int) bool { return atomic.LoadUint64(&t.control.Until[number]) != 0 }

// SetLease sets until when the program may answer queries to a listener; the zero time ends its answers. It may be called
// from any goroutine.
func (t *Table) SetLease(listener int, until time.Time) {
	var end uint64
	if !until.IsZero() {
		end = t.clock.kernel(validity.Now() + time.Until(until))
	}
	atomic.StoreUint64(&t.control.Until[listener], end)
}
