package autopath

import (
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/block/wirechain"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist/expand"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// ServeWire implements wirechain.Handler.
func (a *Autopath) ServeWire(b *batch.Batch, q *wirechain.Request) {
	name, _, err := dns.UnpackDomainName(q.Packed, wire.HeaderLen)
	if err != nil || !expand.ExpandableWire(q) || !a.covers(name) {
		a.PassWire(b, q)
		return
	}
	list, reason := a.lists.Find(q.Client)
	q.Answerer = &countingAnswerer{q.Answerer, list, reason}
	if list != nil {
		if base := list.Base(name); base != "" {
			a.Expander.ServeWire(b, q, name, &expand.Question{Base: base, Suffixes: list.Suffixes, ListID: list.ID})
			return
		}
	}
	a.PassWire(b, q)
}

// countingAnswerer counts a query when it is answered, or passed to the plugin chain with a result. Without a result,
// ServeDNS counts it.
type countingAnswerer struct {
	wirechain.Answerer
	list   *searchlist.List
	reason searchlist.Unknown
}

// Answer implements wirechain.Answerer.
func (c *countingAnswerer) Answer(b *batch.Batch, q *wirechain.Request, e *store.Entry, p store.Patch) {
	countClient(q.Server, c.list, c.reason)
	c.Answerer.Answer(b, q, e, p)
}

// Pass implements wirechain.Answerer.
func (c *countingAnswerer) Pass(b *batch.Batch, q *wirechain.Request, result any) {
	if result != nil {
		countClient(q.Server, c.list, c.reason)
	}
	c.Answerer.Pass(b, q, result)
}
