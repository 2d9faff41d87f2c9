//go:build linux

package search

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/netns"
)

// querier sends queries from a namespace to a server.
type querier struct {
	from    *netns.Namespace
	server  string // its address
	source  string // address of the client; empty for the kernel's choice
	network string // "udp" or "tcp"
	edns    bool
	timeout time.Duration // for the reply; 0 is maxWait
}

// send sends one query and returns the reply, without retries.
func (q querier) send(name, qtype string) (*dns.Msg, error) {
	m := new(dns.Msg).SetQuestion(name, dns.StringToType[qtype])
	if q.edns {
		m.SetEdns0(1232, false)
	}
	if q.timeout == 0 {
		q.timeout = maxWait
	}
	socket, err := q.dial()
	if err != nil {
		return nil, err
	}
	c := &dns.Conn{Conn: socket, UDPSize: 1232}
	reply, err := exchange(c, m, time.Now().Add(q.timeout))
	if err := errors.Join(err, c.Close()); err != nil {
		return nil, fmt.Errorf("%s %s %s: %w", q.network, name, qtype, err)
	}
	return reply, nil
}

// dial opens the connection for a query.
func (q querier) dial() (net.Conn, error) {
	dialer := net.Dialer{Timeout: q.timeout}
	if source := net.ParseIP(q.source); q.network == "udp" && source != nil {
		dialer.LocalAddr = &net.UDPAddr{IP: source}
	} else if source != nil {
		dialer.LocalAddr = &net.TCPAddr{IP: source}
	}
	return q.from.Dial(dialer, q.network, net.JoinHostPort(q.server, "53"))
}

// exchange sends a query and returns the reply. It fails if that is for another query or has the option of a search list.
func exchange(c *dns.Conn, m *dns.Msg, end time.Time) (*dns.Msg, error) {
	if err := c.SetDeadline(end); err != nil {
		return nil, err
	}
	if err := c.WriteMsg(m); err != nil {
		return nil, err
	}
	reply, err := c.ReadMsg()
	if err != nil {
		return nil, err
	}
	if reply.Id != m.Id || len(reply.Question) != 1 || reply.Question[0] != m.Question[0] {
		return nil, fmt.Errorf("reply to another question:\n%v", reply)
	}
	opt := reply.IsEdns0()
	if (opt != nil) != (m.IsEdns0() != nil) {
		return nil, fmt.Errorf("only one of query and reply has an OPT record:\n%v", reply)
	}
	if opt != nil && slices.ContainsFunc(opt.Option, func(o dns.EDNS0) bool { return o.Option() == optionSearch }) {
		return nil, fmt.Errorf("reply with a search list:\n%v", reply)
	}
	return reply, nil
}

// brief returns the addresses of a reply and their owner name, or the response code. "NODATA" is NOERROR without records
// of the queried type.
func brief(reply *dns.Msg) string {
	var found []string
	at := reply.Question[0].Name
	for _, r := range reply.Answer {
		if !strings.EqualFold(r.Header().Name, at) {
			return fmt.Sprintf("unexpected record of %s after %s", r.Header().Name, at)
		}
		switch r := r.(type) {
		case *dns.CNAME:
			at = r.Target
		case *dns.A:
			found = append(found, r.A.String())
		case *dns.AAAA:
			found = append(found, r.AAAA.String())
		default:
			return fmt.Sprintf("unexpected record %v", r)
		}
	}
	slices.Sort(found)
	switch {
	case len(found) > 0:
		return strings.Join(found, " ") + " at " + strings.ToLower(at)
	case reply.Rcode == dns.RcodeSuccess:
		return "NODATA"
	}
	return dns.RcodeToString[reply.Rcode]
}

// check sends a query, and returns an error if brief of the reply is not want.
func (q querier) check(name, qtype, want string) error {
	reply, err := q.send(name, qtype)
	if err != nil {
		return err
	}
	if got := brief(reply); got != want {
		return fmt.Errorf("from %s over %s: %s %s: got %q, want %q", q.from.Name, q.network, name, qtype, got, want)
	}
	return nil
}
