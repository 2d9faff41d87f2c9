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

// asking is who asks whom.
type asking struct {
	from     *netns.Namespace
	server   string // its address
	source   string // the address to ask from; empty for the one that the kernel chooses
	network  string // "udp" or "tcp"
	edns     bool
	lifetime time.Duration // for the reply; 0 is bounded
}

// ask sends one query and returns the reply, without retries.
func (a asking) ask(name, qtype string) (*dns.Msg, error) {
	m := new(dns.Msg).SetQuestion(name, dns.StringToType[qtype])
	if a.edns {
		m.SetEdns0(1232, false)
	}
	if a.lifetime == 0 {
		a.lifetime = bounded
	}
	var socket net.Conn
	if err := a.from.Do(func() (err error) {
		socket, err = a.dial()
		return err
	}); err != nil {
		return nil, err
	}
	c := &dns.Conn{Conn: socket, UDPSize: 1232}
	reply, err := exchange(c, m, time.Now().Add(a.lifetime))
	if err := errors.Join(err, c.Close()); err != nil {
		return nil, fmt.Errorf("%s %s %s: %w", a.network, name, qtype, err)
	}
	return reply, nil
}

// dial makes the connection that the query goes over.
func (a asking) dial() (net.Conn, error) {
	dialer := net.Dialer{Timeout: a.lifetime}
	if source := net.ParseIP(a.source); a.network == "udp" && source != nil {
		dialer.LocalAddr = &net.UDPAddr{IP: source}
	} else if source != nil {
		dialer.LocalAddr = &net.TCPAddr{IP: source}
	}
	return dialer.Dial(a.network, net.JoinHostPort(a.server, "53"))
}

// exchange sends a query, and reads the reply, which is to be one to it and not to tell of search lists.
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
		return nil, fmt.Errorf("the reply is not to the question:\n%v", reply)
	}
	opt := reply.IsEdns0()
	if (opt != nil) != (m.IsEdns0() != nil) {
		return nil, fmt.Errorf("an OPT record is in one of query and reply:\n%v", reply)
	}
	if opt != nil && slices.ContainsFunc(opt.Option, func(o dns.EDNS0) bool { return o.Option() == optionSearch }) {
		return nil, fmt.Errorf("the reply tells of a search list:\n%v", reply)
	}
	return reply, nil
}

// brief tells what a client learns from a reply: the addresses, where they are, and the code. "NODATA" is NOERROR
// without the type that was asked for.
func brief(reply *dns.Msg) string {
	var found []string
	at := reply.Question[0].Name
	for _, r := range reply.Answer {
		if !strings.EqualFold(r.Header().Name, at) {
			return fmt.Sprintf("a record of %s behind %s", r.Header().Name, at)
		}
		switch r := r.(type) {
		case *dns.CNAME:
			at = r.Target
		case *dns.A:
			found = append(found, r.A.String())
		case *dns.AAAA:
			found = append(found, r.AAAA.String())
		default:
			return fmt.Sprintf("a record %v", r)
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

// check asks, and returns an error if the answer is not as it is to be.
func (a asking) check(name, qtype, want string) error {
	reply, err := a.ask(name, qtype)
	if err != nil {
		return err
	}
	if got := brief(reply); got != want {
		return fmt.Errorf("from %s over %s: %s %s: got %q, want %q", a.from.Name, a.network, name, qtype, got, want)
	}
	return nil
}
