package kubernetes

import (
	"cmp"
	"context"

	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
)

// candidate is a candidate of the search list in a query's EDNS option.
type candidate struct {
	owner  string // name of its records
	lower  string // owner in lower case; empty if it is too long for a name
	zone   string // in the letter case of owner
	suffix string // of the search list
}

// candidates returns the candidates of a query in order; the first one is the queried name. It returns nil for a query
// without a valid option, and if another plugin may answer a candidate: the query is answered as one without a search list
// then, for the reason in unused.
func (k *Kubernetes) candidates(q *query, lower string) (all []candidate, unused string) {
	data, ok := searchlist.OptionOf(q.state.Req)
	switch {
	case !ok:
		return nil, ""
	case k.shared:
		return nil, "since another plugin of the server block may answer a candidate"
	case !isLookup(q.state.Req):
		return nil, "since the query is for no records of the cluster"
	}
	suffixes, ok := searchlist.ParseSuffixes(data)
	if !ok || len(suffixes) == 0 {
		return nil, "since it is malformed"
	}
	base := searchlist.Base(lower, suffixes[0])
	if base == "" {
		return nil, "since the name does not end with its first suffix"
	}
	all = make([]candidate, 0, len(suffixes))
	for i, name := range searchlist.Candidates(base, suffixes) {
		c := candidate{owner: name, lower: name, suffix: suffixes[i]}
		if c.zone = k.candidateZone(q.ctx, cmp.Or(name, c.suffix), c.suffix); c.zone == "" {
			return nil, "since another plugin or server block may answer a candidate, or records of a candidate are not read yet"
		}
		all = append(all, c)
	}
	all[0].owner, all[0].zone = q.owner, q.zone
	return all, ""
}

// candidateZone returns the zone of a candidate. It returns "" if the suffix is not in that zone, if records of the zone are
// not read yet, and if another plugin or server block may answer the name, whether or not it exists in the cluster.
func (k *Kubernetes) candidateZone(ctx context.Context, name, suffix string) string {
	zone := plugin.Zones(k.Zones).Matches(name)
	if !k.isSynced(zone) {
		return ""
	}
	if len(zone) > len(suffix) || isReverse(zone) || k.Fall.Through(name) || k.serves != nil && !k.serves(ctx, name) {
		return ""
	}
	return zone
}

// expand answers a query with a search list by the first candidate with data. A candidate that has only addresses of the
// other family is answered with NODATA, so that A and AAAA never come from different names. q becomes the query for the last
// candidate that exists. ok is false, and q unchanged, if it is to be answered as a query without a search list: it has no
// valid one, another plugin may answer a candidate, or the data of a candidate is not synced.
func (k *Kubernetes) expand(q *query, lower string, storable bool) (a reply, ok bool) {
	all, unused := k.candidates(q, lower)
	if all == nil {
		q.explained.withoutList(unused)
		return reply{}, false
	}
	x := *q
	if storable {
		x.dependencies = newDependencies(k.index)
	}
	a = reply{m: newReply(q.state.Req), suffix: []byte{}}
	a.m.Rcode = dns.RcodeNameError
	found := false
	for i := range all {
		found = k.tryCandidate(&x, &all[i], a.m)
		if x.caller.needsNodes() {
			q.explained.withoutList("since no endpoint of a candidate is selected for the caller, which may change when Nodes are read")
			return reply{}, false
		}
		if found {
			a.suffix, _ = searchlist.AppendSuffixes(nil, []string{all[i].suffix}) // the suffix was parsed, so it is valid
			a.m.Answer = withCNAME(q.owner, x.owner, a.m.Answer)
			break
		}
	}
	q.explained.expanded(x.owner, a.m, found)
	k.deny(a.m, q.zone, x.waits)
	*q = x
	return a, true
}

// tryCandidate adds the records of a candidate to a reply, and reports whether the candidate ends the search.
func (k *Kubernetes) tryCandidate(q *query, c *candidate, m *dns.Msg) bool {
	if c.lower == "" {
		return false
	}
	f := k.find(c.lower, c.zone, q.dependencies)
	q.explained.found(q, &f, c.lower, c.zone)
	q.waits = q.waits || f.waits
	if f.kind == notFound {
		return false
	}
	q.owner, q.zone, m.Rcode = c.owner, c.zone, dns.RcodeSuccess
	k.mayUseCaller(q, &f)
	k.answer(q, f, m)
	if len(m.Answer) > 0 || q.caller.needsNodes() {
		return true
	}
	for _, qtype := range searchlist.RelatedTypes[q.qtype] {
		related := *q
		related.qtype, related.explained = qtype, nil // explained with the first type
		if records, _ := k.addressRecords(&related, f, nil); len(records) > 0 {
			return true
		}
	}
	return false
}

// withCNAME returns the records of a candidate after a CNAME at the queried name with the TTL of the first record.
func withCNAME(queried, candidate string, records []dns.RR) []dns.RR {
	if candidate == queried || len(records) == 0 {
		return records
	}
	link := &dns.CNAME{Hdr: *records[0].Header(), Target: candidate}
	link.Hdr.Name, link.Hdr.Rrtype = queried, dns.TypeCNAME
	return append([]dns.RR{link}, records...)
}
