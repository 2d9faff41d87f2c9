package expand

import (
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
)

// walkTime is the time after which a walk queries no further candidate. Resolvers time out after 5 seconds by default,
// and retry; at the retry, caches answer the first candidates.
const walkTime = 4 * time.Second

// longWait is the time after which the failure of a candidate applies to its whole run of candidates: the server is
// slow, and each further query would add its timeout.
const longWait = 250 * time.Millisecond

// walk is the order of the queries for the candidates of a question, and the result. It sends no queries, so that it needs
// no goroutine: for each query that next announces, one of the adapters (message.go, wire.go) calls receive with the reply.
type walk struct {
	*Expander
	Question
	original dns.Question // of the client
	zones    *block.ServerZones
	names    []string // the candidates

	started time.Duration // on the clock of validity.Now

	// The candidate that is being queried:
	at       int           // index in names
	run      int           // number of candidates that one server answers, from this one on
	queried  time.Duration // time of the first query for it
	suffixes []byte        // search list in the query, nil without one
	related  int           // position of the queried type in searchlist.RelatedTypes, from 1; 0 for the client's type
	querying bool          // the reply to the query has not been received
	first    *reply        // for the client's type, while related types are queried
	passed   any           // wirechain.Result for the query, if a wire handler has passed it to the plugin chain

	validity validity.Validity // joined from the replies until now
	waits    bool              // queries wait for a candidate's name, see reply.waits
	lifetimes
	// The first reply for an absent candidate, for a candidate without data, and for a failed candidate.
	absent, empty, failed *reply
	outcome               *outcome // at the end
}

func newWalk(x *Expander, q *Question, original dns.Question, zones *block.ServerZones) *walk {
	k := &walk{}
	k.start(x, q, original, zones)
	return k
}

// start sets the fields of a new walk.
func (k *walk) start(x *Expander, q *Question, original dns.Question, zones *block.ServerZones) {
	k.Expander, k.Question, k.original, k.zones, k.started = x, *q, original, zones, validity.Now()
	k.names = append(searchlist.Candidates(q.Base, q.Suffixes), q.Base)
	if strings.EqualFold(k.names[0], original.Name) {
		k.names[0] = original.Name // in the client's case
	}
}

// name returns the name in the query.
func (k *walk) name() string { return k.names[k.at] }

// qtype returns the type in the query.
func (k *walk) qtype() uint16 {
	if k.related > 0 {
		return searchlist.RelatedTypes[k.original.Qtype][k.related-1]
	}
	return k.original.Qtype
}

// next reports whether there is a query to send, and moves to the next candidate if necessary. Without a query to send,
// the walk has its outcome.
func (k *walk) next() bool {
	for !k.querying && k.outcome == nil {
		switch {
		case k.at == len(k.names):
			k.outcome = k.notFound()
		case validity.Now()-k.started > walkTime:
			k.add(&reply{status: failed})
			k.outcome = k.notFound()
		case k.name() == "" || slices.Contains(k.names[:k.at], k.name()): // too long for a name, or a duplicate
			k.at++
		default:
			k.begin()
		}
	}
	return k.querying
}

// begin announces the query for a candidate, with a search list if several candidates are in its run.
func (k *walk) begin() {
	k.queried, k.querying, k.suffixes = validity.Now(), true, nil
	if k.run = k.runLength(); k.run > 1 {
		k.suffixes, _ = searchlist.AppendSuffixes(nil, k.Suffixes[k.at:k.at+k.run])
	}
}

// runLength returns the number of candidates of one query with a search list: their suffixes are in Zones, and the same
// server block serves them.
func (k *walk) runLength() (n int) {
	zone := k.zones.ZoneOf(k.name())
	for _, name := range k.names[k.at:len(k.Suffixes)] {
		inZone := func(zone string) bool { return searchlist.InZone(k.Suffixes[k.at+n], zone) }
		if name == "" || n == searchlist.MaxSuffixes || !slices.ContainsFunc(k.Zones, inZone) || k.zones.ZoneOf(name) != zone {
			break
		}
		n++
	}
	return n
}

