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

// The kubelet puts the first address of a Service into the environment, and not the one of the other
// family. That one is looked up in cluster DNS, which needs no rights: the first address has a PTR
// record with the name of the Service, and the name has records of both addresses.
const (
	// lookupWait bounds one lookup; the first one delays the start.
	lookupWait = time.Second
	// lookupRetry is the pause after a lookup that had no reply, or a reply without an address, up to emptyReplies.
	lookupRetry = 5 * time.Second
	// lookupEvery is the pause after any other: the families of a Service hardly ever change.
	lookupEvery = 10 * time.Minute
	// emptyReplies is how many lookups in a row without an address show that the Service has none in the other
	// family: a server of cluster DNS that has just started may not have its records yet.
	emptyReplies = 5
)

const clusterPort = 53

// exchange sends a query to a server and returns the answer.
type exchange func(ctx context.Context, server netip.AddrPort, question *dns.Msg) (*dns.Msg, error)

// exchangeUDP is the exchange of a Node, and another in tests.
func exchangeUDP(ctx context.Context, server netip.AddrPort, question *dns.Msg) (*dns.Msg, error) {
	answer, _, err := new(dns.Client).ExchangeContext(ctx, question, server.String())
	return answer, err
}

// defaultFallback returns the addresses of the Service of -upstreamsvc that are known, if they are to be
// the fallback.
func (n *Node) defaultFallback() (all []string) {
	first, ok := n.firstFallback()
	if !ok {
		return nil
	}
	if all = []string{first.String()}; n.lacksFamily(first) {
		if second := n.second.Load(); second != nil {
			all = append(all, second.String())
		}
	}
	return all
}

// firstFallback returns the address that the environment has, unless -fallback names others or it is
// one of the node-local addresses.
func (n *Node) firstFallback() (first netip.Addr, ok bool) {
	first, err := netip.ParseAddr(n.environ(n.options.upstreamSvc.variable()))
	first = first.Unmap()
	return first, err == nil && len(n.options.fallback.addresses) == 0 && !n.local(first)
}

func (n *Node) local(a netip.Addr) bool { return slices.Contains(n.options.localIPs, a) }

// lacksFamily returns whether a node-local address is of another family than the first fallback.
func (n *Node) lacksFamily(first netip.Addr) bool {
	return slices.ContainsFunc(n.options.localIPs, func(l netip.Addr) bool {
		routed := l.Is4() || !l.IsLinkLocalUnicast()
		return routed && l.Is4() != first.Is4()
	})
}

// lookUpSecond looks the second address of the fallback up, if it is needed, and returns whether it has
// changed. An error, from a lookup without a reply or from one of fewer than emptyReplies without an address, leaves
// the address as it is.
func (n *Node) lookUpSecond(ctx context.Context) (changed bool, err error) {
	first, ok := n.firstFallback()
	if !ok || !n.lacksFamily(first) {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupWait)
	defer cancel()
	second, err := n.secondAddress(ctx, first)
	before := n.second.Load()
	switch {
	case err != nil:
		return false, err
	case !second.IsValid():
		if n.empty++; n.empty < emptyReplies {
			return false, errNoRecords
		}
		n.second.Store(nil)
		return before != nil, nil
	}
	n.empty = 0
	if before != nil && *before == second {
		return false, nil
	}
	n.second.Store(&second)
	clog.Infof("Service %s has the addresses %s and %s: both are fallbacks", &n.options.upstreamSvc, first, second)
	return true, nil
}

// secondAddress returns the address of a Service in the other family; the zero address if it has none.
func (n *Node) secondAddress(ctx context.Context, first netip.Addr) (second netip.Addr, err error) {
	reverse, err := dns.ReverseAddr(first.String())
	if err != nil {
		return second, err
	}
	server := netip.AddrPortFrom(first, clusterPort)
	names, err := n.records(ctx, server, reverse, dns.TypePTR)
	if err != nil {
		return second, err
	}
	qtype := dns.TypeAAAA
	if first.Is6() {
		qtype = dns.TypeA
	}
	for _, rr := range names {
		ptr, ok := rr.(*dns.PTR)
		if !ok || !strings.HasPrefix(strings.ToLower(ptr.Ptr), string(n.options.upstreamSvc)+".") {
			continue
		}
		addresses, err := n.records(ctx, server, ptr.Ptr, qtype)
		if err != nil {
			return second, err
		}
		for _, rr := range addresses {
			if a, ok := addressIn(rr); ok && a.Is4() != first.Is4() && !n.local(a) {
				return a, nil
			}
		}
	}
	return second, nil
}

// records queries a server and returns the answer section. A reply that is neither NOERROR nor
// NXDOMAIN is an error.
func (n *Node) records(ctx context.Context, server netip.AddrPort, name string, qtype uint16) ([]dns.RR, error) {
	answer, err := n.exchange(ctx, server, new(dns.Msg).SetQuestion(name, qtype))
	switch {
	case err != nil:
		return nil, err
	case answer.Rcode != dns.RcodeSuccess && answer.Rcode != dns.RcodeNameError:
		return nil, fmt.Errorf("%s %s: %w", name, dns.RcodeToString[answer.Rcode], errNoRecords)
	}
	return answer.Answer, nil
}

var errNoRecords = errors.New("no records")

// addressIn returns the address of a record that may be one of a Service.
func addressIn(rr dns.RR) (netip.Addr, bool) {
	var ip net.IP
	switch rr := rr.(type) {
	case *dns.A:
		ip = rr.A
	case *dns.AAAA:
		ip = rr.AAAA
	}
	a, ok := netip.AddrFromSlice(ip)
	if !ok {
		return a, false
	}
	a, err := localAddress(a.Unmap().String())
	return a, err == nil && !a.IsLinkLocalUnicast()
}

// followSecond looks the second address up from time to time.
func (n *Node) followSecond(ctx context.Context, changed func()) {
	if first, ok := n.firstFallback(); !ok || !n.lacksFamily(first) {
		return
	}
	pause := time.Duration(0)
	if n.second.Load() != nil {
		pause = lookupEvery
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		is, err := n.lookUpSecond(ctx)
		if is {
			changed()
		}
		if pause = lookupEvery; err != nil {
			pause = lookupRetry
		}
	}
}
