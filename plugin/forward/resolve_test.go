package forward

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/kit"
)

// fakeResolver is a server on loopback with a reply for each question, over UDP and over TCP: records, NXDOMAIN or
// another error, TC, nothing (no reply), or forged (before the reply).
type fakeResolver struct {
	address string

	mu       sync.Mutex
	replies  map[string]string // by "udp a.example. A"
	received []string
}

func startResolver(t testing.TB) *fakeResolver {
	t.Helper()
	r := &fakeResolver{replies: map[string]string{}}
	r.address = kit.Serve(t, "127.0.0.1:0", func(w dns.ResponseWriter, q *dns.Msg) {
		if err := r.reply(w, q); err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *fakeResolver) set(question, reply string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.replies[question] = reply
}

// questions returns the sorted questions: those for the two families are concurrent.
func (r *fakeResolver) questions() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	questions := slices.Sorted(slices.Values(r.received))
	r.received = nil
	return strings.Join(questions, ", ")
}

func (r *fakeResolver) reply(w dns.ResponseWriter, q *dns.Msg) error {
	question := q.Question[0]
	key := w.RemoteAddr().Network() + " " + question.Name + " " + dns.TypeToString[question.Qtype]
	r.mu.Lock()
	r.received = append(r.received, key)
	text, ok := r.replies[key]
	r.mu.Unlock()
	m := new(dns.Msg)
	m.SetReply(q)
	if !ok {
		text = "NXDOMAIN"
	}
	for _, part := range strings.Split(text, "; ") {
		if code, ok := dns.StringToRcode[part]; ok {
			m.Rcode = code
			continue
		}
		switch part {
		case "":
		case "TC":
			m.Truncated = true
		case "nothing":
			return nil
		case "no question":
			m.Question = nil
		case "forged":
			if err := forge(w, m); err != nil {
				return err
			}
		default:
			rr, err := dns.NewRR(part)
			if err != nil {
				return fmt.Errorf("%q: %w", part, err)
			}
			m.Answer = append(m.Answer, rr)
		}
	}
	_ = w.WriteMsg(m) // the client may be gone
	return nil
}

// forge writes messages that do not answer the query.
func forge(w dns.ResponseWriter, m *dns.Msg) error {
	wrong, err := dns.NewRR("a.example. 1 IN A 192.0.2.66")
	if err != nil {
		return err
	}
	id, name, query := m.Copy(), m.Copy(), m.Copy()
	id.Id++
	name.Question[0].Name = "b.example."
	query.Response = false
	for _, other := range []*dns.Msg{id, name, query} {
		other.Answer = []dns.RR{wrong}
		if err := w.WriteMsg(other); err != nil {
			return err
		}
	}
	_, err = w.Write([]byte("not a message"))
	return err
}

const (
	v4 = "udp a.example. A"
	v6 = "udp a.example. AAAA"
)

func TestServerLookup(t *testing.T) {
	const one, two = "a.example. 60 IN A 192.0.2.1", "a.example. 60 IN A 192.0.2.2"
	const six = "a.example. 60 IN AAAA 2001:db8::1"
	for _, c := range []struct {
		name    string
		replies map[string]string
		want    string // addresses
		err     string
	}{
		{"both families", map[string]string{v4: one + "; " + two, v6: six}, "[192.0.2.1 192.0.2.2 2001:db8::1] unknown [false false]", ""},
		{"IPv4 alone", map[string]string{v4: one, v6: ""}, "[192.0.2.1] unknown [false false]", ""},
		{"IPv6 alone", map[string]string{v4: "", v6: six}, "[2001:db8::1] unknown [false false]", ""},
		{"an alias", map[string]string{v4: "a.example. 60 IN CNAME b.example.; b.example. 60 IN A 192.0.2.1", v6: "a.example. 60 IN CNAME b.example."}, "[192.0.2.1] unknown [false false]", ""},
		{"in other letters", map[string]string{v4: "A.EXAMPLE. 60 IN A 192.0.2.1"}, "[192.0.2.1] unknown [false false]", ""},
		{"nothing", nil, "", errNoHost.Error()},
		{"no address", map[string]string{v4: "", v6: ""}, "", errNoHost.Error()},
		{"blocked", map[string]string{v4: "a.example. 60 IN A 0.0.0.0", v6: "a.example. 60 IN AAAA ::"}, "", errNoHost.Error()},
		{"SERVFAIL", map[string]string{v4: "SERVFAIL", v6: "SERVFAIL"}, "", "answered SERVFAIL"},
		{"REFUSED without a question", map[string]string{v4: "REFUSED; no question", v6: "REFUSED; no question"}, "", "answered REFUSED"},
		{"one family fails", map[string]string{v4: one, v6: "SERVFAIL"}, "[192.0.2.1] unknown [false true]", ""},
		{"one family fails, and the other is empty", map[string]string{v4: "SERVFAIL", v6: ""}, "", "answered SERVFAIL"},
		{"one family is not answered", map[string]string{v4: one, v6: "nothing"}, "[192.0.2.1] unknown [false true]", ""},
		{"no answer", map[string]string{v4: "nothing", v6: "nothing"}, "", "i/o timeout"},
		{"truncated", map[string]string{v4: "TC; " + one, "tcp a.example. A": one + "; " + two}, "[192.0.2.1 192.0.2.2] unknown [false false]", ""},
		{"truncated, and not answered over TCP", map[string]string{v4: "TC; " + one, "tcp a.example. A": "nothing"}, "", "i/o timeout"},
		{"forged before it", map[string]string{v4: "forged; " + one}, "[192.0.2.1] unknown [false false]", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := startResolver(t)
			for question, reply := range c.replies {
				r.set(question, reply)
			}
			l := serverLookup{servers: []string{r.address}, timeout: 2 * time.Second}
			if strings.Contains(fmt.Sprint(c.replies), "nothing") {
				l.timeout = 200 * time.Millisecond
			}
			got, err := l.lookup(t.Context(), "a.example.")
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) || errors.Is(err, errNoHost) != (c.err == errNoHost.Error()) {
					t.Errorf("error %v, want %s", err, c.err)
				}
				return
			}
			if text := fmt.Sprint(got.found, " unknown ", got.unknown); err != nil || text != c.want {
				t.Errorf("found %s, %v; want %s", text, err, c.want)
			}
		})
	}
}

