//go:build linux

package coherence

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

// forever is the end of what has not ended.
const forever = math.MaxInt64

// monotonic returns the time in nanoseconds on the clock that all processes of the machine share.
func monotonic() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err) // Linux has the clock
	}
	return now.Nano()
}

// event is a change of the index of a clusterdns. Between begin and end it was visible to some readers.
type event struct {
	Begin, End      int64
	Wall            int64 // time of the wall clock of clusterdns, in seconds
	Operation, Kind string
	Record          record
}

// readEvents reads the file of a clusterdns, which may be writing its last line.
func readEvents(t testing.TB, path string) (all []event) {
	t.Helper()
	text, err := os.ReadFile(path)
	kit.Must(t, err)
	text = text[:bytes.LastIndexByte(text, '\n')+1]
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, len(text)+1)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		all = append(all, e)
	}
	return all
}

// view is the time of one clusterdns, from its start to its end.
type view struct {
	from, to int64
	events   []event
	listed   map[string]int64 // see listed
}

// listed returns the time at which a clusterdns had the first list of each kind: it makes the changes of a list in one write,
// whose end is that of all of them. A state before is a part of the cluster, of which no answer is right.
func listed(events []event) map[string]int64 {
	all := map[string]int64{}
	for _, e := range events {
		if _, known := all[e.Kind]; !known {
			all[e.Kind] = e.End
		}
	}
	return all
}

// readyFrom returns the time from which a clusterdns has the lists that an answer needs. Nodes are not awaited, see
// plugin/kubernetes: until it has them, callers are where the caller option locates them.
func (v *view) readyFrom(q *question) (at int64) {
	if v.listed == nil {
		return v.from
	}
	needed := []string{"Service", "Slice", "Pod", "Namespace"}
	if q.imported {
		needed = append(needed, "Import")
	}
	for _, kind := range needed {
		end, known := v.listed[kind]
		if !known {
			return forever
		}
		at = max(at, end)
	}
	return at
}

// epoch is the time of one configuration of clusterdns. Epochs overlap during a reload.
type epoch struct {
	from, to   int64
	namespaces []string // those that have names; nil for all
}

// span is the time for which an answer was right.
type span struct {
	from, to int64
	answer   int32
}

// texts numbers the texts of answers.
type texts struct {
	all    []string
	number map[string]int32
}

func newTexts() *texts { return &texts{number: map[string]int32{}} }

func (x *texts) numberOf(text string) int32 {
	n, ok := x.number[text]
	if !ok {
		n = int32(len(x.all)) // #nosec G115 -- thousands
		x.all, x.number[text] = append(x.all, text), n
	}
	return n
}

// oracle has the right answers of a history to each question.
type oracle struct {
	*universe
	texts  *texts
	askers []asker
	// spans are by asker and question. Each list is that of one view and epoch, in order.
	spans [][][][]span
	// changes is the number of changes of right answers.
	changes int
}

func newOracle(u *universe, x *texts, askers []asker, views []view, epochs []epoch) *oracle {
	o := &oracle{universe: u, texts: x, askers: askers, spans: make([][][][]span, len(askers))}
	for i := range o.spans {
		o.spans[i] = make([][][]span, len(u.all))
	}
	for _, v := range views {
		for _, e := range epochs {
			e.from, e.to = max(e.from, v.from), min(e.to, v.to)
			if e.from < e.to {
				o.follow(v, e)
			}
		}
	}
	return o
}

// follow adds the right answers in one view and epoch.
func (o *oracle) follow(v view, e epoch) {
	state := newCluster()
	rest := v.events
	for len(rest) > 0 && rest[0].End < e.from {
		state.apply(rest[0])
		rest = rest[1:]
	}
	current, ready := make([][]span, len(o.askers)), make([]int64, len(o.all))
	for n := range ready {
		ready[n] = v.readyFrom(&o.all[n])
	}
	for i, a := range o.askers {
		a.namespaces = e.namespaces
		current[i] = make([]span, len(o.all))
		for n := range o.all {
			current[i][n] = o.right(state, n, a, e.from)
			o.spans[i][n] = append(o.spans[i][n], nil)
		}
	}
	finish := func(i, n int, at int64) {
		s := current[i][n]
		s.from, s.to = max(s.from, ready[n]), at
		if s.from >= s.to { // of a part of the cluster
			return
		}
		lists := o.spans[i][n]
		lists[len(lists)-1] = append(lists[len(lists)-1], s)
	}
	for _, ev := range rest {
		if ev.Begin > e.to {
			break
		}
		before, changed := state.change(ev)
		if !changed {
			continue
		}
		for n := range o.all {
			q := &o.all[n]
			if !q.concerns(ev, before) {
				continue
			}
			var next span
			for i, a := range o.askers {
				if i == 0 || q.dependsOnAsker() {
					a.namespaces = e.namespaces
					next = o.right(state, n, a, ev.Begin)
				}
				if next.answer == current[i][n].answer {
					continue
				}
				o.changes++
				finish(i, n, ev.End)
				current[i][n] = next
			}
		}
	}
	for i := range o.askers {
		for n := range o.all {
			finish(i, n, e.to)
		}
	}
}

