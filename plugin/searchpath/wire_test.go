package searchpath

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/coredns/coredns/plugin/pkg/dnstest"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/block/wirechain"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/test/kit"
)

// wireNext is next with a wire handler. Both answer NXDOMAIN, which a cache stores.
type wireNext struct{ *next }

func (n wireNext) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	if c := store.PropertiesOf(ctx, r); c != nil {
		c.Expires = validity.Now() + time.Hour
	}
	if _, err := n.next.ServeDNS(ctx, w, r); err != nil {
		return dns.RcodeServerFailure, err
	}
	return dns.RcodeNameError, w.WriteMsg(new(dns.Msg).SetRcode(r, dns.RcodeNameError))
}

func (n wireNext) ServeWire(b *batch.Batch, q *wirechain.Request) {
	r := new(dns.Msg)
	if err := r.Unpack(q.Packed); err != nil {
		panic(err)
	}
	n.queries = append(n.queries, r)
	e := &store.Entry{Stored: validity.Now(), Validity: validity.Validity{Expires: validity.Now() + time.Hour}}
	if err := e.Fill(new(dns.Msg).SetRcode(r, dns.RcodeNameError)); err != nil {
		panic(err)
	}
	q.Answer(b, q, e, e.Patch(validity.Now()))
}

// wireClient is the Answerer of a client's query. It passes queries to the plugin.
type wireClient struct {
	s      *SearchPath
	r      *dns.Msg
	reply  *dns.Msg
	err    error
	passed bool
}

func (c *wireClient) Answer(_ *batch.Batch, q *wirechain.Request, e *store.Entry, p store.Patch) {
	c.reply, c.err = e.Message(q.Packed, q.Query, &p)
}

func (c *wireClient) Pass(_ *batch.Batch, _ *wirechain.Request, result any) {
	ctx := context.Background()
	if result != nil {
		ctx = wirechain.WithResult(ctx, c.r, result)
	}
	w := dnstest.NewRecorder(&test.ResponseWriter{})
	_, c.err = c.s.ServeDNS(ctx, w, c.r)
	c.reply, c.passed = w.Msg, true
}

// TestServeWire asserts that ServeWire and ServeDNS give the same replies and query the same names.
func TestServeWire(t *testing.T) {
	for _, tt := range []struct {
		name   string
		qtype  uint16
		passed bool // to the plugin chain
	}{
		{"web.v1.search.shop.cluster.local.ap.k8s.io.", dns.TypeA, false},
		{"www.example.org.search.shop.cluster.local.ap.k8s.io.", dns.TypeAAAA, false},
		{"WEB.v1.search.shop.cluster.local.ap.k8s.io.", dns.TypeA, true},
		{"web.v1.search.shop.cluster.local.ap.k8s.io.", dns.TypeDS, true},
		{"web.v1.search.shop.cluster.local.ap.k8s.io.", dns.TypeAXFR, true},
		{"web.v9.search.shop.cluster.local.ap.k8s.io.", dns.TypeA, true},
		{"v1.search.shop.cluster.local.ap.k8s.io.", dns.TypeA, true},
		{"ap.k8s.io.", dns.TypeSOA, true},
		{"www.example.org.", dns.TypeA, false},
	} {
		t.Run(fmt.Sprint(tt.name, tt.qtype), func(t *testing.T) {
			messages, byMessage := newTest()
			messages.Next = wireNext{byMessage}
			wire, inWire := newTest()
			wire.Next = wireNext{inWire}
			r := query(tt.name, tt.qtype).SetEdns0(1232, false)
			packed := kit.Pack(t, r)
			for range 2 {
				w := dnstest.NewRecorder(&test.ResponseWriter{})
				if _, err := messages.ServeDNS(context.Background(), w, r); err != nil {
					t.Fatal(err)
				}
				c := &wireClient{s: wire, r: r}
				q := &wirechain.Request{Packed: packed, Answerer: c}
				if !q.Parse(packed) {
					t.Fatal("not parsed")
				}
				q.Key = wire.Block.Keyspace.Key(make([]byte, 0, store.MaxKey), packed, &q.Query)
				wire.ServeWire(new(batch.Batch), q)
				if fmt.Sprint(c.reply) != fmt.Sprint(w.Msg) || c.err != nil || c.passed != tt.passed {
					t.Errorf("got %v, %v, passed %t, want %v, %t", c.reply, c.err, c.passed, w.Msg, tt.passed)
				}
				if got, want := inWire.names(), byMessage.names(); !slices.Equal(got, want) {
					t.Errorf("queries %q, want %q", got, want)
				}
			}
		})
	}
}
