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
	// transit is for the time from the state in clusterdns to the arrival of the answer, at which its TTL begins: on a busy machine much
	// longer than the proxy delays it. While a session vouches for answers it does not count.
	transit = 500 * time.Millisecond
)

// reply is one answer that a client received, or the absence of one.
type reply struct {
	sent, received int64
	question       uint16
	cache          uint8
	answer         int32
}

// The numbers of answers that are not texts.
const (
	failure = -1 // SERVFAIL
	noReply = -2 // the query got no reply
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
	fallbacks []fallback
	callers   []int    // the asker of each cache
	missing   []string // effects of faults that metrics do not show
	clocks    []wallClock
	replies   [][]reply

	checked, old int
	oldest       time.Duration // of an answer that was right until before its query was sent
	wrong        []string      // reports of the first wrong answers
	wrongs       int
	byQuestion   map[string]int // wrong answers
	marks        []mark
	byKernel     bool // the kernel answers queries to kernelCache
}

// mark is the begin of a phase, with the replies to queries that were sent in it.
type mark struct {
	from int64
	requirements
	beyond   float64 // answers beyond their TTL
	inKernel float64 // answers of the kernel
	dropped  int     // datagrams that the kernel has dropped
	tally
}

// tally has numbers of queries by their replies.
type tally struct {
	asked    int // queries to kernelCache
	answered int
	wrong    int      // of these
	failed   int      // SERVFAIL
	lost     int      // no reply
	first    []*reply // of failed and lost
}

// requirements are what the replies to the queries of a phase have to be, besides right.
type requirements struct {
	name string
	// minAnswered is the minimum share of the queries with an answer other than SERVFAIL. Of those without a reply, as many do not
	// count as the kernel has dropped datagrams.
	minAnswered float64
	// minBeyond is the minimum share of answers beyond their TTL.
	minBeyond float64
}

// share returns the share of the queries that were answered.
func (m *mark) share() float64 {
	return float64(m.answered) / float64(max(1, m.answered+m.failed+max(0, m.lost-m.dropped)))
}

// unmet returns the requirements that the replies of a phase do not meet.
func (m *mark) unmet() (all []string) {
	if m.share() < m.minAnswered {
		all = append(all, fmt.Sprintf("phase %q: %.2f %% of the queries answered, want %.2f %%: %d SERVFAIL, %d without a reply, %d datagrams dropped by the kernel",
			m.name, 100*m.share(), 100*m.minAnswered, m.failed, m.lost, m.dropped))
	}
	if got := m.shareBeyond(); got < m.minBeyond {
		all = append(all, fmt.Sprintf("phase %q: %.1f %% of the answers beyond their TTL, want %.1f %%", m.name, 100*got, 100*m.minBeyond))
	}
	return all
}

// shareBeyond returns the share of answers beyond their TTL.
func (m *mark) shareBeyond() float64 { return m.beyond / float64(max(1, m.answered)) }

// shareOfKernel returns the share of the queries to kernelCache that the kernel has answered.
func (m *mark) shareOfKernel() float64 { return m.inKernel / float64(max(1, m.asked)) }

// unmet returns the requirements that the replies do not meet, and the effects of faults that are missing.
func (c *checker) unmet() []string {
	all := slices.Clone(c.missing)
	for i := range c.marks {
		all = append(all, c.marks[i].unmet()...)
	}
	return all
}

// markOf returns the phase in which a query was sent.
func (c *checker) markOf(r *reply) *mark {
	i, _ := slices.BinarySearchFunc(c.marks, r.sent, func(m mark, at int64) int { return cmp.Compare(m.from, at) })
	return &c.marks[max(0, i-1)]
}

// phases returns the number of replies by phase.
func (c *checker) phases() (text string) {
	for i := range c.marks {
		m := &c.marks[i]
		text += fmt.Sprintf("\n    %-30s %7d answers (%5.1f %%, %4.1f %% beyond their TTL), %6d SERVFAIL, %6d without a reply, %d dropped, %5d wrong; %6.0f of %6d (%4.1f %%) in the kernel",
			m.name, m.answered, 100*m.share(), 100*m.shareBeyond(), m.failed, m.lost, m.dropped, m.wrong, m.inKernel, m.asked, 100*m.shareOfKernel())
		if len(m.unmet()) == 0 {
			continue
		}
		for _, r := range m.first {
			q := &c.all[r.question]
			text += fmt.Sprintf("\n        unanswered: cache %d, %s %s, sent %.4f, received %.4f", r.cache, q.spelling(), dns.TypeToString[q.qtype],
				seconds(r.sent-c.zero), seconds(r.received-c.zero))
		}
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
	c.checked, c.old, c.oldest = 0, 0, 0
	c.wrong, c.wrongs, c.byQuestion = nil, 0, map[string]int{}
	for i := range c.marks {
		c.marks[i].tally = tally{}
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
	if r.cache == kernelCache {
		m.asked++
	}
	switch r.answer {
	case noReply:
		m.lost++
	case failure:
		m.failed++
	}
	if r.answer == noReply || r.answer == failure {
		if len(m.first) < maxReports {
			m.first = append(m.first, r)
		}
		return
	}
	c.checked++
	m.answered++
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
	c.byQuestion[q.spelling()+" "+dns.TypeToString[q.qtype]]++
	if len(c.wrong) >= maxReports {
		return
	}
	answer := ""
	if r.answer >= 0 {
		answer = c.texts.all[r.answer]
	}
	c.wrong = append(c.wrong, fmt.Sprintf("cache %d, %s %s, sent %.4f, received %.4f: %q: %s; right answers:\n%s",
		r.cache, q.spelling(), dns.TypeToString[q.qtype], seconds(r.sent-c.zero), seconds(r.received-c.zero), answer, why,
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
	return fmt.Sprintf("%d answers checked, %d of an older state, at most %s older; %d wrong; %d questions, %d changes of right answers%s",
		c.checked, c.old, c.oldest.Round(time.Millisecond), c.wrongs, len(c.all), c.changes, c.phases())
}

// canonical returns the text of a reply, false if it is neither an answer nor a denial with its SOA record.
func canonical(m *dns.Msg) (answer string, ok bool) {
	isSOA := func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeSOA }
	if m.Rcode == dns.RcodeNameError || len(m.Answer) == 0 {
		answer = noData
		if m.Rcode == dns.RcodeNameError {
			answer = nameError
		}
		return answer, len(m.Answer) == 0 && slices.ContainsFunc(m.Ns, isSOA)
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

// line returns the text of a record as the model has it. Names have no case.
func line(rr dns.RR) string {
	h := rr.Header()
	data := ""
	switch r := rr.(type) {
	case *dns.A:
		data = r.A.String()
	case *dns.AAAA:
		data = r.AAAA.String()
	case *dns.PTR:
		data = strings.ToLower(r.Ptr)
	case *dns.CNAME:
		data = strings.ToLower(r.Target)
	case *dns.SRV:
		data = fmt.Sprint(r.Port, " ", strings.ToLower(r.Target))
	default:
		data = rr.String()
	}
	return strings.ToLower(h.Name) + " " + dns.TypeToString[h.Rrtype] + " " + data
}
