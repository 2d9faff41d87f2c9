package cache

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nearside-dns/nearside/plugin/cache/internal/snapshot"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
	"github.com/nearside-dns/nearside/test/property"
)

const edeStale, edeStaleNXDOMAIN = "; additional; OPT 3 (Stale Answer): ()", "; additional; OPT 19 (Stale NXDOMAIN Answer): ()"

// TestSnapshot restarts a process, with an upstream that fails from then on.
func TestSnapshot(t *testing.T) {
	const sec, min = time.Second, time.Minute
	answer := func(ttl int) string { return "NOERROR; " + a("w.", ttl) }
	for _, c := range []struct {
		name, options, reply string
		down                 time.Duration
		query, want          string
	}{
		{"the TTL continues", "", answer(300), 100 * sec, "w. A", answer(200)},
		{"clients with EDNS get an extended error", "", answer(300), 100 * sec, "w. A +edns", answer(200) + edeStale},
		{"also with serve_stale", "serve_stale", answer(300), 100 * sec, "w. A +edns", answer(200) + edeStale},
		{"NXDOMAIN", "", denial("NXDOMAIN", 60, 60), 10 * sec, "w. A +edns", denial("NXDOMAIN", 50, 60) + edeStaleNXDOMAIN},
		{"NODATA", "", denial("NOERROR", 60, 60), 10 * sec, "w. A +edns", denial("NOERROR", 50, 60) + edeStale},
		{"the last second", "", answer(300), 300*sec - 1, "w. A", answer(1)},
		{"an expired answer", "", answer(300), 300 * sec, "w. A", answer(30)},
		{"an expired answer, with EDNS", "", answer(300), 300 * sec, "w. A +edns", answer(30) + edeStale},
		{"an expired denial", "", denial("NXDOMAIN", 60, 60), 60 * sec, "w. A +edns", denial("NXDOMAIN", 30, 60) + edeStaleNXDOMAIN},
		{"serve_stale off", "serve_stale off", answer(300), 300 * sec, "w. A", "nothing"},
		{"serve_stale 1m immediate", "serve_stale 1m immediate 7s", answer(300), 359 * sec, "w. A +edns", answer(7) + edeStale},
		{"beyond serve_stale", "serve_stale 1m immediate", answer(300), 360 * sec, "w. A", "nothing"},
		{"the oldest answer", "success 1024 36000", answer(7200), 59 * min, "w. A", answer(3660)},
		{"too old", "success 1024 36000", answer(7200), time.Hour + sec, "w. A", "nothing"},
		{"keepttl", "keepttl", answer(300), 100 * sec, "w. A", answer(300)},
		{"MINTTL does not raise the remaining TTL", "success 1024 3600 100", answer(30), 50 * sec, "w. A", answer(50)},
		{"a failure", "", "SERVFAIL", 0, "w. A", "nothing"},
		{"a referral", "", "NOERROR; authority; w. 60 IN NS n.", 0, "w. A", "nothing"},
		{"not cached", "", answer(0), 0, "w. A", "nothing"},
		{"the case of another client", "", answer(300), 100 * sec, "W. A", "NOERROR; W. 200 IN A 192.0.2.1"},
		{"an alias", "", "NOERROR; w. 300 IN CNAME V.; V. 100 IN A 192.0.2.1", 10 * sec, "w. A", "NOERROR; w. 290 IN CNAME V.; V. 90 IN A 192.0.2.1"},
		{"a type that is not parsed in wire form", "", "NOERROR; w. 300 IN NAPTR 1 2 \"u\" \"s\" \"\" v.", 10 * sec, "w. NAPTR", "NOERROR; w. 290 IN NAPTR 1 2 \"u\" \"s\" \"\" v."},
		{"authenticated data", "", "NOERROR AD; " + a("w.", 300), 10 * sec, "w. A +ad", "NOERROR AD; " + a("w.", 290)},
	} {
		snapshotBubble(t, c.name, func(t *testing.T, file string) {
			b := newSnapshotCache(t, c.options, file)
			b.replies(c.reply)
			b.query(c.query)
			next := b.restart(c.down)
			next.testCache.want(c.query, c.want)
		})
	}
	snapshotBubble(t, "flags of the query", func(t *testing.T, file string) {
		b := newSnapshotCache(t, "", file)
		texts := []string{"w. A", "w. A +do", "w. A +cd", "w. A +do +cd"}
		for i, text := range texts {
			b.replies(fmt.Sprintf("NOERROR; w. 300 IN A 192.0.2.%d", i))
			b.query(text)
		}
		next := b.restart(0)
		for i, text := range texts {
			next.testCache.want(text, fmt.Sprintf("NOERROR; w. 300 IN A 192.0.2.%d", i)+map[bool]string{true: edeStale}[strings.Contains(text, "+do")])
		}
	})
	snapshotBubble(t, "twice", func(t *testing.T, file string) {
		b := newSnapshotCache(t, "", file)
		b.replies(answer(300))
		b.query("w. A")
		next := b.restart(50 * sec).restart(50 * sec)
		next.testCache.want("w. A +edns", answer(200)+edeStale)
	})
	snapshotBubble(t, "killed", func(t *testing.T, file string) {
		b := newSnapshotCache(t, "", file)
		b.replies(answer(300))
		b.query("w. A")
		time.Sleep(min + sec) // for a write
		b.query("v. A")
		next := b.kill(39 * sec)
		next.testCache.want("w. A", answer(200))
		next.testCache.want("v. A", "nothing")
	})
}

