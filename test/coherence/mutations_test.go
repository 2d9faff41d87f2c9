//go:build linux

package coherence

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// mutation is a defect of the programs, made by a change of their sources for one build.
type mutation struct {
	name  string
	edits []edit
	phase phase
}

// Phases of mutations. The effects of their faults are those of TestHistory.
var (
	noFault      = phase{name: "no fault", calm: 10 * time.Second}
	nodesPhase   = phase{name: "no fault", calm: 40 * time.Second} // few changes of Nodes change an answer
	frozenPhase  = phase{name: "frozen watches", fault: frozen, calm: calm, want: fellBack("silent")}
	reloadPhase  = phase{name: "clusterdns reloaded", fault: clusterReloaded, strict: true, calm: calm}
	stalledPhase = phase{name: "connections stalled", fault: stalled, strict: true, calm: calm}
)

const (
	notifierFile  = "plugin/internal/coherence/notifier.go"
	voucherFile   = "plugin/internal/coherence/voucher.go"
	sessionFile   = "plugin/internal/coherence/session.go"
	serverFile    = "plugin/fastpath/session_linux.go"
	clientFile    = "plugin/forward/transport/session.go"
	viewFile      = "plugin/kubernetes/coherent.go"
	indexFile     = "plugin/kubernetes/index/write.go"
	namespaceFile = "plugin/kubernetes/index/namespaces.go"
	nodeFile      = "plugin/kubernetes/index/nodes.go"
)

// mutations are in the order of the table in README.md. The first ones are of clusterdns.
var mutations = []mutation{
	{"no invalidation is sent", []edit{replacement(notifierFile, "\t\ta.conn.Push(n.message)\n", "")}, noFault},
	{"every second session gets no invalidation", []edit{
		replacement(notifierFile, "\t\ta.conn.Push(n.message)\n", "\t\tif i%2 == 0 {\n\t\t\ta.conn.Push(n.message)\n\t\t}\n"),
	}, noFault},
	{"invalidations are sent 1.5 s late, behind heartbeats", []edit{replacement(notifierFile, "\t\ta.conn.Push(n.message)\n",
		"\t\tlate := append([]byte(nil), n.message...)\n\t\ttime.AfterFunc(1500*time.Millisecond, func() { a.conn.Push(late) })\n")}, noFault},
	{"only the first handle of a message is invalidated", []edit{
		replacement(notifierFile, "dso.AppendInvalidate(n.message[:0], s.pending)", "dso.AppendInvalidate(n.message[:0], s.pending[:1])"),
	}, noFault},
	{"an answer has only its first handle", []edit{
		replacement(serverFile, "\t\thandles = append(handles, h)\n", "\t\thandles = append(handles, h)\n\t\tbreak\n"),
	}, noFault},
	{"a session is subscribed once to a topic", []edit{
		replacement("plugin/internal/coherence/subscriber.go", "\tdelete(s.topics, t)\n", ""),
	}, noFault},
	{"the end of an answer that was made meanwhile is not sent", []edit{
		replacement(serverFile, "len(ended) > 0 {", "len(ended) > 99 {"),
	}, noFault},
	{"a change of a Service ends no answer", []edit{
		replacement(indexFile, "\te.generation.advance()\n\tif created {", "\tif created {"),
	}, noFault},
	{"the creation of a Service does not end its denials", []edit{
		replacement(indexFile, "\t\tix.NameGeneration(k.Namespace, k.Name).advance()\n", ""),
	}, noFault},
	{"a change of endpoints ends no answer", []edit{
		replacement(indexFile, "\t\tif e != nil {\n\t\t\te.generation.advance()\n\t\t}\n", "\t\t_ = e\n"),
	}, noFault},
	{"a change of addresses ends no PTR answer", []edit{
		replacement(indexFile, "\t\tix.AddressGeneration(a).advance()\n", "\t\t_ = a\n"),
		replacement(indexFile, "\t\t\tix.AddressGeneration(s.Endpoints[i].Addr).advance()\n", "\t\t\t_ = i\n"),
	}, noFault},
	{"a Namespace ends no answer about its objects", []edit{
		replacement(namespaceFile, "\t\t\t\te.generation.advance()\n\t\t\t\tix.NameGeneration(k.Namespace, k.Name).advance()\n", ""),
	}, noFault},
	{"a Namespace ends no answer about itself", []edit{
		replacement(namespaceFile, "\t\tix.NamespaceGeneration(name).advance()\n", "\t\t_ = name\n"),
	}, noFault},
	{"a change of a Node ends no answer", []edit{
		replacement(nodeFile, "!old.sameLabels(n) {\n\t\tix.nodes.generation.advance()\n", "!old.sameLabels(n) {\n"),
		replacement(nodeFile, "\tix.nodes.keys.release(old)\n\tix.nodes.generation.advance()\n", "\tix.nodes.keys.release(old)\n"),
	}, nodesPhase},
	{"heartbeats continue while the view is uncertain", []edit{
		replacement(viewFile, `if reason := k.outdated(); reason != "" {`, `if reason := k.outdated(); reason != "" && v == nil {`),
	}, frozenPhase},
	{"a reload revokes nothing", []edit{
		replacement("plugin/fastpath/listener_linux.go", "coherence.Process.Revoke() //", "_ = coherence.Process.Revoke //"),
	}, reloadPhase},
	// Of nodecache.
	{"invalidations are ignored", []edit{
		replacement(clientFile, "s.ended = append(s.ended, s.Invalidate(handles)...)", "_ = s.Invalidate"),
	}, noFault},
	{"an invalidated answer remains in the store, and counts as valid", []edit{
		replacement("plugin/internal/answers/vouched.go", "\tif e == nil {\n\t\treturn\n\t}\n", "\tif e == nil || e != nil {\n\t\treturn\n\t}\n"),
		replacement("plugin/internal/answers/validity.go", "(v.Voucher == nil || !v.Voucher.Ended()) && v.counted()", "v.counted()"),
		replacement(voucherFile, "\t\tif h.ended.Load() || !h.session", "\t\tif !h.session"),
	}, noFault},
	{"a voucher has only its first handle", []edit{
		replacement(sessionFile, "\t\tv.handles = append(v.handles, h)\n", "\t\tif len(v.handles) == 0 {\n\t\t\tv.handles = append(v.handles, h)\n\t\t}\n"),
	}, noFault},
	{"an answer for a search name depends on one candidate", []edit{
		replacement(voucherFile, "if !slices.Contains(v.handles, h) {", "if len(v.handles) == 0 && !slices.Contains(v.handles, h) {"),
	}, noFault},
	{"a session vouches without heartbeats", []edit{
		replacement(sessionFile, "return now < time.Duration(s.until.Load())", "return now != 0 && s.until.Load() != 0"),
	}, stalledPhase},
	{"a session vouches for 6 s after a heartbeat", []edit{replacement(sessionFile, "Silence = time.Second", "Silence = 6 * time.Second")}, stalledPhase},
	{"the TTL of an answer is ignored when its session is silent", []edit{
		replacement("plugin/internal/answers/validity.go", "return v.Vouched(now) && v.counted()", "return (v.Voucher != nil || v.Vouched(now)) && v.Current()"),
		replacement("plugin/cache/cache.go", "case now < e.Expires && !e.Lapsed() || e.Vouched(now):", "case now < e.Expires || e.Voucher != nil:"),
	}, stalledPhase},
	{"a heartbeat counts from its receipt", []edit{
		replacement(sessionFile, "int64(min(sent, now)+Silence)", "int64(max(sent, now)+Silence)"),
	}, stalledPhase},
}

