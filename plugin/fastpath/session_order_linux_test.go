package fastpath

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/plugin/internal/dso"
	"github.com/nearside-dns/nearside/plugin/internal/push"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
	"github.com/nearside-dns/nearside/test/kit"
)

// data are the data behind an answer of a test: the answer for a value has as many addresses.
type data struct {
	watchable
	mu    sync.Mutex
	value int
}

// read returns the value, and the validity of an answer with it.
func (d *data) read() (int, validity.Validity) {
	v := bound(&d.watchable)
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.value, v
}

// change changes the value, and returns it when the change is complete.
func (d *data) change() int {
	d.mu.Lock()
	d.value++
	v := d.value
	d.mu.Unlock()
	d.Advance()
	return v
}

// storingChain returns the handler of a plugin chain that stores its replies as plugin kubernetes does.
func storingChain(t *testing.T, keyspace *store.Keyspace, names map[string]*data) func(w dns.ResponseWriter, m *dns.Msg) {
	return func(w dns.ResponseWriter, m *dns.Msg) {
		name := m.Question[0].Name
		reply := new(dns.Msg).SetReply(m)
		p := &store.Properties{AnyCase: true}
		if d := names[name]; d != nil {
			var value int
			value, p.Validity = d.read()
			reply.Answer = addressReply(name, value%50+1).Answer
			keyspace.PutReply(m, reply, p)
		}
		if m.IsEdns0() != nil {
			reply.SetEdns0(1232, false)
		}
		if err := w.WriteMsg(reply); err != nil {
			t.Log(err) // the client has closed the connection
		}
	}
}

// newStoringListener returns a listener whose plugin chain stores the answers for names.
func newStoringListener(t *testing.T, names map[string]*data) (l *listener, address string) {
	t.Helper()
	keyspace := newKeyspace(t)
	return newStreamListener(t, storingChain(t, keyspace, names), withRoute(t, keyspace, nil))
}

// TestFirstAnswer has handles in the first answer for a name, which the plugin chain makes and stores.
func TestFirstAnswer(t *testing.T) {
	offer(t)
	d := &data{value: 2}
	l, address := newStoringListener(t, map[string]*data{"first.example.": d})
	m := l.server.Load().metrics
	answered, handedOver := valueOf(t, m.answered), valueOf(t, m.handedOver)
	c := dialSession(t, address)
	for value := 2; value < 5; value++ {
		reply, handles := c.ask("first.example.", notify)
		if len(reply.Answer) != value+1 || len(handles) != 1 {
			t.Fatalf("%d addresses and handles %v, want %d and one", len(reply.Answer), handles, value+1)
		}
		again, same := c.ask("first.example.", notify)
		if len(again.Answer) != value+1 || !slices.Equal(same, handles) {
			t.Errorf("%d addresses and handles %v, want %d and %v", len(again.Answer), same, value+1, handles)
		}
		d.change()
		if got := c.invalidated(); !slices.Equal(got, handles) {
			t.Errorf("%v are invalidated, want %v", got, handles)
		}
	}
	if reply, handles := c.ask("other.example.", notify); len(reply.Answer) != 0 || len(handles) != 0 {
		t.Errorf("handles %v of a reply that is not stored:\n%v", handles, reply)
	}
	if reply, handles := c.ask("first.example."); len(reply.Answer) != 6 || len(handles) != 0 || reply.IsEdns0() != nil {
		t.Errorf("handles %v without a request for notification:\n%v", handles, reply)
	}
	kit.Eventually(t, "each is counted once", func() bool {
		return valueOf(t, m.answered)-answered == 3 && valueOf(t, m.handedOver)-handedOver == 5
	})
}

