package cache

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/wheel"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// testCache is a cache with a clock and an upstream of its own.
type testCache struct {
	*Cache
	t    *testing.T
	mu   sync.Mutex
	seen []*dns.Msg // queries to the upstream
	next plugin.HandlerFunc
	wire bool // queries are in wire form where that is possible
}

var testCachesMade atomic.Int64

// inWireForm ends the name of a subtest whose queries go through the cache in wire form.
const inWireForm = "in_wire_form"

// inBubble runs a subtest in a bubble of synctest, whose time is simulated: once through the plugin chain, and once in wire
// form.
func inBubble(t *testing.T, name string, test func(t *testing.T)) {
	chainOnly(t, name, test)
	t.Run(name+" "+inWireForm, func(t *testing.T) { synctest.Test(t, test) })
}

// chainOnly is inBubble for a test that needs the plugin chain: with another plugin than forward behind the cache, for
// example.
func chainOnly(t *testing.T, name string, test func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

func newTestCache(t *testing.T, corefile string) *testCache {
	t.Helper()
	c := caddy.NewTestController("dns", corefile)
	c.ServerBlockKeys = []string{"."}
	h, err := parse(c)
	kit.Must(t, err)
	b, start := &testCache{Cache: h, t: t}, time.Now()
	h.store = store.NewStore(store.DefaultBudget)
	h.wheel = wheel.New()
	h.space = h.store.NewKeyspace()
	h.now = func() time.Duration { return 1000*time.Second + time.Since(start) }
	h.zonesLabel = fmt.Sprint(t.Name(), testCachesMade.Add(1)) // each test has its own metrics
	h.limit()
	h.Next = plugin.HandlerFunc(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
		b.mu.Lock()
		b.seen = append(b.seen, r.Copy())
		next := b.next
		b.mu.Unlock()
		return next(ctx, w, r)
	})
	if b.wire = strings.Contains(t.Name(), inWireForm); b.wire {
		h.SetExchanger(exchanger{h}, nil)
	}
	return b
}

// received returns the number of queries to the upstream.
func (b *testCache) received() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.seen)
}

// upstream sets the handler that the cache forwards misses to.
func (b *testCache) upstream(next plugin.HandlerFunc) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next = next
}

// replies sets the reply of the upstream: "RCODE; answer; ...; authority: ...".
func (b *testCache) replies(text string) {
	b.upstream(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
		m := replyTo(b.t, r, text)
		return m.Rcode, w.WriteMsg(m)
	})
}

var errUpstream = errors.New("no reply from the upstream")

// fails makes the upstream fail without a reply.
func (b *testCache) fails() {
	b.upstream(func(context.Context, dns.ResponseWriter, *dns.Msg) (int, error) {
		return dns.RcodeServerFailure, errUpstream
	})
}

// replyTo parses a reply: flags and a code, then records; "authority" and "additional" begin these sections.
func replyTo(t testing.TB, r *dns.Msg, text string) *dns.Msg {
	t.Helper()
	m := new(dns.Msg)
	m.SetReply(r)
	m.RecursionAvailable = true
	section := &m.Answer
	for i, part := range strings.Split(text, ";") {
		part = strings.TrimSpace(part)
		if i == 0 {
			for _, word := range strings.Fields(part) {
				setFlag(t, m, word)
			}
			continue
		}
		switch part {
		case "authority":
			section = &m.Ns
			continue
		case "additional":
			section = &m.Extra
			continue
		}
		rr, err := dns.NewRR(part)
		if err != nil || rr == nil {
			t.Fatalf("%q: %v", part, err)
		}
		*section = append(*section, rr)
	}
	return m
}

func setFlag(t testing.TB, m *dns.Msg, word string) {
	t.Helper()
	switch word {
	case "TC":
		m.Truncated = true
	case "AD":
		m.AuthenticatedData = true
	case "AA":
		m.Authoritative = true
	default:
		if suffixes, ok := strings.CutPrefix(word, "tried"); ok {
			addOption(m, searchData(t, strings.TrimPrefix(suffixes, ":")))
			return
		}
		code, ok := dns.StringToRcode[word]
		if !ok {
			t.Fatalf("%q is neither a flag nor a code", word)
		}
		m.Rcode = code
	}
}

// client is a dns.ResponseWriter that records the reply.
type client struct {
	test.ResponseWriter
	tcp   bool
	from  net.IP // 192.0.2.1 if nil
	reply *dns.Msg
}

func (c *client) WriteMsg(m *dns.Msg) error { c.reply = m; return nil }

