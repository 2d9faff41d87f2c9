package manifests

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
	"github.com/nearside-dns/nearside/test/kit"
)

// running is a Source that runs, with its directory.
type running struct {
	*Source
	t   *testing.T
	dir string
	ix  *index.Index
	log *recorder
}

// run starts a Source on a directory with files; change may change it before.
func run(t *testing.T, opts source.Options, files map[string]string, change func(*Source)) *running {
	t.Helper()
	r := &running{t: t, dir: filepath.Join(t.TempDir(), "manifests"), ix: index.New(), log: &recorder{}}
	kit.Must(t, os.Mkdir(r.dir, 0o755))
	for name, content := range files {
		kit.Write(t, filepath.Join(r.dir, name), content)
	}
	s, err := newSource(r.dir, opts)
	kit.Must(t, err)
	s.log = r.log
	s.wait.empty = 300 * time.Millisecond
	if change != nil {
		change(s)
	}
	kit.Must(t, s.begin())
	r.Source = s
	kit.Background(t, func(ctx context.Context) { s.Run(ctx, r.ix) })
	return r
}

// within waits until a condition holds.
func (r *running) within(limit time.Duration, what string, isMet func() bool) {
	r.t.Helper()
	for end := time.Now().Add(limit); !isMet(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("not within %v: %s; the index has\n%s\nand the log %q", limit, what, dump(r.ix), r.log.with(""))
		}
	}
}

// serves waits until the index has exactly what dump writes.
func (r *running) serves(want string) {
	r.t.Helper()
	// The README promises a second; the machine of a test may be busy.
	r.within(3*time.Second, "want\n"+want, func() bool { return dump(r.ix) == want })
}

func (r *running) logs(n int, parts ...string) {
	r.t.Helper()
	r.within(3*time.Second, fmt.Sprintf("%d lines with %q", n, parts), func() bool { return len(r.log.with(parts...)) == n })
}

func (r *running) write(name, content string) { r.t.Helper(); kit.Write(r.t, r.path(name), content) }

func (r *running) must(errs ...error) {
	r.t.Helper()
	kit.Must(r.t, errs...)
}

func (r *running) path(name string) string { return filepath.Join(r.dir, name) }