// TestEndedFirstAnswer has data that change after the plugin chain has stored its reply, and before it writes it: the answer has
// handles, and their invalidation is behind it. An entry from before the query is not sent.
func TestEndedFirstAnswer(t *testing.T) {
	offer(t)
	d := &data{value: 2}
	keyspace := newKeyspace(t)
	old := &store.Entry{Validity: bound(&d.watchable)}
	storeAnswer(t, keyspace, "old.example.", 9, old)
	d.Advance()
	_, address := newStreamListener(t, func(w dns.ResponseWriter, m *dns.Msg) {
		name := m.Question[0].Name
		reply := addressReply(name, 3)
		reply.Id = m.Id
		_, v := d.read()
		switch name {
		case "all.example.":
			keyspace.PutReply(m, reply, &store.Properties{Validity: v})
		case "viewed.example.":
			keyspace.PutReply(m, reply, &store.Properties{Validity: v, Views: views{}, View: store.View{Number: 1}})
		}
		d.change()
		_ = w.WriteMsg(reply)
	}, withRoute(t, keyspace, nil))
	for name, handles := range map[string]int{"all.example.": 1, "viewed.example.": 1, "old.example.": 0} {
		t.Run(name, func(t *testing.T) {
			for range 3 {
				c := dialSession(t, address)
				m, got := c.ask(name, notify, fromCaller)
				if len(m.Answer) != 3 || len(got) != handles {
					t.Fatalf("%d handles in\n%v", len(got), m)
				}
				if handles == 0 {
					continue
				}
				if ended := c.invalidated(); !slices.Equal(ended, got) {
					t.Errorf("%v are invalidated, want %v", ended, got)
				}
			}
		})
	}
}

// TestEndedOlderAnswer has a plugin chain that retains the entry of another query, which is current then, and data that change
// before the chain writes its reply: if the entry has that reply, the answer has handles, and their invalidation is behind it.
func TestEndedOlderAnswer(t *testing.T) {
	offer(t)
	with := func(change func(*dns.Msg)) func(string) *dns.Msg {
		return func(name string) *dns.Msg {
			m := addressReply(name, 3)
			change(m)
			return m
		}
	}
	denied := func(serial uint32) func(*dns.Msg) {
		return func(m *dns.Msg) {
			m.Rcode, m.Answer = dns.RcodeNameError, nil
			m.Ns = []dns.RR{&dns.SOA{
				Hdr: dns.RR_Header{Name: "example.", Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: 5}, Ns: "ns.example.", Mbox: "m.example.",
				Serial: serial, Minttl: 5,
			}}
		}
	}
	same := with(func(*dns.Msg) {})
	for name, tt := range map[string]struct {
		question      string
		stored, reply func(name string) *dns.Msg
		views         bool // only the entry with Views is older
		popularity    *store.Popularity
		handles       int
	}{
		"the same":            {stored: same, reply: same, handles: 1},
		"views":               {reply: same, views: true, handles: 1},
		"upper case":          {question: "OLDER.Example.", stored: same, reply: same, handles: 1},
		"to be prefetched":    {stored: same, reply: same, popularity: new(store.Popularity), handles: 1},
		"in another order":    {stored: same, reply: with(func(m *dns.Msg) { slices.Reverse(m.Answer) }), handles: 1},
		"with another TTL":    {stored: same, reply: with(func(m *dns.Msg) { m.Answer[1].Header().Ttl = 3 }), handles: 1},
		"with another serial": {stored: with(denied(7)), reply: with(denied(8)), handles: 1},
		"with fewer records":  {stored: same, reply: with(func(m *dns.Msg) { m.Answer = m.Answer[1:] })},
		"with another record": {stored: same, reply: with(func(m *dns.Msg) { m.Answer[1] = addressReply(m.Question[0].Name, 4).Answer[3] })},
		"in another section":  {stored: same, reply: with(func(m *dns.Msg) { m.Answer, m.Extra = m.Answer[1:], m.Answer[:1] })},
		"with another code":   {stored: same, reply: with(func(m *dns.Msg) { m.Rcode = dns.RcodeNameError })},
	} {
		t.Run(name, func(t *testing.T) {
			d, keyspace := &data{value: 2}, newKeyspace(t)
			_, address := newStreamListener(t, func(w dns.ResponseWriter, m *dns.Msg) {
				name := m.Question[0].Name
				_, v := d.read()
				e := &store.Entry{Validity: v, Popularity: tt.popularity}
				reply, p := tt.reply(name), &store.Properties{Validity: v}
				reply.Id = m.Id
				if tt.views {
					e.Views, p.Views, p.View.Number = views{}, views{}, 1
				} else if err := e.Fill(tt.stored(name)); err != nil {
					t.Error(err)
				}
				e.Stored = validity.Now() - time.Second // while this query waited for a free place
				putEntry(t, keyspace, name, e)
				keyspace.PutReply(m, reply, p)
				d.change()
				_ = w.WriteMsg(reply)
			}, withRoute(t, keyspace, nil))
			question := cmp.Or(tt.question, "older.example.")
			c := dialSession(t, address)
			m, got := c.ask(question, notify, fromCaller)
			if len(got) != tt.handles || m.Question[0].Name != question {
				t.Fatalf("%d handles, want %d, in\n%v", len(got), tt.handles, m)
			}
			if tt.handles == 0 {
				return
			}
			if ended := c.invalidated(); !slices.Equal(ended, got) {
				t.Errorf("%v are invalidated, want %v", ended, got)
			}
		})
	}
}

