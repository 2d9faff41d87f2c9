package fastpath

import (
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/caller"
	"github.com/nearside-dns/nearside/plugin/internal/dso"
	"github.com/nearside-dns/nearside/plugin/internal/push"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
	"github.com/nearside-dns/nearside/test/kit"
)

// TestSessionOpening opens a session and repeats the request: the clock advances, and there is one session. Heartbeats arrive.
func TestSessionOpening(t *testing.T) {
	offer(t)
	l, address := newStreamListener(t, echo)
	c := &sessionClient{dialTCP(t, address), t}
	var first dso.Opening
	var session *push.Subscriber
	for i := range uint16(3) {
		c.send(dso.AppendSessionRequest(nil, i+1))
		m := c.next()
		primary, _ := m.Primary()
		o, ok := dso.ReadOpening(primary.Data)
		if m.ID != i+1 || !m.Response || m.Rcode != dso.NoError || primary.Type != dso.Session || !ok {
			t.Fatalf("response %+v", m)
		}
		present := serverEnd(t, l, c).session.subscriber.Load()
		if i == 0 {
			first, session = o, present
		} else if o.Instance != first.Instance || o.Clock < first.Clock || present != session {
			t.Errorf("opening %v after %v, session %p after %p", o, first, present, session)
		}
	}
	clock, beats := uint64(0), 0
	for beats < 3 {
		var frame [2 + 24]byte
		if _, err := io.ReadFull(c.Conn, frame[:]); err != nil {
			t.Fatal(err)
		}
		m, err := dso.Parse(frame[2:])
		if err != nil {
			t.Fatal(err)
		}
		primary, _ := m.Primary()
		next, ok := dso.ReadHeartbeat(primary.Data)
		if primary.Type != dso.Heartbeat || !ok || next <= clock {
			t.Fatalf("%+v, want a heartbeat after %d", m, clock)
		}
		clock = next
		beats++
	}
}

