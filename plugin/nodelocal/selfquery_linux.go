package nodelocal

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
)

// tcpEvery: every tcpEvery-th self-query is sent over TCP as well.
const tcpEvery = 10

// selfQuerier sends self-queries to the server on one address.
type selfQuerier struct {
	to     netip.AddrPort
	target netip.AddrPort // replaces to in queries that arrive as those of pods do; invalid without a pair of devices
	suffix string         // of the queried names
	wait   time.Duration  // max. time for an answer
	sent   uint64
	tcp    int // the number of self-queries, from the next one, that are sent over TCP as well
}

// newSelfQuerier returns a selfQuerier for an address of the node. A link-local IPv6 address needs the interface.
func newSelfQuerier(addr netip.Addr, iface string, port uint16, suffix string) *selfQuerier {
	if addr.Is6() && addr.IsLinkLocalUnicast() {
		addr = addr.WithZone(iface)
	}
	return &selfQuerier{to: netip.AddrPortFrom(addr, port), suffix: suffix, wait: selfQueryWait}
}

// QuerySelf sends one self-query over UDP, past the lease, to a node-local address that is on an interface of this name,
// and waits for the answer of the nodecache whose server block has the zone. With arriving the query arrives on an
// interface as those of pods do, instead of on lo.
func QuerySelf(ctx context.Context, to netip.AddrPort, iface, zone string, arriving bool, wait time.Duration) error {
	q := newSelfQuerier(to.Addr(), iface, to.Port(), healthSuffix(zone))
	q.wait, q.target = wait, netip.AddrPortFrom(rules.QuestionTarget(to.Addr()), to.Port())
	return q.exchange(ctx, "udp", arriving)
}

// query sends one self-query over UDP, and over TCP as well every tcpEvery-th time and minAnswers times after a failure:
// the answers by which a lease outlives a failure must cover both. With arriving the self-queries arrive on an interface
// as those of pods do, if there is a pair of devices.
func (q *selfQuerier) query(ctx context.Context, arriving bool) error {
	ctx, cancel := context.WithTimeout(ctx, q.wait)
	defer cancel()
	tcp := q.tcp > 0 || q.sent%tcpEvery == 0
	q.sent++
	err := q.exchange(ctx, "udp", arriving)
	if err == nil && tcp {
		err = q.exchange(ctx, "tcp", arriving)
		q.tcp = max(q.tcp-1, 0)
	}
	if err != nil {
		q.tcp = minAnswers
	}
	return err
}

// exchange sends a self-query and reads the reply.
func (q *selfQuerier) exchange(ctx context.Context, network string, arriving bool) error {
	d, to := net.Dialer{LocalAddr: q.source(network)}, q.target
	if !arriving || !to.IsValid() {
		d.Control, to = mark(rules.SelfQueryMark), q.to
	}
	m := new(dns.Msg)
	m.SetQuestion(strconv.FormatUint(q.sent, 36)+q.suffix, dns.TypeTXT)
	m.RecursionDesired = false
	client := dns.Client{Net: network, Dialer: &d, Timeout: q.wait}
	r, _, err := client.ExchangeContext(ctx, m, to.String())
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", network, err)
	case !healthy(r):
		return fmt.Errorf("%s: %w", network, ErrOtherServer)
	}
	return nil
}

// ErrOtherServer is the error if the reply is not nodecache's.
var ErrOtherServer = errors.New("another DNS server answers: one on the address, or cluster DNS, because another table of nftables removes the mark of the query before priority raw - 10")

// send sends a datagram with a mark that renews or acquires the lease, and returns whether the rules did so: then they
// have dropped it, which the kernel reports as EPERM.
func (q *selfQuerier) send(value int) (done bool) {
	d := net.Dialer{LocalAddr: q.source("udp"), Control: mark(value)}
	c, err := d.Dial("udp", q.to.String())
	if err != nil {
		return false
	}
	_, err = c.Write(make([]byte, 1)) // no DNS message: the server ignores it if no rule drops it
	return errors.Is(errors.Join(err, c.Close()), syscall.EPERM)
}

// source returns the source of self-queries: the queried address.
func (q *selfQuerier) source(network string) net.Addr {
	from := netip.AddrPortFrom(q.to.Addr(), 0)
	if network == "tcp" {
		return net.TCPAddrFromAddrPort(from)
	}
	return net.UDPAddrFromAddrPort(from)
}

// mark returns a Control function that sets the mark of a socket's packets. Without the capability NET_ADMIN (or, since
// Linux 5.17, NET_RAW) they are sent without a mark.
func mark(value int) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, value)
		})
	}
}