// TestRestored checks that a restored answer is fetched again for its first query, and is marked and counted until that succeeds.
func TestRestored(t *testing.T) {
	const first, second = "NOERROR; w. %d IN A 192.0.2.1", "NOERROR; w. %d IN A 192.0.2.2"
	snapshotBubble(t, "the upstream answers", func(t *testing.T, file string) {
		b := newSnapshotCache(t, "", file)
		b.replies(fmt.Sprintf(first, 300))
		b.query("w. A")
		next := b.restart(100 * time.Second)
		next.replies(fmt.Sprintf(second, 300))
		synctest.Wait()
		next.wantQueries(0)
		next.testCache.want("w. A +edns", fmt.Sprintf(first, 200)+edeStale)
		synctest.Wait()
		next.wantQueries(1)
		next.testCache.want("w. A +edns", fmt.Sprintf(second, 300))
		next.wantHits(1)
		next.testCache.want("w. A", fmt.Sprintf(second, 300))
		next.wantQueries(1)
	})
	snapshotBubble(t, "the upstream fails at first", func(t *testing.T, file string) {
		b := newSnapshotCache(t, "prefetch 1 1m 10%", file)
		b.replies(fmt.Sprintf(first, 300))
		b.query("w. A")
		next := b.restart(0)
		for i := range 3 {
			next.testCache.want("w. A +edns", fmt.Sprintf(first, 300-9*i)+edeStale)
			synctest.Wait()
			next.wantQueries(1) // until the recheck
			time.Sleep(9 * time.Second)
		}
		time.Sleep(4 * time.Second)
		next.replies(fmt.Sprintf(second, 300))
		next.testCache.want("w. A +edns", fmt.Sprintf(first, 269)+edeStale)
		synctest.Wait()
		next.wantQueries(2)
		next.testCache.want("w. A +edns", fmt.Sprintf(second, 300))
		next.wantHits(4)
	})
	snapshotBubble(t, "the name no longer exists", func(t *testing.T, file string) {
		b := newSnapshotCache(t, "", file)
		b.replies(fmt.Sprintf(first, 300))
		b.query("w. A")
		next := b.restart(0)
		next.replies(denial("NXDOMAIN", 60, 60))
		next.testCache.want("w. A", fmt.Sprintf(first, 300))
		synctest.Wait()
		next.testCache.want("w. A", denial("NXDOMAIN", 60, 60))
	})
	snapshotBubble(t, "expired", func(t *testing.T, file string) {
		b := newSnapshotCache(t, "", file)
		b.replies(fmt.Sprintf(first, 300))
		b.query("w. A")
		next := b.restart(300 * time.Second)
		next.testCache.want("w. A +edns", fmt.Sprintf(first, 30)+edeStale)
		next.wantHits(1)
		if n := testutil.ToFloat64(next.counters("").stale); n != 1 {
			t.Errorf("%v stale answers, want 1", n)
		}
		time.Sleep(30 * time.Second)
		next.replies(fmt.Sprintf(second, 300))
		next.testCache.want("w. A +edns", fmt.Sprintf(second, 300))
	})
}