// TestSessionMessages has the response to each DSO message, without and with a session; noResponse stands for an abort.
func TestSessionMessages(t *testing.T) {
	const noResponse = -1
	offer(t)
	_, address := newStreamListener(t, echo)
	request := func(tlvs ...dso.TLV) []byte {
		b := dso.AppendHeader(nil, 7, false, dso.NoError)
		for _, x := range tlvs {
			b = dso.AppendTLV(b, x.Type, x.Data...)
		}
		return b
	}
	eight := make([]byte, 8)
	opening := dso.TLV{Type: dso.Session, Data: []byte{dso.Version}}
	keepalive := dso.TLV{Type: dso.Keepalive, Data: eight}
	counted := request(opening)
	counted[5] = 1
	silent := append([]byte{0, 0}, counted[2:]...)
	short := request(opening)
	unused := request(opening)
	unused[2], unused[3] = unused[2]|7, 0xF0|dso.TypeNI
	for name, c := range map[string]struct {
		message []byte
		rcode   int
	}{
		"session":                       {request(opening), dso.NoError},
		"session with later fields":     {request(dso.TLV{Type: dso.Session, Data: []byte{dso.Version, 1, 2}}), dso.NoError},
		"session and unknown TLV":       {request(opening, dso.TLV{Type: 0xF900, Data: []byte{1}}), dso.NoError},
		"session and padding":           {request(opening, dso.TLV{Type: dso.Padding, Data: eight}), dso.NoError},
		"session with unused bits":      {unused, dso.NoError},
		"keepalive":                     {request(keepalive), dso.NoError},
		"session of another version":    {request(dso.TLV{Type: dso.Session, Data: []byte{dso.Version + 1}}), dso.TypeNI},
		"session without a version":     {request(dso.TLV{Type: dso.Session}), dso.FormatError},
		"unknown TLV":                   {request(dso.TLV{Type: 0x40}), dso.TypeNI},
		"unknown private TLV":           {request(dso.TLV{Type: 0xF8AF}), dso.TypeNI},
		"heartbeat":                     {request(dso.TLV{Type: dso.Heartbeat, Data: eight}), dso.TypeNI},
		"invalidate":                    {request(dso.TLV{Type: dso.Invalidate, Data: eight}), dso.TypeNI},
		"records":                       {counted, dso.FormatError},
		"unidirectional with records":   {silent, noResponse},
		"no TLV":                        {request(), noResponse},
		"half a header":                 {request()[:6], noResponse},
		"TLV beyond the end":            {short[:len(short)-1], noResponse},
		"short keepalive":               {request(dso.TLV{Type: dso.Keepalive, Data: eight[:4]}), noResponse},
		"two keepalives":                {request(keepalive, keepalive), noResponse},
		"unidirectional keepalive":      {append([]byte{0, 0}, request(keepalive)[2:]...), noResponse},
		"unidirectional session":        {append([]byte{0, 0}, request(opening)[2:]...), noResponse},
		"unidirectional unknown TLV":    {dso.AppendTLV(dso.AppendHeader(nil, 0, false, 0), 0x40), noResponse},
		"padding first":                 {request(dso.TLV{Type: dso.Padding, Data: eight}), noResponse},
		"retry delay":                   {request(dso.TLV{Type: dso.RetryDelay, Data: eight[:4]}), noResponse},
		"retry delay after a session":   {request(opening, dso.TLV{Type: dso.RetryDelay, Data: eight[:4]}), noResponse},
		"response":                      {dso.AppendHeader(nil, 7, true, dso.NoError), noResponse},
		"response without an ID":        {dso.AppendHeader(nil, 0, true, dso.NoError), noResponse},
		"unidirectional retry delay":    {dso.AppendRetryDelay(nil, dso.NoError, 0), noResponse},
		"unidirectional invalidate":     {dso.AppendInvalidate(nil, nil), noResponse},
		"response with a session":       {dso.AppendSessionResponse(nil, 7, dso.Opening{}), noResponse},
		"session, length of the header": {request(opening)[:12], noResponse},
	} {
		want := requestsLater // on a connection that ends
		switch {
		case c.rcode == noResponse:
			want = requestsForbidden
		case name == "records":
			want = requestsNothing
		}
		var ends session
		if got := ends.receive(new(output), c.message, false, dso.Timeouts{}, 0); got != want || ends.established {
			t.Errorf("%s, on a connection that ends: request %d, established %t, want request %d and no session", name, got, ends.established, want)
		}
		for _, established := range []bool{false, true} {
			kind := map[bool]string{false: ", first", true: ", in a session"}[established]
			t.Run(name+kind, func(t *testing.T) {
				conn := &sessionClient{dialTCP(t, address), t}
				if established {
					conn = dialSession(t, address)
				}
				next := framed(t, 8, "next.example.")
				kit.Send(t, conn, append(appendMessage(nil, c.message), next...))
				if c.rcode == noResponse {
					conn.wantReset()
					return
				}
				if m := conn.next(); m.ID != 7 || !m.Response || m.Rcode != c.rcode {
					t.Fatalf("response %+v, want code %d", m, c.rcode)
				}
				if b, err := conn.read(); err != nil || b[1] != 8 {
					t.Errorf("the query behind is answered % x, %v", b, err)
				}
			})
		}
	}
}

// TestKeepaliveResponse checks the timeouts of a DSO session.
func TestKeepaliveResponse(t *testing.T) {
	offer(t)
	_, address := newStreamListener(t, echo)
	c := &sessionClient{dialTCP(t, address), t}
	c.send(dso.AppendKeepalive(nil, 9, false, dso.Timeouts{Inactivity: 1, Keepalive: 1}))
	m := c.next()
	primary, _ := m.Primary()
	got, ok := dso.ReadKeepalive(primary.Data)
	if want := (dso.Timeouts{Inactivity: 10000, Keepalive: 15000}); primary.Type != dso.Keepalive || !ok || got != want {
		t.Errorf("%+v, want %+v", m, want)
	}
}

// TestKeepAliveInSession sends edns-tcp-keepalive before a session, where it is answered, and in it, where it is an error.
func TestKeepAliveInSession(t *testing.T) {
	offer(t)
	_, address := newStreamListener(t, func(w dns.ResponseWriter, m *dns.Msg) {
		reply := new(dns.Msg).SetReply(m)
		if m.IsEdns0() != nil {
			reply.SetEdns0(1232, false)
		}
		_ = w.WriteMsg(reply)
	})
	option := func(timeout uint16) func(*dns.Msg) {
		return func(m *dns.Msg) {
			m.SetEdns0(1232, false)
			m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_TCP_KEEPALIVE{Code: dns.EDNS0TCPKEEPALIVE, Timeout: timeout}}
		}
	}
	for name, change := range map[string]func(*dns.Msg){
		"empty": option(0), "with a timeout": option(5),
		"before another record": func(m *dns.Msg) {
			option(0)(m)
			m.Extra = append(m.Extra, addressReply("more.example.", 1).Answer...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := &sessionClient{dialTCP(t, address), t}
			if m, _ := c.ask("before.example.", option(0)); len(m.IsEdns0().Option) != 1 {
				t.Errorf("options %v, want edns-tcp-keepalive", m.IsEdns0().Option)
			}
			c.send(dso.AppendSessionRequest(nil, 1))
			c.next()
			if m, _ := c.ask("plain.example.", func(m *dns.Msg) { m.SetEdns0(1232, false) }); len(m.IsEdns0().Option) != 0 {
				t.Errorf("options %v, want none", m.IsEdns0().Option)
			}
			kit.Send(t, c, framed(t, 3, "in.example.", change))
			c.wantReset()
		})
	}
}