// TestServerLookup_Several: servers are queried in order, until one has an address.
func TestServerLookup_Several(t *testing.T) {
	const address = "a.example. 60 IN A 192.0.2.1"
	for _, c := range []struct {
		name          string
		first, second string
		questions     string // to the second
		err           error
	}{
		{"the first has an address", address, address, "", nil},
		{"the first fails", "SERVFAIL", address, v4 + ", " + v6, nil},
		{"the first denies the name", "NXDOMAIN", address, v4 + ", " + v6, nil},
		{"the first does not answer", "nothing", address, v4 + ", " + v6, nil},
		{"both deny the name", "NXDOMAIN", "NXDOMAIN", v4 + ", " + v6, errNoHost},
	} {
		t.Run(c.name, func(t *testing.T) {
			first, second := startResolver(t), startResolver(t)
			first.set(v4, c.first)
			second.set(v4, c.second)
			l := serverLookup{servers: []string{first.address, second.address}, timeout: time.Second}
			got, err := l.lookup(t.Context(), "a.example.")
			if !errors.Is(err, c.err) || c.err == nil && fmt.Sprint(got.found) != "[192.0.2.1]" {
				t.Errorf("found %v, %v; want the error %v", got.found, err, c.err)
			}
			if questions := second.questions(); questions != c.questions {
				t.Errorf("the second server got %s, want %s", questions, c.questions)
			}
		})
	}
	t.Run("one denies the name, one fails", func(t *testing.T) {
		first, second := startResolver(t), startResolver(t)
		second.set(v4, "SERVFAIL")
		_, err := serverLookup{servers: []string{first.address, second.address}, timeout: time.Second}.lookup(t.Context(), "a.example.")
		if err == nil || errors.Is(err, errNoHost) {
			t.Errorf("error %v, want a temporary one", err)
		}
	})
	t.Run("refused", func(t *testing.T) {
		udp, tcp := kit.ListenBoth(t, "127.0.0.1:0")
		address := udp.LocalAddr().String()
		_, _ = udp.Close(), tcp.Close()
		_, err := serverLookup{servers: []string{address}, timeout: time.Second}.lookup(t.Context(), "a.example.")
		if err == nil || errors.Is(err, errNoHost) {
			t.Errorf("error %v, want a temporary one", err)
		}
	})
}

