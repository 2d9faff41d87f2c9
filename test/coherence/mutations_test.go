//go:build linux

package coherence

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"
)

// mutation is a defect of the programs, made by a change of their sources for one build.
type mutation struct {
	name  string
	edits []edit
	phase phase
}

// Phases of mutations.
var (
	noFault      = phase{requirements: phaseNamed("no fault").requirements, calm: 10 * time.Second}
	nodesPhase   = phase{requirements: noFault.requirements, calm: 40 * time.Second} // few changes of Nodes change an answer
	stoppedPhase = phaseNamed("clusterdns stopped")
	killedPhase  = phaseNamed("clusterdns killed")
	cutPhase     = phaseNamed("connections cut")
	delayedPhase = phaseNamed("connections delayed by 0.3 s")
	stalledPhase = phaseNamed("connections stalled")
	frozenPhase  = phaseNamed("frozen watches")
	reloadPhase  = phaseNamed("clusterdns reloaded")
	hangPhase    = phaseNamed("node cache stopped")
)

const (
	notifierFile  = "plugin/internal/push/notifier.go"
	voucherFile   = "plugin/internal/vouch/voucher.go"
	sessionFile   = "plugin/internal/vouch/session.go"
	serverFile    = "plugin/fastpath/session_linux.go"
	clientFile    = "plugin/forward/transport/session.go"
	viewFile      = "plugin/kubernetes/coherent.go"
	indexFile     = "plugin/kubernetes/index/write.go"
	namespaceFile = "plugin/kubernetes/index/namespaces.go"
	nodeFile      = "plugin/kubernetes/index/nodes.go"
	kernelFolder  = "plugin/fastpath/kernel"
	wireFolder    = "plugin/internal/wire"
	copiesFile    = kernelFolder + "/copies_linux.go"
	listenersFile = kernelFolder + "/listeners_linux.go"
)

