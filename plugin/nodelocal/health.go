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

	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
)

const (
	// renewal is how often the server asks itself, and with that renews the lease of an address.
	renewal = 300 * time.Millisecond
	// healthWait is how long an answer may take. With it a server that is just too slow renews in time.
	healthWait = 600 * time.Millisecond
	// tcpEvery says that each so manieth query goes over TCP as well.
	tcpEvery = 10
	// steady is how many answers in a row it takes, catchUp apart, before the lease is taken, or renewed
	// after a query that was not answered. Where another instance hangs on the same address, about every
	// second query is its.
	steady  = 5
	catchUp = 50 * time.Millisecond
)

// asker asks the server on one address whether it answers.
type asker struct {
	to     netip.AddrPort
	suffix string // of the names asked for
	asked  uint64
	tcp    bool // the next query goes over TCP as well
}

// ask sends one query over UDP, and now and then one over TCP, always after one that failed. That over
// UDP is marked if renew is set: then it renews the lease by passing the rules.
func (a *asker) ask(ctx context.Context, renew bool) error {
	ctx, cancel := context.WithTimeout(ctx, healthWait)
	defer cancel()
	tcp := a.tcp || a.asked%tcpEvery == 0
	a.asked++
	if err := a.exchange(ctx, "udp", renew); err != nil {
		return err
	}
	if !tcp {
		return nil
	}
	err := a.exchange(ctx, "tcp", false)
	a.tcp = err != nil
	return err
}

func (a *asker) exchange(ctx context.Context, network string, renew bool) error {
	d := net.Dialer{LocalAddr: a.local(network), Control: Ask}
	if renew {
		d.Control = mark(rules.RenewalMark)
	}
	m := new(dns.Msg)
	m.SetQuestion(strconv.FormatUint(a.asked, 36)+a.suffix, dns.TypeTXT)
	m.RecursionDesired = false
	client := dns.Client{Net: network, Dialer: &d, Timeout: healthWait}
	r, _, err := client.ExchangeContext(ctx, m, a.to.String())
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", network, err)
	case !healthy(r):
		return fmt.Errorf("%s: %w", network, errOther)
	}
	return nil
}

// errOther says that what answers on the address is not nodecache, or that the query got elsewhere.
var errOther = errors.New("another DNS server answers: one on the address, or cluster DNS because another table of nftables takes away the mark of the query before priority raw - 10")

func healthy(r *dns.Msg) bool {
	if r.Rcode != dns.RcodeSuccess || len(r.Answer) != 1 {
		return false
	}
	txt, ok := r.Answer[0].(*dns.TXT)
	return ok && len(txt.Txt) == 1 && txt.Txt[0] == HealthText
}

// newAsker returns one for an address of the node. A link-local IPv6 address needs the interface.
func newAsker(addr netip.Addr, iface string, port uint16, suffix string) *asker {
	if addr.Is6() && addr.IsLinkLocalUnicast() {
		addr = addr.WithZone(iface)
	}
	return &asker{to: netip.AddrPortFrom(addr, port), suffix: suffix}
}

// local is where queries come from: the address that is asked.
func (a *asker) local(network string) net.Addr {
	ip := a.to.Addr()
	if network == "tcp" {
		return net.TCPAddrFromAddrPort(netip.AddrPortFrom(ip, 0))
	}
	return net.UDPAddrFromAddrPort(netip.AddrPortFrom(ip, 0))
}

// Ask is a Control function for a net.Dialer whose query from a node-local address to itself is to reach
// the server whatever the lease. Without the capability it goes where other queries go.
func Ask(network, address string, c syscall.RawConn) error {
	return mark(rules.AskMark)(network, address, c)
}

// mark returns what sets the mark of a socket's packets. Without the capability the query goes out
// unmarked.
func mark(value int) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			_ = setMark(int(fd), value)
		})
	}
}

// lease is what the process knows of the lease of one address.
type lease struct {
	renewed time.Time // when it was renewed the last time
	held    bool
	right   int // answers in a row
}

// event is what a query meant for the lease.
type event int

const (
	nothing event = iota
	taken
	lost
	lostAndTaken // it ran out before it was renewed
)

// renew returns whether the next query is to renew the lease.
func (l *lease) renew() bool { return l.right >= steady }

// after takes the outcome of a query that was sent at a time, marked or not.
func (l *lease) after(sent time.Time, marked bool, err error, now time.Time) (e event) {
	if marked {
		switch ranOut := sent.Sub(l.renewed) >= rules.Lease; {
		case !l.held:
			e = taken
		case ranOut:
			e = lostAndTaken
		}
		l.renewed, l.held = sent, true
	}
	if err == nil {
		l.right++
		return e
	}
	l.right = 0
	if l.held && now.Sub(l.renewed) >= rules.Lease {
		l.held = false
		return lost
	}
	return e
}

// silenceWait is how long an address may be without the lease and without an answer before that is said.
const silenceWait = 5 * time.Second

// silence is the time in which the server has not answered itself.
type silence struct {
	since time.Time
	said  bool
}

// after takes the outcome of a query, and returns whether the silence is to be said now, once.
func (s *silence) after(err error, held bool, now time.Time) bool {
	if err == nil || held {
		*s = silence{since: now, said: held} // the loss of a lease is said as such
		return false
	}
	if s.said || now.Sub(s.since) < silenceWait {
		return false
	}
	s.said = true
	return true
}
