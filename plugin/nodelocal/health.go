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
)

// asker asks the server on one address whether it answers.
type asker struct {
	to     netip.AddrPort
	suffix string // of the names asked for
	asked  uint64
}

// ask sends one query over UDP, and now and then one over TCP. The first is marked if renew is set:
// then it renews the lease by passing the rules.
func (a *asker) ask(ctx context.Context, renew bool) error {
	ctx, cancel := context.WithTimeout(ctx, healthWait)
	defer cancel()
	a.asked++
	if err := a.exchange(ctx, "udp", renew); err != nil {
		return err
	}
	if a.asked%tcpEvery == 1 {
		return a.exchange(ctx, "tcp", false)
	}
	return nil
}

func (a *asker) exchange(ctx context.Context, network string, renew bool) error {
	d := net.Dialer{LocalAddr: a.local(network)}
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

// errOther says that what answers on the address is not nodecache.
var errOther = errors.New("another DNS server answers on the address")

func healthy(r *dns.Msg) bool {
	if r.Rcode != dns.RcodeSuccess || len(r.Answer) != 1 {
		return false
	}
	txt, ok := r.Answer[0].(*dns.TXT)
	return ok && len(txt.Txt) == 1 && txt.Txt[0] == HealthText
}

// local is where queries come from: the loopback address, by which the rules know them.
func (a *asker) local(network string) net.Addr {
	ip := netip.IPv6Loopback()
	if a.to.Addr().Is4() {
		ip = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	if network == "tcp" {
		return net.TCPAddrFromAddrPort(netip.AddrPortFrom(ip, 0))
	}
	return net.UDPAddrFromAddrPort(netip.AddrPortFrom(ip, 0))
}

// mark returns what sets the mark of a socket's packets. Without the capability the query goes out
// unmarked, and renews nothing.
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
}

// after takes the outcome of a query that was sent at a time, marked or not, and returns whether the
// next one is to renew the lease, and whether the lease was taken or lost by this one.
func (l *lease) after(sent time.Time, marked bool, err error, now time.Time) (renew, taken, lost bool) {
	if marked {
		l.renewed = sent
		taken, l.held = !l.held, true
	}
	if err == nil {
		return true, taken, false
	}
	if l.held && now.Sub(l.renewed) >= rules.Lease {
		l.held = false
		return false, taken, true
	}
	return false, taken, false
}