// TestNewerAnswer has a plugin chain that denies a name that has been created since, as another query has found: the answer to
// that one is sent, also if it has ended.
func TestNewerAnswer(t *testing.T) {
	offer(t)
	for name, ended := range map[string]bool{"current": false, "ended": true} {
		t.Run(name, func(t *testing.T) {
			d, keyspace := &data{value: 2}, newKeyspace(t)
			_, address := newStreamListener(t, func(w dns.ResponseWriter, m *dns.Msg) {
				reply := new(dns.Msg).SetRcode(m, dns.RcodeNameError)
				_, v := d.read()
				d.change()
				_, current := d.read()
				storeAnswer(t, keyspace, "new.example.", 3, &store.Entry{Validity: current})
				keyspace.PutReply(m, reply, &store.Properties{Validity: v})
				if ended {
					d.change()
				}
				_ = w.WriteMsg(reply)
			}, withRoute(t, keyspace, nil))
			c := dialSession(t, address)
			m, handles := c.ask("new.example.", notify)
			if len(m.Answer) != 3 || len(handles) != 1 {
				t.Fatalf("%d handles in\n%v", len(handles), m)
			}
			if !ended {
				d.change()
			}
			if got := c.invalidated(); !slices.Equal(got, handles) {
				t.Errorf("%v are invalidated, want %v", got, handles)
			}
		})
	}
}

// TestPartlyEnded has an answer of which one of two Generations has advanced: only its handle is invalidated. Other answers
// depend on the other one.
func TestPartlyEnded(t *testing.T) {
	offer(t)
	d, shared := &data{value: 2}, new(watchable)
	keyspace := newKeyspace(t)
	_, address := newStreamListener(t, func(w dns.ResponseWriter, m *dns.Msg) {
		reply := addressReply(m.Question[0].Name, 3)
		reply.Id = m.Id
		keyspace.PutReply(m, reply, &store.Properties{Validity: bound(shared, &d.watchable)})
		d.change()
		_ = w.WriteMsg(reply)
	}, withRoute(t, keyspace, nil))
	c := dialSession(t, address)
	_, handles := c.ask("ended.example.", notify)
	if len(handles) != 2 {
		t.Fatalf("handles %v", handles)
	}
	if ended := c.invalidated(); !slices.Equal(ended, handles[1:]) {
		t.Errorf("%v are invalidated, want %v", ended, handles[1:])
	}
}

