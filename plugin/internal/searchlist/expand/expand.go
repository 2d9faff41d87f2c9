// Package expand finds the answer to a name that a resolver would have to look for under several: the candidates
// of a search list. It asks for one after the other through the server, and answers with the first that has data.
// In go a question and a list; out come one reply, and what it hangs on, for it to be kept. It does not know where
// the list is from.
package expand

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/metrics"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
)

// Expander answers names that stand for several, for one plugin of a server block.
type Expander struct {
	// Plugin is its name, and Next what comes after it.
	Plugin string
	Next   plugin.Handler
	// Block is the server block, in whose store answers are kept.
	Block *block.Block
	// Zones are those of which one server knows all names, fully qualified: it may be asked for several candidates
	// at once.
	Zones []string
	// Results counts what has come of it.
	Results *Results
	// KeepsPlain tells that nobody else in the block keeps what Next says of candidates.
	KeepsPlain bool
}

// Question is what to expand.
type Question struct {
	// Base is what the client has looked up, fully qualified.
	Base string
	// Suffixes are those of the candidates before it, fully qualified and in order.
	Suffixes []string
	// Path is what the answer is kept under besides the name, 0 if the list follows from the name.
	Path uint32
}

// walkTime bounds how long candidates are asked for one after the other. Resolvers wait for 5 seconds by default, and
// what the first ones have brought is kept.
const walkTime = 4 * time.Second

// longWait is how long a failure may take until the other candidates that the same server knows are not asked for.
const longWait = 250 * time.Millisecond

type nestedKey struct{}

// Nested reports whether a query is on the way to the answer to another, such as for a candidate of it: that is not
// expanded once more.
func Nested(ctx context.Context) bool { return ctx.Value(nestedKey{}) != nil }

// Nest returns the context of queries on the way to an answer.
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
		return x.give(ctx, w, r, k, e)
	}
	walk := newWalk(x, ctx, w, r, q)
	out := walk.run()
	x.Results.on(metrics.WithServer(ctx), out.came()).Inc()
	if out.reply == nil {
		return dns.RcodeServerFailure, out.err
	}
	m := walk.compose(out)
	x.keep(k, m, &out)
	addErrors(r, m, out.reply)
	if err := w.WriteMsg(m); err != nil {
		return dns.RcodeServerFailure, err
	}
	return dns.RcodeSuccess, nil
}

// Expandable reports whether a query is one that candidates may be asked for: no transfer, not for DS, of class IN, not
// signed for the one name, and without a search list of its own.
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

// outcome is what has come of asking for the candidates.
type outcome struct {
	result   result
	position int      // of the candidate that the reply is of; the last one is the bare name
	bare     bool     // it is that
	owner    string   // the name that the reply is to, "" if it is no candidate's
	reply    *dns.Msg // nil if nothing was written
	serial   answers.Serial
	err      error
	plain    bool             // it is kept as the answer to the question, from which the fast path gives it as well
	validity answers.Validity // of the replies that the outcome follows from
}

// walk is the way through the candidates of a question.
type walk struct {
	*Expander
	ctx      context.Context
	w        dns.ResponseWriter
	r        *dns.Msg
	q        *Question
	names    []string         // of the candidates
	validity answers.Validity // of the replies so far

	first, empty, failed *outcome // the first candidate, the first that exists and has no data, the first that failed
}

func newWalk(x *Expander, ctx context.Context, w dns.ResponseWriter, r *dns.Msg, q *Question) *walk {
	k := &walk{Expander: x, ctx: Nest(ctx), w: w, r: r, q: q}
	k.names = append(searchlist.Candidates(q.Base, q.Suffixes), q.Base)
	if asked := r.Question[0].Name; strings.EqualFold(k.names[0], asked) {
		k.names[0] = asked // in the client's case
	}
	return k
}

// run asks until a candidate has data.
func (k *walk) run() outcome {
	started := time.Now()
	for i := 0; i < len(k.names); {
		if time.Since(started) > walkTime {
			k.note(answer{kind: failed})
			break
		}
		a, asked := k.askFrom(i)
		if a.kind == hasData {
			return k.found(i+a.offset, a)
		}
		k.note(a)
		i += asked
	}
	return k.none()
}

