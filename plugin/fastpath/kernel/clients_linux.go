//go:build amd64 || arm64

package kernel

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"

	"github.com/nearside-dns/nearside/plugin/internal/validity"
)

// clientList is the search list of a client.
type clientList struct {
	lists   Lists
	list    uint32
	offered int // tick of the last offer
}

// setClient copies the search list of a client.
func (t *Table) setClient(o *Offer) error {
	c := clientList{o.Lists, o.Question.List, t.ticks}
	known, ok := t.clients[o.Client]
	if ok && known.lists == c.lists && known.list == c.list {
		t.clients[o.Client] = c
		return nil
	}
	if !ok && len(t.clients) >= maxClients {
		return errFull
	}
	key := answerClientKey{Address: addressKey(o.Client)}
	if err := t.objects.Clients.Put(key, answerClient{Address: key.Address, List: c.list}); err != nil {
		return fmt.Errorf("add a client: %w", err)
	}
	t.clients[o.Client] = c
	t.control.Searches[o.Listener] = 1
	t.verifyClients(validity.Now())
	return nil
}

// clientsFor is the time for which the search lists of clients are valid after they were verified, at each tick.
const clientsFor = 2 * collectInterval

// endClients removes all clients.
func (t *Table) endClients() {
	for a := range t.clients {
		if !t.deleteClient(a) {
			atomic.StoreUint64(&t.control.ClientsUntil, 0) // no list is valid until verifyClients has removed the client
		}
	}
}

// verifyClients removes the clients whose search list has changed or is not known any more, and those that were not offered for
// clientTicks. If one cannot be removed, the lists of all end.
func (t *Table) verifyClients(now time.Duration) {
	for a, c := range t.clients {
		if c.lists.ListOf(a) == c.list && t.ticks-c.offered < clientTicks {
			continue
		}
		if !t.deleteClient(a) {
			return
		}
	}
	atomic.StoreUint64(&t.control.ClientsUntil, t.clock.kernel(now+clientsFor))
}

// deleteClient removes a client, and returns false if the kernel refuses it.
func (t *Table) deleteClient(client netip.Addr) bool {
	err := t.objects.Clients.Delete(answerClientKey{Address: addressKey(client)})
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return false
	}
	delete(t.clients, client)
	return true
}
