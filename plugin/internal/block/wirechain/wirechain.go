// Package wirechain is the protocol of plugins that answer queries in wire form, one after the other as in CoreDNS's chain: a query
// goes from Handler to Handler, to an Exchanger at the end, and its answer to the Answerer, without dns.Msg and without a goroutine. The
// server block decides which plugins take part.
package wirechain

import (
	"context"
	"net/netip"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/vouch"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// Request is an ordinary query (see wire.Query.Parse) without a fresh answer in the store. It goes through the plugins
// of a block in wire form, without dns.Msg and without a goroutine.
type Request struct {
	wire.Query
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
	Dispatch(b *batch.Batch, q *Request) bool
}

// Answerer sends the answer to a Request. A plugin calls exactly one method, once, from any goroutine. Output is added to the
// batch of the calling goroutine, which sends it soon.
type Answerer interface {
	// Answer sends the answer of an entry. If the entry has no form for the client, the query is passed to the plugin chain
	// with a StoredResult. The plugins have counted the query in their own metrics.
	Answer(b *batch.Batch, q *Request, e *store.Entry, p store.Patch)
	// Pass passes the query to the plugin chain. result is the value of Result in the chain's context; with nil, the
	// plugins handle and count the query as if ServeWire had not been called.
	Pass(b *batch.Batch, q *Request, result any)
}

// FinalResult is a result with which the plugin chain answers a query without sending another one.
type FinalResult interface{ FinalResult() }

// StoredResult is the FinalResult of a query whose answer the plugin chain has to adapt to the client.
type StoredResult struct {
	Entry *store.Entry
	Patch store.Patch
}

// FinalResult implements FinalResult.
func (*StoredResult) FinalResult() {}

// Handler is a plugin that answers queries in wire form.
type Handler interface {
	// ServeWire answers a query: it calls a method of the query's Answerer, before it returns or later. It does not block.
	ServeWire(b *batch.Batch, q *Request)
}

// Cache is the Handler of plugin cache, the last one of a block.
type Cache interface {
	Handler
	// SetExchanger sets the plugin that forwards queries, except those for names in some zones, which other plugins answer.
	SetExchanger(x Exchanger, except []string)
}

// Exchanger is a plugin that forwards queries in wire form.
type Exchanger interface {
	// Exchange forwards a query. It returns false, and does not call the Receiver, if the plugin chain has to handle the
	// query: for example, its name is not forwarded. packed must not change until Receive is called. It does not block.
	Exchange(b *batch.Batch, q *wire.Query, packed []byte, tcp bool, r Receiver) bool
	// Capacity returns the number of queries that the upstreams can have in progress. Beyond it, Exchange may fail.
	Capacity() int
}

// Receiver receives the reply of an Exchanger.
type Receiver interface {
	// Receive is called once, before Exchange returns or later, from any goroutine. The reply is a complete message that
	// answers the question, with any id, without options for one hop. It is valid until Receive returns, which may change it.
	// Without a reply, code and err are what ServeDNS of the plugin would return. The voucher is that of the session over which
	// the reply was received, or nil. The batch belongs to the calling goroutine.
	Receive(b *batch.Batch, reply *wire.Reply, v *vouch.Voucher, code int, err error)
}

type resultKey struct{}

type passed struct {
	query  *dns.Msg
	result any
}

// WithResult returns a context for a query that was passed to the plugin chain with a result.
func WithResult(ctx context.Context, query *dns.Msg, result any) context.Context {
	return context.WithValue(ctx, resultKey{}, passed{query, result})
}

// Result returns the result with which a query was passed to the plugin chain, nil without one. Queries that plugins such
// as dns64 send in the context of the client's query have none.
func Result(ctx context.Context, query *dns.Msg) any {
	if r, ok := ctx.Value(resultKey{}).(passed); ok && r.query == query {
		return r.result
	}
	return nil
}
