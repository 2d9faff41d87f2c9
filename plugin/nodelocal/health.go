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
	// renewal is the interval of the server's queries to itself, each of whose answers renews the lease of an
	// address.
	renewal = 300 * time.Millisecond
	// healthWait is how long a query to itself waits for its answer.
	healthWait = 400 * time.Millisecond
	// tcpEvery: every tcpEvery-th query is sent over TCP as well.
	tcpEvery = 10
	// steady is the number of answers in a row, catchUp apart, that it takes to take the lease, or to renew it
	// after a query without an answer. Where another instance on the same address hangs, about every second
	// query is lost.
	steady  = 5
	catchUp = 25 * time.Millisecond
	// tick bounds how much earlier the lease expires in the kernel, which counts jiffies (up to 10 ms). A lease that
	// the kernel refuses to renew earlier than that was removed.
	tick = 50 * time.Millisecond
)

const (
	// firstPause is how long the server has to answer without a gap before it takes a lost lease again. The pause
	// doubles with each loss up to maxPause, until a lease was held for stablePeriod: a server that is starved
	// again and again would else cost pods a second each time.
	firstPause   = time.Second
	maxPause     = 30 * time.Second
	stablePeriod = time.Minute
)

// asker asks the server on one address whether it answers.
type asker struct {
	to     netip.AddrPort
	as     netip.AddrPort // stands for to in queries that arrive as those of pods do; invalid without
	suffix string         // of the names asked for
	wait   time.Duration  // for an answer
	asked  uint64
	tcp    bool // the next query goes over TCP as well
}

// ask sends one query over UDP, and every tcpEvery-th time one over TCP, always after one that failed.
// If arriving is set, and there is a way for it, the queries arrive on an interface as those of pods do.
func (a *asker) ask(ctx context.Context, arriving bool) error {
	ctx, cancel := context.WithTimeout(ctx, healthWait)
	defer cancel()
	tcp := a.tcp || a.asked%tcpEvery == 0
	a.asked++
	if err := a.exchange(ctx, "udp", arriving); err != nil {
		return err
	}
	if !tcp {
		return nil
	}
	err := a.exchange(ctx, "tcp", arriving)
	a.tcp = err != nil
	return err
}

func (a *asker) exchange(ctx context.Context, network string, arriving bool) error {
	d, to := net.Dialer{LocalAddr: a.local(network)}, a.as
	if !arriving || !to.IsValid() {
		d.Control, to = Ask, a.to
	}
	m := new(dns.Msg)
	m.SetQuestion(strconv.FormatUint(a.asked, 36)+a.suffix, dns.TypeTXT)
	m.RecursionDesired = false
	client := dns.Client{Net: network, Dialer: &d, Timeout: a.wait}
	r, _, err := client.ExchangeContext(ctx, m, to.String())
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", network, err)
	case !healthy(r):
		return fmt.Errorf("%s: %w", network, errOther)
	}
	return nil
}

// send sends a datagram with a mark that renews or takes the lease, and returns whether the rules did so: they
// drop it then, which the kernel reports as EPERM.
func (a *asker) send(value int) (done bool) {
	d := net.Dialer{LocalAddr: a.local("udp"), Control: mark(value)}
	c, err := d.Dial("udp", a.to.String())
	if err != nil {
		return false
	}
	_, err = c.Write(make([]byte, 1)) // no DNS message: servers ignore it if no rule drops it
	return errors.Is(errors.Join(err, c.Close()), syscall.EPERM)
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
	return &asker{to: netip.AddrPortFrom(addr, port), suffix: suffix, wait: healthWait}
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

// errIgnored is why an address has no lease although the server answers.
var errIgnored = errors.New("renewals of its lease do not reach the rules; another table of nftables may drop them or change their mark before priority raw - 10")

// errLate is why a lease was lost although the server answers.
var errLate = errors.New("the server was stopped or starved, and has answered too late")

// lease is the state of the lease of one address, as far as this process knows. Times are monotonic, as those
// of the elements in the kernel.
type lease struct {
	held    bool
	renewed time.Time // before the datagram was sent, so that it ends here no later than in the kernel
	taken   time.Time
	ignored bool          // the rules did not process the last datagram
	pause   time.Duration // for which the server has to answer before it takes the lease again

	right       int // answers in a row, each less than a lease after the one before
	first, last time.Time
}

// event is the effect of a query on the lease.
type event int

const (
	nothing event = iota
	taken
	lost
	ignored // the rules have not taken the lease
)

// steady returns whether the answers in a row are enough for the lease.
func (l *lease) steady() bool { return l.right >= steady }

// interval returns the time between two queries.
func (l *lease) interval() time.Duration {
	if l.steady() {
		return renewal
	}
	return catchUp // the lease is to be taken, or is about to expire
}

// cause returns why the lease was lost, if err is the outcome of the last query.
func (l *lease) cause(err error) error {
	switch {
	case err != nil:
		return err
	case l.ignored:
		return errIgnored
	}
	return errLate
}

// after processes the outcome of a query: an answer renews the lease, or takes it after enough of them. A lease
// that has expired before the answer is lost. The function send sends a datagram with a mark, and returns
// whether the rules have renewed or taken the lease.
func (l *lease) after(err error, now func() time.Time, send func(mark int) bool) event {
	at := now()
	expired := l.expired(at)
	if expired {
		l.lose(at)
	}
	l.count(err, at)
	switch {
	case expired:
		return lost
	case err != nil, !l.steady(), !l.held && at.Sub(l.first) < l.pause:
		return nothing
	}
	if l.held && send(rules.RenewalMark) {
		l.renewed = at
		return nothing
	}
	// A lease that the kernel has lost before its time was removed along with the table or by a flush: the
	// answers prove that the server can take it again.
	if at = now(); l.expired(at) {
		l.lose(at)
		return lost
	}
	if l.ignored = !send(rules.TakeMark); l.ignored {
		return ignored
	}
	l.renewed = at
	if l.held {
		return nothing
	}
	l.held, l.taken = true, at
	return taken
}

// expired returns whether a lease that is held may have expired in the kernel.
func (l *lease) expired(now time.Time) bool {
	return l.held && now.Sub(l.renewed) >= rules.Lease-tick
}

// count counts the answers in a row.
func (l *lease) count(err error, now time.Time) {
	switch {
	case err != nil:
		l.right = 0
		return
	case l.right == 0 || now.Sub(l.last) >= rules.Lease:
		l.right, l.first = 0, now
	}
	l.right++
	l.last = now
}

func (l *lease) lose(now time.Time) {
	if l.pause = min(2*l.pause, maxPause); l.pause == 0 || now.Sub(l.taken) >= stablePeriod {
		l.pause = firstPause
	}
	l.held, l.right = false, 0
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