// mutations are in the order of the table in README.md. The first ones are of clusterdns.
var mutations = []mutation{
	{"no invalidation is sent", []edit{replacement(notifierFile, pushed, "handles)\n")}, noFault},
	{"every second session gets no invalidation", []edit{
		replacement(notifierFile, pushed, "handles)\n\t\t\tif s.part%2 == 0 {\n\t\t\t\ta.conn.Push(n.message)\n\t\t\t}\n"),
	}, noFault},
	{"invalidations are sent 1.5 s late, behind heartbeats", []edit{late(1500)}, noFault},
	{"only the first handle of a message is invalidated", []edit{
		replacement(notifierFile, "dso.AppendInvalidate(n.message[:0], handles)", "dso.AppendInvalidate(n.message[:0], handles[:1])"),
	}, noFault},
	{"an answer has only its first handle", []edit{
		replacement(serverFile, "\t\thandles = append(handles, h)\n", "\t\thandles = append(handles, h)\n\t\tbreak\n"),
	}, noFault},
	{"an answer of another type than A, AAAA, SRV and PTR has only its first handle", []edit{
		replacement(serverFile, "\t\thandles = append(handles, h)\n", "\t\thandles = append(handles, h)\n\t\tswitch l.query.Type {\n\t\tcase 1, 12, 28, 33:\n\t\tdefault:\n\t\t\treturn handles\n\t\t}\n"),
	}, noFault},
	{"a session is subscribed once to a topic", []edit{
		replacement("plugin/internal/push/subscriber.go", "\tdelete(s.topics, t)\n", ""),
	}, noFault},
	{"the end of an answer that was made meanwhile is not sent", []edit{
		replacement(serverFile, "len(ended) > 0 {", "len(ended) > 99 {"),
	}, noFault},
	{"a change of a Service ends no answer", []edit{
		replacement(indexFile, "\te.advance()\n\tif created {", "\tif created {"),
	}, noFault},
	{"the creation of a Service does not end its denials", []edit{
		replacement(indexFile, "\t\tix.NameGeneration(k.Namespace, k.Name).advance()\n", ""),
	}, noFault},
	{"a change of endpoints ends no answer", []edit{
		replacement(indexFile, "\t\tif e != nil {\n\t\t\te.generation.advance()\n\t\t}\n", "\t\t_ = e\n"),
	}, noFault},
	{"a change of addresses ends no PTR answer", []edit{
		replacement(indexFile, "\t\tix.AddressGeneration(a).advance()\n", "\t\t_ = a\n"),
		replacement(indexFile, "\t\t\tix.AddressGeneration(s.addr(i)).advance()\n", "\t\t\t_ = i\n"),
		replacement(indexFile, "\t\t\tix.AddressGeneration(e.Addr).advance()\n", "\t\t\t_ = e\n"),
	}, noFault},
	{"a Namespace ends no answer about its objects", []edit{
		replacement(namespaceFile, "\t\t\t\te.advance()\n\t\t\t\tix.NameGeneration(k.Namespace, k.Name).advance()\n", ""),
	}, noFault},
	{"a Namespace ends no answer about itself", []edit{
		replacement(namespaceFile, "\t\tix.NamespaceGeneration(name).advance()\n", "\t\t_ = name\n"),
	}, noFault},
	{"a change of a Node ends no answer", []edit{
		replacement(nodeFile, "!old.sameLabels(n) {\n\t\tix.nodes.generation.advance()\n", "!old.sameLabels(n) {\n"),
		replacement(nodeFile, "\tix.nodes.keys.release(old)\n\tix.nodes.generation.advance()\n", "\tix.nodes.keys.release(old)\n"),
	}, nodesPhase},
	{"a change of a ServiceImport alone ends no answer", []edit{
		replacement(indexFile, "ix.imports.put(s); e != nil {\n\t\tix.serviceChanged(s.key(), e, e.Service == nil)\n", "ix.imports.put(s); e != nil {\n"),
		replacement(indexFile, "ix.imports.delete(k); e != nil {\n\t\tix.serviceChanged(k, e, true)\n", "ix.imports.delete(k); e != nil {\n"),
	}, noFault},
	{"queries are answered before the first sync", []edit{
		replacement("plugin/kubernetes/kubernetes.go", "synced, stale := k.state(k.isClusterset(zone)) //", "_, stale := k.state(k.isClusterset(zone))\n\tsynced := k != nil //"),
	}, killedPhase},
	{"invalidations are sent 0.9 s late, behind heartbeats", []edit{late(900)}, delayedPhase},
	{"heartbeats continue while the view is uncertain", []edit{
		replacement(viewFile, `if reason := k.outdated(); reason != "" {`, `if reason := k.outdated(); reason != "" && v == nil {`),
	}, frozenPhase},
	{"a reload revokes nothing", []edit{
		replacement("plugin/fastpath/listener_linux.go", "push.Process.Revoke() //", "_ = push.Process.Revoke //"),
	}, reloadPhase},
	// Of nodecache.
	{"invalidations are ignored", []edit{
		replacement(clientFile, "s.ended = append(s.ended, s.Invalidate(handles)...)", "_ = s.Invalidate"),
	}, noFault},
	{"an invalidated answer remains in the store, and counts as valid", []edit{
		replacement("plugin/internal/store/vouched.go", "\tif e == nil {\n\t\treturn nil\n\t}\n", "\tif e == nil || e != nil {\n\t\treturn nil\n\t}\n"),
		replacement("plugin/internal/validity/validity.go", "(v.Voucher == nil || !v.Voucher.Ended()) && v.counted()", "v.counted()"),
		replacement(voucherFile, "\t\tif h.ended.Load() || !h.session", "\t\tif !h.session"),
	}, noFault},
	{"a voucher has only its first handle", []edit{
		replacement(sessionFile, "\t\tv.handles = append(v.handles, h)\n", "\t\tif len(v.handles) == 0 {\n\t\t\tv.handles = append(v.handles, h)\n\t\t}\n"),
	}, noFault},
	{"an answer for a search name depends on one candidate", []edit{
		replacement(voucherFile, "if !slices.Contains(v.handles, h) {", "if len(v.handles) == 0 && !slices.Contains(v.handles, h) {"),
	}, noFault},
	{"an answer remains valid if it was invalidated on its way", []edit{
		replacement(voucherFile, "\th.ended.Store(true)\n", "\th.ended.Store(len(h.dependents) > 0)\n"),
	}, noFault},
	{"a session vouches for the answers of the session before", []edit{
		replacement(sessionFile, "\ts.until.Store(max(s.until.Load(), int64(min(sent, now)+Silence)))\n",
			"\ts.until.Store(max(s.until.Load(), int64(min(sent, now)+Silence)))\n\tlatest.Store(s.until.Load())\n"),
		replacement(sessionFile, "return now < time.Duration(s.until.Load()) }", "return now < time.Duration(latest.Load()) }\n\nvar latest atomic.Int64"),
	}, cutPhase},
	{"the TTL counts from the last heartbeat", []edit{
		replacement("plugin/internal/validity/validity.go", "\tif v.Expires != 0 && now >= v.Expires || v.Lapsed() {\n",
			"\tif v.Expires != 0 && now >= max(v.Expires, v.Voucher.LastVouched(now)+time.Second) || v.Lapsed() {\n"),
		replacement("plugin/cache/cache.go", "case now < e.Expires && !e.Lapsed()", "case now < max(e.Expires, e.Voucher.LastVouched(now)+time.Second) && !e.Lapsed()"),
	}, stalledPhase},
	{"the TTL counts from the time until which a session vouched", []edit{
		replacement("plugin/internal/validity/validity.go", "\tif v.Expires != 0 && now >= v.Expires || v.Lapsed() {\n",
			"\tif v.Expires != 0 && now >= max(v.Expires, v.Voucher.LastVouched(now)+2*time.Second) || v.Lapsed() {\n"),
		replacement("plugin/cache/cache.go", "case now < e.Expires && !e.Lapsed()", "case now < max(e.Expires, e.Voucher.LastVouched(now)+2*time.Second) && !e.Lapsed()"),
	}, stalledPhase},
	{"queries fail while no session vouches", []edit{
		replacement("plugin/forward/exchange.go", "\tif len(x.all) == 0 {\n",
			"\tvouches := x.all[0].vouches(nil)\n\tif vouches {\n\t\tvouched.Store(true)\n\t}\n\tif !vouches && vouched.Load() {\n"),
		replacement("plugin/forward/exchange.go", "// run begins the exchange.", "var vouched atomic.Bool\n\n// run begins the exchange."),
		replacement("plugin/forward/exchange.go", "\t\"sync\"\n", "\t\"sync\"\n\t\"sync/atomic\"\n"),
	}, frozenPhase},
	{"a session vouches without heartbeats", []edit{
		replacement(sessionFile, "return now < time.Duration(s.until.Load())", "return now != 0 && s.until.Load() != 0"),
	}, stalledPhase},
	{"a session vouches for 6 s after a heartbeat", []edit{replacement(sessionFile, "Silence = time.Second", "Silence = 6 * time.Second")}, stalledPhase},
	{"the TTL of an answer is ignored when its session is silent", []edit{
		replacement("plugin/internal/validity/validity.go", "return v.Vouched(now) && v.counted()", "return (v.Voucher != nil || v.Vouched(now)) && v.Current()"),
		replacement("plugin/cache/cache.go", "case now < e.Expires && !e.Lapsed() || e.Vouched(now):", "case now < e.Expires || e.Voucher != nil:"),
	}, stalledPhase},
	{"a heartbeat counts from its receipt", []edit{
		replacement(sessionFile, "int64(min(sent, now)+Silence)", "int64(max(sent, now)+Silence)"),
	}, stalledPhase},
	// Of the answers in the kernel, of one nodecache.
	{"the end of an entry does not end its copy", []edit{
		replacement(copiesFile, "\tatomic.SwapUint32(&r.memory.Version, 0)\n", ""),
	}, noFault},
	{"an entry that leaves the store leaves its copies", []edit{
		replacement("plugin/internal/store/store.go", "\te.removeCopies()\n", ""),
	}, noFault},
	{"a session vouches in the kernel without heartbeats", []edit{
		replacement(copiesFile, "atomic.StoreUint64(&copied.Until, end)", "atomic.StoreUint64(&copied.Until, max(end, 1<<63))"),
	}, stalledPhase},
	{"the kernel ignores the end of the lease", []edit{
		replacement(listenersFile, "atomic.StoreUint64(&t.control.Until[listener], end)", "atomic.StoreUint64(&t.control.Until[listener], max(end, 1<<63))"),
	}, hangPhase},
}

