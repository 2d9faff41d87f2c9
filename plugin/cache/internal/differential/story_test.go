package differential

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"
)

const (
	stories = 400 // random sequences of queries and replies
	steps   = 60  // queries per story
	century = 100 * 365 * 24 * time.Hour
)

// setting is a configuration, with the replies of the upstream for which both caches are specified to behave alike.
type setting struct {
	options string
	stale   bool // options include serve_stale
	replies []string
}

// Replies, as message parses them. OWNER, TTL and N are replaced; MINIMUM of the SOA record equals its TTL.
const (
	address    = "NOERROR; OWNER TTL IN A 192.0.2.N"
	addressAD  = "NOERROR AD; OWNER TTL IN A 192.0.2.N; OWNER TTL IN A 192.0.2.1"
	aliased    = "NOERROR AA; OWNER TTL IN CNAME b.; b. TTL IN A 192.0.2.N; b. TTL IN AAAA 2001:db8::N; authority; b. TTL IN NS c.; additional; c. TTL IN A 192.0.2.7"
	dangling   = "NOERROR; OWNER TTL IN CNAME b."
	loop       = "NOERROR; OWNER TTL IN CNAME b.; b. TTL IN CNAME OWNER"
	nodata     = "NOERROR; authority; . TTL IN SOA ns. root. N 2 3 4 TTL"
	aliasNone  = "NOERROR; OWNER TTL IN CNAME b.; authority; . TTL IN SOA ns. root. N 2 3 4 TTL"
	nxdomain   = "NXDOMAIN; authority; . TTL IN SOA ns. root. N 2 3 4 TTL"
	noSOA      = "NXDOMAIN"
	empty      = "NOERROR"
	onlyMore   = "NOERROR; additional; OWNER TTL IN TXT N"
	delegation = "NOERROR; authority; a. TTL IN NS ns.a.; additional; ns.a. TTL IN A 192.0.2.N"
	servfail   = "SERVFAIL"
	notimp     = "NOTIMP"
	refused    = "REFUSED"
	truncated  = "NOERROR TC; OWNER TTL IN A 192.0.2.N"
	otherName  = "NOERROR; question; OWNER TTL IN A 192.0.2.N"
	noReply    = "none"
)

var positive = []string{address, address, addressAD, aliased}

// everything has all kinds of replies; the frequent ones are repeated.
var everything = []string{
	address, address, address, addressAD, aliased, dangling, loop, nodata, aliasNone, nxdomain, nxdomain, noSOA, empty,
	onlyMore, delegation, servfail, notimp, refused, truncated, otherName, noReply,
}

func without(replies []string, kind string) []string {
	return slices.DeleteFunc(slices.Clone(replies), func(r string) bool { return r == kind })
}

// settings leave out replies that the two caches treat differently on purpose: CoreDNS caches a delegation for 5 seconds
// even if its TTL is less, serves a cached failure after its time, and stores answers and denials of a name side by side.
var settings = []setting{
	{"", false, everything},
	{"success 9984 20\ndenial 9984 10 7", false, everything},
	{"success 9984 3600 0\ndenial 9984 1800 0\nservfail 2s", false, without(everything, delegation)},
	{"success 9984 30 20\ndenial 9984 5 60", false, everything},
	{"keepttl", false, everything},
	{"servfail 0", false, everything},
	{"disable success a.", false, everything},
	{"disable denial", false, everything},
	{"prefetch 2 10s 50%", false, positive},
	{"prefetch 1 1m 90%\nkeepttl", false, positive},
	{"serve_stale 1m\nservfail 0", true, everything},
	{"serve_stale 24h immediate 7s 10s\nservfail 0", true, everything},
	{"serve_stale 24h\nkeepttl\nservfail 0", true, everything},
	{"serve_stale 24h verify\nservfail 0", true, append([]string{servfail, refused, noReply, truncated}, positive...)},
	{"serve_stale 1m verify 100ms 5s 10s\nservfail 0", true, append([]string{servfail, refused, noReply, truncated}, positive...)},
	{"serve_stale 24h\nserve_stale_policy prefer_positive\nservfail 0", true, append([]string{nxdomain, nodata, servfail, refused, noReply}, positive...)},
}

// names of the queries. The cache is not configured for the last one.
var names = []string{"a.", "B.a.", "b.A.", "c.b.a.", "x."}

var waits = []time.Duration{
	0, 0, 0, 100 * time.Millisecond, 900 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second,
	5 * time.Second, 10 * time.Second, 31 * time.Second, time.Minute, 20 * time.Minute,
}

var ttls = []uint32{1, 3, 5, 6, 10, 20, 60, 300, 1800, 1801, 5000}

// transcript runs a story with the registered cache, and returns the replies to the clients and the queries to the
// upstream as text. A setting without serve_stale gets the options withoutStale as well.
func transcript(t *testing.T, story uint64, withoutStale string) (text string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &scene{t: t, random: rand.New(rand.NewPCG(story, 1))} // #nosec G404 -- reproducible
		set := settings[story%uint64(len(settings))]
		options := set.options
		if !set.stale {
			options += "\n" + withoutStale
		}
		s.play(handler(t, "cache a. b. {\n"+options+"\n}", s), set)
		text = fmt.Sprintf("cache {\n%s\n}\n%s", set.options, s.transcript.String())
	})
	return text
}

// handler returns the registered cache in front of an upstream.
func handler(t *testing.T, corefile string, upstream plugin.Handler) plugin.Handler {
	t.Helper()
	action, err := caddy.DirectiveAction("dns", "cache")
	kit.Must(t, err)
	c := caddy.NewTestController("dns", corefile)
	c.ServerBlockKeys = []string{"."}
	kit.Must(t, action(c))
	return dnsserver.GetConfig(c).Plugin[0](upstream)
}

