package fastpath

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/plugin/internal/caller"
	"github.com/nearside-dns/nearside/plugin/internal/dso"
	"github.com/nearside-dns/nearside/plugin/internal/push"
	"github.com/nearside-dns/nearside/plugin/internal/push/pushtest"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
	"github.com/nearside-dns/nearside/test/kit"
)

type watchable = pushtest.Generation

// bound returns the Bounds of an answer that depends on the present numbers of some Generations.
func bound(all ...validity.Generation) (v validity.Validity) {
	for _, g := range all {
		v.DependOn(g)
	}
	return v
}

// offer makes the process accept sessions during a test.
func offer(t *testing.T) (withdraw func()) {
	t.Helper()
	withdraw = push.Process.Offer(func() bool { return true })
	t.Cleanup(withdraw)
	return withdraw
}

// storeAnswer stores the answer with some addresses for a name, or for the name and the ID of a search list.
func storeAnswer(t testing.TB, keyspace *store.Keyspace, name string, count int, e *store.Entry, list ...uint32) {
	t.Helper()
	reply := addressReply(name, count)
	if e.Views == nil {
		kit.Must(t, e.Fill(reply))
	}
	e.Stored = validity.Now()
	putEntry(t, keyspace, name, e, list...)
}

// putEntry stores an entry for the addresses of a name, or of the name and the ID of a search list.
func putEntry(t testing.TB, keyspace *store.Keyspace, name string, e *store.Entry, list ...uint32) {
	t.Helper()
	var q wire.Query
	packed, ok := store.QueryFromMsg(&q, make([]byte, 0, wire.MaxQuery), new(dns.Msg).SetQuestion(name, dns.TypeA))
	if !ok {
		t.Fatal("no key")
	}
	key := keyspace.Key(nil, packed, &q)
	for _, id := range list {
		key = store.AppendKeyList(key, id)
	}
	store.Shared.Put(keyspace, key, e)
}

// sessionClient is the client of a connection with a session.
type sessionClient struct {
	net.Conn
	t testing.TB
}

func dialSession(t *testing.T, address string) *sessionClient {
	t.Helper()
	return beginSession(t, dialTCP(t, address))
}

// beginSession opens a session on a connection.
func beginSession(t *testing.T, conn net.Conn) *sessionClient {
	t.Helper()
	c := &sessionClient{conn, t}
	c.send(dso.AppendSessionRequest(nil, 1))
	if m := c.next(); m.ID != 1 || !m.Response || m.Rcode != dso.NoError {
		t.Fatalf("response %+v", m)
	}
	return c
}

// send sends a message.
func (c *sessionClient) send(message []byte) {
	c.t.Helper()
	kit.Send(c.t, c, appendMessage(nil, message))
}

// read returns the next message that is no heartbeat.
func (c *sessionClient) read() ([]byte, error) {
	for {
		var length [2]byte
		if _, err := io.ReadFull(c.Conn, length[:]); err != nil {
			return nil, err
		}
		b := make([]byte, binary.BigEndian.Uint16(length[:]))
		if _, err := io.ReadFull(c.Conn, b); err != nil {
			return nil, err
		}
		if m, err := dso.Parse(b); dso.IsDSO(b) && err == nil {
			if primary, _ := m.Primary(); primary.Type == dso.Heartbeat {
				continue
			}
		}
		return b, nil
	}
}

// next returns the next DSO message that is no heartbeat.
func (c *sessionClient) next() dso.Message {
	c.t.Helper()
	b, err := c.read()
	if err != nil {
		c.t.Fatal(err)
	}
	if !dso.IsDSO(b) {
		c.t.Fatalf("no DSO message: % x", b)
	}
	m, err := dso.Parse(b)
	if err != nil {
		c.t.Fatal(err)
	}
	return m
}

// invalidated returns the handles of the next message, which is an invalidation.
func (c *sessionClient) invalidated() []uint64 {
	c.t.Helper()
	m := c.next()
	primary, _ := m.Primary()
	handles, ok := dso.ReadHandles(nil, primary.Data)
	if primary.Type != dso.Invalidate || !m.Unidirectional() || !ok {
		c.t.Fatalf("%+v, want an invalidation", m)
	}
	return handles
}

