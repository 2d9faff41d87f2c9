package nodelocal

import (
	"context"
	"net/netip"
	"time"

	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
)

// ErrOtherServer is the error of SelfQuery.Send if another DNS server answers.
var ErrOtherServer = errOther

// SelfQuery describes a query that a nodecache on this node sends to itself, and that it answers to no
// other client.
type SelfQuery struct {
	// Address is the node-local address, on Interface; Port is its port.
	Address   netip.Addr
	Interface string
	Port      uint16
	// Zone is the zone of the server block that has the address.
	Zone string
	// Arriving is whether the query arrives on an interface as those of pods do, instead of on lo.
	Arriving bool
}

// Send sends the query over UDP, past the lease, and waits for the answer.
func (q SelfQuery) Send(ctx context.Context, wait time.Duration) error {
	a := newSelfQuerier(q.Address, q.Interface, q.Port, healthSuffix(q.Zone))
	a.wait = wait
	if q.Arriving {
		a.target = netip.AddrPortFrom(rules.QuestionTarget(q.Address), q.Port)
	}
	return a.exchange(ctx, "udp", q.Arriving)
}