// pushed is the end of the line that makes an invalidation, and the line that sends it.
const pushed = "handles)\n\t\t\ta.conn.Push(n.message)\n"

// late is an edit that sends invalidations some milliseconds late.
func late(ms int) edit {
	return replacement(notifierFile, pushed,
		fmt.Sprintf("handles)\n\t\t\tlate, to := append([]byte(nil), n.message...), a.conn\n\t\t\ttime.AfterFunc(%d*time.Millisecond, func() { to.Push(late) })\n", ms))
}

// TestMutants checks that the sources have the text of each mutation.
func TestMutants(t *testing.T) {
	all := slices.Clone(mutations)
	for _, m := range packageMutations {
		all = append(all, mutation{name: m.name, edits: m.edits})
	}
	for _, m := range all {
		texts := map[string]string{}
		for _, e := range m.edits {
			text, known := texts[e.file]
			if !known {
				b := kit.Read(t, e.path())
				text = b
			}
			changed, err := e.apply(text)
			if err != nil {
				t.Errorf("%s: %v", m.name, err)
			}
			texts[e.file] = changed
		}
	}
}

// undetected are the mutations that this test detects by chance at most; README.md has the reasons, and the tests that do.
var undetected = map[string]bool{
	"the end of an answer that was made meanwhile is not sent": true,
	"the TTL counts from the last heartbeat":                   true,
	"a session vouches without heartbeats":                     true,
	"a session vouches for 6 s after a heartbeat":              true,
	"a heartbeat counts from its receipt":                      true,
}