func TestWatch(t *testing.T) {
	one, two := service("shop", "one", "10.96.0.1"), service("shop", "two", "10.96.0.2")
	const dumpOne, dumpTwo = "service shop/one [10.96.0.1]", "service shop/two [10.96.0.2]"
	start := map[string]string{"one.yaml": one}
	tests := map[string]struct {
		files map[string]string
		then  func(r *running)
	}{
		"edit": {start, func(r *running) {
			begin := time.Now()
			r.write("one.yaml", service("shop", "one", "10.96.0.9"))
			r.serves("service shop/one [10.96.0.9]")
			if took := time.Since(begin); took > time.Second {
				r.t.Logf("took %v", took)
			}
		}},
		"new file": {start, func(r *running) {
			r.write("two.yaml", two)
			r.serves(dumpOne + "\n" + dumpTwo)
		}},
		"atomic rename": {start, func(r *running) {
			r.write(".one.yaml.tmp", two)
			r.must(os.Rename(r.path(".one.yaml.tmp"), r.path("one.yaml")))
			r.serves(dumpTwo)
		}},
		"delete": {map[string]string{"one.yaml": one, "two.yaml": two}, func(r *running) {
			r.must(os.Remove(r.path("one.yaml")))
			r.serves(dumpTwo)
		}},
		"new subdirectory": {start, func(r *running) {
			r.write("sub/deep/two.yaml", two)
			r.serves(dumpOne + "\n" + dumpTwo)
			r.write("sub/deep/two.yaml", service("shop", "two", "10.96.0.8"))
			r.serves(dumpOne + "\nservice shop/two [10.96.0.8]")
			r.must(os.RemoveAll(r.path("sub")))
			r.serves(dumpOne)
		}},
		"subdirectory moved in": {start, func(r *running) {
			outside := filepath.Join(filepath.Dir(r.dir), "outside")
			kit.Write(r.t, outside+"/two.yaml", two)
			r.must(os.Rename(outside, r.path("sub")))
			r.serves(dumpOne + "\n" + dumpTwo)
		}},
		"edit behind a link": {start, func(r *running) {
			outside := filepath.Join(filepath.Dir(r.dir), "outside")
			kit.Write(r.t, outside+"/two.yaml", two)
			r.must(os.Symlink(filepath.Join(outside, "two.yaml"), r.path("two.yaml")))
			r.serves(dumpOne + "\n" + dumpTwo)
			kit.Write(r.t, outside+"/two.yaml", service("shop", "two", "10.96.0.8"))
			r.serves(dumpOne + "\nservice shop/two [10.96.0.8]")
		}},
		"broken, then valid again": {map[string]string{"one.yaml": one, "two.yaml": two}, func(r *running) {
			r.write("one.yaml", "apiVersion: v1\nkind: Service\nmetadata:\n  nam: one\n")
			r.logs(1, "error ", "one.yaml:1: Service: unknown field \"metadata.nam\"; the last valid state of the directory is served")
			r.write("two.yaml", service("shop", "two", "10.96.0.8"))
			time.Sleep(300 * time.Millisecond)
			r.serves(dumpOne + "\n" + dumpTwo) // refused as a whole
			r.write("one.yaml", service("shop", "one", "10.96.0.7"))
			r.serves("service shop/one [10.96.0.7]\nservice shop/two [10.96.0.8]")
			r.logs(1, "info ", ": valid again and served")
			r.logs(1, "error ")
		}},
		"new and broken": {start, func(r *running) {
			r.write("two.yaml", "{")
			r.logs(1, "error ", "two.yaml:1: ", "the last valid state of the directory is served")
			r.serves(dumpOne)
			r.must(os.Remove(r.path("two.yaml")))
			r.write("three.yaml", two)
			r.serves(dumpOne + "\n" + dumpTwo)
			r.logs(1, "error ")
		}},
		"two files broken, one after the other valid again": {map[string]string{"one.yaml": one, "two.yaml": two}, func(r *running) {
			r.write(".tmp/one", "{")
			r.write(".tmp/two", "kind: Service")
			r.must(os.Rename(r.path(".tmp/one"), r.path("one.yaml")), os.Rename(r.path(".tmp/two"), r.path("two.yaml")))
			r.logs(1, "error ", "one.yaml:1: ", "(the first of 2 broken files)")
			r.write("one.yaml", one)
			r.logs(1, "error ", "two.yaml:1: Service: apiVersion: missing; want v1; the last valid state")
			r.serves(dumpOne + "\n" + dumpTwo)
			r.write("two.yaml", service("shop", "two", "10.96.0.8"))
			r.serves(dumpOne + "\nservice shop/two [10.96.0.8]")
			r.logs(1, "info ", ": valid again and served")
		}},
		"truncated, then written": {start, func(r *running) {
			r.write("one.yaml", "")
			for end := time.Now().Add(250 * time.Millisecond); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
				if got := dump(r.ix); got != dumpOne {
					r.t.Fatalf("got %q", got)
				}
			}
			r.write("one.yaml", one+two)
			r.serves(dumpOne + "\n" + dumpTwo)
			r.logs(0, "error ")
		}},
		"emptied for good": {map[string]string{"one.yaml": one, "two.yaml": two}, func(r *running) {
			r.write("one.yaml", "\n")
			r.serves(dumpTwo)
			r.logs(0, "error ")
		}},
		"all comments": {map[string]string{"one.yaml": one, "two.yaml": two}, func(r *running) {
			r.write("one.yaml", "# nothing any more\n")
			r.serves(dumpTwo)
		}},
		"an object that another file has": {map[string]string{"one.yaml": one, "two.yaml": two}, func(r *running) {
			r.write("one.yaml", service("shop", "one", "10.96.0.9")+service("shop", "two", "10.96.0.9"))
			r.logs(1, "error ", "two.yaml:1: Service shop/two: already in ", "one.yaml:9; delete one of the two; the last valid state of the directory is served")
			r.serves(dumpOne + "\n" + dumpTwo)
			r.must(os.Remove(r.path("two.yaml")))
			r.serves("service shop/one [10.96.0.9]\nservice shop/two [10.96.0.9]")
			r.logs(1, "info ", ": valid again and served")
		}},
		"a link that leads nowhere": {start, func(r *running) {
			r.must(os.Symlink("gone", r.path("link")), os.Rename(r.path("link"), r.path("one.yaml")))
			r.logs(1, "error ", "one.yaml: the link cannot be followed", "the last valid state of the directory is served")
			r.serves(dumpOne)
			r.must(os.Remove(r.path("one.yaml")))
			r.serves("")
		}},
		"the directory gone and back": {start, func(r *running) {
			away := filepath.Join(filepath.Dir(r.dir), "away")
			r.must(os.Rename(r.dir, away))
			r.logs(1, "error ", "manifests directory "+r.dir+": no such file or directory")
			r.serves(dumpOne)
			heard := r.Status()[0].Heard
			time.Sleep(150 * time.Millisecond)
			if now := r.Status()[0].Heard; !now.Equal(heard) {
				r.t.Errorf("heard at %v and %v", heard, now)
			}
			kit.Write(r.t, away+"/two.yaml", two)
			r.must(os.Rename(away, r.dir))
			r.serves(dumpOne + "\n" + dumpTwo)
			r.logs(1, "info ", ": valid again and served")
			r.write("two.yaml", service("shop", "two", "10.96.0.8"))
			r.serves(dumpOne + "\nservice shop/two [10.96.0.8]")
		}},
		"the directory made anew": {start, func(r *running) {
			r.must(os.RemoveAll(r.dir))
			r.logs(1, "error ", "no such file or directory")
			r.serves(dumpOne)
			r.write("two.yaml", two)
			r.serves(dumpTwo)
			r.write("two.yaml", one)
			r.serves(dumpOne)
		}},
		"a node's zone": {map[string]string{"one.yaml": endpoints, "node.yaml": node}, func(r *running) {
			const want = "service default/db headless\n  slice db-1 /tcp/5432 any/tcp/-1: 10.0.0.1,db-0,%s 10.0.0.2,elsewhere 10.0.0.4"
			r.serves(fmt.Sprintf(want, "Zone-A"))
			r.write("node.yaml", strings.ReplaceAll(node, "Zone-A", "zone-b"))
			r.serves(fmt.Sprintf(want, "zone-b"))
			r.must(os.Remove(r.path("node.yaml")))
			r.serves("service default/db headless\n  slice db-1 /tcp/5432 any/tcp/-1: 10.0.0.1,db-0 10.0.0.2,elsewhere 10.0.0.4")
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := run(t, everything, test.files, nil)
			r.within(3*time.Second, "the start", func() bool { return dump(r.ix) != "" })
			test.then(r)
		})
	}
}

