package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// The behaviour of glibc's resolver with the options that the kubelet writes into resolv.conf.
const (
	ndots           = 5 // with fewer dots, the search list is tried before the name itself
	resolverTimeout = 5 * time.Second
	resolverTries   = 2
)

// resolver looks up names like glibc's getaddrinfo for addresses of both families: for each name of the walk it queries
// A and AAAA at once, from one socket that is closed after the two answers, and the first name that has an address of
// either family ends the walk.
type resolver struct {
	server  netip.AddrPort
	from    net.IP
	search  []string // fully qualified
	timeout time.Duration
	queries int // that were sent
	again   int // of them, those that were sent again
}

// errNoAnswer is the error of a query without an answer, or with an error, which the resolver would report.
var errNoAnswer = errors.New("no answer")

// errWrong is the error of an unexpected answer.
var errWrong = errors.New("a wrong answer")

// walk returns the candidates of a name, in order.
func (r *resolver) walk(name string) []string {
	if strings.HasSuffix(name, ".") {
		return []string{name}
	}
	bare := dns.Fqdn(name)
	all := make([]string, 0, len(r.search)+1)
	for _, suffix := range r.search {
		all = append(all, bare+suffix)
	}
	if strings.Count(name, ".") >= ndots {
		return append([]string{bare}, all...)
	}
	return append(all, bare)
}

// lookup returns the addresses of a name, in order; none if it does not exist.
func (r *resolver) lookup(name string) ([]netip.Addr, error) {
	for _, full := range r.walk(name) {
		addresses, err := r.ask(full)
		if err != nil || len(addresses) > 0 {
			return addresses, err
		}
	}
	return nil, nil
}

// ask queries both families at once.
func (r *resolver) ask(name string) ([]netip.Addr, error) {
	conn, err := net.DialUDP("udp", &net.UDPAddr{IP: r.from}, net.UDPAddrFromAddrPort(r.server))
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	waiting := []*dns.Msg{new(dns.Msg).SetQuestion(name, dns.TypeA), new(dns.Msg).SetQuestion(name, dns.TypeAAAA)}
	waiting[1].Id = waiting[0].Id + 1
	var addresses []netip.Addr
	for try := range resolverTries {
		if try > 0 {
			r.again += len(waiting)
		}
		if err := r.send(conn, waiting); err != nil {
			return nil, err
		}
		waiting, addresses, err = receiveAnswers(conn, time.Now().Add(r.timeout), waiting, addresses)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			slices.SortFunc(addresses, netip.Addr.Compare)
			return addresses, err
		}
	}
	return nil, fmt.Errorf("%s: %w within %s", name, errNoAnswer, resolverTries*r.timeout)
}

func (r *resolver) send(conn *net.UDPConn, queries []*dns.Msg) error {
	for _, q := range queries {
		b, err := q.Pack()
		if err != nil {
			return fmt.Errorf("%s: %w", q.Question[0].Name, err)
		}
		if _, err := conn.Write(b); err != nil {
			return err
		}
		r.queries++
	}
	return nil
}

// receiveAnswers waits for the answers to queries. It returns the queries without an answer, and the addresses.
func receiveAnswers(conn *net.UDPConn, deadline time.Time, waiting []*dns.Msg, addresses []netip.Addr) ([]*dns.Msg, []netip.Addr, error) {
	if err := conn.SetReadDeadline(deadline); err != nil {
		return waiting, addresses, err
	}
	buffer := make([]byte, dns.MinMsgSize) // the queries have no EDNS
	for len(waiting) > 0 {
		n, err := conn.Read(buffer)
		if err != nil {
			return waiting, addresses, err
		}
		var answer dns.Msg
		if err := answer.Unpack(buffer[:n]); err != nil {
			return waiting, addresses, fmt.Errorf("%w: %w", errWrong, err)
		}
		i := slices.IndexFunc(waiting, func(q *dns.Msg) bool { return q.Id == answer.Id })
		if i < 0 {
			continue // the second answer to a query that was sent again
		}
		found, err := addressesIn(waiting[i].Question[0], &answer)
		if err != nil {
			return waiting, addresses, err
		}
		waiting, addresses = slices.Delete(waiting, i, i+1), append(addresses, found...)
	}
	return waiting, addresses, nil
}

// addressesIn returns the addresses of a question in an answer, through CNAME records.
func addressesIn(q dns.Question, m *dns.Msg) (all []netip.Addr, err error) {
	if !m.Response || m.Truncated || len(m.Question) != 1 || m.Question[0] != q {
		return nil, fmt.Errorf("%s: %w: %s", q.Name, errWrong, m)
	}
	if m.Rcode != dns.RcodeSuccess && m.Rcode != dns.RcodeNameError {
		return nil, fmt.Errorf("%s: %w but %s", q.Name, errNoAnswer, dns.RcodeToString[m.Rcode])
	}
	owner := q.Name
	for _, rr := range m.Answer {
		if rr.Header().Name != owner || m.Rcode != dns.RcodeSuccess {
			return nil, fmt.Errorf("%s: %w: %s", q.Name, errWrong, m)
		}
		switch rr := rr.(type) {
		case *dns.CNAME:
			owner = rr.Target
		case *dns.A:
			all = append(all, netip.AddrFrom4([4]byte(rr.A.To4())))
		case *dns.AAAA:
			all = append(all, netip.AddrFrom16([16]byte(rr.AAAA.To16())))
		}
		if family := rr.Header().Rrtype; family != q.Qtype && family != dns.TypeCNAME {
			return nil, fmt.Errorf("%s: %w: %s", q.Name, errWrong, m)
		}
	}
	return all, nil
}