// receive processes the reply to the query. own is the validity of the reply; forAll is set if all callers get the same reply.
func (k *walk) receive(r *reply, own *validity.Validity, forAll bool) {
	k.querying, k.passed = false, nil
	r.name, r.status = k.name(), k.statusOf(r)
	k.join(r, own, forAll)
	k.waits = k.waits || r.waits
	switch {
	case k.related > 0:
		if r.status == hasData || r.status == failed {
			k.first.status = r.status
			k.conclude()
			return
		}
	case k.suffixes != nil && k.isTried(r):
		k.move(r, k.run)
		return
	default: // without a search list, or the reply is for the first candidate: the others are queried one by one
		k.first = r
	}
	k.checkOtherTypes()
}

// isTried reports whether the server has tried the candidates of a search list: it supports the option. If a candidate has
// data, isTried makes the reply the one for that candidate.
func (k *walk) isTried(r *reply) bool {
	if r.status == failed {
		return false
	}
	names, valid := searchlist.ParseSuffixes(r.list)
	switch {
	case r.list == nil || !valid || len(names) > 1:
		return false
	case !searchlist.ValidReply(r.list, k.suffixes), len(names) == 0 && r.status == hasData, len(names) > 0 && r.status == absent:
		r.status = failed // the option contradicts the query or the reply
	case len(names) > 0:
		r.status, r.stored = hasData, false
		r.offset = slices.Index(k.Suffixes[k.at:k.at+k.run], names[0])
		r.setName(k.names[k.at+r.offset])
	}
	return true
}

// checkOtherTypes queries a candidate that exists without data for the related types: with data of one of them, the
// candidate is the result. The last candidate is the result anyway if none has failed.
func (k *walk) checkOtherTypes() {
	last := k.at == len(k.names)-1 && k.failed == nil
	if k.first.status != exists || last || k.related == len(searchlist.RelatedTypes[k.original.Qtype]) {
		k.conclude()
		return
	}
	k.related++
	k.querying, k.suffixes = true, nil
}

// conclude ends the queries for one candidate.
func (k *walk) conclude() {
	r, n := k.first, 1
	if r.status == failed && (r.isNone() || validity.Now()-k.queried > longWait) {
		n = max(1, k.run) // the others would fail, too, each after a timeout
	}
	k.move(r, n)
}

// move ends the walk if the reply for n candidates has data, and otherwise continues with the candidate after them.
func (k *walk) move(r *reply, n int) {
	k.first, k.related = nil, 0
	if r.status == hasData {
		k.outcome = k.found(k.at+r.offset, r)
		return
	}
	k.add(r)
	k.at += n
}

// add adds the reply for a candidate without data.
func (k *walk) add(r *reply) {
	switch {
	case r.status == failed && k.failed == nil:
		k.failed = r
	case r.status == exists && k.empty == nil:
		k.empty = r
	case r.status == absent && r.rcode == dns.RcodeNameError && k.absent == nil:
		k.absent = r
	}
}

// lifetimes limit the time for which clients may use the result of a walk.
type lifetimes struct {
	limit   time.Duration // earliest expiry of the replies that no session vouches for, 0 without such replies
	vouched time.Duration // minimum lifetime of the replies that a session vouches for, 0 without such replies
}

// outcome is the result of a walk.
type outcome struct {
	result   result
	position int    // of the candidate that was found
	bare     bool   // the candidate is the bare name
	owner    string // the candidate, "" if none was found
	reply    *reply
	stored   bool              // the reply is stored as the answer to the question already; the fast path serves it
	validity validity.Validity // joined from all replies of the walk
	waits    bool              // no candidate was found, and queries wait for one of the names
	lifetimes
}

// found returns the outcome of a walk that ends with the reply for candidate i.
func (k *walk) found(i int, r *reply) *outcome {
	out := &outcome{result: success, position: i, bare: i == len(k.names)-1, owner: r.name, reply: r, validity: k.validity, lifetimes: k.lifetimes}
	if !r.hasAnswer() {
		out.result = noData
	}
	out.stored = r.stored && out.result == success && r.name == k.original.Name
	if k.failed != nil {
		out.validity.End()
	}
	return out
}

// notFound returns the outcome without a candidate with data. A failure has precedence, since the failed candidate may have data.
func (k *walk) notFound() *outcome {
	out := &outcome{result: failure, reply: k.failed, validity: k.validity, waits: k.waits, lifetimes: k.lifetimes}
	switch {
	case k.failed != nil:
		out.validity.End()
	case k.empty != nil:
		out.result, out.reply = noData, k.empty
	case k.absent != nil:
		out.result, out.reply = nameError, k.absent
	default:
		out.reply = &reply{}
		out.validity.End()
	}
	return out
}
