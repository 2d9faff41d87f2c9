package cache

import (
	"slices"
	"time"

	"github.com/coredns/coredns/plugin/pkg/response"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
)

// lookup returns the entry for a query under its key, and its freshness. A query with a search list is also answered by the
// entry for the name alone, which has no option: the client then tries the list itself.
func (c *Cache) lookup(key, packed []byte, q *answers.Query, now time.Duration) (*answers.Entry, freshness) {
	e := c.store.Get(key)
	state := freshnessOf(e, now)
	if q.Search == nil || state == fresh {
		return e, state
	}
	var buf [answers.MaxKey]byte
	name := *q
	name.Search = nil
	forName := c.store.Get(c.space.Key(buf[:0], packed, &name))
	stateForName := freshnessOf(forName, now)
	switch {
	case stateForName == fresh && state == stale && forName.State.(*entryState).failure:
		return e, state // a failure does not replace a stale answer
	case stateForName > state, e == nil:
		return forName, stateForName
	}
	return e, state
}

// answeredQuery returns the query that a reply with these options answers: q itself, or the query for the name alone if
// the upstream has not tried the search list. It is not valid if the option contradicts the list of the query.
func (c *Cache) answeredQuery(q *clientQuery, options []dns.EDNS0) (answered *clientQuery, valid bool) {
	if q.Search == nil {
		return q, true
	}
	if i := slices.IndexFunc(options, isSearchList); i >= 0 {
		reply := options[i].(*dns.EDNS0_LOCAL).Data
		return q, !slices.ContainsFunc(options[i+1:], isSearchList) && searchlist.ValidReply(reply, q.Search)
	}
	alone := *q
	alone.Search = nil
	alone.key = c.space.Key(nil, q.packed, &alone.Query)
	return &alone, true
}

func isSearchList(o dns.EDNS0) bool { return o.Option() == searchlist.OptionCode }

// storeListDenials stores NXDOMAIN for each candidate of a search list, if a stored reply denies all of them: for clients
// that try the list themselves. A reply that depends on generations does not have those of the single names.
func (c *Cache) storeListDenials(r *upstreamReply) {
	if r.query.Search == nil || r.class != response.NameError || r.properties.ByGeneration() || len(r.msg.Answer) > 0 || len(r.msg.Ns) != 1 {
		return // records besides the SOA record prove the nonexistence of one name only
	}
	if i := slices.IndexFunc(r.options, isSearchList); len(r.options[i].(*dns.EDNS0_LOCAL).Data) > 0 {
		return
	}
	suffixes, ok := searchlist.ParseSuffixes(r.query.Search)
	if !ok || len(suffixes) == 0 {
		return
	}
	base := searchlist.Base(r.query.message().Question[0].Name, suffixes[0])
	if base == "" {
		return
	}
	for _, candidate := range searchlist.Candidates(base, suffixes) {
		if candidate != "" {
			c.storeDenial(candidate, r)
		}
	}
}

// storeDenial stores the denial of a search list as that of one of its candidates.
func (c *Cache) storeDenial(name string, r *upstreamReply) {
	if !c.Covers(name) || !dns.IsSubDomain(soaOf(r.msg).Hdr.Name, name) {
		return
	}
	question := r.query.message().Question[0]
	question.Name = name
	query, denial := *searchlist.WithoutOption(r.query.message()), *r.msg
	query.Question, denial.Question = []dns.Question{question}, []dns.Question{question}
	q := &clientQuery{msg: &query, counters: r.query.counters, udp: r.query.udp}
	var ok bool
	if q.packed, ok = q.FromMsg(make([]byte, 0, answers.MaxQuery), &query); !ok {
		return // the name is too long
	}
	q.key = c.space.Key(nil, q.packed, &q.Query)
	single := *r
	single.query, single.msg, single.options = q, &denial, nil
	c.storeReply(&single)
}
