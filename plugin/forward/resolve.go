package forward

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/forward/transport"
)

// addresses is the result of a lookup. Each address family has its own query, which may fail.
type addresses struct {
	found   []netip.Addr
	unknown [2]bool // the query for IPv4, IPv6 failed
}

var families = [2]struct {
	qtype   uint16
	network string
}{{dns.TypeA, "ip4"}, {dns.TypeAAAA, "ip6"}}

// errNoHost is the error for a name that does not exist, or has no address. Other errors are temporary.
var errNoHost = errors.New("no address found")

// after returns the addresses in a stable order: first those of the last lookup that are still valid, or whose family is
// unknown.
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

// newLookup returns a function that looks up absolute names at resolvers, given as host:port, or without any as the system is
// configured.
func newLookup(resolvers []string) func(context.Context, string) (addresses, error) {
	if len(resolvers) == 0 {
		// Go's resolver distinguishes a name that does not exist from a failure.
		system := systemLookup{resolver: &net.Resolver{PreferGo: true}}
		return system.lookup
	}
	return serverLookup{servers: resolvers, timeout: 2 * time.Second}.lookup
}

// both queries the two families concurrently.
func both(query func(family int) ([]netip.Addr, error)) (all addresses, err error) {
	var found [2][]netip.Addr
	var errs [2]error
	var wait sync.WaitGroup
	for family := range families {
		wait.Go(func() { found[family], errs[family] = query(family) })
	}
	wait.Wait()
	for family := range families {
		all.unknown[family] = errs[family] != nil && !errors.Is(errs[family], errNoHost)
		for _, address := range found[family] {
			// Servers that block names answer with such addresses.
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

// systemLookup looks up names as the system is configured.
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

// serverLookup queries servers in turn until one has an address.
type serverLookup struct {
	servers []string
	timeout time.Duration // for one answer
}

// lookup returns errNoHost only if all servers do.
func (l serverLookup) lookup(ctx context.Context, name string) (addresses, error) {
	var failure error
	for _, server := range l.servers {
		found, err := both(func(family int) ([]netip.Addr, error) {
			return l.query(ctx, server, name, families[family].qtype)
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

// query queries one server for one type, over UDP, and over TCP if the answer is truncated.
func (l serverLookup) query(ctx context.Context, server, name string, qtype uint16) (found []netip.Addr, err error) {
	m := new(dns.Msg)
	m.SetQuestion(name, qtype)
	m.SetEdns0(1232, false)
	query, err := m.Pack()
	if err != nil {
		return nil, err
	}
	reply, err := l.exchange(ctx, "udp", server, query)
	if err == nil && reply.Truncated {
		reply, err = l.exchange(ctx, "tcp", server, query)
	}
	if err != nil {
		return nil, fmt.Errorf("query %s: %w", server, err)
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

// exchange sends a query and waits for the answer. Other datagrams are ignored: they may be forged.
func (l serverLookup) exchange(ctx context.Context, network, server string, query []byte) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	raw, err := new(net.Dialer).DialContext(ctx, network, server)
	if err != nil {
		return nil, err
	}
	defer func() { _ = raw.Close() }() // no data is lost
	stop := context.AfterFunc(ctx, func() { _ = raw.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	conn := &dns.Conn{Conn: raw, UDPSize: 1232}
	if _, err := conn.Write(query); err != nil {
		return nil, err
	}
	for {
		reply := new(dns.Msg)
		packed, err := conn.ReadMsgHeader(nil)
		if err == nil && isAnswerTo(packed, query) {
			if err = reply.Unpack(packed); err == nil {
				return reply, nil
			}
		}
		var failure net.Error // any other error over UDP is of a datagram that may be forged
		if err != nil && (network == "tcp" || errors.As(err, &failure)) {
			return nil, err
		}
	}
}

// isAnswerTo reports whether a message answers a query. The case of the name may differ.
func isAnswerTo(message, query []byte) bool {
	reason := transport.Check(query, message)
	return bytes.HasPrefix(message, query[:2]) && (reason == "" || reason == transport.WrongCase)
}
