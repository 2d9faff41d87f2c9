package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/dnstest"
	"github.com/coredns/coredns/plugin/pkg/nonwriter"
	"github.com/coredns/coredns/plugin/test"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
	"github.com/nearside-dns/nearside/test/property"
)

// storing is a handler whose answers are stored, and one with the same configuration and index whose answers are not.
type storing struct {
	k, plain *Kubernetes
	// front receives the queries: the handler, or a cache in front of it that stores the answers.
	front plugin.Handler
	store *store.Store
	space *store.Keyspace
	// clients are the clients of the queries.
	clients []client
	// unfiltered is the same without topology, model is the oracle with topology; both are nil without it.
	unfiltered *Kubernetes
	model      *model
	// imports are the changes of a cluster with ServiceImports, whose names are queried then; else nil.
	imports *importChanges
}

// elsewhere answers queries for names outside of the cluster, with another answer after each change.
type elsewhere struct{ address netip.Addr }

func (e *elsewhere) records(name string, qtype uint16) []dns.RR {
	if qtype != dns.TypeA {
		return nil
	}
	h := dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 7}
	return []dns.RR{addressRecord(h, e.address)}
}

// Lookup implements upstreamer.
func (e *elsewhere) Lookup(_ context.Context, _ request.Request, name string, qtype uint16) (*dns.Msg, error) {
	return &dns.Msg{Answer: e.records(name, qtype)}, nil
}

// ServeDNS implements plugin.Handler.
func (e *elsewhere) ServeDNS(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	m := new(dns.Msg).SetReply(r)
	m.Answer = e.records(r.Question[0].Name, r.Question[0].Qtype)
	return dns.RcodeSuccess, w.WriteMsg(m)
}

func (e *elsewhere) Name() string { return "elsewhere" }

// newStoring returns a handler of a block whose answers are stored.
func newStoring(t testing.TB, block string, objects ...runtime.Object) (*storing, *elsewhere) {
	t.Helper()
	s := &storing{k: answering(t, block, objects...), store: store.NewStore(1 << 20), clients: testClients}
	s.space = s.store.NewKeyspace()
	s.space.ByGeneration.Store(true)
	s.plain = s.beside(t, block)
	s.front, s.k.space = s.k, s.space
	all := []*Kubernetes{s.k, s.plain}
	if s.k.source.Topology {
		s.clients, s.unfiltered = topologyClients, s.beside(t, withoutTopology(block))
		all = append(all, s.unfiltered)
	}
	world := &elsewhere{netip.MustParseAddr("192.0.2.1")}
	for _, k := range all {
		k.Next, k.upstream = world, world
		k.localIPs = []netip.Addr{netip.MustParseAddr("10.1.0.1")} // may be an endpoint, too
	}
	return s, world
}

// beside returns a handler of a block without a store, with the same index.
func (s *storing) beside(t testing.TB, block string) *Kubernetes {
	t.Helper()
	k := parsed(t, kubernetesDirective, block)
	k.attach(s.k.index, s.k.status)
	return k
}

// cacheInFront stores the answers whose properties it receives, as plugin cache does.
type cacheInFront struct {
	next  plugin.Handler
	space *store.Keyspace
}

func (c *cacheInFront) Name() string { return "cache" }

func (c *cacheInFront) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	ctx, conditions := store.Record(ctx, r)
	nw := nonwriter.New(w)
	if rcode, err := c.next.ServeDNS(ctx, nw, r); err != nil || nw.Msg == nil {
		return rcode, err
	}
	bare := *nw.Msg
	bare.Extra = withoutOPT(bare.Extra) // its options are in the properties
	c.space.PutReply(r, &bare, &conditions.Properties)
	return dns.RcodeSuccess, w.WriteMsg(nw.Msg)
}

// withCache puts a cache in front, which stores the answers then.
func (s *storing) withCache() {
	s.front = &cacheInFront{s.k, s.space}
	s.k.space = s.store.NewKeyspace() // the handler must not use it
	s.k.space.ByGeneration.Store(true)
}

// client is the sender of a query: with IPv6, answers are compressed from a lower size on.
type client struct {
	address   string
	fragments int // maximum size of an answer without compression in bytes, as in CoreDNS
}

var testClients = []client{{"10.240.0.1", 1480}, {"2001:db8::240:1", 1220}}

