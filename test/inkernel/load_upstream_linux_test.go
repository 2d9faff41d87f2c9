package inkernel

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// The servers of a ledger, by port. Cluster DNS is where the packets of pods go while no nodecache has the lease.
const (
	firstPort   = 5301
	secondPort  = 5302
	clusterPort = 53
)

// ledger is the upstream of a load. Each of its answers has another number as its data, so that every copy of an answer shows
// when the ledger made it, for which question, with which TTL, and at which of its ports.
//
// The first label of a name sets its records: "t30-..." has addresses and a text with a TTL of 30 seconds, "x30-..." does not
// exist for 30 seconds.
type ledger struct {
	host *netns.Namespace

	mu     sync.RWMutex
	issues []*issue
}

// issue is an answer that a ledger has made.
type issue struct {
	port  int
	name  string // lower case
	qtype uint16
	do    bool // with DNSSEC
	ttl   uint32
	made  time.Time
	seen  atomic.Int64 // the first receipt by a client of a load, after epoch; 0 before
}

// epoch is the begin of the times in issues.
var epoch = time.Now().Add(-time.Second)

// Addresses of the host of the ledger.
var (
	ledger4 = netip.MustParseAddr("10.3.0.2")
	ledger6 = netip.MustParseAddr("fd03::2")
)

// at returns the address of a server of the ledger, for the option forward.
func (*ledger) at(port uint16) netip.AddrPort { return netip.AddrPortFrom(ledger4, port) }

// startLedger starts the ledger on a host that is linked with a node, until the end of the test.
func startLedger(t testing.TB, n *node) *ledger {
	t.Helper()
	l := &ledger{host: netns.Add(t, "dns")}
	l.host.Join(t, n.Namespace, "dns0", "10.3.0.%d/24", "fd03::%d/64")
	for _, port := range []uint16{firstPort, secondPort, clusterPort} {
		for _, a := range []netip.Addr{ledger4, ledger6} {
			l.serve(t, netip.AddrPortFrom(a, port))
		}
	}
	return l
}

// serve starts a server over UDP, and over TCP, by which a cache queries by itself.
func (l *ledger) serve(t testing.TB, at netip.AddrPort) {
	t.Helper()
	var socket *net.UDPConn
	var listener net.Listener
	// Until the link is up, an IPv6 address cannot be used.
	kit.Succeeds(t, bounded, "sockets on "+at.String(), func() error {
		return l.host.Do(func() (err error) {
			if listener, err = net.Listen("tcp", at.String()); err != nil {
				return err
			}
			if socket, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at)); err != nil {
				err = errors.Join(err, listener.Close())
			}
			return err
		})
	})
	const buffer = 4 << 20 // a flood waits here
	kit.Must(t, socket.SetReadBuffer(buffer))
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, r *dns.Msg) {
		_ = w.WriteMsg(l.reply(int(at.Port()), r)) // the client may have ended
	})
	kit.Run(t, &dns.Server{PacketConn: socket, Handler: handler})
	kit.Run(t, &dns.Server{Listener: listener, Handler: handler, MaxTCPQueries: -1})
}

// reply makes an answer and enters it.
func (l *ledger) reply(port int, r *dns.Msg) *dns.Msg {
	m := new(dns.Msg).SetReply(r)
	m.RecursionAvailable, m.Compress = true, true
	do := false
	if opt := r.IsEdns0(); opt != nil {
		do = opt.Do()
		m.SetEdns0(1232, do)
	}
	q := r.Question[0]
	i := &issue{do: do, port: port, name: strings.ToLower(q.Name), qtype: q.Qtype, made: time.Now()}
	exists, ttl, ok := properties(i.name)
	if !ok {
		m.Rcode = dns.RcodeRefused
		return m
	}
	i.ttl = ttl
	l.mu.Lock()
	number := uint32(len(l.issues)) // below 2^30, for the addresses
	l.issues = append(l.issues, i)
	l.mu.Unlock()
	if m.Answer = records(q, number, ttl); exists && m.Answer != nil {
		return m
	}
	m.Answer = nil
	if !exists {
		m.Rcode = dns.RcodeNameError
	}
	m.Ns = []dns.RR{&dns.SOA{
		Hdr: dns.RR_Header{Name: "test.", Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: ttl},
		Ns:  "ns.test.", Mbox: "hostmaster.test.", Serial: number, Refresh: 3600, Retry: 600, Expire: 86400, Minttl: ttl,
	}}
	return m
}

// properties returns whether a name exists, and the TTL of its records.
func properties(name string) (exists bool, ttl uint32, ok bool) {
	label, _, _ := strings.Cut(name, "-")
	if len(label) < 2 || label[0] != 't' && label[0] != 'x' {
		return false, 0, false
	}
	n, err := strconv.ParseUint(label[1:], 10, 32)
	return label[0] == 't', uint32(n), err == nil
}

// Numbers of addresses of a name.
const (
	count4 = 3
	count6 = 2
)

