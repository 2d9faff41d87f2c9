package kubernetes

import (
	"cmp"
	"context"

	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
)

// candidate is a name that a query with a search list may mean.
type candidate struct {
	name   string // that records are made for
	lower  string // in lower case; empty if it is too long to be a name
	zone   string // the zone, in the case of the name
	suffix string // that the base has in it
}

// candidates returns the names that a query with a search list may mean (see package search), in order. The first
// is the one that is asked for. There are none without a list, with one that is not of that name, and if others
// than this plugin may answer one of the names: the query is to be answered as one without a list then.
func (k *Kubernetes) candidates(q *query, lower string) []candidate {
	data, ok := searchlist.OptionOf(q.state.Req)
	if !ok || k.shared || !ordinary(q.state.Req) {
		return nil
	}
	suffixes, ok := searchlist.ParseSuffixes(data)
	if !ok || len(suffixes) == 0 {
		return nil
	}
	base := searchlist.Base(lower, suffixes[0])
	if base == "" {
		return nil
	}
	all := make([]candidate, 0, len(suffixes))
	for i, name := range searchlist.Candidates(base, suffixes) {
		c := candidate{name: name, lower: name, suffix: suffixes[i]}
		if c.zone = k.zoneOf(q.ctx, cmp.Or(name, c.suffix), c.suffix); c.zone == "" {
			return nil
		}
		all = append(all, c)
	}
	all[0].name, all[0].zone = q.owner, q.zone
	return all
}

// zoneOf returns the zone of a candidate, empty unless its suffix is in the zone, too, and nobody but this plugin
// answers the name, be it there or not.
func (k *Kubernetes) zoneOf(ctx context.Context, name, suffix string) string {
	zone := plugin.Zones(k.Zones).Matches(name)
	if !k.syncedIn(zone) {
		return ""
	}
	if len(zone) > len(suffix) || isReverse(zone) || k.Fall.Through(name) || k.serves != nil && !k.serves(ctx, name) {
		return ""
	}
	return zone
}

// searched is the way to the answer to a query with a search list.
type searched struct {
	query
	made
	exists bool // some candidate does
}

// search answers a query that carries a search list, by the first candidate that has data. A name with addresses of
// the other family has data, too, and its answer is NODATA: A and AAAA are not to come from different names. It
// returns nil if the query is to be answered as one without a list: it has none that counts, or what a candidate
// has is not known yet.
func (k *Kubernetes) search(q query, lower string, keeps bool) *searched {
	all := k.candidates(&q, lower)
	if all == nil {
		return nil
	}
	s := &searched{query: q, made: made{m: newReply(q.state.Req), search: []byte{}}}
	if keeps {
		s.dependencies = newDependencies(k.index)
	}
	for i := range all {
		won := k.try(s, &all[i])
		if s.asker.early() {
			return nil
		}
		if won {
			s.search, _ = searchlist.AppendSuffixes(nil, []string{all[i].suffix}) // it was read from such data
			s.leadTo(q.owner)
			break
		}
	}
	if !s.exists {
		s.m.Rcode = dns.RcodeNameError
	}
	if len(s.m.Answer) == 0 {
		s.m.Ns = []dns.RR{k.soa(q.zone)}
	}
	return s
}

// try looks for the data of a candidate, and reports whether the search ends with it.
func (k *Kubernetes) try(s *searched, c *candidate) bool {
	if c.lower == "" {
		return false
	}
	f := k.find(c.lower, c.zone, s.dependencies)
	if f.kind == nothing {
		return false
	}
	s.owner, s.zone, s.exists = c.name, c.zone, true
	k.expectAsker(&s.query, &f)
	k.answer(&s.query, f, s.m)
	if len(s.m.Answer) > 0 || s.asker.early() {
		return true
	}
	for _, q := range s.counting() {
		if records, _ := k.addressRecords(&q, f, nil); len(records) > 0 {
			return true
		}
	}
	return false
}

// counting returns the queries that make a name count which has no data of the type asked for: of an address those
// of the other family, and of how to connect to one (RFC 9460) those of both.
func (s *searched) counting() (all []query) {
	switch s.qtype {
	case dns.TypeA, dns.TypeAAAA, dns.TypeHTTPS, dns.TypeSVCB:
	default:
		return nil
	}
	for _, t := range []uint16{dns.TypeA, dns.TypeAAAA} {
		if t != s.qtype {
			q := s.query
			q.qtype = t
			all = append(all, q)
		}
	}
	return all
}

// leadTo puts a CNAME from the name that is asked for before the records of the candidate that has them.
func (s *searched) leadTo(asked string) {
	if s.owner == asked || len(s.m.Answer) == 0 {
		return
	}
	link := &dns.CNAME{Hdr: *s.m.Answer[0].Header(), Target: s.owner}
	link.Hdr.Name, link.Hdr.Rrtype = asked, dns.TypeCNAME
	s.m.Answer = append([]dns.RR{link}, s.m.Answer...)
}
