//go:build linux

package clients

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/netns"
)

const (
	// recorderIP is the address of a recorder.
	recorderIP = "127.0.0.60"
	// recorderDelay is the delay of each reply: a query that the client does not hold back until then arrives before.
	recorderDelay = 20 * time.Millisecond
)

// sent is a query of a client.
type sent struct {
	*dns.Msg
	network string
	port    uint16 // of the client
	waiting int    // other queries without a reply when this one arrived
}

// recorder forwards queries to a server, byte by byte, and records them.
type recorder struct {
	n        *netns.Namespace
	server   string
	packets  net.PacketConn
	listener net.Listener
	running  sync.WaitGroup

	mu      sync.Mutex
	all     []sent
	waiting int
	err     error
}

// record starts a recorder in front of a server.
func record(t *testing.T, n *netns.Namespace, server string) *recorder {
	t.Helper()
	r := &recorder{n: n, server: net.JoinHostPort(server, "53")}
	own := net.JoinHostPort(recorderIP, "53")
	kit.Must(t, n.Do(func() (err error) {
		if r.packets, err = net.ListenPacket("udp", own); err == nil {
			r.listener, err = net.Listen("tcp", own)
		}
		return err
	}))
	t.Cleanup(func() { _, _ = r.packets.Close(), r.listener.Close() }) // if stop is not called
	r.running.Go(r.datagrams)
	r.running.Go(r.connections)
	return r
}

// stop ends the recorder, and returns the queries.
func (r *recorder) stop(t *testing.T) []sent {
	t.Helper()
	if err := errors.Join(r.packets.Close(), r.listener.Close()); err != nil {
		t.Error(err)
	}
	r.running.Wait()
	if r.err != nil {
		t.Errorf("recorder: %v", r.err)
	}
	return r.all
}

func (r *recorder) datagrams() {
	buffer := make([]byte, dns.MaxMsgSize)
	for {
		size, from, err := r.packets.ReadFrom(buffer)
		if err != nil {
			return
		}
		query := slices.Clone(buffer[:size])
		r.add("udp", from, query)
		r.running.Go(func() { _, _ = r.packets.WriteTo(r.forward("udp", query), from) }) // a lost reply is an error of the client
	}
}

func (r *recorder) connections() {
	for {
		c, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.running.Go(func() { r.connection(&dns.Conn{Conn: c}) })
	}
}

func (r *recorder) connection(c *dns.Conn) {
	var writing sync.Mutex
	var replies sync.WaitGroup
	for {
		query, err := c.ReadMsgHeader(nil)
		if err != nil {
			break // the client has closed it
		}
		r.add("tcp", c.RemoteAddr(), query)
		replies.Go(func() {
			reply := r.forward("tcp", query)
			writing.Lock()
			defer writing.Unlock()
			_, _ = c.Write(reply)
		})
	}
	replies.Wait()
	_ = c.Close()
}

// add records a query.
func (r *recorder) add(network string, from net.Addr, query []byte) {
	s := sent{Msg: new(dns.Msg), network: network, port: netip.MustParseAddrPort(from.String()).Port()}
	err := s.Unpack(query)
	r.mu.Lock()
	defer r.mu.Unlock()
	s.waiting = r.waiting
	r.waiting++
	if err != nil || len(s.Question) != 1 {
		r.err = errors.Join(r.err, fmt.Errorf("query %x: not one question: %v", query, err))
		return
	}
	r.all = append(r.all, s)
}

// forward returns the server's reply to a recorded query, or an empty message after an error.
func (r *recorder) forward(network string, query []byte) []byte {
	reply, err := r.exchange(network, query)
	time.Sleep(recorderDelay)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting--
	r.err = errors.Join(r.err, err)
	return reply
}

// exchange sends a query to the server.
func (r *recorder) exchange(network string, query []byte) ([]byte, error) {
	c, err := r.n.Dial(net.Dialer{}, network, r.server)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	connection := &dns.Conn{Conn: c, UDPSize: dns.MaxMsgSize}
	if err := connection.SetDeadline(time.Now().Add(maxWait)); err != nil {
		return nil, err
	}
	if _, err := connection.Write(query); err != nil {
		return nil, err
	}
	return connection.ReadMsgHeader(nil)
}

// expectation is a property of the queries of a client, with an error for a query without it.
type expectation func(all []sent) error

// each is the expectation that every query has a property.
func each(property string, has func(s sent) bool) expectation {
	return func(all []sent) error {
		for _, s := range all {
			if !has(s) {
				return fmt.Errorf("not %s: over %s: %v", property, s.network, s.Msg)
			}
		}
		return nil
	}
}

// both is the expectation of several properties.
func both(expectations ...expectation) expectation {
	return func(all []sent) (err error) {
		for _, e := range expectations {
			err = errors.Join(err, e(all))
		}
		return err
	}
}

// overUDP is the expectation that the first query for each name is sent over UDP.
func overUDP(all []sent) error {
	known := map[string]bool{}
	for _, s := range all {
		if s.network != "udp" && !known[s.Question[0].Name] {
			return fmt.Errorf("%s over %s first", s.Question[0].Name, s.network)
		}
		known[s.Question[0].Name] = true
	}
	return nil
}

// overTCP is the expectation that no query is sent over UDP.
var overTCP = each("over TCP", func(s sent) bool { return s.network == "tcp" })

// edns is the expectation of EDNS.
var edns = each("with EDNS", func(s sent) bool { return s.IsEdns0() != nil })

// noEDNS is the expectation that no query has EDNS.
var noEDNS = each("without EDNS", func(s sent) bool { return s.IsEdns0() == nil })

// withOptions is the expectation of a payload, and of EDNS options with data of a minimal length.
func withOptions(payload uint16, lengths map[uint16]int) expectation {
	return each(fmt.Sprintf("with payload %d and options %v", payload, lengths), func(s sent) bool {
		opt := s.IsEdns0()
		if opt == nil || opt.UDPSize() != payload {
			return false
		}
		got := map[uint16]int{}
		for _, o := range opt.Option {
			got[o.Option()] = len(o.String()) / 2 // in hexadecimal digits
		}
		for code, length := range lengths {
			if n, ok := got[code]; !ok || n < length {
				return false
			}
		}
		return true
	})
}

// pairs is the expectation of the two queries for the addresses of each name whose replies are not truncated: at once, or one
// after the reply to the other; and from one port or two.
func pairs(atOnce bool, ports int) expectation {
	return func(all []sent) error {
		names, overTCP := map[string][]sent{}, map[string]bool{}
		for _, s := range all {
			name := s.Question[0].Name
			names[name] = append(names[name], s)
			overTCP[name] = overTCP[name] || s.network == "tcp"
		}
		compared, together := 0, 0
		for name, pair := range names {
			if overTCP[name] {
				continue
			}
			compared++
			if len(pair) != 2 || pair[0].Question[0].Qtype == pair[1].Question[0].Qtype {
				return fmt.Errorf("%d queries for %s, want one for A and one for AAAA", len(pair), name)
			}
			if pair[1].waiting > 0 {
				together++
			}
			if got := len(slices.Compact([]uint16{pair[0].port, pair[1].port})); got != ports {
				return fmt.Errorf("%d ports for %s, want %d", got, name, ports)
			}
		}
		if compared == 0 || (together > 0) != atOnce { // on a busy machine, the recorder may receive the second query too late
			return fmt.Errorf("both queries at once for %d of %d names, want some: %t", together, compared, atOnce)
		}
		return nil
	}
}
