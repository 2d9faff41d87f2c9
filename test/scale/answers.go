package main

import (
	"fmt"
	"net"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/bench/generated"
)

func serviceName(s generated.Service) string {
	return s.Name + "." + s.Namespace + ".svc.cluster.local."
}

func connects(address string) bool {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return false
	}
	return c.Close() == nil
}

// client queries a server. It has one socket, so that a query costs little.
type client struct{ *dns.Conn }

func dial(address string) (*client, error) {
	c, err := dns.DialTimeout("udp", address, time.Second)
	return &client{c}, err
}

// attempts is the number of queries before an answer is missing: a server under load drops some.
const attempts = 4

func (c *client) exchange(name string, qtype uint16) (r *dns.Msg, err error) {
	for range attempts {
		if r, _, err = (&dns.Client{Timeout: 500 * time.Millisecond}).ExchangeWithConn(new(dns.Msg).SetQuestion(name, qtype), c.Conn); err == nil {
			return r, nil
		}
	}
	return nil, err
}

// responds reports whether the server responds to queries.
func (c *client) responds() bool {
	_, err := c.exchange("cluster.local.", dns.TypeSOA)
	return err == nil
}

// query returns the data of the only record of an answer; otherwise the error, the response code or the number of records.
func (c *client) query(name string, qtype uint16) string {
	r, err := c.exchange(name, qtype)
	switch {
	case err != nil:
		return err.Error()
	case r.Rcode != dns.RcodeSuccess:
		return dns.RcodeToString[r.Rcode]
	case len(r.Answer) != 1:
		return fmt.Sprintf("%d records", len(r.Answer))
	}
	switch rr := r.Answer[0].(type) {
	case *dns.A:
		return rr.A.String()
	case *dns.PTR:
		return rr.Ptr
	}
	return r.Answer[0].String()
}

func (c *client) reverse(address string) string {
	name, err := dns.ReverseAddr(address)
	if err != nil {
		return err.Error()
	}
	return c.query(name, dns.TypePTR)
}

// checked is the number of Services whose answers are checked.
const checked = 200

// check compares answers with the cluster: addresses of Services and of endpoints, and that the addresses of the last
// generation are gone.
func (w *world) check(c *client) error {
	timed, _ := w.timed()
	for i := range min(checked, w.cluster.Services) {
		s := w.cluster.Service(i * w.cluster.Services / min(checked, w.cluster.Services))
		if !s.Headless {
			if got := c.query(serviceName(s), dns.TypeA); got != s.ClusterIP {
				return fmt.Errorf("%s: %s, want %s", serviceName(s), got, s.ClusterIP)
			}
		}
		if s.Endpoints == 0 || s.Name == timed.Name {
			continue
		}
		if err := w.checkEndpoint(c, s, 0); err != nil {
			return err
		}
		if err := w.checkEndpoint(c, s, s.Endpoints-1); err != nil {
			return err
		}
	}
	if got := c.query(w.timedName(), dns.TypeA); got != w.timedAddress() {
		return fmt.Errorf("%s: %s, want %s", w.timedName(), got, w.timedAddress())
	}
	return w.checkEndpoint(c, timed, 0)
}

func (w *world) checkEndpoint(c *client, s generated.Service, n int) error {
	address, old := w.podIP(s.FirstPod+n, w.generation), w.podIP(s.FirstPod+n, w.generation+1)
	if got := c.reverse(old); got != "NXDOMAIN" {
		return fmt.Errorf("PTR of %s: %s, want NXDOMAIN", old, got)
	}
	if !s.Headless {
		if got := c.reverse(address); !dns.IsSubDomain(serviceName(s), got) {
			return fmt.Errorf("PTR of %s: %s, want a name in %s", address, got, serviceName(s))
		}
		return nil
	}
	name := s.Hostname(n) + "." + serviceName(s)
	if got := c.query(name, dns.TypeA); got != address {
		return fmt.Errorf("%s: %s, want %s", name, got, address)
	}
	if got := c.reverse(address); got != name {
		return fmt.Errorf("PTR of %s: %s, want %s", address, got, name)
	}
	return nil
}

// updated reports whether a server has the last endpoints of the last rolling update.
func (w *world) updated(c *client) bool {
	s := w.cluster.Service(w.cluster.Services - 1)
	address := w.podIP(s.FirstPod+s.Endpoints-1, w.generation)
	return dns.IsSubDomain(serviceName(s), c.reverse(address)) && c.query(w.timedName(), dns.TypeA) == w.timedAddress()
}