// records returns the records of a name that exists, nil for other types than A, AAAA and TXT.
func records(q dns.Question, number, ttl uint32) (all []dns.RR) {
	header := dns.RR_Header{Name: q.Name, Rrtype: q.Qtype, Class: dns.ClassINET, Ttl: ttl}
	switch q.Qtype {
	case dns.TypeA:
		for i := range uint32(count4) {
			n := number<<2 | i
			all = append(all, &dns.A{Hdr: header, A: net.IPv4(byte(n>>24), byte(n>>16), byte(n>>8), byte(n))})
		}
	case dns.TypeAAAA:
		for i := range count6 {
			a := netip.MustParseAddr("2001:db8::").As16()
			a[12], a[13], a[14], a[15] = byte(number>>24), byte(number>>16), byte(number>>8), byte(number)
			a[8] = byte(i)
			all = append(all, &dns.AAAA{Hdr: header, AAAA: a[:]})
		}
	case dns.TypeTXT:
		all = append(all, &dns.TXT{Hdr: header, Txt: []string{fmt.Sprint(number)}})
	}
	return all
}

// numberOf returns the number of an answer, and its TTL. It returns an error unless the answer has all records of the type and
// nothing else.
func numberOf(m *dns.Msg, qtype uint16) (number, ttl uint32, err error) {
	invalid := func(reason string) (uint32, uint32, error) { return 0, 0, fmt.Errorf("%s in\n%v", reason, m) }
	if len(m.Answer) == 0 {
		if len(m.Ns) != 1 || m.Rcode != dns.RcodeSuccess && m.Rcode != dns.RcodeNameError {
			return invalid("neither an answer nor a denial")
		}
		soa, ok := m.Ns[0].(*dns.SOA)
		if !ok {
			return invalid("no SOA record")
		}
		return soa.Serial, soa.Hdr.Ttl, nil
	}
	want := map[uint16]int{dns.TypeA: count4, dns.TypeAAAA: count6, dns.TypeTXT: 1}[qtype]
	if len(m.Answer) != want || len(m.Ns) != 0 || m.Rcode != dns.RcodeSuccess {
		return invalid("another number of records")
	}
	var present uint64
	for i, rr := range m.Answer {
		h := rr.Header()
		var one, part uint32
		switch rr := rr.(type) {
		case *dns.A:
			b := rr.A.To4()
			n := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
			one, part = n>>2, n&3
		case *dns.AAAA:
			b := rr.AAAA
			one, part = uint32(b[12])<<24|uint32(b[13])<<16|uint32(b[14])<<8|uint32(b[15]), uint32(b[8])
		case *dns.TXT:
			n, err := strconv.ParseUint(rr.Txt[0], 10, 32)
			if err != nil {
				return invalid("another text")
			}
			one = uint32(n)
		}
		if h.Rrtype != qtype || h.Name != m.Question[0].Name || i > 0 && (one != number || h.Ttl != ttl) {
			return invalid("a record of another answer")
		}
		number, ttl = one, h.Ttl
		present |= 1 << part
	}
	if present != 1<<want-1 {
		return invalid("a record twice")
	}
	return number, ttl, nil
}

// find returns the answer with a number, nil if the ledger has made none.
func (l *ledger) find(number uint32) *issue {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if int(number) >= len(l.issues) {
		return nil
	}
	return l.issues[number]
}

// answers returns the answers to a question, in the order in which the ledger made them.
func (l *ledger) answers(name string, qtype uint16) (found []*issue) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for _, i := range l.issues {
		if i.name == name && i.qtype == qtype {
			found = append(found, i)
		}
	}
	return found
}

// total returns the number of answers until now.
func (l *ledger) total() int {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return len(l.issues)
}

// receive verifies the TTL of an answer that a client has received, whose query it sent before, with a cache that shortens TTLs
// to one between low and high. No time depends on the speed of the machine: the answer was stored after it was made, and before
// any client had it. The TTL may be rounded up or down.
func (i *issue) receive(ttl uint32, sent, received time.Time, low, high uint32) error {
	first := i.seen.Load()
	for now := int64(received.Sub(epoch)); first == 0 || now < first; first = i.seen.Load() {
		if i.seen.CompareAndSwap(first, now) {
			break
		}
	}
	upper, lower := int64(min(i.ttl, high)), int64(min(i.ttl, low))
	if first != 0 {
		if age := int64(sent.Sub(epoch)) - first; age > 0 {
			upper -= age/int64(time.Second) - 1
		}
	}
	lower -= int64(received.Sub(i.made)/time.Second) + 2
	if got := int64(ttl); got > upper || got > int64(i.ttl) || got < lower {
		return fmt.Errorf("TTL %d of an answer that was made %v ago with a TTL of %d, want %d to %d", ttl,
			received.Sub(i.made), i.ttl, max(lower, 0), min(upper, int64(i.ttl)))
	}
	return nil
}