// scene is the state of a running story, and its upstream.
type scene struct {
	t          *testing.T
	random     *rand.Rand
	transcript strings.Builder

	mu      sync.Mutex
	reply   string
	queries []string // to the upstream since the last step
}

func (s *scene) play(h plugin.Handler, set setting) {
	time.Sleep(century) // a bubble of synctest starts in 2000, before the process and the clock of package validity
	start := time.Now()
	for range steps {
		time.Sleep(pick(s.random, waits))
		reply := pick(s.random, set.replies)
		reply = strings.NewReplacer("TTL", fmt.Sprint(pick(s.random, ttls)), "192.0.2.N", fmt.Sprintf("192.0.2.%d", 1+s.random.IntN(9)),
			"N 2 3", fmt.Sprintf("%d 2 3", s.random.IntN(100)), "::N", "::1", "TXT N", "TXT n").Replace(reply)
		s.mu.Lock()
		s.reply = reply
		s.mu.Unlock()
		r := s.query()
		w := &client{tcp: s.random.IntN(4) == 0}
		code, err := h.ServeDNS(context.Background(), w, r)
		fmt.Fprintf(&s.transcript, "%s %s: %s", time.Since(start), describe(r), reply)
		fmt.Fprintf(&s.transcript, "\n  -> %s", describeReply(w.reply, r))
		if w.reply == nil {
			fmt.Fprintf(&s.transcript, " code %d, error %v", code, err)
		}
		synctest.Wait()
		s.mu.Lock()
		fmt.Fprintf(&s.transcript, "\n  upstream: %s\n", strings.Join(s.queries, ", "))
		s.queries = nil
		s.mu.Unlock()
	}
}

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

func (s *scene) query() *dns.Msg {
	r := new(dns.Msg)
	r.SetQuestion(pick(s.random, names), pick(s.random, []uint16{dns.TypeA, dns.TypeA, dns.TypeA, dns.TypeAAAA, dns.TypeCNAME, dns.TypeANY}))
	r.Id = 1
	switch s.random.IntN(8) {
	case 0:
		r.SetEdns0(1232, true)
	case 1:
		r.SetEdns0(1232, false)
	case 2:
		r.CheckingDisabled = true
	case 3:
		r.AuthenticatedData = true
	}
	return r
}

func describe(r *dns.Msg) string {
	q := r.Question[0]
	text := q.Name + " " + dns.TypeToString[q.Qtype]
	for _, flag := range []struct {
		set  bool
		name string
	}{{r.CheckingDisabled, "cd"}, {r.AuthenticatedData, "ad"}, {r.RecursionDesired, "rd"}, {r.IsEdns0() != nil, "edns"}} {
		if flag.set {
			text += " " + flag.name
		}
	}
	if opt := r.IsEdns0(); opt != nil && opt.Do() {
		text += " do"
	}
	return text
}

// describeReply returns a reply as text, in lower case except for the question: the case of other names is not compared.
func describeReply(m, r *dns.Msg) string {
	if m == nil {
		return "nothing"
	}
	h := m.MsgHdr
	h.RecursionDesired = h.RecursionDesired != r.RecursionDesired // must equal that of the query
	text := fmt.Sprintf("%+v %v", h, m.Question)
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		text += " |"
		for _, rr := range section {
			text += " " + strings.ToLower(strings.Join(strings.Fields(rr.String()), " ")) + ";"
		}
	}
	return text
}

var errNoReply = errors.New("no reply")

// Name implements plugin.Handler.
func (*scene) Name() string { return "upstream" }

// ServeDNS implements plugin.Handler. It sends the reply of the current step.
func (s *scene) ServeDNS(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	s.mu.Lock()
	reply := s.reply
	s.queries = append(s.queries, describe(r)+" over "+w.RemoteAddr().Network())
	s.mu.Unlock()
	if reply == noReply {
		return dns.RcodeServerFailure, errNoReply
	}
	m, err := message(r, reply)
	if err != nil {
		s.t.Error(err)
		return dns.RcodeServerFailure, err
	}
	return m.Rcode, w.WriteMsg(m)
}

// message parses the reply to a query from a text.
func message(r *dns.Msg, text string) (*dns.Msg, error) {
	m := new(dns.Msg)
	m.SetReply(r)
	m.RecursionAvailable = true
	section := &m.Answer
	for i, part := range strings.Split(strings.ReplaceAll(text, "OWNER", r.Question[0].Name), ";") {
		switch part = strings.TrimSpace(part); {
		case i == 0:
			for _, word := range strings.Fields(part) {
				m.Truncated = m.Truncated || word == "TC"
				m.AuthenticatedData = m.AuthenticatedData || word == "AD"
				m.Authoritative = m.Authoritative || word == "AA"
				m.Rcode = max(m.Rcode, dns.StringToRcode[word])
			}
		case part == "authority":
			section = &m.Ns
		case part == "additional":
			section = &m.Extra
		case part == "question":
			m.Question[0].Name = "other."
		default:
			rr, err := dns.NewRR(part)
			if err != nil {
				return nil, fmt.Errorf("%q: %w", part, err)
			}
			*section = append(*section, rr)
		}
	}
	return m, nil
}

// client is a dns.ResponseWriter that records the reply.
type client struct {
	test.ResponseWriter
	tcp   bool
	reply *dns.Msg
}

// WriteMsg implements dns.ResponseWriter.
func (c *client) WriteMsg(m *dns.Msg) error { c.reply = m; return nil }

// RemoteAddr implements dns.ResponseWriter.
func (c *client) RemoteAddr() net.Addr {
	if c.tcp {
		return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 40000}
	}
	return &net.UDPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 40000}
}
