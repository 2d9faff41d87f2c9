package nodelocaldns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	clog "github.com/coredns/coredns/plugin/pkg/log"
	"github.com/miekg/dns"
)

// The kubelet sets the first address of a Service in the environment, and not that of the other family. That one is
// looked up in cluster DNS, which needs no rights: the PTR record of the first address has the name of the Service, and
// the name has records of both addresses.
const (
	// lookupTimeout bounds one lookup; the first one delays the start.
	lookupTimeout = time.Second
	// lookupRetry is the pause after a lookup that failed.
	lookupRetry = 5 * time.Second
	// lookupEvery is the pause after any other: the families of a Service hardly ever change.
	lookupEvery = 10 * time.Minute
	// maxEmptyReplies is how many consecutive lookups without an address show that the Service has none in the other
	// family: a server of cluster DNS that has just started may not have its records yet.
	maxEmptyReplies = 5
)

const dnsPort = 53

// exchange sends a query to a server and returns the reply.
type exchange func(ctx context.Context, server netip.AddrPort, query *dns.Msg) (*dns.Msg, error)

func exchangeUDP(ctx context.Context, server netip.AddrPort, query *dns.Msg) (*dns.Msg, error) {
	reply, _, err := new(dns.Client).ExchangeContext(ctx, query, server.String())
	return reply, err
}

// defaultFallback returns the known addresses of the Service of -upstreamsvc, none if they are not the fallback.
func (n *Node) defaultFallback() (all []string) {
	first, ok := n.firstFallback()
	if !ok {
		return nil
	}
	all = []string{first.String()}
	if other := n.otherFamily.Load(); other != nil && n.needsOtherFamily(first) {
		all = append(all, other.String())
	}
	return all
}

// firstFallback returns the address in the environment, unless -fallback is set or it is a node-local address.
func (n *Node) firstFallback() (first netip.Addr, ok bool) {
	first, err := netip.ParseAddr(n.getenv(serviceVariable(n.options.upstreamSvc)))
	first = first.Unmap()
	return first, err == nil && len(n.options.fallback.addresses) == 0 && !n.isLocal(first)
}

// needsOtherFamily reports whether a node-local address is of another family than the first fallback.
func (n *Node) needsOtherFamily(first netip.Addr) bool {
	return slices.ContainsFunc(n.options.localIPs, func(l netip.Addr) bool {
		routed := l.Is4() || !l.IsLinkLocalUnicast()
		return routed && l.Is4() != first.Is4()
	})
}

var errNoRecords = errors.New("no records")

// lookUpOtherFamily looks up the fallback of the other family, if there must be one. After an error, which a reply
// without an address is up to maxEmptyReplies, the address stays as it is.
func (n *Node) lookUpOtherFamily(ctx context.Context) (changed bool, err error) {
	first, ok := n.firstFallback()
	if !ok || !n.needsOtherFamily(first) {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	other, err := n.otherAddress(ctx, first)
	before := n.otherFamily.Load()
	switch {
	case err != nil:
		return false, err
	case !other.IsValid():
		if n.emptyReplies++; n.emptyReplies < maxEmptyReplies {
			return false, errNoRecords
		}
		n.otherFamily.Store(nil)
		return before != nil, nil
	}
	n.emptyReplies = 0
	if before != nil && *before == other {
		return false, nil
	}
	n.otherFamily.Store(&other)
	clog.Infof("Service %s has the addresses %s and %s: both are fallbacks", n.options.upstreamSvc, first, other)
	return true, nil
}

// otherAddress returns the address of a Service in the other family; the zero address if it has none.
func (n *Node) otherAddress(ctx context.Context, first netip.Addr) (none netip.Addr, err error) {
	reverse, err := dns.ReverseAddr(first.String())
	if err != nil {
		return none, err
	}
	server := netip.AddrPortFrom(first, dnsPort)
	names, err := n.records(ctx, server, reverse, dns.TypePTR)
	if err != nil {
		return none, err
	}
	qtype := dns.TypeAAAA
	if first.Is6() {
		qtype = dns.TypeA
	}
	for _, rr := range names {
		ptr, ok := rr.(*dns.PTR)
		if !ok || !strings.HasPrefix(strings.ToLower(ptr.Ptr), n.options.upstreamSvc+".") {
			continue
		}
		addresses, err := n.records(ctx, server, ptr.Ptr, qtype)
		if err != nil {
			return none, err
		}
		for _, rr := range addresses {
			if a, ok := serviceAddress(rr); ok && a.Is4() != first.Is4() && !n.isLocal(a) {
				return a, nil
			}
		}
	}
	return none, nil
}

// records queries a server and returns the answer section. A reply with another code than NOERROR and NXDOMAIN is an
// error.
func (n *Node) records(ctx context.Context, server netip.AddrPort, name string, qtype uint16) ([]dns.RR, error) {
	reply, err := n.exchange(ctx, server, new(dns.Msg).SetQuestion(name, qtype))
	switch {
	case err != nil:
		return nil, err
	case reply.Rcode != dns.RcodeSuccess && reply.Rcode != dns.RcodeNameError:
		return nil, fmt.Errorf("%s %s: %w", name, dns.RcodeToString[reply.Rcode], errNoRecords)
	}
	return reply.Answer, nil
}

// serviceAddress returns the address of a record if a Service may have it.
func serviceAddress(rr dns.RR) (netip.Addr, bool) {
	var ip net.IP
	switch rr := rr.(type) {
	case *dns.A:
		ip = rr.A
	case *dns.AAAA:
		ip = rr.AAAA
	}
	a, err := localAddress(ip.String())
	return a, err == nil && !a.IsLinkLocalUnicast()
}

// followOtherFamily repeats the lookup.
func (n *Node) followOtherFamily(ctx context.Context, changed func()) {
	if first, ok := n.firstFallback(); !ok || !n.needsOtherFamily(first) {
		return
	}
	pause := time.Duration(0)
	if n.otherFamily.Load() != nil {
		pause = lookupEvery
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		is, err := n.lookUpOtherFamily(ctx)
		if is {
			changed()
		}
		if pause = lookupEvery; err != nil {
			pause = lookupRetry
		}
	}
}
