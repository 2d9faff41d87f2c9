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
	zone   string // in the case of owner
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

// candidateZone returns the zone of a candidate. It returns "" if the suffix is not in that zone, and if another plugin or
// server block may answer the name, be it in the cluster or not.
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

// expansion is the answer to a query with a search list while its candidates are tried.
type expansion struct {
	query
	reply
	exists bool // one of the candidates exists
}

// expand answers a query with a search list by the first candidate with data. A candidate that has only addresses of the
// other family is answered with NODATA, so that A and AAAA never come from different names. It returns nil if the query is
// to be answered as one without a list: it has no valid list, or the data of a candidate is not synced.
func (k *Kubernetes) expand(q query, lower string, storable bool) *expansion {
	all, unused := k.candidates(&q, lower)
	if all == nil {
		q.explained.withoutList(unused)
		return nil
	}
	x := &expansion{query: q, reply: reply{m: newReply(q.state.Req), suffix: []byte{}}}
	if storable {
		x.dependencies = newDependencies(k.index)
	}
	found := false
	for i := range all {
		found = k.tryCandidate(x, &all[i])
		if x.caller.needsNodes() {
			q.explained.withoutList("since no endpoint of a candidate is selected for the caller, which may change when Nodes are read")
			return nil
		}
		if found {
			x.suffix, _ = searchlist.AppendSuffixes(nil, []string{all[i].suffix}) // parsed from such data, so it is valid
			x.prependCNAME(q.owner)
			break
		}
	}
	q.explained.expanded(x, found)
	if !x.exists {
		x.m.Rcode = dns.RcodeNameError
	}
	if len(x.m.Answer) == 0 {
		x.m.Ns = []dns.RR{k.denialSOA(q.zone, x.waits)}
	}
	return x
}

// tryCandidate answers with a candidate's records, and reports whether later candidates are not to be tried.
func (k *Kubernetes) tryCandidate(x *expansion, c *candidate) bool {
	if c.lower == "" {
		return false
	}
	f := k.find(c.lower, c.zone, x.dependencies)
	x.explained.found(&x.query, &f, c.lower, c.zone)
	x.waits = x.waits || f.waits
	if f.kind == notFound {
		return false
	}
	x.owner, x.zone, x.exists = c.owner, c.zone, true
	k.mayUseCaller(&x.query, &f)
	k.answer(&x.query, f, x.m)
	if len(x.m.Answer) > 0 || x.caller.needsNodes() {
		return true
	}
	for _, qtype := range searchlist.RelatedTypes[x.qtype] {
		q := x.query
		q.qtype, q.explained = qtype, nil // which has been explained
		if records, _ := k.addressRecords(&q, f, nil); len(records) > 0 {
			return true
		}
	}
	return false
}

// prependCNAME adds a CNAME from the queried name to the candidate that the records are of.
func (x *expansion) prependCNAME(queried string) {
	if x.owner == queried || len(x.m.Answer) == 0 {
		return
	}
	link := &dns.CNAME{Hdr: *x.m.Answer[0].Header(), Target: x.owner}
	link.Hdr.Name, link.Hdr.Rrtype = queried, dns.TypeCNAME
	x.m.Answer = append([]dns.RR{link}, x.m.Answer...)
}