// TestMutants checks that the sources have the text of each mutation.
func TestMutants(t *testing.T) {
	for _, m := range mutations {
		texts := map[string]string{}
		for _, e := range m.edits {
			text, known := texts[e.file]
			if !known {
				b, err := os.ReadFile(e.path())
				if err != nil {
					t.Fatal(err)
				}
				text = string(b)
			}
			changed, err := e.apply(text)
			if err != nil {
				t.Errorf("%s: %v", m.name, err)
			}
			texts[e.file] = changed
		}
	}
}

// undetected are the mutations that this test does not detect; README.md has the reasons, and the tests that do.
var undetected = map[string]bool{
	"the end of an answer that was made meanwhile is not sent": true,
	"a session vouches without heartbeats":                     true,
	"a session vouches for 6 s after a heartbeat":              true,
	"a heartbeat counts from its receipt":                      true,
}

// TestMutations runs each mutation: the checker has to find a wrong answer. It takes about 40 s for each.
func TestMutations(t *testing.T) {
	if os.Getenv("NEARSIDE_MUTATIONS") == "" {
		t.Skip("runs with NEARSIDE_MUTATIONS=1: make mutations")
	}
	for i, m := range append([]mutation{{"none", nil, noFault}, {"none", nil, stalledPhase}, {"none", nil, reloadPhase}}, mutations...) {
		t.Run(fmt.Sprintf("%02d", i), func(t *testing.T) {
			b := binaries{
				clusterdns: compile(t, "clusterdns", append(append(recording(t), shortWatchdog()...), m.edits...)...),
				nodecache:  compile(t, "nodecache", m.edits...),
			}
			c := runHistory(t, b, 1, "coherent", []phase{m.phase})
			t.Logf("%s, phase %q: %d wrong of %d answers; missing effects: %q", m.name, m.phase.name, c.wrongs, c.checked, c.missing)
			if want := m.edits != nil && !undetected[m.name]; (c.wrongs+len(c.missing) > 0) != want {
				t.Errorf("%s: detected %t", m.name, !want)
			}
		})
	}
}