// packedReply returns the reply of a handler to a packed query, as the server sends it.
func packedReply(h plugin.Handler, query []byte, from client) ([]byte, error) {
	r := new(dns.Msg)
	if err := r.Unpack(query); err != nil {
		return nil, err
	}
	w := dnstest.NewRecorder(&test.ResponseWriter{RemoteIP: from.address})
	rcode, err := h.ServeDNS(context.Background(), request.NewScrubWriter(r, w), r)
	if err != nil || w.Msg == nil {
		return nil, fmt.Errorf("%v: ServeDNS returned %s and error %w", r.Question, dns.RcodeToString[rcode], err)
	}
	return w.Msg.Pack()
}

// entry returns the stored answer to a query, or nil. Answers of a cluster are the same with and without DO.
func (s *storing) entry(query []byte) (*store.Entry, *wire.Query) {
	e, q, _ := s.entryAndKey(query)
	return e, q
}

// entryAndKey is entry with its key, which has room for a view.
func (s *storing) entryAndKey(query []byte) (*store.Entry, *wire.Query, []byte) {
	var q wire.Query
	if !q.Parse(query) {
		return nil, nil, nil
	}
	without := q
	without.DO = false
	key := s.space.Key(make([]byte, 0, store.MaxKey), query, &without)
	if e := s.store.Get(key); e != nil {
		return e, &q, key
	}
	key = s.space.Key(key[:0], query, &q)
	return s.store.Get(key), &q, key
}

// stored returns the reply that a fast path would send to a query, or nil.
func (s *storing) stored(query []byte, from client) []byte {
	e, q, key := s.entryAndKey(query)
	if e != nil && e.Views != nil {
		e, _ = s.store.GetView(e, key, validity.Now(), netip.MustParseAddr(from.address), q.CallerData(query))
	}
	if e == nil || !e.Fresh(validity.Now()) || q.Upper && !e.AnyCase {
		return nil
	}
	p := e.Patch(validity.Now())
	form := e.Form(q, &p, q.Limit(), from.fragments)
	if form == nil {
		return nil
	}
	return form.AppendReply(nil, query, q, &p)
}

// same returns an error if two replies differ.
func same(got, want []byte) error {
	if string(got) == string(want) {
		return nil
	}
	g, w := new(dns.Msg), new(dns.Msg)
	return fmt.Errorf("the reply is (%v, %d bytes)\n%v\nwant (%v, %d bytes)\n%v\n% x\n% x",
		g.Unpack(got), len(got), g, w.Unpack(want), len(want), w, got, want)
}

// queryOf draws a packed query for a name and a type.
func (s *storing) queryOf(r *rand.Rand, name string, qtype uint16) ([]byte, error) {
	m := new(dns.Msg).SetQuestion(name, qtype)
	m.Id = uint16(r.Uint32())
	m.RecursionDesired, m.CheckingDisabled, m.AuthenticatedData = r.IntN(4) > 0, r.IntN(4) == 0, r.IntN(4) == 0
	if r.IntN(4) == 0 {
		m.Question[0].Name = mixedCase(r, name)
	}
	if r.IntN(2) == 0 {
		m.SetEdns0(pick(r, []uint16{0, 100, 512, 1232, 1400, 4096, 65535}), r.IntN(3) == 0)
	}
	if s.k.source.Topology {
		nameCaller(r, m)
	}
	return s.withSearchList(r, m).Pack()
}

// withSearchList adds a search list to some queries.
func (s *storing) withSearchList(r *rand.Rand, m *dns.Msg) *dns.Msg {
	if m = addList(r, m); s.imports != nil {
		m = addImportList(r, m)
	}
	return m
}

func mixedCase(r *rand.Rand, name string) string {
	b := []byte(name)
	for i := range b {
		if r.IntN(2) == 0 {
			b[i] = strings.ToUpper(name[i : i+1])[0]
		}
	}
	return string(b)
}

// storedBlock is a configuration of a cluster, or of one with ServiceImports.
type storedBlock struct {
	name, options string
	imports       bool
	inFront       bool
	order         bool // also for the tests of the order of lookups
}

