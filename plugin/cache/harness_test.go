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

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
)

// bed is a cache with a clock and an upstream of its own.
type bed struct {
	*Cache
	t     *testing.T
	mu    sync.Mutex
	asked []*dns.Msg // of the upstream
	next  plugin.HandlerFunc
}

var bedsMade atomic.Int64

// beds runs a test in time of its own.
func beds(t *testing.T, name string, test func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

func newBed(t *testing.T, corefile string) *bed {
	t.Helper()
	c := caddy.NewTestController("dns", corefile)
	c.ServerBlockKeys = []string{"."}
	h, _, err := parse(c)
	if err != nil {
		t.Fatal(err)
	}
	b, start := &bed{Cache: h, t: t}, time.Now()
	h.store = answers.NewStore(answers.DefaultBudget)
	h.space = h.store.NewKeyspace()
	h.now = func() time.Duration { return 1000*time.Second + time.Since(start) }
	h.zonesLabel = fmt.Sprint(t.Name(), bedsMade.Add(1)) // so that tests do not count for each other
	h.limit()
	h.Next = plugin.HandlerFunc(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
		b.mu.Lock()
		b.asked = append(b.asked, r.Copy())
		next := b.next
		b.mu.Unlock()
		return next(ctx, w, r)
	})
	return b
}

// queries returns how many the upstream has got.
func (b *bed) queries() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.asked)
}

// upstream sets what the upstream does.
func (b *bed) upstream(next plugin.HandlerFunc) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next = next
}

// replies sets the reply of the upstream: "RCODE; answer; ...; authority: ...".
func (b *bed) replies(text string) {
	b.upstream(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
		m := replyTo(b.t, r, text)
		return m.Rcode, w.WriteMsg(m)
	})
}

var errUpstream = errors.New("no reply from the upstream")

// fails lets the upstream fail.
func (b *bed) fails() {
	b.upstream(func(context.Context, dns.ResponseWriter, *dns.Msg) (int, error) {
		return dns.RcodeServerFailure, errUpstream
	})
}

// replyTo makes a reply from a text: words are flags or a code, then records, those after "authority" or
// "additional" in that section.
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
			t.Fatalf("%q is no flag and no code", word)
		}
		m.Rcode = code
	}
}

// client is a dns.ResponseWriter that keeps the reply.
type client struct {
	test.ResponseWriter
	tcp   bool
	reply *dns.Msg
}

func (c *client) WriteMsg(m *dns.Msg) error { c.reply = m; return nil }

func (c *client) RemoteAddr() net.Addr {
	if c.tcp {
		return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 40000}
	}
	return &net.UDPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 40000}
}

// addOption adds the option of package search to a message; there may be more than one.
func addOption(m *dns.Msg, data []byte) {
	if m.IsEdns0() == nil {
		m.SetEdns0(1232, false)
	}
	opt := m.IsEdns0()
	opt.Option = append(opt.Option, &dns.EDNS0_LOCAL{Code: searchlist.OptionCode, Data: data})
}

// searchData returns the option's data for suffixes with commas between them, none for "".
func searchData(t testing.TB, suffixes string) []byte {
	t.Helper()
	if suffixes == "" {
		return nil
	}
	data, ok := searchlist.AppendSuffixes(nil, strings.Split(suffixes, ","))
	if !ok {
		t.Fatalf("%q is no search list", suffixes)
	}
	return data
}

// query returns a query for a name and type, with words as dig has them: +do, +cd, +ad, +edns, +norec; and
// +search:a.,b. for a search list.
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
				data, _ := searchlist.AppendSuffixes(nil, strings.Split(suffixes, ",")) // none if it is no list
				addOption(r, data)
			}
		}
	}
	return r
}

// ask asks the cache over UDP, and returns the reply; nil if there is none.
func (b *bed) ask(text string) *dns.Msg {
	b.t.Helper()
	w := new(client)
	r := query(text)
	code, err := b.ServeDNS(context.Background(), w, r)
	if err != nil && !errors.Is(err, errUpstream) {
		b.t.Errorf("%s: %v", text, err)
	}
	if w.reply == nil && plugin.ClientWrite(code) {
		b.t.Errorf("%s: no reply, and code %d says that there is one", text, code)
	}
	if w.reply != nil && (w.reply.Id != r.Id || !w.reply.Response || w.reply.Question[0] != r.Question[0]) {
		b.t.Errorf("%s: the reply is to something else: %v", text, w.reply)
	}
	return w.reply
}

// want asks, and compares the reply: its code and its records as they are written, without the question's
// class and with single blanks.
func (b *bed) want(text, want string) {
	b.t.Helper()
	if got := brief(b.ask(text)); got != want {
		b.t.Errorf("%s\n got %s\nwant %s", text, got, want)
	}
}

// brief writes a reply in short.
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
					if local, ok := o.(*dns.EDNS0_LOCAL); ok && local.Code == searchlist.OptionCode {
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

// wantQueries compares how many queries the upstream has got.
func (b *bed) wantQueries(want int) {
	b.t.Helper()
	if got := b.queries(); got != want {
		b.t.Errorf("the upstream has got %d queries, want %d", got, want)
	}
}