// TestKeepAliveBeforeSession opens a session after a query with edns-tcp-keepalive: the reply does not have the option.
func TestKeepAliveBeforeSession(t *testing.T) {
	offer(t)
	release := make(chan struct{})
	_, address := newStreamListener(t, func(w dns.ResponseWriter, m *dns.Msg) {
		<-release
		_ = w.WriteMsg(new(dns.Msg).SetReply(m).SetEdns0(1232, false))
	})
	c := &sessionClient{dialTCP(t, address), t}
	query := framed(t, 3, "before.example.", func(m *dns.Msg) {
		m.SetEdns0(1232, false)
		m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_TCP_KEEPALIVE{Code: dns.EDNS0TCPKEEPALIVE}}
	})
	kit.Send(t, c, append(query, appendMessage(nil, dso.AppendSessionRequest(nil, 1))...))
	c.next()
	close(release)
	b, err := c.read()
	if err != nil {
		t.Fatal(err)
	}
	if m, _ := c.answer(b); len(m.IsEdns0().Option) != 0 {
		t.Errorf("options %v, want none", m.IsEdns0().Option)
	}
}

// TestNotOffered sends DSO messages without an offer: the reply is that of CoreDNS, over the connection of a client that then
// continues.
func TestNotOffered(t *testing.T) {
	_, address := newStreamListener(t, echo)
	own, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	kit.Run(t, &dns.Server{Listener: own, Handler: dns.HandlerFunc(echo)})
	for name, message := range map[string][]byte{
		"session":   dso.AppendSessionRequest(nil, 1),
		"keepalive": dso.AppendKeepalive(nil, 2, false, dso.Timeouts{}),
	} {
		t.Run(name, func(t *testing.T) {
			var replies [2][]byte
			for i, a := range []string{address, own.Addr().String()} {
				c := &sessionClient{dialTCP(t, a), t}
				c.send(message)
				var err error
				if replies[i], err = c.read(); err != nil {
					t.Fatal(err)
				}
				c.ask("after.example.")
			}
			if string(replies[0]) != string(replies[1]) || replies[0][3]&0xF != dso.NotImplemented {
				t.Errorf("% x, want % x", replies[0], replies[1])
			}
		})
	}
}

// views has one view for all callers. Those with a valid option are identified by it, and the others by their address.
type views struct{}

func (views) View(_ netip.Addr, option []byte) store.View {
	_, _, ok := caller.Parse(option)
	return store.View{Number: 1, Named: ok}
}

// listed has a search list for each client, which is for names that begin with l.
type listed struct{}

func (listed) ListOf(netip.Addr) uint32 { return 0 }

func (listed) Search(_ netip.Addr, name []byte) (s block.Search) {
	if name[1] == 'l' {
		s.List = 7
	}
	return s
}