// TestFullTTL has an answer that plugin cache has stored for half of its TTL: with handles, the answer is as good as a new one.
func TestFullTTL(t *testing.T) {
	offer(t)
	keyspace, g := newKeyspace(t), new(watchable)
	e := &store.Entry{Validity: bound(g), Cached: true}
	storeAnswer(t, keyspace, "half.example.", 1, e)
	ttl := addressReply("half.example.", 1).Answer[0].Header().Ttl
	e.Stored -= time.Duration(ttl) * time.Second / 2
	e.Expires = e.Stored + time.Duration(ttl)*time.Second
	_, address := newStreamListener(t, echo, withRoute(t, keyspace, nil))
	c := dialSession(t, address)
	if m, handles := c.ask("half.example.", notify); m.Answer[0].Header().Ttl != ttl || len(handles) != 1 {
		t.Errorf("handles %v, want one and the TTL %d, in\n%v", handles, ttl, m)
	}
	if m, _ := c.ask("half.example."); m.Answer[0].Header().Ttl > ttl-ttl/2 {
		t.Errorf("want the remaining TTL without handles, in\n%v", m)
	}
}

// TestManyEndpoints has answers to SRV queries in a block with loadbalance, with as many addresses as the fast path shuffles, and
// with more: both have handles, since the cache of a node shuffles the records itself.
func TestManyEndpoints(t *testing.T) {
	offer(t)
	for _, endpoints := range []int{256, 257} {
		t.Run(fmt.Sprint(endpoints), func(t *testing.T) {
			keyspace, g := newKeyspace(t), new(watchable)
			_, address := newStreamListener(t, func(w dns.ResponseWriter, m *dns.Msg) {
				reply := new(dns.Msg).SetReply(m)
				for i := range endpoints {
					target := addressReply(fmt.Sprintf("e%d.srv.example.", i), i+1).Answer[i]
					h := dns.RR_Header{Name: "srv.example.", Rrtype: dns.TypeSRV, Class: dns.ClassINET, Ttl: 30}
					reply.Answer = append(reply.Answer, &dns.SRV{Hdr: h, Port: 80, Target: target.Header().Name})
					reply.Extra = append(reply.Extra, target)
				}
				keyspace.PutReply(m, reply, &store.Properties{Validity: bound(g)})
				_ = w.WriteMsg(reply)
			}, withRoute(t, keyspace, nil), func(s *server) { s.routes.find([]byte{0}).shuffle = true })
			c := dialSession(t, address)
			for range 2 { // of the plugin chain, and stored
				m, handles := c.ask("srv.example.", notify, func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeSRV })
				if len(m.Answer) != endpoints || len(m.Extra) != endpoints+1 || len(handles) != 1 {
					t.Errorf("%d answers, %d additional records, %d handles", len(m.Answer), len(m.Extra), len(handles))
				}
			}
		})
	}
}

// TestOtherPlugin has a server block in which another plugin may answer before kubernetes: its answers have no handles.
func TestOtherPlugin(t *testing.T) {
	offer(t)
	keyspace := newKeyspace(t)
	_, address := newStreamListener(t, echo, withRoute(t, keyspace, nil), func(s *server) { s.routes.find([]byte{0}).byGeneration = false })
	storeAnswer(t, keyspace, "hosts.example.", 1, &store.Entry{Validity: bound(new(watchable))})
	if m, handles := dialSession(t, address).ask("hosts.example.", notify); len(m.Answer) != 1 || len(handles) != 0 {
		t.Errorf("handles %v in\n%v", handles, m)
	}
}

// TestUpperCase has the first answers to questions with upper-case letters: the plugin chain gets them in lower case, since other
// answers are not stored, and the client gets its own question.
func TestUpperCase(t *testing.T) {
	offer(t)
	d := &data{value: 2}
	keyspace := newKeyspace(t)
	chain := storingChain(t, keyspace, map[string]*data{"first.example.": d, "serial.example.": d, "FIRST.Example.": d})
	anyCase := func(w dns.ResponseWriter, m *dns.Msg) {
		if m.Question[0].Name == "serial.example." { // as a negative answer, whose SOA record has the zone of the question
			_, v := d.read()
			keyspace.PutReply(m, addressReply("serial.example.", 3), &store.Properties{Validity: v})
		}
		chain(w, m)
	}
	_, address := newStreamListener(t, anyCase, withRoute(t, keyspace, nil))
	c := dialSession(t, address)
	for _, tt := range []struct {
		name    string
		change  func(*dns.Msg)
		handles int
	}{
		{"FIRST.Example.", func(*dns.Msg) {}, 0},
		{"First.example.", notify, 1},
		{"fiRST.EXAMPLE.", notify, 1},
		{"SERIAL.example.", notify, 1},
		{"serial.Example.", notify, 1},
		{"None.example.", notify, 0},
	} {
		m, handles := c.ask(tt.name, tt.change)
		if m.Question[0].Name != tt.name || len(handles) != tt.handles || tt.handles > 0 && len(m.Answer) != 3 {
			t.Errorf("%s: %d handles in\n%v", tt.name, len(handles), m)
		}
	}
}

