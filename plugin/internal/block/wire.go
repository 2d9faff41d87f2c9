package block

import (
	"context"
	"net/netip"

	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/coherence"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// WireQuery is an ordinary query (see answers.Query.Parse) without a fresh answer in the store. It goes through the plugins
// of a block in wire form, without dns.Msg and without a goroutine.
type WireQuery struct {
	answers.Query
	// Packed is the query in wire form, and Key its key in the block's keyspace. Both are valid, and do not change, until a
	// method of Answerer is called.
	Packed, Key []byte
	// Client is the source address.
	Client netip.Addr
	// TCP is set for a query over TCP: its answer is not truncated.
	TCP bool
	// Server is the listener's address in CoreDNS's form, a label of metrics.
	Server string
	// Nested is set if a plugin has sent the query to answer another one: its name is not expanded by a search list.
	Nested bool
	// Dispatcher answers queries that a plugin sends for names of other server blocks; it may be nil.
	Dispatcher Dispatcher

	Answerer
}

// Dispatcher is a server that answers queries of plugins in wire form.
type Dispatcher interface {
	// Dispatch answers a query in the server block of its name, as the server does for a query of a client: it looks the
	// answer up in the store, and counts the query in the metrics of that block. It sets the query's Key. It returns false,
	// and does not call the Answerer, if the plugin chain has to handle the query.
	Dispatch(b *batch.Batch, q *WireQuery) bool
}

// Answerer sends the answer to a WireQuery. A plugin calls exactly one method, once, from any goroutine. The batch
// belongs to the calling goroutine, which flushes it soon.
type Answerer interface {
	// Answer sends the answer of an entry. If the entry has no form for the client, the query is passed to the plugin chain
	// with a StoredResult. The plugins have counted the query in their own metrics.
	Answer(b *batch.Batch, q *WireQuery, e *answers.Entry, p answers.Patch)
	// Pass passes the query to the plugin chain. result is the value of WireResult in the chain's context; with nil, the
	// plugins handle and count the query as if ServeWire had not been called.
	Pass(b *batch.Batch, q *WireQuery, result any)
}

// FinalResult is a result with which the plugin chain answers a query without sending another one.
type FinalResult interface{ FinalResult() }

// StoredResult is the FinalResult of a query whose answer the plugin chain has to adapt to the client.
type StoredResult struct {
	Entry *answers.Entry
	Patch answers.Patch
}

// FinalResult implements FinalResult.
func (*StoredResult) FinalResult() {}

// WireHandler is a plugin that answers queries in wire form.
type WireHandler interface {
	// ServeWire answers a query: it calls a method of the query's Answerer, before it returns or later. It does not block.
	ServeWire(b *batch.Batch, q *WireQuery)
}

// WireCache is the WireHandler of plugin cache, the last one of a block.
type WireCache interface {
	WireHandler
	// SetExchanger sets the plugin that forwards queries, except those for names in some zones, which other plugins answer.
	SetExchanger(x Exchanger, except []string)
}

// Exchanger is a plugin that forwards queries in wire form.
type Exchanger interface {
	// Exchange forwards a query. It returns false, and does not call the Receiver, if the plugin chain has to handle the
	// query: for example, its name is not forwarded. packed must not change until Receive is called. It does not block.
	Exchange(b *batch.Batch, q *answers.Query, packed []byte, tcp bool, r Receiver) bool
	// Capacity returns the number of queries that the upstreams can have in progress. Beyond it, Exchange may fail.
	Capacity() int
}

// Receiver receives the reply of an Exchanger.
type Receiver interface {
	// Receive is called once, before Exchange returns or later, from any goroutine. The reply is a complete message that
	// answers the question, with any id, without options for one hop. It is valid until Receive returns, which may change it.
	// Without a reply, code and err are what ServeDNS of the plugin would return. The voucher is that of the session over which
	// the reply was received, or nil. The batch belongs to the calling goroutine.
	Receive(b *batch.Batch, reply *wire.Reply, v *coherence.Voucher, code int, err error)
}

// WireHandler returns the first handler of queries in wire form, nil if the block has another plugin that has to see the
// queries, or lacks cache or forward; and the number of queries that its upstreams can have in progress. Names in the zones
// of a ZoneOwner are for the plugin chain. It is called when the servers start.
func (b *Block) WireHandler() (first WireHandler, capacity func() int) {
	b.linkWire.Do(func() { b.wire, b.capacity = linkWire(b.Handlers()) })
	return b.wire, b.capacity
}

// linkWire connects the cache of a block to the plugin that forwards, and returns the first WireHandler: the cache, or a
// plugin directly before it whose next handlers are WireHandlers. It returns nil if the block lacks one of them.
func linkWire(handlers []plugin.Handler) (first WireHandler, capacity func() int) {
	var cache WireCache
	var owned []string
	for _, h := range handlers {
		owner, owns := h.(ZoneOwner)
		handler, handles := h.(WireHandler)
		forward, forwards := h.(Exchanger)
		switch {
		case owns:
			owned = append(owned, owner.OwnZones()...)
			fallthrough
		case traitsOf(h).misses:
			if first != nil && cache == nil {
				return nil, nil
			}
		case handles && cache == nil:
			if first == nil {
				first = handler
			}
			cache, _ = h.(WireCache)
		case forwards && cache != nil:
			cache.SetExchanger(forward, owned)
			return first, forward.Capacity
		default:
			return nil, nil
		}
	}
	return nil, nil
}

type wireResultKey struct{}

type wireResult struct {
	query  *dns.Msg
	result any
}

// WithWireResult returns a context for a query that was passed to the plugin chain with a result.
func WithWireResult(ctx context.Context, query *dns.Msg, result any) context.Context {
	return context.WithValue(ctx, wireResultKey{}, wireResult{query, result})
}

// WireResult returns the result with which a query was passed to the plugin chain, nil without one. Plugins such as dns64 send
// queries of their own in the context of the client's query, which have none.
func WireResult(ctx context.Context, query *dns.Msg) any {
	if r, ok := ctx.Value(wireResultKey{}).(wireResult); ok && r.query == query {
		return r.result
	}
	return nil
}
