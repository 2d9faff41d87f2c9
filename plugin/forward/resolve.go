package forward

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// addresses are what a lookup has found. The two families are asked for by themselves: where one could
// not be, nothing is known of it.
type addresses struct {
	found   []netip.Addr
	unknown [2]bool // IPv4, IPv6
}

var families = [2]struct {
	qtype   uint16
	network string
}{{dns.TypeA, "ip4"}, {dns.TypeAAAA, "ip6"}}

// errNoHost is the error of a lookup where a name has no address: it does not exist, or has none. Any
// other error may pass.
var errNoHost = errors.New("there is no address of it")

// after returns the addresses when those before were known. These come first, as far as they are still
// right or nothing is known of their family.
func (a addresses) after(before []netip.Addr) (all []netip.Addr) {
	for _, address := range before {
		family := 0
		if address.Is6() {
			family = 1
		}
		if a.unknown[family] || slices.Contains(a.found, address) {
			all = append(all, address)
		}
	}
	for _, address := range a.found {
		if !slices.Contains(all, address) {
			all = append(all, address)
		}
	}
	return all
}

// newLookup returns what looks up names: at resolvers that are given as host:port, or with the system's.
// Names are absolute.
func newLookup(resolvers []string) func(context.Context, string) (addresses, error) {
	if len(resolvers) == 0 {
		// Go's own can tell a name that does not exist from a server that does not answer.
		system := systemLookup{resolver: &net.Resolver{PreferGo: true}}
		return system.lookup
	}
	return serverLookup{servers: resolvers, timeout: 2 * time.Second}.lookup
}

// both asks for the two families at the same time, and puts together what comes.
func both(ask func(family int) ([]netip.Addr, error)) (all addresses, err error) {
	var found [2][]netip.Addr
	var errs [2]error
	var wait sync.WaitGroup
	for family := range families {
		wait.Go(func() { found[family], errs[family] = ask(family) })
	}
	wait.Wait()
	for family := range families {
		all.unknown[family] = errs[family] != nil && !errors.Is(errs[family], errNoHost)
		for _, address := range found[family] {
			// Servers that block names give such addresses, which are not there to be asked.
			if address = address.Unmap(); !address.IsUnspecified() && !address.IsMulticast() {
				all.found = append(all.found, address)
			}
		}
	}
	switch {
	case len(all.found) > 0:
		return all, nil
	case all.unknown[0]:
		return all, errs[0]
	case all.unknown[1]:
		return all, errs[1]
	}
	return all, errNoHost
}

// systemLookup asks as the system is configured.
type systemLookup struct{ resolver *net.Resolver }

func (l systemLookup) lookup(ctx context.Context, name string) (addresses, error) {
	return both(func(family int) ([]netip.Addr, error) {
		found, err := l.resolver.LookupNetIP(ctx, families[family].network, name)
		var failure *net.DNSError
		if errors.As(err, &failure) && failure.IsNotFound {
			return nil, errNoHost
		}
		return found, err
	})
}

// serverLookup asks servers, one after the other until one has an address.
type serverLookup struct {
	servers []string
	timeout time.Duration // for one answer
}

// lookup returns errNoHost only if all servers say so.
func (l serverLookup) lookup(ctx context.Context, name string) (addresses, error) {
	var failure error
	for _, server := range l.servers {
		found, err := both(func(family int) ([]netip.Addr, error) {
			return l.ask(ctx, server, name, families[family].qtype)
		})
		if err == nil {
			return found, nil
		}
		if !errors.Is(err, errNoHost) && failure == nil {
			failure = err
		}
	}
	if failure == nil {
		failure = errNoHost
	}
	return addresses{}, failure
}

// ask asks one server for one type, over UDP, and over TCP if the answer is too long for that.
func (l serverLookup) ask(ctx context.Context, server, name string, qtype uint16) (found []netip.Addr, err error) {
	query := new(dns.Msg)
	query.SetQuestion(name, qtype)
	query.SetEdns0(1232, false)
	reply, err := l.exchange(ctx, "udp", server, query)
	if err == nil && reply.Truncated {
		reply, err = l.exchange(ctx, "tcp", server, query)
	}
	if err != nil {
		return nil, fmt.Errorf("asking %s: %w", server, err)
	}
	switch reply.Rcode {
	case dns.RcodeSuccess:
	case dns.RcodeNameError:
		return nil, errNoHost
	default:
		return nil, fmt.Errorf("%s answered %s", server, dns.RcodeToString[reply.Rcode])
	}
	for _, rr := range reply.Answer {
		var ip net.IP
		switch rr := rr.(type) {
		case *dns.A:
			ip = rr.A
		case *dns.AAAA:
			ip = rr.AAAA
		}
		if address, ok := netip.AddrFromSlice(ip); ok {
			found = append(found, address)
		}
	}
	if len(found) == 0 {
		return nil, errNoHost
	}
	return found, nil
}

// exchange sends a query and waits for the reply to it.
func (l serverLookup) exchange(ctx context.Context, network, server string, query *dns.Msg) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	raw, err := new(net.Dialer).DialContext(ctx, network, server)
	if err != nil {
		return nil, err
	}
	defer func() { _ = raw.Close() }() // there is nothing left to do with it
	end := context.AfterFunc(ctx, func() { _ = raw.SetDeadline(time.Unix(1, 0)) })
	defer end()
	conn := &dns.Conn{Conn: raw, UDPSize: 1232}
	if err := conn.WriteMsg(query); err != nil {
		return nil, err
	}
	for {
		reply, err := conn.ReadMsg()
		var failure net.Error
		if err != nil && (network == "tcp" || errors.As(err, &failure)) {
			return nil, err
		}
		// Anything else that comes over UDP may be from somebody else.
		if err == nil && repliesTo(reply, query) {
			return reply, nil
		}
	}
}

// repliesTo tells whether a message is the reply to a query. One that refuses may be without a question.
func repliesTo(reply, query *dns.Msg) bool {
	if !reply.Response || reply.Id != query.Id {
		return false
	}
	if len(reply.Question) == 0 {
		return reply.Rcode != dns.RcodeSuccess && reply.Rcode != dns.RcodeNameError
	}
	q := query.Question[0]
	return len(reply.Question) == 1 && reply.Question[0] == dns.Question{Name: reply.Question[0].Name, Qtype: q.Qtype, Qclass: q.Qclass} &&
		dns.CanonicalName(reply.Question[0].Name) == dns.CanonicalName(q.Name)
}