// TestConfigMap swaps the links of a directory as kubelet does, each time moving a Service from one
// file to the other. A reader that saw half of a swap would miss it.
func TestConfigMap(t *testing.T) {
	r := run(t, everything, nil, nil)
	swap := func(i int) {
		version := fmt.Sprintf("..version_%d", i)
		a, b := service("shop", "moves", "10.96.0.1"), service("shop", "stays", fmt.Sprintf("10.96.1.%d", i))
		if i%2 == 1 {
			a, b = b, a
		}
		r.write(version+"/a.yaml", a)
		r.write(version+"/b.yaml", b)
		r.must(os.Symlink(version, r.path("..data_tmp")), os.Rename(r.path("..data_tmp"), r.path("..data")))
		if i > 0 {
			r.must(os.RemoveAll(r.path(fmt.Sprintf("..version_%d", i-1))))
		}
	}
	swap(0)
	r.must(os.Symlink("..data/a.yaml", r.path("a.yaml")), os.Symlink("..data/b.yaml", r.path("b.yaml")))
	want := func(i int) string {
		return fmt.Sprintf("service shop/moves [10.96.0.1]\nservice shop/stays [10.96.1.%d]", i)
	}
	r.serves(want(0))
	stop := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if r.ix.Service("shop", "moves") == nil || r.ix.Service("shop", "stays") == nil {
					t.Error("a Service was missing during a swap")
					return
				}
				runtime.Gosched()
			}
		}
	})
	for i := 1; i <= 20; i++ {
		swap(i)
		if i%5 == 0 {
			r.serves(want(i))
		}
		time.Sleep(time.Duration(i) * 7 * time.Millisecond)
	}
	close(stop)
	reader.Wait()
	r.serves(want(20))
	r.logs(0, "error ")
}

