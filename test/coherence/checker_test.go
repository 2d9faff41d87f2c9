//go:build linux

package coherence

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

const (
	// promise is the time for which an answer may be served after clusterdns has known that it is invalid.
	promise = time.Second
	// tolerance is for clocks that programs read with a lower resolution.
	tolerance = 20 * time.Millisecond
)

// reply is one answer that a client received.
type reply struct {
	sent, received int64
	question       uint16
	cache          uint8
	answer         int32
}

// The numbers of answers that are not texts.
const (
	failure = -1 // SERVFAIL
	tooLong = -2 // a TTL above that of the configuration
)

// fallback is a time in which a fault may have ended sessions, so that answers may be as old as their TTL.
type fallback struct {
	from, to int64
	back     time.Duration // the maximum age of an answer's state: its TTL and the delay of its connection
}

// checker compares the replies of a history with the oracle.
type checker struct {
	*oracle
	zero      int64
	ttl       time.Duration
	fallbacks []fallback
	callers   []int    // the asker of each cache
	missing   []string // effects of faults that metrics do not show
	setBack   int      // the number of changes before which the wall clock of clusterdns was set back
	replies   [][]reply

	checked, failed, old int
	oldest               time.Duration // of an answer that was right until before its query was sent
	wrong                []string      // reports of the first wrong answers
	wrongs               int
	byQuestion           map[string]int // wrong answers
	marks                []mark
}

// mark is the begin of a phase, with the replies to queries that were sent in it.
type mark struct {
	name                   string
	from                   int64
	checked, failed, wrong int
}

// markOf returns the phase in which a query was sent.
func (c *checker) markOf(r *reply) *mark {
	i, _ := slices.BinarySearchFunc(c.marks, r.sent, func(m mark, at int64) int { return cmp.Compare(m.from, at) })
	return &c.marks[max(0, i-1)]
}

// phases returns the number of replies by phase.
func (c *checker) phases() (text string) {
	for _, m := range c.marks {
		text += fmt.Sprintf("\n    %-32s %8d answers, %6d failures, %6d wrong", m.name, m.checked, m.failed, m.wrong)
	}
	return text
}

// maxReports is the number of wrong answers that are reported in full.
const maxReports = 8

// window returns the time in which a reply has to have been right.
func (c *checker) window(r *reply) window {
	back := promise
	for _, f := range c.fallbacks {
		if f.from <= r.received && r.sent <= f.to {
			back = max(back, f.back)
		}
	}
	return window{from: r.sent - int64(back+tolerance), to: r.received}
}

// checkAll compares all replies.
func (c *checker) checkAll() {
	c.checked, c.failed, c.old, c.oldest = 0, 0, 0, 0
	c.wrong, c.wrongs, c.byQuestion = nil, 0, map[string]int{}
	for i := range c.marks {
		c.marks[i] = mark{name: c.marks[i].name, from: c.marks[i].from}
	}
	for _, list := range c.replies {
		for i := range list {
			c.check(&list[i])
		}
	}
}

// check compares one reply.
func (c *checker) check(r *reply) {
	m := c.markOf(r)
	c.checked++
	m.checked++
	if r.answer == failure {
		c.failed++
		m.failed++
		return
	}
	if r.answer == tooLong {
		c.report(r, fmt.Sprintf("its TTL is above %s", c.ttl))
		return
	}
	w, asker := c.window(r), c.callers[r.cache]
	until, ok := c.legal(asker, int(r.question), r.answer, w)
	if !ok {
		c.report(r, c.verdict(asker, r))
		return
	}
	if age := time.Duration(r.sent - until); age > 0 {
		c.old++
		c.oldest = max(c.oldest, age)
	}
}

// verdict returns when a wrong answer was right for the last time.
func (c *checker) verdict(asker int, r *reply) string {
	until, ok := c.legal(asker, int(r.question), r.answer, window{to: r.received})
	if !ok {
		return "it was never right before"
	}
	return fmt.Sprintf("it was right until %.4f, %.4f s before the query", seconds(until-c.zero), seconds(r.sent-until))
}

func (c *checker) report(r *reply, why string) {
	c.wrongs++
	c.markOf(r).wrong++
	q := &c.all[r.question]
	c.byQuestion[q.name+" "+dns.TypeToString[q.qtype]]++
	if len(c.wrong) >= maxReports {
		return
	}
	answer := ""
	if r.answer >= 0 {
		answer = c.texts.all[r.answer]
	}
	c.wrong = append(c.wrong, fmt.Sprintf("cache %d, %s %s, sent %.4f, received %.4f: %q: %s; right answers:\n%s",
		r.cache, q.name, dns.TypeToString[q.qtype], seconds(r.sent-c.zero), seconds(r.received-c.zero), answer, why,
		c.describe(c.callers[r.cache], int(r.question), r.sent-int64(5*time.Second), r.received, c.zero)))
}

// wrongQuestions returns the questions with wrong answers, and their numbers.
func (c *checker) wrongQuestions() (text string) {
	for _, name := range slices.Sorted(maps.Keys(c.byQuestion)) {
		text += fmt.Sprintf("\n    %6d %s", c.byQuestion[name], name)
	}
	return text
}

// summary returns what was checked.
func (c *checker) summary() string {
	return fmt.Sprintf("%d answers checked, %d failures, %d of an older state, at most %s older; %d wrong; %d changes of right answers%s",
		c.checked, c.failed, c.old, c.oldest.Round(time.Millisecond), c.wrongs, c.changes, c.phases())
}

// canonical returns the text of a reply, false for a failure.
func canonical(m *dns.Msg) (answer string, ok bool) {
	switch m.Rcode {
	case dns.RcodeNameError:
		return nameError, true
	case dns.RcodeSuccess:
	default:
		return "", false
	}
	lines := make([]string, 0, len(m.Answer)+len(m.Extra))
	srv := false
	for _, rr := range m.Answer {
		srv = srv || rr.Header().Rrtype == dns.TypeSRV
		lines = append(lines, line(rr))
	}
	for _, rr := range m.Extra {
		if srv && rr.Header().Rrtype != dns.TypeOPT {
			lines = append(lines, "+"+line(rr))
		}
	}
	return text(lines), true
}

// line returns the text of a record as the model has it.
func line(rr dns.RR) string {
	h := rr.Header()
	data := ""
	switch r := rr.(type) {
	case *dns.A:
		data = r.A.String()
	case *dns.AAAA:
		data = r.AAAA.String()
	case *dns.PTR:
		data = r.Ptr
	case *dns.CNAME:
		data = r.Target
	case *dns.SRV:
		data = fmt.Sprint(r.Port, " ", r.Target)
	default:
		data = rr.String()
	}
	return strings.ToLower(h.Name) + " " + dns.TypeToString[h.Rrtype] + " " + data
}