// storedBlocks have options that answers depend on in different ways.
var storedBlocks = []storedBlock{
	{name: "plain"},
	{name: "pods insecure, ttl 0", options: "pods insecure\nttl 0"},
	{name: "pods verified, zonal", options: "pods verified\nzonal\nendpoint_pod_names", order: true},
	{name: "ignore empty_service", options: "ignore empty_service"},
	{name: "fallthrough", options: "pods verified\nfallthrough\nttl 30"},
	{name: "fallthrough in-addr.arpa", options: "fallthrough in-addr.arpa\nignore empty_service\nzonal"},
	{name: "namespaces", options: "namespaces shop\npods insecure"},
	{name: "noendpoints", options: "noendpoints"},
	{name: "a cache in front", options: "pods verified\nzonal\nfallthrough ip6.arpa", inFront: true, order: true},
	{name: "topology", options: "topology\nzonal", order: true},
	{name: "topology, zone or any", options: "topology keys topology.kubernetes.io/zone *\npods verified"},
	{name: "topology, same host", options: "topology keys kubernetes.io/hostname"},
	{name: "topology, one range trusted", options: "topology\ntrust 192.0.2.0/24"},
	{name: "topology, a cache in front", options: "topology keys example.org/rack\npods verified", inFront: true, order: true},

	{name: "clusterset", imports: true, order: true},
	{name: "clusterset, pods verified, zonal", options: "pods verified\nzonal", imports: true},
	{name: "clusterset, ignore empty_service", options: "ignore empty_service", imports: true, order: true},
	{name: "clusterset, noendpoints", options: "noendpoints", imports: true},
	{name: "clusterset, namespaces", options: "namespaces shop", imports: true},
	{name: "clusterset, a cache in front", options: "pods verified", imports: true, inFront: true, order: true},
	{name: "clusterset, the own cluster first", options: "prefer-local-cluster", imports: true, order: true},
	{name: "clusterset, the own cluster first, by its name", options: "prefer-local-cluster EAST", imports: true},
	{name: "clusterset, topology", options: "topology", imports: true, order: true},
	{name: "clusterset, topology, zone or any", options: "topology keys topology.kubernetes.io/zone *\npods verified", imports: true},
	{name: "clusterset, topology, the own cluster first", options: "topology\nprefer-local-cluster", imports: true, order: true},
	{name: "clusterset, topology, the own cluster first, same host, a cache in front",
		options: "topology keys kubernetes.io/hostname\nprefer-local-cluster eu.west-1", imports: true, inFront: true},
}

// randomCluster is a cluster that changes at random: changes or importChanges.
type randomCluster interface {
	change() string
	questions(n int) []dns.Question
	common() *changes
}

// start returns a handler whose answers are stored, and the random changes of its cluster.
func (b *storedBlock) start(t *testing.T, seed uint64) (*storing, *elsewhere, randomCluster) {
	block := allZones + " {\n" + b.options + "\n}"
	if b.imports {
		block = clusterset(b.options)
	}
	s, world := newStoring(t, block)
	if b.inFront {
		s.withCache()
	}
	if b.imports {
		return s, world, s.importChanges(seed)
	}
	return s, world, s.changes(seed)
}

// requires fails the test unless the kinds of comparisons of the block were made, and those of the cluster's zones or those of the
// clusterset's.
func (b *storedBlock) requires(t *testing.T, compared seen, kinds, cluster, set []string) {
	if compared.require(t, kinds...); b.imports {
		cluster = set
	}
	compared.require(t, cluster...)
}

// inOrder runs a test for each block with order.
func inOrder(t *testing.T, test func(t *testing.T, b *storedBlock, seed uint64)) {
	for i, block := range storedBlocks {
		if block.order {
			t.Run(block.name, func(t *testing.T) {
				property.Seeds(t, uint64(i), 1, func(t *testing.T, seed uint64) { test(t, &block, seed) })
			})
		}
	}
}

// seen counts the comparisons by kind: a test without comparisons finds nothing.
type seen map[string]int

func (s seen) count(query, answer []byte) error {
	q, m := new(dns.Msg), new(dns.Msg)
	if err := errors.Join(q.Unpack(query), m.Unpack(answer)); err != nil {
		return err
	}
	kind := dns.TypeToString[m.Question[0].Qtype]
	if len(m.Answer) == 0 {
		kind = "NODATA"
	}
	if m.Rcode != dns.RcodeSuccess {
		kind = dns.RcodeToString[m.Rcode]
	}
	s[kind]++
	if name := m.Question[0].Name; name != strings.ToLower(name) {
		s["mixed case"]++
	}
	if len(answer) > dns.MinMsgSize {
		s["long"]++
	}
	if uncompressed, err := m.Pack(); err != nil || len(uncompressed) > len(answer) {
		s["compressed"]++
	}
	if q.IsEdns0() != nil {
		s["EDNS"]++
	}
	if searchlist.HasOption(m) {
		s["search: stored"]++
	}
	return nil
}

// require fails the test unless each of these kinds was compared. A few seeds may not reach all of them.
func (s seen) require(t *testing.T, kinds ...string) {
	t.Helper()
	t.Logf("compared: %v", s)
	if !property.Fixed() {
		return
	}
	for _, kind := range kinds {
		if s[kind] == 0 {
			t.Errorf("nothing was compared that is %s", kind)
		}
	}
}

