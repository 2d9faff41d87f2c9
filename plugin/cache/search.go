package cache

import (
	"context"
	"slices"
	"time"

	"github.com/coredns/coredns/plugin/pkg/response"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
)

// find returns what is kept for a query under its key, and of what use it is. To a query with a search list, what is
// kept for the name alone is an answer as well: it says by its lack of the option that the list was not tried.
func (c *Cache) find(key, query []byte, q *answers.Query, now time.Duration) (*answers.Entry, freshness) {
	e := c.store.Get(key)
	state := stateOf(e, now)
	if q.Search == nil || state == fresh {
		return e, state
	}
	var buf [answers.MaxKey]byte
	name := *q
	name.Search = nil
	alone := c.store.Get(c.space.Key(buf[:0], query, &name))
	stateAlone := stateOf(alone, now)
	switch {
	case stateAlone == fresh && state == expired && alone.State.(*kept).failure:
		return e, state // as a failure does not take the place of what has expired
	case stateAlone > state, e == nil:
		return alone, stateAlone
	}
	return e, state
}

// answered returns the query that a reply with these options answers: the one that was asked, or the one for the name
// alone, if the reply does not say that the search list was tried. It is not sound if it says something else.
func (c *Cache) answered(a *asked, options []dns.EDNS0) (answered *asked, sound bool) {
	if a.q.Search == nil {
		return a, true
	}
	if i := slices.IndexFunc(options, isSearch); i >= 0 {
		reply := options[i].(*dns.EDNS0_LOCAL).Data
		return a, !slices.ContainsFunc(options[i+1:], isSearch) && searchlist.Answers(reply, a.q.Search)
	}
	alone := *a
	alone.q.Search = nil
	alone.key = c.space.Key(nil, a.query, &alone.q)
	return &alone, true
}

func isSearch(o dns.EDNS0) bool { return o.Option() == searchlist.OptionCode }

// keepDenials keeps that none of the names of a search list exists, if that is what a reply says that is kept: for
// clients that go through the list themselves. Where something tells when the reply ends to hold, that says nothing
// of the single names.
func (c *Cache) keepDenials(m *dns.Msg, k *keeping) {
	if k.q.Search == nil || k.class != response.NameError || k.properties.ByGeneration() || len(m.Answer) > 0 || len(m.Ns) != 1 {
		return // what is more than the SOA record proves that the one name does not exist
	}
	if i := slices.IndexFunc(k.options, isSearch); len(k.options[i].(*dns.EDNS0_LOCAL).Data) > 0 {
		return
	}
	suffixes, ok := searchlist.ParseSuffixes(k.q.Search)
	base, below := baseOf(k.msg.Question[0].Name, suffixes)
	if !ok || !below {
		return
	}
	for _, suffix := range suffixes {
		c.keepDenial(base+suffix, m, k)
	}
}

// keepDenial keeps of a name what a reply says of another.
func (c *Cache) keepDenial(name string, m *dns.Msg, k *keeping) {
	if !c.Covers(name) || !dns.IsSubDomain(soaOf(m).Hdr.Name, name) {
		return
	}
	question := k.msg.Question[0]
	question.Name = name
	r, denied := *searchlist.WithoutOption(k.msg), *m
	r.Question, denied.Question = []dns.Question{question}, []dns.Question{question}
	a := &asked{msg: &r, n: k.n, udp: k.udp}
	var ok bool
	if a.query, ok = a.q.FromMsg(make([]byte, 0, answers.MaxQuery), &r); !ok {
		return // too long
	}
	a.key = c.space.Key(nil, a.query, &a.q)
	of := *k
	of.asked, of.options = a, nil
	c.keep(&denied, &of)
}

// baseOf returns what stands in a name before the first of the suffixes.
func baseOf(name string, suffixes []string) (base string, ok bool) {
	if len(suffixes) == 0 || len(name) <= len(suffixes[0]) || !dns.IsSubDomain(suffixes[0], name) {
		return "", false
	}
	return name[:len(name)-len(suffixes[0])], true
}

// fillIn fills in the properties of a stored answer for a cache in front that has passed on this very query.
func fillIn(ctx context.Context, r *dns.Msg, e *answers.Entry) {
	if p := answers.PropertiesOf(ctx, r); p != nil {
		p.Validity, p.Serial, p.AnyCase, p.Options = e.Validity, e.Serial, e.AnyCase, e.Options
	}
}

// fillIn does the same for a reply.
func (o *outcome) fillIn(ctx context.Context, r *dns.Msg) {
	if o.entry != nil {
		fillIn(ctx, r, o.entry)
	} else if p := answers.PropertiesOf(ctx, r); p != nil && o.properties != nil {
		*p = *o.properties
	}
}