// TestMutations runs each mutation: the checker has to find a wrong answer, or a requirement that is not met. It takes about 40 s
// for each.
func TestMutations(t *testing.T) {
	if os.Getenv("NEARSIDE_MUTATIONS") == "" {
		t.Skip("runs with NEARSIDE_MUTATIONS=1: make mutations")
	}
	var all []mutation
	for _, p := range []phase{noFault, stoppedPhase, killedPhase, cutPhase, delayedPhase, stalledPhase, reloadPhase, hangPhase} {
		all = append(all, mutation{"none", nil, p})
	}
	for i, m := range append(all, mutations...) {
		t.Run(fmt.Sprintf("%02d", i), func(t *testing.T) {
			b := binaries{
				clusterdns: compile(t, "clusterdns", append(append(recording(t), shortWatchdog()...), m.edits...)...),
				nodecache:  compile(t, "nodecache", m.edits...),
			}
			c := runHistory(t, b, 1, "coherent", []phase{m.phase})
			t.Logf("%s, phase %q: %d wrong of %d answers; unmet: %q%s", m.name, m.phase.name, c.wrongs, c.checked, c.unmet(), c.phases())
			want := m.edits != nil
			if detected := c.wrongs+len(c.unmet()) > 0; detected != want && !undetected[m.name] {
				t.Errorf("%s: detected %t: %q", m.name, detected, c.wrong)
			}
		})
	}
}