// TestHandles queries stored answers.
func TestHandles(t *testing.T) {
	offer(t)
	keyspace := newKeyspace(t)
	l, address := newStreamListener(t, echo, withRoute(t, keyspace, nil), func(s *server) {
		s.routes.find([]byte{0}).search = listed{}
	})
	service, namespace := new(watchable), new(watchable)
	storeAnswer(t, keyspace, "a.example.", 1, &store.Entry{Validity: bound(service, namespace)})
	storeAnswer(t, keyspace, "b.example.", 2, &store.Entry{Validity: bound(service)})
	cached := bound(namespace)
	cached.Expires = validity.Now() + time.Hour
	storeAnswer(t, keyspace, "cached.example.", 3, &store.Entry{Validity: cached, Cached: true})
	storeAnswer(t, keyspace, "upstream.example.", 4, &store.Entry{Validity: cached})
	storeAnswer(t, keyspace, "unwatched.example.", 5, &store.Entry{Validity: bound(service, unwatched{})})
	storeAnswer(t, keyspace, "option.example.", 6, &store.Entry{Validity: bound(service), Options: []byte{0, 15, 0, 2, 0, 3}})
	storeAnswer(t, keyspace, "viewed.example.", 7, &store.Entry{Validity: bound(service), Views: views{}})
	storeView(t, keyspace, "viewed.example.", 7, &store.Entry{Validity: bound(service)})
	storeAnswer(t, keyspace, "listed.example.", 8, &store.Entry{Validity: bound(service), Count: uncounted{}}, 7)
	storeAnswer(t, keyspace, "later.example.", 9, &store.Entry{Validity: bound(service)})
	answeredBefore := valueOf(t, l.server.Load().metrics.answered)
	c := dialSession(t, address)
	known := map[string]uint64{}
	queries := 0
	for _, q := range []struct {
		name    string
		change  func(*dns.Msg)
		handles []string
	}{
		{"a.example.", notify, []string{"service", "namespace"}},
		{"b.example.", notify, []string{"service"}},
		{"a.example.", notify, []string{"service", "namespace"}},
		{"a.example.", func(*dns.Msg) {}, nil},
		{"a.example.", func(m *dns.Msg) { m.SetEdns0(1232, false) }, nil},
		{"cached.example.", notify, []string{"namespace"}},
		{"upstream.example.", notify, nil},
		{"unwatched.example.", notify, nil},
		{"option.example.", notify, []string{"service"}},
		{"viewed.example.", notify, nil},
		{"viewed.example.", func(m *dns.Msg) { notify(m); fromCaller(m) }, []string{"service"}},
		{"viewed.example.", func(m *dns.Msg) { notify(m); fromMalformed(m) }, nil},
		{"a.example.", func(m *dns.Msg) { notify(m); fromMalformed(m) }, []string{"service", "namespace"}},
		{"listed.example.", notify, nil},
		{"listed.example.", func(m *dns.Msg) { notify(m); fromCaller(m) }, nil},
		{"later.example.", notify, []string{"service"}},
	} {
		m, handles := c.ask(q.name, q.change)
		queries++
		if len(m.Answer) == 0 {
			t.Errorf("%s is not answered from the store", q.name)
		}
		if len(handles) != len(q.handles) {
			t.Fatalf("%s has %d handles, want those of %v", q.name, len(handles), q.handles)
		}
		for i, data := range q.handles {
			if known[data] == 0 {
				known[data] = handles[i]
			} else if handles[i] != known[data] {
				t.Errorf("%s has handle %d for %s, want %d", q.name, handles[i], data, known[data])
			}
		}
		if want := map[string]int{"option.example.": 1}[q.name]; m.IsEdns0() != nil && len(m.IsEdns0().Option)-min(1, len(handles)) != want {
			t.Errorf("%s has options %v", q.name, m.IsEdns0().Option)
		}
	}
	kit.Eventually(t, "all are counted as answered", func() bool {
		return valueOf(t, l.server.Load().metrics.answered)-answeredBefore == float64(queries)
	})
	namespace.Advance()
	if got := c.invalidated(); len(got) != 1 || got[0] != known["namespace"] {
		t.Errorf("handles %v are invalidated, want %d", got, known["namespace"])
	}
	other := &sessionClient{dialTCP(t, address), t}
	if m, handles := other.ask("b.example.", notify); len(m.Answer) != 2 || len(handles) != 0 {
		t.Errorf("%d addresses and %d handles without a session", len(m.Answer), len(handles))
	}
}

// uncounted is an store.ServerCounter without metrics.
type uncounted struct{}

func (uncounted) Counter(string) store.Counter { return nil }

// unwatched is a Generation without Watch.
type unwatched struct{}

func (unwatched) Load() uint64 { return 0 }

// storeView stores the answer of the view of type views.
func storeView(t *testing.T, keyspace *store.Keyspace, name string, count int, e *store.Entry) {
	t.Helper()
	reply := addressReply(name, count)
	kit.Must(t, e.Fill(reply))
	var q wire.Query
	packed, _ := store.QueryFromMsg(&q, make([]byte, 0, wire.MaxQuery), new(dns.Msg).SetQuestion(name, dns.TypeA))
	store.Shared.Put(keyspace, binary.BigEndian.AppendUint32(keyspace.Key(nil, packed, &q), 1), e)
}