// TestIgnoredSearchList has a plugin chain that answers the name alone, and stores the answer so.
func TestIgnoredSearchList(t *testing.T) {
	offer(t)
	d, tried := &data{value: 2}, &data{value: 4}
	keyspace := newKeyspace(t)
	chain := storingChain(t, keyspace, map[string]*data{"ignored.example.": d, "tried.example.": tried})
	_, address := newStreamListener(t, func(w dns.ResponseWriter, m *dns.Msg) {
		if m.Question[0].Name == "tried.example." && searchlist.HasOption(m) { // the candidates were tried, and the answer is not stored
			reply := addressReply("tried.example.", 3)
			reply.Id = m.Id
			_ = w.WriteMsg(searchlist.WithOption(reply, []byte{}))
			return
		}
		chain(w, m)
	}, withRoute(t, keyspace, nil))
	c := dialSession(t, address)
	list, _ := searchlist.AppendSuffixes(nil, []string{"example.", "org."})
	withList := func(m *dns.Msg) {
		m.IsEdns0().Option = append(m.IsEdns0().Option, &dns.EDNS0_LOCAL{Code: wire.OptionSearchList, Data: list})
	}
	for range 2 {
		if m, handles := c.ask("ignored.example.", notify, withList); len(m.Answer) != 3 || len(handles) != 1 {
			t.Errorf("%d handles in\n%v", len(handles), m)
		}
	}
	c.ask("tried.example.", notify) // stored as the answer to the name
	if m, handles := c.ask("tried.example.", notify, withList); len(m.Answer) != 3 || len(handles) != 0 {
		t.Errorf("%d handles in\n%v", len(handles), m)
	}
}

// TestWireHandles has answers of wire handlers. They have handles if they are stored, unless they were found with the search list
// of the client's address.
func TestWireHandles(t *testing.T) {
	offer(t)
	for name, tt := range map[string]struct {
		store   func(*testing.T, *store.Keyspace, *store.Entry)
		handles int
	}{
		"stored": {func(t *testing.T, k *store.Keyspace, e *store.Entry) { storeAnswer(t, k, "wire.example.", 2, e) }, 1},
		"by list": {func(t *testing.T, k *store.Keyspace, e *store.Entry) {
			storeAnswer(t, k, "wire.example.", 2, e, 7)
		}, 0},
		"not stored": {func(*testing.T, *store.Keyspace, *store.Entry) {}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			keyspace := newKeyspace(t)
			e := entryFor(t, "wire.example.", 2)
			e.Validity = bound(new(watchable))
			tt.store(t, newKeyspace(t), e)
			_, address := newStreamListener(t, echo, withRoute(t, keyspace, &wireAnswerer{t: t, entry: e}))
			c := dialSession(t, address)
			for id := range uint16(4) {
				setID := func(m *dns.Msg) { m.Id = id }
				for _, option := range []func(*dns.Msg){func(*dns.Msg) {}, fromCaller} {
					if m, handles := c.ask("wire.example.", notify, option, setID); len(m.Answer) != 2 || len(handles) != tt.handles {
						t.Errorf("%d addresses and handles %v, want %d", len(m.Answer), handles, tt.handles)
					}
				}
			}
		})
	}
}