// notify makes a query request notification.
func notify(m *dns.Msg) {
	m.SetEdns0(1232, false)
	m.IsEdns0().Option = append(m.IsEdns0().Option, &dns.EDNS0_LOCAL{Code: wire.OptionNotify})
}

// fromCaller adds the name of a caller to a query with EDNS.
func fromCaller(m *dns.Msg) {
	data, _ := caller.Append(nil, "node", "")
	m.IsEdns0().Option = append(m.IsEdns0().Option, &dns.EDNS0_LOCAL{Code: wire.OptionCaller, Data: data})
}

// fromMalformed adds a caller option without a name.
func fromMalformed(m *dns.Msg) {
	m.IsEdns0().Option = append(m.IsEdns0().Option, &dns.EDNS0_LOCAL{Code: wire.OptionCaller, Data: []byte{7}})
}

// ask sends a query and returns the answer, which is the next message, with its handles.
func (c *sessionClient) ask(name string, change ...func(*dns.Msg)) (*dns.Msg, []uint64) {
	c.t.Helper()
	q := new(dns.Msg).SetQuestion(name, dns.TypeA)
	for _, f := range change {
		f(q)
	}
	b, err := q.Pack()
	if err != nil {
		c.t.Fatal(err)
	}
	c.send(b)
	if b, err = c.read(); err != nil {
		c.t.Fatal(err)
	}
	return c.answer(b)
}

// answer parses an answer.
func (c *sessionClient) answer(b []byte) (m *dns.Msg, handles []uint64) {
	c.t.Helper()
	m = new(dns.Msg)
	if err := m.Unpack(b); err != nil || dso.IsDSO(b) {
		c.t.Fatalf("no answer: %v: % x", err, b)
	}
	if opt := m.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if local, ok := o.(*dns.EDNS0_LOCAL); ok && local.Code == wire.OptionNotify {
				if handles, ok = dso.ReadHandles(handles, local.Data); !ok {
					c.t.Fatalf("option % x", local.Data)
				}
			}
		}
	}
	return m, handles
}

// wantEnd checks that the connection ends.
func (c *sessionClient) wantEnd() {
	c.t.Helper()
	var timeout net.Error
	if b, err := c.read(); err == nil || errors.As(err, &timeout) && timeout.Timeout() {
		c.t.Fatalf("% x, %v, want the end", b, err)
	}
}

// sessionPair returns a poller with a connection that has a session until the test ends, and the socket of its client.
func sessionPair(t testing.TB, s *server) (p *poller, c *connection, client int) {
	t.Helper()
	p, c, client = streamPair(t, s)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subscribe()
	t.Cleanup(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.session.unsubscribe()
	})
	return p, c, client
}

// wantReset checks that the server aborts the connection.
func (c *sessionClient) wantReset() {
	c.t.Helper()
	if b, err := c.read(); !errors.Is(err, unix.ECONNRESET) {
		c.t.Fatalf("% x, %v, want a reset", b, err)
	}
}

// endSending ends the client's half of the connection, which the server then closes.
func (c *sessionClient) endSending() {
	c.t.Helper()
	kit.Must(c.t, c.Conn.(*net.TCPConn).CloseWrite())
}

// serverEnd returns the server's end of a client's connection.
func serverEnd(t *testing.T, l *listener, client net.Conn) *connection {
	t.Helper()
	for _, c := range l.process.streams.connectionsOf(l) {
		if c.remote.String() == client.LocalAddr().String() {
			return c
		}
	}
	t.Fatal("no connection")
	return nil
}

// newKeyspace returns a keyspace whose answers are stored until their Generations advance.
func newKeyspace(t *testing.T) *store.Keyspace {
	t.Helper()
	keyspace := store.Shared.NewKeyspace()
	t.Cleanup(keyspace.Drop)
	keyspace.ByGeneration.Store(true)
	return keyspace
}