// TestSnapshotAtRandom compares a cache that is restarted with one that is not, which has the same queries: from the restart on, the
// upstream fails, and both give the same answers with the same TTLs. What a killed process had not written may be missing.
func TestSnapshotAtRandom(t *testing.T) {
	options := []string{"", "serve_stale off", "serve_stale 10m", "serve_stale 5m verify 0 9s 3s", "keepttl", "success 1024 60 20\ndenial 1024 40", "prefetch 2 1m 50%", "servfail 0"}
	property.Seeds(t, 0, 40, func(t *testing.T, seed uint64) {
		snapshotBubble(t, "restart", func(t *testing.T, file string) {
			r := rand.New(rand.NewPCG(seed, 5)) // #nosec G404 -- no need for secrecy
			option := options[r.IntN(len(options))]
			steady := newTestCache(t, "cache {\n"+option+"\n}")
			b := newSnapshotCache(t, option, file)
			for _, c := range []*testCache{steady, b.testCache} {
				c.upstream(func(_ context.Context, w dns.ResponseWriter, q *dns.Msg) (int, error) {
					m := replyTo(t, q, snapshotReply(q.Question[0].Name))
					return m.Rcode, w.WriteMsg(m)
				})
			}
			text := func() string {
				return fmt.Sprintf("n%d. A", r.IntN(30)) + []string{"", " +edns", " +do", " +cd"}[r.IntN(4)]
			}
			for range 60 {
				q := text()
				steady.query(q)
				b.query(q)
				time.Sleep(time.Duration(r.IntN(5000)) * time.Millisecond)
				synctest.Wait()
			}
			killed := r.IntN(2) == 0
			down := time.Duration(r.IntN(1000)) * time.Second
			next := b.restartOrKill(killed, down)
			steady.fails()
			for range 60 {
				q := text()
				want, _ := withoutOPT(steady.query(q))
				got, marked := withoutOPT(next.query(q))
				if got != want && !(killed && got == "failure") {
					t.Fatalf("%s %v after the start\n got %s\nwant %s", q, next.now()-1000*time.Second, got, want)
				}
				if got != "failure" && strings.Contains(q, "+edns") && !marked {
					t.Errorf("%s: %s has no extended error", q, got)
				}
				synctest.Wait()
				time.Sleep(time.Duration(r.IntN(20000)) * time.Millisecond)
			}
		})
	})
}

func (s *snapshotCache) restartOrKill(kill bool, after time.Duration) *snapshotCache {
	if kill {
		return s.kill(after)
	}
	return s.restart(after)
}

// snapshotReply returns the reply of the upstream for a name, which its number determines.
func snapshotReply(name string) string {
	var n int
	if _, err := fmt.Sscanf(name, "n%d.", &n); err != nil {
		panic(err)
	}
	ttl := []int{0, 3, 30, 300, 3000}[n%5]
	switch n / 5 {
	case 0, 1:
		return fmt.Sprintf("NOERROR; %s %d IN A 192.0.2.%d; %[1]s %[2]d IN A 192.0.2.9", name, ttl, n)
	case 2:
		return fmt.Sprintf("NOERROR; %s %d IN CNAME Target.; Target. 40 IN A 192.0.2.%d", name, ttl, n)
	case 3:
		return denial("NXDOMAIN", ttl, 100)
	case 4:
		return denial("NOERROR", 100, ttl)
	}
	return "SERVFAIL"
}

// withoutOPT returns a reply without its OPT record, "failure" for one without an answer, and whether it has an extended error.
func withoutOPT(m *dns.Msg) (text string, marked bool) {
	if m == nil || m.Rcode == dns.RcodeServerFailure {
		return "failure", false
	}
	text, _, marked = strings.Cut(brief(m), "; additional; OPT ")
	return text, marked
}

