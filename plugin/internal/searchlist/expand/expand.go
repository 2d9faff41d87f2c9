// Package expand answers a query with the first candidate of a search list that has data, so that the client's resolver
// does not query them one by one. Input is a query, a base and suffixes; output is one reply, which is stored until the
// validity of a candidate's reply ends. Candidates are queried through the server, from the first to the bare name. The
// package does not depend on the source of the list, and imports neither plugins nor Kubernetes.
package expand

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/metrics"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
)

// Expander expands names for one plugin of a server block.
type Expander struct {
	// Plugin is the name of the plugin, Next the next plugin.
	Plugin string
	Next   plugin.Handler
	// Block is the server block, set by Setup. Answers are stored in its keyspace.
	Block *block.Block
	// Zones are zones with a single server for all names, fully qualified: one query with a search list is for
	// several candidates.
	Zones []string
	// Metrics counts the expansions.
	Metrics *Metrics
	// StoresCandidates is set by Setup if no cache of the block stores Next's replies: the Expander stores them under the
	// names of the candidates.
	StoresCandidates bool
}

// Setup sets Block, and StoresCandidates when the servers start. It is called in the plugin's setup.
func (x *Expander) Setup(c *caddy.Controller) {
	x.Block = block.Of(c)
	c.OnStartup(func() error {
		x.StoresCandidates = x.Block.Config().Handler("cache") == nil
		return nil
	})
}

// Question is a name to expand.
type Question struct {
	// Base is the bare name, fully qualified.
	Base string
	// Suffixes are the suffixes of the candidates before the bare name, fully qualified and in order.
	Suffixes []string
	// ListID is the ID of the search list for the key of the answer, 0 if the name determines the list.
	ListID uint32
}

// walkTime bounds a walk: no further candidate is queried after it. Resolvers time out after 5 seconds by default, and
// retry; caches answer the first candidates then.
const walkTime = 4 * time.Second

// longWait is the time after which a failure applies to the whole run of candidates: the server is slow, and each query
// would add its timeout.
const longWait = 250 * time.Millisecond

type nestedKey struct{}

// Nested reports whether a query was sent to answer another one, such as for a candidate. It must not be expanded.
func Nested(ctx context.Context) bool { return ctx.Value(nestedKey{}) != nil }

// Nest returns the context for queries that are sent to answer another one.
func Nest(ctx context.Context) context.Context {
	if Nested(ctx) {
		return ctx
	}
	return context.WithValue(ctx, nestedKey{}, true)
}

// ServeDNS answers a query that is Expandable.
func (x *Expander) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg, q *Question) (int, error) {
	k := x.key(r, q)
	if e := k.fresh(); e != nil {
		return x.writeStored(ctx, w, r, k, e)
	}
	walk := newWalk(x, ctx, w, r, q)
	out := walk.run()
	x.Metrics.counter(metrics.WithServer(ctx), out.labels()).Inc()
	if out.reply == nil {
		return dns.RcodeServerFailure, out.err
	}
	m := walk.compose(out)
	x.store(k, m, &out)
	addErrors(r, m, out.reply)
	if err := w.WriteMsg(m); err != nil {
		return dns.RcodeServerFailure, err
	}
	return dns.RcodeSuccess, nil
}

// Expandable reports whether a query may be expanded: class IN, no zone transfer, not type DS, without TSIG, and without
// a search list in its OPT record.
func Expandable(r *dns.Msg) bool {
	if r.Opcode != dns.OpcodeQuery || len(r.Question) != 1 || r.Question[0].Qclass != dns.ClassINET || r.IsTsig() != nil {
		return false
	}
	switch r.Question[0].Qtype {
	case dns.TypeAXFR, dns.TypeIXFR, dns.TypeDS:
		return false
	}
	return !searchlist.HasOption(r)
}

// outcome is the result of a walk.
type outcome struct {
	result   result
	position int      // of the candidate that was found
	bare     bool     // the candidate is the bare name
	owner    string   // the candidate, "" if none was found
	reply    *dns.Msg // nil if no plugin wrote a reply
	serial   answers.Serial
	err      error
	stored   bool             // the reply is stored as the answer to the question already; the fast path serves it
	validity answers.Validity // joined from all replies of the walk
}

// walk queries the candidates of a question.
type walk struct {
	*Expander
	ctx      context.Context
	w        dns.ResponseWriter
	r        *dns.Msg
	q        *Question
	names    []string         // the candidates
	validity answers.Validity // joined from the replies until now

	// The first candidate that is absent, that exists without data, and that has failed.
	absent, empty, failed *outcome
}

func newWalk(x *Expander, ctx context.Context, w dns.ResponseWriter, r *dns.Msg, q *Question) *walk {
	k := &walk{Expander: x, ctx: Nest(ctx), w: w, r: r, q: q}
	k.names = append(searchlist.Candidates(q.Base, q.Suffixes), q.Base)
	if qname := r.Question[0].Name; strings.EqualFold(k.names[0], qname) {
		k.names[0] = qname // in the client's case
	}
	return k
}

// run queries candidates until one has data.
func (k *walk) run() outcome {
	started := time.Now()
	for i := 0; i < len(k.names); {
		if time.Since(started) > walkTime {
			k.add(candidateReply{status: failed})
			break
		}
		c, n := k.queryFrom(i)
		if c.status == hasData {
			return k.found(i+c.offset, c)
		}
		k.add(c)
		i += n
	}
	return k.notFound()
}