// packageMutations are defects that tests of their packages find: at least one of each package that a query goes through, and
// those of the answers in the kernel with which the answers of a history are right, or older than they should be by less than the
// history can tell.
var packageMutations = []struct {
	name   string
	edits  []edit
	folder string
	test   string
}{
	{"compression pointers may point forwards", []edit{
		replacement(wireFolder+"/name.go", "at < HeaderLen || at >= start", "at < HeaderLen || start < 0"),
	}, wireFolder, "TestReplyNames"},
	{"names are compared by case", []edit{
		replacement(wireFolder+"/name.go", "lower(c) != lower(b[i])", "c != b[i]"),
	}, wireFolder, "TestReply"},
	{"the signature of an RRSIG record may be missing", []edit{
		replacement(wireFolder+"/data.go", "(3 - len(b)%3) % 3, len(b) > 0", "(3 - len(b)%3) % 3, true"),
	}, wireFolder, "TestData"},
	{"the store evicts answers that are used", []edit{
		replacement("plugin/internal/store/evict.go", "e.credit.Load() <= 0 || rounds", "e.credit.Load() <= 99 || rounds"),
	}, "plugin/internal/store", "TestScanSparesUsedEntries"},
	{"an answer for queries with DO is that for others", []edit{
		replacement("plugin/internal/store/key.go", "wire.Flag(q.DO, keyDO)|", ""),
	}, "plugin/internal/store", "TestAppendKey"},
	{"NXDOMAIN without a SOA record is cached", []edit{
		replacement("plugin/cache/classify.go", "\t\treturn soa\n", "\t\treturn soa || m != nil\n"),
	}, "plugin/cache", "TestExamine"},
	{"a denial has the greater TTL of its SOA record", []edit{
		replacement("plugin/cache/records.go", "return min(ttl, binary", "return max(ttl, binary"),
	}, "plugin/cache", "TestExamine"},
	{"a reply for one subnet is stored for all clients", []edit{
		replacement("plugin/cache/edns.go", "ok && subnet.SourceScope > 0", "ok && subnet.SourceScope > 99"),
	}, "plugin/cache", "TestClientSubnet"},
	{"a query that was refused because of an option is not repeated without", []edit{
		replacement("plugin/forward/caller.go", "\ta.refused = true\n", ""),
	}, "plugin/forward", "TestCaller_Refused"},
	{"a response code of failover is the client's", []edit{
		replacement("plugin/forward/attempt.go", "slices.Contains(x.f.failover, m.Rcode) {", "slices.Contains(x.f.failover, m.Rcode) && m.Rcode < 0 {"),
	}, "plugin/forward", "TestFailover"},
	{"a reply to another question is accepted", []edit{
		replacement("plugin/forward/transport/message.go", "\treturn WrongQuestion\n}\n\n// isRefusal", "\treturn \"\"\n}\n\n// isRefusal"),
	}, "plugin/forward/transport", "TestCheck"},
	{"a search list may be in upper case", []edit{
		replacement("plugin/internal/searchlist/option.go", "end == 0 || wire.HasUpper(b[at:end])", "end == 0"),
	}, "plugin/internal/searchlist", "TestParseSuffixes"},
	{"a search does not end at a name with addresses of the other family", []edit{
		replacement("plugin/internal/searchlist/candidates.go", "\tdns.TypeA:     {dns.TypeAAAA},\n", ""),
	}, "plugin/internal/searchlist/expand", "TestWinner"},
	{"endpoints of a headless Service are not filtered by the caller", []edit{
		replacement("plugin/kubernetes/endpoints.go", "func (k *Kubernetes) policyOf(s *index.Service, n *objectName) (p topology.Policy) {\n", "func (k *Kubernetes) policyOf(s *index.Service, n *objectName) (p topology.Policy) {\n\tif n != nil {\n\t\treturn p\n\t}\n"),
	}, "plugin/kubernetes", "TestSelected"},
	{"a client may have all places of its queue", []edit{
		replacement("plugin/fastpath/admission/queue.go", "c.running > 0 && c.running >= shareFactor*(free-limit/reservedFraction)", "c.running > limit"),
	}, "plugin/fastpath/admission", "TestShares"},
	{"an expired lease is renewed", []edit{
		replacement("plugin/nodelocal/lease.go", "return l.held && now.Sub(l.renewed) >= rules.Lease-expiryTolerance", "return l.held && now.Sub(l.renewed) >= 99*rules.Lease"),
	}, "plugin/nodelocal", "TestLease"},
	{"the end of an entry does not end its copy", []edit{
		replacement(copiesFile, "\tatomic.SwapUint32(&r.memory.Version, 0)\n", ""),
	}, kernelFolder, "TestEnds/removed"},
	{"an entry that has ended is copied", []edit{
		replacement("plugin/internal/store/copy.go", "\tif e.newer == nil {\n\t\treturn false\n\t}\n", ""),
	}, "plugin/internal/store", "TestCopies"},
	{"the kernel has no heartbeats of a session", []edit{
		replacement(sessionFile, "+Silence)))\n\ts.reflect()\n", "+Silence)))\n"),
	}, kernelFolder, "TestVouched"},
	{"a closed session vouches in the kernel until it would have been silent", []edit{
		replacement(sessionFile, "\ts.until.Store(0)\n\ts.reflect()\n", "\ts.until.Store(0)\n"),
	}, kernelFolder, "TestEnds/session_closed"},
	{"answers of a retired session do not lapse in the kernel", []edit{
		replacement(copiesFile, "atomic.StoreUint64(&copied.Lapsed, 1)", "atomic.StoreUint64(&copied.Lapsed, 0)"),
	}, kernelFolder, "TestEnds/session_retired"},
	{"a reload ends no copy", []edit{
		replacement(copiesFile, "if int(r.key.Listener) == listener {", "if int(r.key.Listener) == -1-listener {"),
	}, kernelFolder, "TestEnds/listener_replaced"},
	{"the kernel ignores the end of the lease", []edit{
		replacement(listenersFile, "atomic.StoreUint64(&t.control.Until[listener], end)", "atomic.StoreUint64(&t.control.Until[listener], max(end, 1<<63))"),
	}, kernelFolder, "TestEnds/(no_lease|lease_expired)"},
	{"the kernel ignores the time of prefetch", []edit{
		replacement(kernelFolder+"/record_linux.go", "s.clock.kernel(min(e.Expires, e.Popularity.From))", "s.clock.kernel(e.Expires)"),
	}, kernelFolder, "TestEnds/time_of_prefetch"},
}

// TestMutationsOfPackages runs the test of each of packageMutations, which has to fail.
func TestMutationsOfPackages(t *testing.T) {
	if os.Getenv("NEARSIDE_MUTATIONS") == "" {
		t.Skip("runs with NEARSIDE_MUTATIONS=1: make mutations")
	}
	for _, m := range packageMutations {
		t.Run(m.name, func(t *testing.T) {
			if m.folder == kernelFolder && os.Geteuid() != 0 {
				withoutKernel(t, "it needs root")
				return
			}
			for _, tt := range []struct {
				path string
				want string
			}{{compileTest(t, m.folder), "PASS: "}, {compileTest(t, m.folder, m.edits...), "FAIL: "}} {
				c := exec.Command(tt.path, "-test.v", "-test.run", "^"+strings.ReplaceAll(m.test, "/", "$/^"))
				c.Dir = filepath.Join(root, m.folder)
				out, _ := c.CombinedOutput() // the error is that of a test which fails
				if !strings.Contains(string(out), "--- "+tt.want) {
					t.Errorf("the output of %s lacks %s:\n%s", m.test, tt.want, out)
				}
			}
		})
	}
}