// TestNotInSnapshot checks that a file has only answers that end by their TTL alone.
func TestNotInSnapshot(t *testing.T) {
	g := new(generation)
	reply := func(b *snapshotCache, change func(p *store.Properties)) {
		b.upstream(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
			change(store.PropertiesOf(ctx, r))
			if r.Question[0].Name == "fail." {
				return dns.RcodeServerFailure, w.WriteMsg(replyTo(t, r, "SERVFAIL"))
			}
			return 0, w.WriteMsg(replyTo(t, r, "NOERROR; "+a("w.", 300)))
		})
	}
	for _, c := range []struct {
		name, query string
		change      func(p *store.Properties)
		stored      bool
	}{
		{"control", "w. A", func(*store.Properties) {}, true},
		{"by generation", "w. A", func(p *store.Properties) { p.DependOn(g) }, true},
		{"by generation and TTL", "w. A", func(p *store.Properties) { p.DependOn(g); p.Foreign = true }, true},
		{"with a serial", "w. A", func(p *store.Properties) { p.Serial = &serial{7} }, true},
		{"a failure", "fail. A", func(*store.Properties) {}, true},
		{"for one caller", "w. A", func(p *store.Properties) { p.View.Private = true }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := snapshotFile(t)
			synctest.Test(t, func(t *testing.T) {
				b := newSnapshotCache(t, "", file)
				reply(b, c.change)
				b.query(c.query)
				if stored := b.entry(c.query) != nil; stored != c.stored {
					t.Fatalf("stored: %t, want %t", stored, c.stored)
				}
				b.exit()
				if n := len(recordsIn(t, file)); (n == 1) != (c.name == "control") || n > 1 {
					t.Errorf("%d records", n)
				}
			})
		})
	}
	t.Run("of a session", func(t *testing.T) {
		file := snapshotFile(t)
		synctest.Test(t, func(t *testing.T) {
			b := newCoherentCache(t, "cache {\nsnapshot "+file+"\n}")
			s := &snapshotCache{b.testCache, newSnapshotter(b.Cache), ""}
			s.begin(testConfig)
			defer s.end()
			b.vouched("NOERROR; "+a("w.", 300), 1)
			b.query("w. A")
			b.session.Close() // the answer lapses, until its TTL
			s.exit()
			if b.entry("w. A") == nil || len(recordsIn(t, file)) != 0 {
				t.Errorf("records %q", recordsIn(t, file))
			}
		})
	})
	snapshotBubble(t, "with a search list", func(t *testing.T, file string) {
		b := newSnapshotCache(t, "", file)
		b.replies("NOERROR tried:example.; w. 300 IN A 192.0.2.1")
		const text = "w. A +search:example."
		b.query(text)
		b.exit()
		if b.entry(text) == nil || len(recordsIn(t, file)) != 0 {
			t.Errorf("records %q", recordsIn(t, file))
		}
	})
}

// TestSnapshotRefused starts with files that are not restored: the reason is logged once, and the cache is empty.
func TestSnapshotRefused(t *testing.T) {
	const refused = "the cache starts with 0 answers"
	change := func(f func(b []byte) []byte) func(t *testing.T, file string) {
		return func(t *testing.T, file string) {
			b, err := os.ReadFile(file)
			if err == nil {
				err = os.WriteFile(file, f(b), 0o600)
			}
			kit.Must(t, err)
		}
	}
	for _, c := range []struct {
		name   string
		after  time.Duration
		change func(t *testing.T, file string)
		want   []string
	}{
		{"control", 0, func(*testing.T, string) {}, []string{"restored: 1 answers, written 0s ago"}},
		{"no file", 0, func(t *testing.T, file string) {
			kit.Must(t, os.Remove(file))
		}, nil},
		{"too old", time.Hour + time.Second, func(*testing.T, string) {}, []string{"refused: written 1h0m1s ago, more than MAX_AGE 1h0m0s; " + refused}},
		{"truncated", 0, change(func(b []byte) []byte { return b[:len(b)-9] }), []string{"refused: truncated or corrupt: wrong checksum; " + refused}},
		{"empty", 0, change(func([]byte) []byte { return nil }), []string{"refused: not a snapshot of a cache; " + refused}},
		{"corrupt", 0, change(func(b []byte) []byte { b[len(b)/2] ^= 1; return b }), []string{"refused: truncated or corrupt"}},
		{"too large", 0, func(t *testing.T, file string) {
			kit.Must(t, os.Truncate(file, maxSnapshot+1))
		}, []string{"refused: 16777217 bytes, more than the limit of 16777216"}},
		{"of the future", 0, func(t *testing.T, file string) {
			rewrite(t, file, snapshot.Header{Config: testConfig, Written: time.Now().Add(time.Second)})
		}, []string{"refused: written in the future, at 2000-01-01T00:00:01Z: the clock of the node was set back"}},
		{"of another configuration", 0, func(t *testing.T, file string) {
			rewrite(t, file, snapshot.Header{Config: [32]byte{2}, Written: time.Now()})
		}, []string{"refused: written by another configuration of the server block"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := snapshotFile(t)
			log := logged(t)
			synctest.Test(t, func(t *testing.T) {
				b := newSnapshotCache(t, "success 1024 7200", file)
				b.replies("NOERROR; " + a("w.", 7200))
				b.query("w. A")
				b.exit()
				c.change(t, file)
				next := b.kill(c.after)
				synctest.Wait()
				log.want(t, c.want...)
				if n := next.space.Len(store.Success); (n == 1) != (c.name == "control") || n > 1 {
					t.Errorf("%d answers", n)
				}
				next.replies("NOERROR; " + a("v.", 60))
				next.testCache.want("v. A", "NOERROR; "+a("v.", 60))
				next.exit()
				if n := len(recordsIn(t, file)); n == 0 {
					t.Error("the file is not replaced")
				}
			})
		})
	}
}