// TestOtherCode has a stored answer with another code than the reply: the reply is sent.
func TestOtherCode(t *testing.T) {
	offer(t)
	d := &data{value: 2}
	keyspace := newKeyspace(t)
	_, address := newStreamListener(t, func(w dns.ResponseWriter, m *dns.Msg) {
		_, v := d.read()
		keyspace.PutReply(m, addressReply(m.Question[0].Name, 3), &store.Properties{Validity: v})
		_ = w.WriteMsg(new(dns.Msg).SetRcode(m, dns.RcodeServerFailure))
	}, withRoute(t, keyspace, nil))
	c := dialSession(t, address)
	if reply, handles := c.ask("code.example.", notify); reply.Rcode != dns.RcodeServerFailure || len(handles) != 0 {
		t.Errorf("handles %v in\n%v", handles, reply)
	}
}

// TestOutdated has data that change between the lookup and the subscription: the answer has handles, and their invalidation
// is behind it. The subscriptions end: the data may never change again, as those of a Service that was deleted.
func TestOutdated(t *testing.T) {
	offer(t)
	keyspace := newKeyspace(t)
	_, address := newStreamListener(t, echo, withRoute(t, keyspace, nil))
	for i := range 20 {
		e := &store.Entry{Validity: bound(&advancing{new(watchable)})}
		name := fmt.Sprintf("outdated%d.example.", i)
		storeAnswer(t, keyspace, name, 1, e)
		c := dialSession(t, address)
		_, handles := c.ask(name, notify)
		if len(handles) != 1 {
			t.Fatalf("handles %v", handles)
		}
		if got := c.invalidated(); !slices.Equal(got, handles) {
			t.Errorf("%v are invalidated, want %v", got, handles)
		}
	}
	kit.Eventually(t, "no subscription remains", func() bool { return push.Process.Statistics().Subscriptions == 0 })
}

// advancing is a Generation that advances when it is watched, before the watcher is set.
type advancing struct{ *watchable }

func (g *advancing) Watch(w interface{ Advanced() }) interface{ Advanced() } {
	if g.watchable.Watch(nil) == nil {
		g.Advance()
	}
	return g.watchable.Watch(w)
}

// pushing is a Generation in whose Watch another goroutine pushes a message.
type pushing struct {
	*watchable
	push func()
}

func (g *pushing) Watch(w interface{ Advanced() }) interface{ Advanced() } {
	go g.push()
	time.Sleep(5 * time.Millisecond)
	return g.watchable.Watch(w)
}

// TestNoOvertaking pushes messages while an answer is made, and while it is in the output: the answer is the first.
func TestNoOvertaking(t *testing.T) {
	offer(t)
	keyspace := newKeyspace(t)
	s := newServer(t, echo)
	withRoute(t, keyspace, nil)(s)
	p, c, fd := sessionPair(t, s)
	var pushed sync.WaitGroup
	pushed.Add(1)
	g := &pushing{new(watchable), func() {
		defer pushed.Done()
		c.Push(dso.AppendInvalidate(nil, []uint64{1}))
	}}
	storeAnswer(t, keyspace, "order.example.", 1, &store.Entry{Validity: bound(g)})
	query := framed(t, 1, "order.example.", notify)[lengthLen:]
	f := &p.frames
	f.now = validity.Now()
	if !f.find(s, query, c.client, f.now) || f.appendNotified(c, s, query) == nil {
		t.Fatal("no answer with handles")
	}
	pushed.Wait()
	c.Push(dso.AppendInvalidate(nil, nil))
	buf := make([]byte, 4096)
	n, err := unix.Read(fd, buf)
	if err != nil {
		t.Fatal(err)
	}
	var order []bool
	for b := buf[:n]; len(b) > lengthLen; {
		end := lengthLen + int(binary.BigEndian.Uint16(b))
		if m, _ := dso.Parse(b[lengthLen:end]); dso.IsDSO(b[lengthLen:end]) {
			if primary, _ := m.Primary(); primary.Type != dso.Heartbeat {
				order = append(order, true)
			}
		} else {
			order = append(order, false)
		}
		b = b[end:]
	}
	if !slices.Equal(order, []bool{false, true, true}) {
		t.Errorf("messages that are invalidations: %v, want the answer first and then two", order)
	}
}