// TestUnheardChanges covers changes that no event reports.
func TestUnheardChanges(t *testing.T) {
	slow := func(s *Source) { s.wait.settle, s.wait.maxSettle = time.Hour, time.Hour }
	tests := map[string]struct {
		change func(*Source)
		then   func(r *running)
	}{
		"read again though it looks the same": {func(s *Source) {
			slow(s)
			s.wait.reread = 50 * time.Millisecond
		}, func(r *running) {
			info, err := os.Stat(r.path("one.yaml"))
			r.must(err)
			f, err := os.OpenFile(r.path("one.yaml"), os.O_WRONLY, 0)
			r.must(err)
			_, err = f.WriteString(service("shop", "one", "10.96.0.9"))
			r.must(err, f.Close(), os.Chtimes(r.path("one.yaml"), info.ModTime(), info.ModTime()))
			r.serves("service shop/one [10.96.0.9]")
		}},
		"the time of the last reading advances": {func(s *Source) {
			slow(s)
			s.wait.reread = 20 * time.Millisecond
		}, func(r *running) {
			before := r.Status()[0].Heard
			r.within(3*time.Second, "a later reading", func() bool { return r.Status()[0].Heard.After(before) })
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r := run(t, everything, map[string]string{"one.yaml": service("shop", "one", "10.96.0.1")}, test.change)
			r.serves("service shop/one [10.96.0.1]")
			test.then(r)
		})
	}
}