// rewrite replaces the header of a file.
func rewrite(t *testing.T, file string, h snapshot.Header) {
	t.Helper()
	records := parsedFile(t, file).Records()
	if _, err := snapshot.Write(file, h, maxSnapshot, records, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
}

// TestSnapshotUnwritable removes and creates the folder of the file: each change is logged once, and a metric reports the state.
func TestSnapshotUnwritable(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "folder")
	file := filepath.Join(folder, "snapshot")
	log := logged(t)
	const failed, works = "cannot be written: open ", "can be written again"
	synctest.Test(t, func(t *testing.T) {
		b := newSnapshotCache(t, "keepttl", file)
		b.replies("NOERROR; " + a("w.", 300))
		state := func(want float64) {
			t.Helper()
			synctest.Wait()
			if got := testutil.ToFloat64(snapshotFailed.WithLabelValues(file)); got != want {
				t.Errorf("the metric is %v, want %v", got, want)
			}
			b.testCache.want("w. A", "NOERROR; "+a("w.", 300))
		}
		state(1)
		log.want(t, failed) // at start
		time.Sleep(3 * time.Minute)
		state(1)
		log.want(t)
		kit.Must(t, os.Mkdir(folder, 0o700))
		time.Sleep(70 * time.Second)
		state(0)
		log.want(t, works)
		written := testutil.ToFloat64(snapshotWritten.WithLabelValues(file))
		if written <= 946684800+180 || written > float64(time.Now().Unix()) {
			t.Errorf("written at %v", written)
		}
		kit.Must(t, os.RemoveAll(folder))
		time.Sleep(2 * time.Minute)
		state(1)
		log.want(t, failed)
		b.exit()
		log.want(t)
	})
	if _, err := os.Stat(folder); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder is created: %v", err)
	}
}

// TestSnapshotLimit has a cache with more than a file may have: what clients use is written.
func TestSnapshotLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const names = 50 // of each kind
		b := newTestCache(t, "cache")
		queries := func(kind string, ttl, times int) {
			for i := range names {
				b.replies(fmt.Sprintf("NOERROR; %s%02d. %d IN A 192.0.2.1", kind, i, ttl))
				for range times {
					b.query(fmt.Sprintf("%s%02d. A", kind, i))
				}
			}
		}
		queries("brief", 10, 2)
		queries("first", 300, 1)
		queries("often", 300, 2)
		time.Sleep(20 * time.Second)
		queries("later", 300, 1)
		var size int64
		for e := range b.space.All() {
			size = recordSize(e)
		}
		for want, limit := range map[string]int64{
			"map[often:50]":                            names * size,
			"map[later:50 often:50]":                   2 * names * size,
			"map[first:50 later:50 often:50]":          3 * names * size,
			"map[brief:50 first:50 later:50 often:50]": 5 * names * size,
		} {
			got := map[string]int{}
			for r := range b.records(b.now(), limit) {
				name, _, err := dns.UnpackDomainName(r.Reply, wire.HeaderLen)
				kit.Must(t, err)
				got[name[:len("often")]]++
			}
			if fmt.Sprint(got) != want {
				t.Errorf("%d bytes: %v, want %s", limit, got, want)
			}
		}
		file := snapshotFile(t)
		if n, err := snapshot.Write(file, snapshot.Header{}, 10*size, b.records(b.now(), 10*size), func() error { return nil }); err != nil || n < 9 || n > 10 {
			t.Errorf("%d records in a file for ten, %v", n, err)
		}
	})
}