func (c *client) RemoteAddr() net.Addr {
	from := c.from
	if from == nil {
		from = net.IPv4(192, 0, 2, 1)
	}
	if c.tcp {
		return &net.TCPAddr{IP: from, Port: 40000}
	}
	return &net.UDPAddr{IP: from, Port: 40000}
}

// addOption adds an option of package searchlist to a message, which may have several.
func addOption(m *dns.Msg, data []byte) {
	if m.IsEdns0() == nil {
		m.SetEdns0(1232, false)
	}
	opt := m.IsEdns0()
	opt.Option = append(opt.Option, &dns.EDNS0_LOCAL{Code: wire.OptionSearchList, Data: data})
}

// searchData returns the option's data for suffixes separated by commas, none for "".
func searchData(t testing.TB, suffixes string) []byte {
	t.Helper()
	if suffixes == "" {
		return nil
	}
	data, ok := searchlist.AppendSuffixes(nil, strings.Split(suffixes, ","))
	if !ok {
		t.Fatalf("invalid search list %q", suffixes)
	}
	return data
}

// query parses a query: a name, a type and options of dig, +do, +cd, +ad, +edns and +norec, or +search:a.,b. for a search
// list.
func query(text string) *dns.Msg {
	words := strings.Fields(text)
	r := new(dns.Msg)
	r.SetQuestion(words[0], dns.StringToType[words[1]])
	for _, word := range words[2:] {
		switch word {
		case "+do":
			r.SetEdns0(1232, true)
		case "+edns":
			r.SetEdns0(1232, false)
		case "+cd":
			r.CheckingDisabled = true
		case "+ad":
			r.AuthenticatedData = true
		case "+norec":
			r.RecursionDesired = false
		default:
			if suffixes, ok := strings.CutPrefix(word, "+search:"); ok {
				data, _ := searchlist.AppendSuffixes(nil, strings.Split(suffixes, ",")) // none for an invalid list
				addOption(r, data)
			}
		}
	}
	return r
}

// query queries the cache over UDP, and returns the reply, nil if there is none.
func (b *testCache) query(text string) *dns.Msg {
	b.t.Helper()
	w := new(client)
	r := query(text)
	code, err := b.serve(w, r)
	if err != nil && !errors.Is(err, errUpstream) {
		b.t.Errorf("%s: %v", text, err)
	}
	if w.reply == nil && plugin.ClientWrite(code) {
		b.t.Errorf("%s: no reply, but code %d is that of a reply", text, code)
	}
	if w.reply != nil && (w.reply.Id != r.Id || !w.reply.Response || w.reply.Question[0] != r.Question[0]) {
		b.t.Errorf("%s: the reply is to another query: %v", text, w.reply)
	}
	return w.reply
}

// want queries the cache, and compares the reply as brief formats it.
func (b *testCache) want(text, want string) {
	b.t.Helper()
	if got := brief(b.query(text)); got != want {
		b.t.Errorf("%s\n got %s\nwant %s", text, got, want)
	}
}

// brief formats a reply: flags, code and records, in the form that replyTo parses.
func brief(m *dns.Msg) string {
	if m == nil {
		return "nothing"
	}
	parts := []string{dns.RcodeToString[m.Rcode]}
	for _, flag := range []struct {
		set  bool
		name string
	}{{m.Truncated, "TC"}, {m.AuthenticatedData, "AD"}, {m.Authoritative, "AA"}} {
		if flag.set {
			parts[0] += " " + flag.name
		}
	}
	for _, section := range []struct {
		name    string
		records []dns.RR
	}{{"", m.Answer}, {"authority", m.Ns}, {"additional", m.Extra}} {
		if section.name != "" && len(section.records) > 0 {
			parts = append(parts, section.name)
		}
		for _, rr := range section.records {
			if opt, ok := rr.(*dns.OPT); ok {
				text := "OPT"
				for _, o := range opt.Option {
					if local, ok := o.(*dns.EDNS0_LOCAL); ok && local.Code == wire.OptionSearchList {
						suffixes, _ := searchlist.ParseSuffixes(local.Data)
						text += " tried:" + strings.Join(suffixes, ",")
						continue
					}
					text += " " + o.String()
				}
				parts = append(parts, text)
				continue
			}
			parts = append(parts, strings.Join(strings.Fields(rr.String()), " "))
		}
	}
	return strings.Join(parts, "; ")
}

// wantQueries checks the number of queries to the upstream.
func (b *testCache) wantQueries(want int) {
	b.t.Helper()
	if got := b.received(); got != want {
		b.t.Errorf("the upstream received %d queries, want %d", got, want)
	}
}