// TestServerLookup_Ends: the end of the context ends a lookup.
func TestServerLookup_Ends(t *testing.T) {
	r := startResolver(t)
	r.set(v4, "nothing")
	r.set(v6, "nothing")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := serverLookup{servers: []string{r.address}, timeout: time.Hour}.lookup(ctx, "a.example.")
		ended <- err
	}()
	for range 1000 {
		if r.questions() != "" {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	cancel()
	select {
	case err := <-ended:
		if err == nil || errors.Is(err, errNoHost) {
			t.Errorf("error %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the lookup continues after the end of its context")
	}
}

// TestSystemLookup uses the system's resolver with a server of the test.
func TestSystemLookup(t *testing.T) {
	const cname = "c.example. 60 IN CNAME a.example."
	r := startResolver(t)
	r.set(v4, "a.example. 60 IN A 192.0.2.1")
	r.set(v6, "")
	r.set("udp b.example. A", "SERVFAIL")
	r.set("udp b.example. AAAA", "SERVFAIL")
	r.set("udp c.example. A", cname+"; a.example. 60 IN A 192.0.2.1")
	r.set("udp c.example. AAAA", cname)
	system := systemLookup{resolver: &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network[:3], r.address)
	}}}
	for name, want := range map[string]string{"a.example.": "[192.0.2.1]", "c.example.": "[192.0.2.1]"} {
		if got, err := system.lookup(t.Context(), name); err != nil || fmt.Sprint(got.found) != want {
			t.Errorf("%s: found %v, %v", name, got.found, err)
		}
	}
	if _, err := system.lookup(t.Context(), "none.example."); !errors.Is(err, errNoHost) {
		t.Errorf("error %v, want %v", err, errNoHost)
	}
	if _, err := system.lookup(t.Context(), "b.example."); err == nil || errors.Is(err, errNoHost) {
		t.Errorf("error %v, want a temporary one", err)
	}
	for _, q := range strings.Split(r.questions(), ", ") {
		if !strings.HasSuffix(strings.Fields(q)[1], ".example.") {
			t.Errorf("query for %s, which is not an absolute name of the test", q)
		}
	}
}

// TestTargets_Resolver looks up an upstream at a resolver, and changes the upstream's addresses.
func TestTargets_Resolver(t *testing.T) {
	r := startResolver(t)
	r.set(v4, "a.example. 60 IN A 192.0.2.1")
	all := configured(t, "forward . a.example {\nresolver "+r.address+"\n}")
	tg := newTargets(all[0])
	tg.wait.host, tg.wait.jitter, tg.wait.retry = 10*time.Millisecond, 0, 10*time.Millisecond
	wantFirst(t, tg, "192.0.2.1:53")
	changes := make(chan string, 10)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tg.watch(ctx, func(endpoints []endpoint) { changes <- addressesOf(endpoints) })
	}()
	defer func() { cancel(); <-ended }()
	next := func(want string) {
		t.Helper()
		select {
		case got := <-changes:
			if got != want {
				t.Errorf("change %s, want %s", got, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("no change to %s", want)
		}
	}
	r.set(v4, "TC")
	r.set("tcp a.example. A", "a.example. 60 IN A 192.0.2.2")
	next("192.0.2.2:53")
	r.set(v4, "SERVFAIL")
	r.set(v6, "a.example. 60 IN AAAA 2001:db8::1")
	next("192.0.2.2:53, [2001:db8::1]:53")
	r.set(v4, "a.example. 60 IN A 192.0.2.3")
	next("[2001:db8::1]:53, 192.0.2.3:53")
}