// askFrom asks for the candidate at a place, and as many after it as one server knows of, and returns what came of
// how many.
func (k *walk) askFrom(i int) (a answer, asked int) {
	if k.names[i] == "" || slices.Contains(k.names[:i], k.names[i]) {
		return answer{kind: absent}, 1 // too long for a resolver to query; or queried, or assumed to fail, at its first place
	}
	run, started := k.runFrom(i), time.Now()
	if data, ok := searchlist.AppendSuffixes(nil, k.q.Suffixes[i:i+run]); ok && run > 1 {
		var matched string
		var tried bool
		if a, matched, tried = k.several(i, data); tried {
			if a.kind == hasData {
				a.offset = slices.Index(k.q.Suffixes[i:i+run], matched)
				a.leadFrom(k.names[i+a.offset])
			}
			return a, run
		}
		a = k.settle(i, a)
	} else {
		a = k.one(i)
	}
	if a.kind == failed && (a.reply == nil || time.Since(started) > longWait) {
		return a, max(1, run) // the others would fail as well, and each be waited for
	}
	return a, 1
}

// runFrom returns how many candidates from a place on are in zones that one server knows all of, and go there.
func (k *walk) runFrom(i int) (n int) {
	zone := k.Block.ZoneOf(k.ctx, k.names[i])
	for _, name := range k.names[i:len(k.q.Suffixes)] {
		if name == "" || n == searchlist.MaxSuffixes || plugin.Zones(k.Zones).Matches(k.q.Suffixes[i+n]) == "" || k.Block.ZoneOf(k.ctx, name) != zone {
			break
		}
		n++
	}
	return n
}

// found returns the outcome that is a candidate's answer.
func (k *walk) found(i int, a answer) outcome {
	out := outcome{result: success, position: i, bare: i == len(k.names)-1, owner: a.asked, reply: a.reply, serial: a.serial, validity: k.validity}
	if len(a.reply.Answer) == 0 {
		out.result = noData
	}
	out.plain = a.plain && out.result == success && a.asked == k.r.Question[0].Name
	if k.failed != nil {
		out.validity.End()
	}
	return out
}

// note takes down that a candidate has no data.
func (k *walk) note(a answer) {
	out := &outcome{reply: a.reply, serial: a.serial, err: a.err}
	switch {
	case a.kind == failed && k.failed == nil:
		k.failed = out
	case a.kind == exists && k.empty == nil:
		k.empty = out
	case a.kind == absent && a.reply != nil && a.reply.Rcode == dns.RcodeNameError && k.first == nil:
		k.first = out
	}
}

// none returns the outcome if no candidate has data. One that has failed may have some.
func (k *walk) none() (out outcome) {
	switch {
	case k.failed != nil:
		out = *k.failed
		out.result = failure
		k.validity.End()
	case k.empty != nil:
		out = *k.empty
		out.result = noData
	case k.first != nil:
		out = *k.first
		out.result = nameError
	default:
		out = outcome{result: failure}
		k.validity.End()
	}
	out.validity = k.validity
	return out
}

// compose returns the reply to the client. That of a plugin stays as it is, since its records may be others' too.
func (k *walk) compose(out outcome) *dns.Msg {
	question := k.r.Question[0]
	m := *out.reply
	m.Id, m.RecursionDesired, m.CheckingDisabled = k.r.Id, k.r.RecursionDesired, k.r.CheckingDisabled
	if out.result == failure || len(m.Question) != 1 || m.Question[0] != question {
		m.AuthenticatedData = false // of what is said of this name nobody has a signature
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
	case out.owner == "": // an alias that leads to no name, and is another candidate's
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

// addErrors gives the client the extended errors of a candidate's reply.
func addErrors(r, m, of *dns.Msg) {
	if errors := errorsOf(of); len(errors) > 0 && r.IsEdns0() != nil {
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