// TestStored sends queries between random changes of the cluster. A stored answer that counts as valid must equal,
// byte for byte, one made without a store, for every form of the query. With topology, both must be the model's, for
// every caller; so must be every answer in a clusterset.
func TestStored(t *testing.T) {
	compared := map[bool]seen{false: {}, true: {}}
	for i, block := range storedBlocks {
		t.Run(block.name, func(t *testing.T) {
			mine, seeds := seen{}, uint64(storedSeeds)
			if block.imports {
				seeds = 2
			}
			// Seed 126 once found a stored answer that followed an alias.
			property.Seeds(t, uint64(100*i+24), seeds, func(t *testing.T, seed uint64) {
				s, world, c := block.start(t, seed)
				kit.Must(t, s.askBetweenChanges(c, world, mine))
				if block.inFront && s.k.space.Len(store.Success)+s.k.space.Len(store.Denial) > 0 {
					t.Error("the handler keeps what the cache in front of it keeps")
				}
			})
			block.requires(t, mine, []string{"A", "NODATA", "mixed case", "EDNS", "not valid any more"},
				[]string{"PTR"}, []string{"SRV", "model: NOERROR", "model: NXDOMAIN"})
			if block.name != "fallthrough" && !block.imports { // the next plugin may answer any name
				mine.require(t, "search: stored")
			}
			if strings.Contains(block.options, "topology") && !block.imports {
				mine.require(t, topologyKinds...)
			}
			for kind, n := range mine {
				compared[block.imports][kind] += n
			}
		})
	}
	for _, all := range compared {
		all.require(t, "A", "AAAA", "SRV", "PTR", "NODATA", "NXDOMAIN", "mixed case", "long", "compressed", "EDNS")
		all.require(t, searchKinds...)
	}
	compared[false].require(t, "CNAME", "model: an alias")
	compared[true].require(t, "model: an endpoint", "model: a port", "model: a part of all endpoints", "model: SERVFAIL")
}

// Changes for each seed, and queries after each of them. They are drawn from a few, so that stored answers are used.
const (
	storedChanges   = 100
	storedQuestions = 80
	storedAsked     = 30
	storedSeeds     = 4
)

func (s *storing) askBetweenChanges(c randomCluster, world *elsewhere, counts seen) error {
	questions, steps, times, r := c.questions(storedQuestions), storedChanges, storedAsked, c.common().Rand
	switch {
	case s.model != nil:
		steps, times = 70, 15 // each time with several callers
	case s.imports != nil:
		times = 20
	}
	for step := range steps {
		text := c.change()
		world.address = world.address.Next()
		for range times {
			if err := s.askAndCompare(r, pick(r, questions), counts); err != nil {
				return fmt.Errorf("step %d, after %s:\n%w", step, text, err)
			}
		}
	}
	return nil
}

// askAndCompare compares the stored answer to a query, if any. Then it sends the query, which must not change the
// answer, and checks the stored answer again.
func (s *storing) askAndCompare(r *rand.Rand, asked dns.Question, counts seen) error {
	query, err := s.queryOf(r, asked.Name, asked.Qtype)
	if err != nil {
		return err
	}
	from := pick(r, s.clients)
	if e, _ := s.entry(query); e != nil && !e.Current() {
		counts["not valid any more"]++
	}
	want, err := packedReply(s.plain, query, from)
	if err != nil {
		return err
	}
	if got := s.stored(query, from); got != nil {
		if err := same(got, want); err != nil {
			return fmt.Errorf("stored: %w", err)
		}
		if err := counts.count(query, got); err != nil {
			return err
		}
	}
	answer, err := packedReply(s.front, query, from)
	if err != nil {
		return err
	}
	if err := same(answer, want); err != nil {
		return fmt.Errorf("answer with a store: %w", err)
	}
	if got := s.stored(query, from); got != nil {
		if err := same(got, want); err != nil {
			return fmt.Errorf("just stored: %w", err)
		}
	}
	if m := new(dns.Msg); m.Unpack(query) == nil && searchlist.HasOption(m) {
		if err := s.checkWalk(query, from, counts); err != nil || s.imports == nil {
			return err
		}
	}
	switch {
	case s.imports != nil:
		return s.compareModel(s.imports.m, query, from, counts)
	case s.model == nil:
		return nil
	}
	if err := s.checkModel(query, want, from, counts); err != nil {
		return err
	}
	return s.compareOthers(r, asked, counts)
}
