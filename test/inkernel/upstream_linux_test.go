package inkernel

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// ttl is the TTL of the upstream's records and denials, in seconds.
const ttl = 600

// upstream is the DNS server to which a nodecache forwards. All its names are below test.
type upstream struct {
	address netip.AddrPort

	mu      sync.Mutex
	records map[string][]dns.RR
	queries map[dns.Question]int
}

// The addresses of names of the upstream.
var (
	web4 = netip.MustParseAddr("192.0.2.1")
	web6 = netip.MustParseAddr("2001:db8::1")
)

// manyAddresses is the number of addresses of many.test.
const manyAddresses = 20

// initial are the first records of an upstream. A name with an asterisk is that of all names below the rest.
func initial() []string {
	all := []string{
		"web.test. A " + web4.String(), "web.test. AAAA " + web6.String(), "four.test. A 192.0.2.4", "six.test. AAAA 2001:db8::6",
		"alias.test. CNAME web.test.", "text.test. TXT \"one\" \"two\"", "empty.test. TXT \"no address\"",
		"*.flood.test. A 192.0.2.5", "*.flood.test. AAAA 2001:db8::5", "*.exact.test. A 192.0.2.7", "*.exact.test. AAAA 2001:db8::7",
		fmt.Sprintf("long.test. TXT %s", strings.Repeat(`"`+strings.Repeat("x", 250)+`" `, 4)),
		fmt.Sprintf("huge.test. TXT %s", strings.Repeat(`"`+strings.Repeat("y", 250)+`" `, 8)),
	}
	for i := range manyAddresses {
		all = append(all, fmt.Sprintf("many.test. A 192.0.2.%d", 100+i), fmt.Sprintf("many.test. AAAA 2001:db8::%d", 100+i))
	}
	return all
}

// startUpstream starts the upstream in a namespace, until the end of the test.
func startUpstream(t testing.TB, in *netns.Namespace) *upstream {
	t.Helper()
	u := &upstream{records: map[string][]dns.RR{}, queries: map[dns.Question]int{}}
	u.address = netip.MustParseAddrPort("127.0.0.1:5300")
	u.add(t, initial()...)
	packets, streams := in.ListenBoth(t, u.address.String())
	kit.Run(t, &dns.Server{PacketConn: packets, Handler: u})
	kit.Run(t, &dns.Server{Listener: streams, Handler: u, MaxTCPQueries: -1})
	return u
}

// add adds records in the form "NAME TYPE DATA".
func (u *upstream) add(t testing.TB, records ...string) {
	t.Helper()
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, text := range records {
		name, rest, _ := strings.Cut(text, " ")
		rr, err := dns.NewRR(fmt.Sprintf("%s %d IN %s", name, ttl, rest))
		kit.Must(t, err)
		u.records[name] = append(u.records[name], rr)
	}
}

// remove removes all records of a name.
func (u *upstream) remove(name string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.records, name)
}

// queried returns the number of queries for a question.
func (u *upstream) queried(name string, qtype uint16) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.queries[dns.Question{Name: strings.ToLower(name), Qtype: qtype, Qclass: dns.ClassINET}]
}

// ServeDNS implements dns.Handler.
func (u *upstream) ServeDNS(w dns.ResponseWriter, r *dns.Msg) {
	m := new(dns.Msg).SetReply(r)
	m.RecursionAvailable = true
	if opt := r.IsEdns0(); opt != nil {
		m.SetEdns0(1232, opt.Do())
	}
	if len(r.Question) != 1 || r.Opcode != dns.OpcodeQuery || r.Question[0].Qclass != dns.ClassINET {
		m.Rcode = dns.RcodeNotImplemented
	} else {
		u.answer(m, r.Question[0])
	}
	if w.LocalAddr().Network() == "udp" {
		limit := dns.MinMsgSize
		if opt := r.IsEdns0(); opt != nil {
			limit = int(opt.UDPSize())
		}
		m.Truncate(limit)
	}
	m.Compress = true
	_ = w.WriteMsg(m) // the client may have closed its socket
}

// answer sets the sections and the response code.
func (u *upstream) answer(m *dns.Msg, q dns.Question) {
	u.mu.Lock()
	defer u.mu.Unlock()
	at := strings.ToLower(q.Name)
	u.queries[dns.Question{Name: at, Qtype: q.Qtype, Qclass: q.Qclass}]++
	owner := q.Name
	for {
		found, exists := u.find(at)
		if !exists {
			m.Rcode = dns.RcodeNameError
		}
		alias := ""
		for _, rr := range found {
			if rr.Header().Rrtype != q.Qtype && rr.Header().Rrtype != dns.TypeCNAME {
				continue
			}
			rr = dns.Copy(rr)
			rr.Header().Name = owner
			m.Answer = append(m.Answer, rr)
			if c, ok := rr.(*dns.CNAME); ok && q.Qtype != dns.TypeCNAME {
				alias = c.Target
			}
		}
		if alias == "" {
			break
		}
		at, owner = alias, alias
	}
	if len(m.Answer) == 0 {
		m.Ns = []dns.RR{&dns.SOA{
			Hdr: dns.RR_Header{Name: "test.", Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: ttl},
			Ns:  "ns.test.", Mbox: "hostmaster.test.", Serial: 1, Refresh: 3600, Retry: 600, Expire: 86400, Minttl: ttl,
		}}
	}
}

// find returns the records of a name.
func (u *upstream) find(name string) (found []dns.RR, exists bool) {
	if found, exists = u.records[name]; exists {
		return slices.Clone(found), true
	}
	_, parent, _ := strings.Cut(name, ".")
	found, exists = u.records["*."+parent]
	return slices.Clone(found), exists
}

// client is a UDP socket in a namespace that is connected to a server.
type client struct{ net.Conn }

// firstClient is the port of a namespace's first client. The next ones have the next ports: with random ports, the checksum of
// one query in 65,536 would be ambiguous, and the kernel passes such a query on.
const firstClient = 20000

var (
	clientsMu sync.Mutex
	clients   = map[string]int{} // by the name of the namespace
)

// dial opens a client, until the end of the test.
func dial(t testing.TB, from *netns.Namespace, server netip.Addr) *client {
	t.Helper()
	clientsMu.Lock()
	port := firstClient + clients[from.Name]
	clients[from.Name]++
	clientsMu.Unlock()
	conn, err := from.Dial(net.Dialer{LocalAddr: &net.UDPAddr{Port: port}}, "udp", netip.AddrPortFrom(server, 53).String())
	kit.Must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return &client{Conn: conn}
}

// replyTime bounds the time for a reply on a busy machine.
const replyTime = 10 * time.Second

// exchange sends a message and returns the reply with its ID, without retries.
func (c *client) exchange(message []byte) ([]byte, error) {
	if _, err := c.Write(message); err != nil {
		return nil, err
	}
	if err := c.SetReadDeadline(time.Now().Add(replyTime)); err != nil {
		return nil, err
	}
	for buffer := make([]byte, dns.MaxMsgSize); ; {
		n, err := c.Read(buffer)
		if err != nil {
			return nil, err
		}
		if n >= 2 && buffer[0] == message[0] && buffer[1] == message[1] {
			return buffer[:n], nil
		}
	}
}

// query returns a query with the ID 7, changed by a function that may be nil.
func query(t testing.TB, name string, qtype uint16, change func(*dns.Msg)) []byte {
	t.Helper()
	m := new(dns.Msg).SetQuestion(name, qtype)
	m.Id = 7
	if change != nil {
		change(m)
	}
	b, err := m.Pack()
	kit.Must(t, err)
	return b
}
