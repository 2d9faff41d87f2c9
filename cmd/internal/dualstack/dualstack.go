// Package dualstack finds the second address of a Service that has one of each family. The kubelet sets only the first
// address in the environment. The second is looked up in cluster DNS, which needs no rights: the PTR record of the
// first address has the name of the Service, and the name has records of both addresses. Input: the name and the first
// address of cluster DNS's own Service; output: the second. The package imports no other package of the project.
package dualstack

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	clog "github.com/coredns/coredns/plugin/pkg/log"
)

const (
	// timeout bounds one lookup; the first one delays the start.
	timeout = time.Second
	// Retry is the pause after a lookup that failed.
	Retry = 5 * time.Second
	// Every is the pause after any other lookup: the families of a Service hardly ever change.
	Every = 10 * time.Minute
	// maxEmptyReplies is how many consecutive lookups without an address show that the Service has none in the other
	// family: a server of cluster DNS that has just started may not have its records yet.
	maxEmptyReplies = 5
	dnsPort         = 53
)

var errNoRecords = errors.New("no records")

// Dial connects to a server of DNS.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// Lookup looks up the second address of the Service of cluster DNS.
type Lookup struct {
	Service  string // its name without the namespace
	First    netip.Addr
	Excluded []netip.Addr // addresses that are not the second one
	Dial     Dial

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

// Look looks up the address. After an error the address stays as it is. A reply without an address is an error, until
// maxEmptyReplies such replies were consecutive.
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
	server := netip.AddrPortFrom(l.First, dnsPort).String()
	r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) { return l.Dial(ctx, network, server) }}
	names, err := r.LookupAddr(ctx, l.First.String())
	if err != nil {
		return none, unlessNotFound(err)
	}
	family := "ip6"
	if l.First.Is6() {
		family = "ip4"
	}
	for _, name := range names {
		if !strings.HasPrefix(strings.ToLower(name), l.Service+".") {
			continue
		}
		addresses, err := r.LookupNetIP(ctx, family, name)
		if err = unlessNotFound(err); err != nil {
			return none, err
		}
		for _, a := range addresses {
			if a = a.Unmap(); a.IsGlobalUnicast() && a.Is4() != l.First.Is4() && !slices.Contains(l.Excluded, a) {
				return a, nil
			}
		}
	}
	return none, nil
}

// unlessNotFound returns an error, nil if it is that a name has no records.
func unlessNotFound(err error) error {
	if e := (*net.DNSError)(nil); errors.As(err, &e) && e.IsNotFound {
		return nil
	}
	return err
}