// queryFrom queries the candidate i and the run of candidates after it. n is the number of candidates that the reply
// applies to.
func (k *walk) queryFrom(i int) (c candidateReply, n int) {
	if k.names[i] == "" || slices.Contains(k.names[:i], k.names[i]) {
		return candidateReply{status: absent}, 1 // too long for a name, or a duplicate
	}
	run, started := k.runLength(i), time.Now()
	if data, ok := searchlist.AppendSuffixes(nil, k.q.Suffixes[i:i+run]); ok && run > 1 {
		var matched string
		var tried bool
		if c, matched, tried = k.queryRun(i, data); tried {
			if c.status == hasData {
				c.offset = slices.Index(k.q.Suffixes[i:i+run], matched)
				c.setName(k.names[i+c.offset])
			}
			return c, run
		}
		c = k.checkOtherTypes(i, c)
	} else {
		c = k.queryOne(i)
	}
	if c.status == failed && (c.reply == nil || time.Since(started) > longWait) {
		return c, max(1, run) // the others would fail, too, each after a timeout
	}
	return c, 1
}

// runLength returns the number of candidates from i of one query with a search list: their suffixes are in
// Zones, and the same server block serves them.
func (k *walk) runLength(i int) (n int) {
	zone := k.Block.ZoneOf(k.ctx, k.names[i])
	for _, name := range k.names[i:len(k.q.Suffixes)] {
		if name == "" || n == searchlist.MaxSuffixes || plugin.Zones(k.Zones).Matches(k.q.Suffixes[i+n]) == "" || k.Block.ZoneOf(k.ctx, name) != zone {
			break
		}
		n++
	}
	return n
}

// found returns the outcome for the candidate i.
func (k *walk) found(i int, c candidateReply) outcome {
	out := outcome{result: success, position: i, bare: i == len(k.names)-1, owner: c.name, reply: c.reply, serial: c.serial, validity: k.validity}
	if len(c.reply.Answer) == 0 {
		out.result = noData
	}
	out.stored = c.stored && out.result == success && c.name == k.r.Question[0].Name
	if k.failed != nil {
		out.validity.End()
	}
	return out
}

// add adds the reply for a candidate without data.
func (k *walk) add(c candidateReply) {
	out := &outcome{reply: c.reply, serial: c.serial, err: c.err}
	switch {
	case c.status == failed && k.failed == nil:
		k.failed = out
	case c.status == exists && k.empty == nil:
		k.empty = out
	case c.status == absent && c.reply != nil && c.reply.Rcode == dns.RcodeNameError && k.absent == nil:
		k.absent = out
	}
}

// notFound returns the outcome without a candidate with data. A failure has precedence, since the candidate may have data.
func (k *walk) notFound() (out outcome) {
	switch {
	case k.failed != nil:
		out = *k.failed
		out.result = failure
		k.validity.End()
	case k.empty != nil:
		out = *k.empty
		out.result = noData
	case k.absent != nil:
		out = *k.absent
		out.result = nameError
	default:
		out = outcome{result: failure}
		k.validity.End()
	}
	out.validity = k.validity
	return out
}

// compose returns the reply to the client. It does not change the plugin's reply, whose records may be shared.
func (k *walk) compose(out outcome) *dns.Msg {
	question := k.r.Question[0]
	m := *out.reply
	m.Id, m.RecursionDesired, m.CheckingDisabled = k.r.Id, k.r.RecursionDesired, k.r.CheckingDisabled
	if out.result == failure || len(m.Question) != 1 || m.Question[0] != question {
		m.AuthenticatedData = false // no signature covers the question's name
	}
	m.Question = []dns.Question{question}
	m.Extra = slices.DeleteFunc(slices.Clone(m.Extra), isOPT)
	if out.result == failure {
		m.SetRcode(k.r, dns.RcodeServerFailure)
		m.Answer, m.Ns, m.Extra = nil, nil, nil
		return &m
	}
	switch {
	case len(m.Answer) == 0 || out.owner == question.Name:
	case out.owner == "": // a dangling alias; an alias of another candidate is dropped
		if !strings.EqualFold(m.Answer[0].Header().Name, question.Name) {
			m.Answer = nil
		}
	default:
		alias := &dns.CNAME{
			Hdr:    dns.RR_Header{Name: question.Name, Rrtype: dns.TypeCNAME, Class: dns.ClassINET, Ttl: aliasTTL(&out.validity, m.Answer[0].Header().Ttl)},
			Target: out.owner,
		}
		m.Answer = append([]dns.RR{alias}, m.Answer...)
	}
	return &m
}

func isOPT(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeOPT }

// addErrors copies the extended errors of a candidate's reply to the reply to a client with EDNS.
func addErrors(r, m, candidate *dns.Msg) {
	if errors := errorsOf(candidate); len(errors) > 0 && r.IsEdns0() != nil {
		m.Extra = append(m.Extra, &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}, Option: errors})
	}
}

// errorsOf returns the extended errors (RFC 8914) of a reply.
func errorsOf(m *dns.Msg) (errors []dns.EDNS0) {
	opt := m.IsEdns0()
	if opt == nil {
		return nil
	}
	for _, o := range opt.Option {
		if o.Option() == dns.EDNS0EDE {
			errors = append(errors, o)
		}
	}
	return errors
}