// TestUnchangedFiles changes a file such that its size and time stay: it is read again soon if it was written just before
// the last reading, and else with all files.
func TestUnchangedFiles(t *testing.T) {
	const before, after = "service shop/one [10.96.0.1]", "service shop/one [10.96.0.9]"
	for name, test := range map[string]struct {
		age   time.Duration // of the file at the last reading
		later time.Duration
		want  string
	}{
		"just written":   {0, 0, after},
		"written before": {time.Hour, 0, before},
		"all files":      {time.Hour, defaultTiming.reread, after},
	} {
		t.Run(name, func(t *testing.T) {
			s, ix, _ := load(t, everything, map[string]string{"one.yaml": service("shop", "one", "10.96.0.1")})
			path := filepath.Join(s.root, "one.yaml")
			written := time.Now().Add(-test.age)
			kit.Must(t, os.Chtimes(path, written, written))
			s.refresh(nil)
			kit.Write(t, s.root+"/one.yaml", service("shop", "one", "10.96.0.9"))
			kit.Must(t, os.Chtimes(path, written, written))
			later := time.Now().Add(test.later)
			s.now = func() time.Time { return later }
			s.refresh(nil)
			if got := dump(ix); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

// TestManyEvents writes a file so often that the directory never settles: it is read all the same.
func TestManyEvents(t *testing.T) {
	r := run(t, everything, map[string]string{"one.yaml": service("shop", "one", "10.96.0.1")}, func(s *Source) {
		s.wait.settle, s.wait.reread = time.Hour, time.Hour
	})
	r.serves("service shop/one [10.96.0.1]")
	r.write("two.yaml", service("shop", "two", "10.96.0.2"))
	kit.Within(t, 3*time.Second, "a reading while events continue", func() bool {
		r.write("one.yaml", service("shop", "one", "10.96.0.9"))
		return r.ix.Service("shop", "two") != nil
	})
}

// TestWatchEnds: without a watch the directory is polled.
func TestWatchEnds(t *testing.T) {
	s, _, log := load(t, everything, nil)
	w := s.openWatch()
	if pause := s.refresh(w); pause != s.wait.reread {
		t.Errorf("with a watch: reads again after %v", pause)
	}
	w.close()
	_, ok := <-w.events
	w.isOpen(ok)
	if w.events != nil || w.errors != nil {
		t.Error("the channels of a closed watch are still used")
	}
	for range 2 {
		if pause := s.refresh(w); pause != s.wait.poll {
			t.Errorf("without a watch: reads again after %v", pause)
		}
	}
	if got := log.with("warning ", "cannot be watched"); len(got) != 1 {
		t.Errorf("logged %q", log.lines)
	}
}

func TestNothingIsLeft(t *testing.T) {
	before := runtime.NumGoroutine()
	s, _, _ := load(t, everything, map[string]string{"a.yaml": service("shop", "one", "None")})
	end := kit.Background(t, func(ctx context.Context) { s.Run(ctx, index.New()) })
	time.Sleep(50 * time.Millisecond)
	end()
	kit.Within(t, 3*time.Second, "as few goroutines as before", func() bool { return runtime.NumGoroutine() <= before })
}

// TestRecordsStay changes one object: the records and generations of others stay.
func TestRecordsStay(t *testing.T) {
	s, ix, _ := load(t, everything, map[string]string{"a.yaml": service("shop", "one", "10.96.0.1") + service("shop", "two", "10.96.0.2") + endpoints, "b.yaml": node})
	one, slice := ix.ServiceRecord("shop", "one"), ix.SliceRecord("default", "db-1")
	oneGeneration, twoGeneration := ix.Service("shop", "one").Generation(), ix.Service("shop", "two").Generation()
	shop := ix.NamespaceGeneration("shop")
	a, b, c := oneGeneration.Load(), twoGeneration.Load(), shop.Load()
	kit.Write(t, s.root+"/a.yaml", service("shop", "one", "10.96.0.1")+service("shop", "two", "10.96.0.3")+endpoints)
	kit.Write(t, s.root+"/b.yaml", node+"---\n{apiVersion: v1, kind: Node, metadata: {name: node-2, labels: {topology.kubernetes.io/zone: zone-b}}}")
	s.refresh(nil)
	if ix.ServiceRecord("shop", "one") != one || ix.SliceRecord("default", "db-1") != slice {
		t.Error("an unchanged record was replaced")
	}
	if oneGeneration.Load() != a || shop.Load() != c {
		t.Error("the generation of an unchanged object advanced")
	}
	if twoGeneration.Load() == b {
		t.Error("the generation of the changed object did not advance")
	}
}

// TestWholeDirectory changes several files at once. The directory is accepted as a whole, or refused with one line.
func TestWholeDirectory(t *testing.T) {
	one, two := service("shop", "one", "10.96.0.1"), service("shop", "two", "10.96.0.2")
	const before = "service shop/one [10.96.0.1]\nservice shop/two [10.96.0.2]"
	start := map[string]string{"a.yaml": one, "b.yaml": two}
	tests := map[string]struct {
		before, after map[string]string
		want          string
		err           string // start of the line
	}{
		"an object moves": {
			start, map[string]string{"a.yaml": one + two, "b.yaml": "# moved"}, before, "",
		},
		"files change places": {
			start, map[string]string{"a.yaml": two, "b.yaml": one}, before, "",
		},
		"an object is in two files": {
			start, map[string]string{"a.yaml": service("shop", "two", "10.96.0.9")},
			before, "b.yaml:1: Service shop/two: already in a.yaml:1; delete one of the two;",
		},
		"in two new files": {
			map[string]string{"c.yaml": one}, map[string]string{"a.yaml": two, "b.yaml": two},
			"service shop/one [10.96.0.1]", "b.yaml:1: Service shop/two: already in a.yaml:1; delete one of the two;",
		},
		"in two lists": {
			map[string]string{"c.yaml": one}, map[string]string{
				"a.yaml": "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Namespace, metadata: {name: shop}}\n- {apiVersion: v1, kind: Namespace, metadata: {name: team}}\n",
				"b.json": "{\"apiVersion\":\"v1\",\"kind\":\"NamespaceList\",\"items\":[\n{\"metadata\":{\"name\":\"other\"}},\n{\"metadata\":{\"name\":\"team\"}}]}",
			},
			"service shop/one [10.96.0.1]", "b.json:1: Namespace team: already in a.yaml:1; delete one of the two;",
		},
		"one file is broken": {
			start, map[string]string{"a.yaml": "{", "b.yaml": service("shop", "two", "10.96.0.9")}, before, "a.yaml:1: ",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s, ix, log := load(t, everything, test.before)
			for name, content := range test.after {
				kit.Write(t, s.root+"/"+name, content)
			}
			for range 3 {
				s.refresh(nil) // the next readings log nothing more
			}
			if got := dump(ix); got != test.want {
				t.Errorf("got\n%s\nwant\n%s", got, test.want)
			}
			got := log.with("error ")
			if test.err == "" && len(got) == 0 {
				return
			}
			if len(got) != 1 {
				t.Fatalf("logged %q, want one error", got)
			}
			if line := strings.ReplaceAll(got[0], s.dir+string(filepath.Separator), ""); test.err == "" || !strings.HasPrefix(line, "error "+test.err) {
				t.Errorf("got  %s\nwant %s", line, test.err)
			}
		})
	}
}
