package cache

import (
	"context"
	"fmt"

	"github.com/coredns/coredns/plugin/metadata"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// wildcardLabel is the metadata label of the wildcard record that an answer was made from.
const wildcardLabel = "zone/wildcard"

// serve answers a query with an entry. The message is unpacked from the bytes that the fast path would send, so that both
// send the same answer.
func (c *Cache) serve(ctx context.Context, w dns.ResponseWriter, r *dns.Msg, packed []byte, q wire.Query, e *store.Entry, p store.Patch) (int, error) {
	if state, ok := e.State.(*entryState); ok && state.wildcard != "" {
		metadata.SetValueFunc(ctx, wildcardLabel, func() string { return state.wildcard })
	}
	m, err := e.Message(packed, q, &p)
	if err != nil {
		c.store.Remove(e)
		return dns.RcodeServerFailure, fmt.Errorf("plugin/%s: unpack entry for %s: %w", pluginName, r.Question[0].Name, err)
	}
	c.fillProperties(ctx, r, e)
	if q.EDNS && len(p.Options) > 0 {
		m.Extra = append(m.Extra, optWith(unpackOptions(p.Options)))
	}
	if err := w.WriteMsg(m); err != nil {
		return dns.RcodeServerFailure, err
	}
	return dns.RcodeSuccess, nil
}

// fillProperties returns the properties of a stored answer to a cache in front that has passed on this very query.
func (c *Cache) fillProperties(ctx context.Context, r *dns.Msg, e *store.Entry) {
	p := store.PropertiesOf(ctx, r)
	if p == nil {
		return
	}
	p.Validity, p.Serial, p.AnyCase, p.Options = e.Validity, e.Serial, e.AnyCase, e.Options
	p.Limit, p.Lifetime, p.Foreign = e.Limit, e.Lifetime(c.now()), e.Costly
}

// tailor changes a copy of the reply to another query for the same question into the reply to this one.
func (q *clientQuery) tailor(m *dns.Msg) {
	m.Id, m.RecursionDesired, m.CheckingDisabled = q.msg.Id, q.msg.RecursionDesired, q.msg.CheckingDisabled
	m.Question = append(m.Question[:0], q.msg.Question...)
}

// adapt restricts a reply to what the client supports, and adds the options for a client with EDNS.
func (q *clientQuery) adapt(m *dns.Msg, options []byte) {
	if !q.DO && !q.AD { // RFC 6840 section 5.8
		m.AuthenticatedData = false
	}
	if q.EDNS && len(options) > 0 {
		m.Extra = append(m.Extra, optWith(unpackOptions(options)))
	}
}