// TestInvalidationFollowsAnswer has clients that query names while their data change. An invalidation has only handles that
// the client has received before. When the client has received the invalidations of all changes so far, it has no answer
// that is older, except those that an invalidation has ended.
func TestInvalidationFollowsAnswer(t *testing.T) {
	offer(t)
	names := map[string]*data{}
	var all []string
	for i := range 8 {
		name := fmt.Sprintf("n%d.example.", i)
		all = append(all, name)
		names[name] = &data{}
	}
	_, address := newStoringListener(t, names)
	var clients sync.WaitGroup
	for seed := range uint64(6) {
		c := dialSession(t, address)
		clients.Go(func() { queryWhileChanging(t, c, rand.New(rand.NewPCG(18, seed)), all, names) })
	}
	clients.Wait()
}

// received is the last answer that a client has received for a name: the value behind it and its handles.
type received struct {
	value   int
	handles []uint64
	ended   bool
}

// queryWhileChanging sends queries in bursts and changes data meanwhile. At the end of each round, changes stop for a name.
func queryWhileChanging(t *testing.T, c *sessionClient, random *rand.Rand, all []string, names map[string]*data) {
	last, known := map[string]*received{}, map[uint64]bool{}
	for range 300 {
		name := all[random.IntN(len(all))]
		if err := c.SetDeadline(time.Now().Add(patience)); err != nil { // the machine may be busy
			t.Error(err)
			return
		}
		var burst []byte
		count := 1 + random.IntN(10)
		for i := range count {
			m := new(dns.Msg).SetQuestion(all[random.IntN(len(all))], dns.TypeA)
			m.Id = uint16(i)
			notify(m)
			b, err := m.Pack()
			if err != nil {
				t.Error(err)
				return
			}
			burst = appendMessage(burst, b)
		}
		if _, err := c.Write(burst); err != nil {
			t.Error(err)
			return
		}
		if random.IntN(2) == 0 {
			names[name].change()
		}
		for count > 0 {
			b, err := c.read()
			if err != nil {
				t.Error(err)
				return
			}
			if !dso.IsDSO(b) {
				count--
				m, handles := c.answer(b)
				last[m.Question[0].Name] = &received{value: len(m.Answer), handles: handles}
				for _, h := range handles {
					known[h] = true
				}
				continue
			}
			invalidate(t, b, last, known)
		}
	}
	settle(t, c, last, known, names)
}

// invalidate processes an invalidation as a cache does.
func invalidate(t *testing.T, b []byte, last map[string]*received, known map[uint64]bool) {
	m, err := dso.Parse(b)
	primary, _ := m.Primary()
	handles, ok := dso.ReadHandles(nil, primary.Data)
	if err != nil || primary.Type != dso.Invalidate || !ok || len(handles) == 0 {
		t.Errorf("message % x, want an invalidation", b)
	}
	for _, h := range handles {
		if !known[h] {
			t.Errorf("handle %d is invalidated before an answer has it", h)
		}
	}
	for _, r := range last {
		if slices.ContainsFunc(r.handles, func(h uint64) bool { return slices.Contains(handles, h) }) {
			r.ended = true
		}
	}
}

// settle receives messages until no answer that has not ended is older than its data, which other clients may still change.
func settle(t *testing.T, c *sessionClient, last map[string]*received, known map[uint64]bool, names map[string]*data) {
	outdated := func() (name string) {
		for name, r := range last {
			if value, _ := names[name].read(); !r.ended && len(r.handles) > 0 && r.value != value%50+1 {
				return name
			}
		}
		return ""
	}
	for outdated() != "" {
		b, err := c.read()
		if err != nil {
			t.Errorf("%s is outdated and not invalidated: %v", outdated(), err)
			return
		}
		invalidate(t, b, last, known)
	}
	handles := 0
	for _, r := range last {
		handles += len(r.handles)
	}
	if handles == 0 {
		t.Error("no answer has a handle")
	}
}