// right returns the right answer to a question from a time on.
func (o *oracle) right(state cluster, n int, a asker, from int64) span {
	if o.all[n].form == searchForm {
		return span{from: from}
	}
	return span{from: from, answer: o.texts.numberOf(state.answer(&o.all[n], a))}
}

// dependsOnAsker reports whether the answer may have endpoints that are selected for the asker.
func (q *question) dependsOnAsker() bool { return q.form == serviceForm && q.endpoint == "" }

// concerns reports whether a change may change the answer to a question. before is the record before it.
func (q *question) concerns(e event, before record) bool {
	switch q.form {
	case serviceForm:
		if q.service == "alias" && !q.imported { // it may have a target in any namespace
			return e.Kind != "Pod" && e.Kind != "Import"
		}
		return q.concernsService(e, before)
	case namespaceForm:
		return e.Kind == "Namespace" && e.Record.Name == q.namespace
	case podForm:
		return e.Kind == "Namespace" && e.Record.Name == q.namespace || e.Kind == "Pod" && e.Record.Namespace == q.namespace
	case reverseForm:
		return q.concernsAddress(e, before)
	}
	return false
}

// concernsAddress is concerns for the name of an address. A Service whose kind changes has other names of its endpoints.
func (q *question) concernsAddress(e event, before record) bool {
	has := func(r record) bool {
		return slices.Contains(r.IPs, q.address) || slices.ContainsFunc(r.Endpoints, func(p endpoint) bool { return p.Address == q.address })
	}
	switch e.Kind {
	case "Service":
		return e.Operation != "put" || before.Name == "" || before.Kind != e.Record.Kind || has(before) || has(e.Record)
	case "Slice":
		return has(before) || has(e.Record)
	}
	return e.Kind == "Namespace"
}

func (q *question) concernsService(e event, before record) bool {
	switch e.Kind {
	case "Node":
		return true
	case "Namespace":
		return e.Record.Name == q.namespace
	case "Slice":
		owners := []string{e.Record.Service, before.Service}
		if q.imported {
			owners = []string{e.Record.Import, before.Import}
		}
		return e.Record.Namespace == q.namespace && slices.Contains(owners, q.service)
	case "Service", "Import":
		return e.Record.Namespace == q.namespace && e.Record.Name == q.service && (e.Kind == "Import") == q.imported
	}
	return false
}

// window is the time in which an answer has to have been right.
type window struct{ from, to int64 }

// rightIn reports whether a list of spans has one that overlaps a window and has an answer that is accepted. It returns the
// end of the latest.
func (o *oracle) rightIn(asker, n int, w window, accepts func(answer int32) bool) (until int64, ok bool) {
	for _, list := range o.spans[asker][n] {
		for i := len(list) - 1; i >= 0; i-- {
			s := &list[i]
			if s.to < w.from {
				break
			}
			if s.from > w.to || !accepts(s.answer) {
				continue
			}
			until, ok = max(until, s.to), true
			break
		}
	}
	return until, ok
}

// legal reports whether an answer was right in a window, and until when.
func (o *oracle) legal(asker, n int, answer int32, w window) (until int64, ok bool) {
	if q := &o.all[n]; q.form == searchForm {
		return o.legalSearch(asker, q, o.texts.all[answer], w)
	}
	return o.rightIn(asker, n, w, func(a int32) bool { return a == answer })
}

// describe returns the right answers to a question before a time, for the report of a wrong one.
func (o *oracle) describe(asker, n int, from, to, zero int64) string {
	var out bytes.Buffer
	questions := []int{n}
	for _, c := range o.all[n].candidates {
		questions = append(questions, c.same, c.other)
	}
	for _, n := range questions {
		q := &o.all[n]
		for _, list := range o.spans[asker][n] {
			for _, s := range list {
				if q.form != searchForm && s.to >= from && s.from <= to {
					fmt.Fprintf(&out, "    %s %s %.4f to %.4f: %q\n", q.name, dns.TypeToString[q.qtype], seconds(s.from-zero), seconds(s.to-zero), o.texts.all[s.answer])
				}
			}
		}
	}
	return out.String()
}

func seconds(ns int64) float64 { return float64(ns) / 1e9 }
