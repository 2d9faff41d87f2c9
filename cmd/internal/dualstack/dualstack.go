// Package dualstack finds the second address of a Service that has one of each family. The kubelet sets the first address
// in the environment, and not the second. That one is looked up in cluster DNS, which needs no rights: the PTR record of
// the first address has the name of the Service, and the name has records of both addresses. In go the name and the first
// address of cluster DNS's own Service; out comes the second. It imports nothing of nodecache.
package dualstack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	clog "github.com/coredns/coredns/plugin/pkg/log"
	"github.com/miekg/dns"
)

const (
	// timeout bounds one lookup; the first one delays the start.
	timeout = time.Second
	// Retry is the pause after a lookup that failed.
	Retry = 5 * time.Second
	// Every is the pause after any other: the families of a Service hardly ever change.
	Every = 10 * time.Minute
	// maxEmptyReplies is how many consecutive lookups without an address show that the Service has none in the other
	// family: a server of cluster DNS that has just started may not have its records yet.
	maxEmptyReplies = 5
	dnsPort         = 53
)

var errNoRecords = errors.New("no records")

// Exchange sends a query to a server and returns the reply.
type Exchange func(ctx context.Context, server netip.AddrPort, query *dns.Msg) (*dns.Msg, error)

// OverUDP is the Exchange of programs.
func OverUDP(ctx context.Context, server netip.AddrPort, query *dns.Msg) (*dns.Msg, error) {
	reply, _, err := new(dns.Client).ExchangeContext(ctx, query, server.String())
	return reply, err
}

// Lookup looks up the second address of the Service of cluster DNS.
type Lookup struct {
	Service  string // its name without the namespace
	First    netip.Addr
	Excluded []netip.Addr // addresses that are not the second one
	Exchange Exchange

	second       atomic.Pointer[netip.Addr] // nil if unknown
	emptyReplies int                        // consecutive replies without an address
}

// Second returns the address; ok is false if it is unknown.
func (l *Lookup) Second() (a netip.Addr, ok bool) {
	if p := l.second.Load(); p != nil {
		return *p, true
	}
	return a, false
}

// Look looks up the address. After an error, which a reply without an address is up to maxEmptyReplies, the address stays
// as it is.
func (l *Lookup) Look(ctx context.Context) (changed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	second, err := l.query(ctx)
	before, known := l.Second()
	switch {
	case err != nil:
		return false, err
	case !second.IsValid():
		if l.emptyReplies++; l.emptyReplies < maxEmptyReplies {
			return false, errNoRecords
		}
		l.second.Store(nil)
		return known, nil
	}
	l.emptyReplies = 0
	if known && before == second {
		return false, nil
	}
	l.second.Store(&second)
	clog.Infof("Service %s has the addresses %s and %s: both are fallbacks", l.Service, l.First, second)
	return true, nil
}

// Follow repeats Look until the context ends, and calls changed after each change.
func (l *Lookup) Follow(ctx context.Context, changed func()) {
	pause := time.Duration(0)
	if _, known := l.Second(); known {
		pause = Every
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		is, err := l.Look(ctx)
		if is {
			changed()
		}
		if pause = Every; err != nil {
			pause = Retry
		}
	}
}

// query returns the second address; the zero address if there is none.
func (l *Lookup) query(ctx context.Context) (none netip.Addr, err error) {
	reverse, err := dns.ReverseAddr(l.First.String())
	if err != nil {
		return none, err
	}
	names, err := l.records(ctx, reverse, dns.TypePTR)
	if err != nil {
		return none, err
	}
	qtype := dns.TypeAAAA
	if l.First.Is6() {
		qtype = dns.TypeA
	}
	for _, rr := range names {
		ptr, ok := rr.(*dns.PTR)
		if !ok || !strings.HasPrefix(strings.ToLower(ptr.Ptr), l.Service+".") {
			continue
		}
		addresses, err := l.records(ctx, ptr.Ptr, qtype)
		if err != nil {
			return none, err
		}
		for _, rr := range addresses {
			if a := addressOf(rr); a.IsGlobalUnicast() && a.Is4() != l.First.Is4() && !slices.Contains(l.Excluded, a) {
				return a, nil
			}
		}
	}
	return none, nil
}

// records queries cluster DNS and returns the answer section. A reply with another code than NOERROR and NXDOMAIN is an
// error.
func (l *Lookup) records(ctx context.Context, name string, qtype uint16) ([]dns.RR, error) {
	reply, err := l.Exchange(ctx, netip.AddrPortFrom(l.First, dnsPort), new(dns.Msg).SetQuestion(name, qtype))
	switch {
	case err != nil:
		return nil, err
	case reply.Rcode != dns.RcodeSuccess && reply.Rcode != dns.RcodeNameError:
		return nil, fmt.Errorf("%s %s: %w", name, dns.RcodeToString[reply.Rcode], errNoRecords)
	}
	return reply.Answer, nil
}

// addressOf returns the address of a record, the zero address if it has none.
func addressOf(rr dns.RR) netip.Addr {
	var a netip.Addr
	switch rr := rr.(type) {
	case *dns.A:
		a, _ = netip.AddrFromSlice(rr.A)
	case *dns.AAAA:
		a, _ = netip.AddrFromSlice(rr.AAAA)
	}
	return a.Unmap()
}
