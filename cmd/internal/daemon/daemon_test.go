package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nearside-dns/nearside/internal/nodefacts"
	"github.com/nearside-dns/nearside/test/kit"
)

// TestExplain has errors about a Corefile to which the program has added lines.
func TestExplain(t *testing.T) {
	rendered := Corefile{Name: "/etc/Corefile.base", Text: []byte("a\nb\nc\nd\ne\n"), Lines: 4}
	for _, tc := range []struct {
		name     string
		corefile Corefile
		err      string
		want     string
	}{
		{"line of the file", rendered, "plugin/cache: /etc/Corefile.base:4 - Error during parsing: x", "plugin/cache: /etc/Corefile.base:4 - Error during parsing: x"},
		{"two lines", rendered, "/etc/Corefile.base:3 and /etc/Corefile.base:5", "/etc/Corefile.base:3 and /etc/Corefile.base (line 5 as rendered)"},
		{"line that was added", rendered, "/etc/Corefile.base:5 - x", "/etc/Corefile.base (line 5 as rendered) - x"},
		{"another file", rendered, "/etc/other:4 - x", "/etc/other:4 - x"},
		{"no line", rendered, "plugin/forward: x", "plugin/forward: x"},
		{"the file itself", Corefile{Name: "f"}, "f:4 - x", "f:4 - x"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.corefile.explain(errors.New(tc.err)); got.Error() != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
	if err := rendered.explain(nil); err != nil {
		t.Errorf("error %v of none", err)
	}
}

func TestReloadLock(t *testing.T) {
	lock := newReloadLock()
	if !lock.acquire() || lock.isClosed() {
		t.Fatal("not acquired")
	}
	second := make(chan bool)
	go func() { second <- lock.acquire() }()
	select {
	case <-second:
		t.Fatal("acquired twice")
	case <-time.After(50 * time.Millisecond):
	}
	lock.release()
	if !<-second {
		t.Fatal("not acquired after the release")
	}
	lock.close(time.Millisecond) // returns although the lock is held
	if !lock.isClosed() || lock.acquire() {
		t.Error("acquired after close")
	}
}

func TestWithoutCaddy(t *testing.T) {
	var out bytes.Buffer
	w := &withoutCaddy{Writer: &out}
	const none = "[WARNING] No files matching import glob pattern: "
	for _, line := range []string{none + "a\n", none + "b\n", none + "a\n", "[INFO] Reloading\n", "[ERROR] Restart failed: x\n", `{"level":"INFO","msg":"[ERROR] Restart failed: x"}` + "\n", "[ERROR] else\n"} {
		if n, err := fmt.Fprint(w, line); err != nil || n != len(line) {
			t.Errorf("wrote %d of %q: %v", n, line, err)
		}
	}
	if got, want := out.String(), none+"a\n"+none+"b\n[INFO] Reloading\n[ERROR] else\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestRemovePidfile(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		left       bool
	}{
		{"own", strconv.Itoa(os.Getpid()) + "\n", false},
		{"of another", "1\n", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := kit.File(t, "pid", tc.text)
			if err := removePidfile(path); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(path); (err == nil) != tc.left {
				t.Errorf("left is %t, want %t", err == nil, tc.left)
			}
		})
	}
	for _, path := range []string{"", "/none/pid"} {
		if err := removePidfile(path); err != nil {
			t.Errorf("%q: %v", path, err)
		}
	}
}

func TestCommands(t *testing.T) {
	var got []string
	d := Daemon{Name: "p", Commands: map[string]func([]string) int{"doctor": func(args []string) int {
		got = args
		return 3
	}}}
	if code := d.Run([]string{"doctor", "-o", "json"}); code != 3 || fmt.Sprint(got) != "[-o json]" {
		t.Errorf("code %d, arguments %q", code, got)
	}
	if code := d.Run([]string{"surgeon"}); code != 2 {
		t.Errorf("code %d of an unknown command", code)
	}
}

// TestReloadRefused has refused configurations, by both ways of a reload. The gauge is 1 until one is served.
func TestReloadRefused(t *testing.T) {
	const (
		plain    = ".:0 {\n    bind 127.0.0.1\n}\n"
		same     = plain + "# no token\n"
		other    = ".:0 {\n    bind 127.0.0.1\n    errors\n}\n"
		unknown  = ".:0 {\n    nonsense\n}\n"
		unclosed = ".:0 {\n    bind 127.0.0.1\n"
		unread   = ""
	)
	path := filepath.Join(t.TempDir(), "Corefile")
	configure := func(t *testing.T, text string) {
		t.Helper()
		kit.Write(t, path, text)
	}
	configure(t, plain)
	d := &Daemon{Name: "p", Directives: []string{"bind", "errors"}, conf: path, restart: newReloadLock()}
	quiet := dnsserver.Quiet
	dnsserver.Quiet = true
	t.Cleanup(func() { dnsserver.Quiet = quiet })
	kit.Must(t, dnsserver.SetDirectives(d.Directives))
	caddy.RegisterEventHook(fmt.Sprintf("%s %p", t.Name(), d), d.hook) // hooks are global and have unique names
	corefile, err := d.load()
	kit.Must(t, err)
	if _, err := caddy.Start(corefile.input()); err != nil {
		t.Fatal(err)
	}
	d.running = &corefile
	t.Cleanup(func() {
		for _, err := range d.instance.Load().ShutdownCallbacks() {
			t.Error(err)
		}
		if err := d.instance.Load().Stop(); err != nil {
			t.Error(err)
		}
	})
	ways := map[string]func(){
		"signal": func() { d.reload(true) },
		"change": func() { d.reload(false) },
		// As the reload plugin does at each interval: it restarts once with a text.
		"plugin": func() func() {
			tried := ""
			return func() {
				in, err := d.loader(serverType)
				if err != nil {
					return
				}
				text, err := tokens(in)
				if served := d.served.Load(); err != nil || text == tried || tried == "" && text == *served {
					return
				}
				tried = text
				if _, err := d.instance.Load().Restart(in); err == nil {
					tried = ""
				}
			}
		}(),
	}
	for _, way := range []string{"signal", "change", "plugin"} {
		for _, step := range []struct {
			name, text string
			want       float64
		}{
			{"as it is", plain, 0},
			{"unknown directive", unknown, 1},
			{"still there", unknown, 1},
			{"as before", plain, 0},
			{"without end", unclosed, 1},
			{"the same with a comment", same, 0},
			{"can't be read", unread, 1},
			{"as before again", plain, 0},
			{"one refused and then another", unknown, 1},
			{"another", unclosed, 1},
			{"a new one", other, 0},
		} {
			t.Run(way+": "+step.name, func(t *testing.T) {
				configure(t, step.text)
				ways[way]()
				if got := testutil.ToFloat64(reloadRefused); got != step.want {
					t.Errorf("%g, want %g", got, step.want)
				}
			})
		}
		configure(t, plain)
		ways[way]()
	}
}

// TestReloadFacts changes the facts of a configuration: a change of them alone reloads it, and after a refused
// configuration plugins read those of the one in use.
func TestReloadFacts(t *testing.T) {
	const valid, invalid = ".:0 {\n    bind 127.0.0.1\n}\n", ".:0 {\n    nonsense\n}\n"
	var source Corefile
	d := &Daemon{Name: "p", Directives: []string{"bind", "errors"}, restart: newReloadLock(), Source: func(string, Reader) (Corefile, error) { return source, nil }}
	kit.Must(t, dnsserver.SetDirectives(d.Directives))
	caddy.RegisterEventHook(fmt.Sprintf("%s %p", t.Name(), d), d.hook)
	t.Cleanup(func() {
		if err := d.instance.Load().Stop(); err != nil {
			t.Error(err)
		}
	})
	for i, step := range []struct {
		text, node string
		want       string // the node of the configuration in use
		reloads    bool
	}{
		{valid, "a", "a", true},
		{valid, "b", "b", true},
		{valid, "b", "b", false},
		{invalid, "c", "b", false},
		{invalid, "d", "b", false},
		{valid, "d", "d", true},
	} {
		before := d.instance.Load()
		source = Corefile{Name: "f", Text: []byte(step.text), Facts: nodefacts.Facts{Corefile: "f", Node: step.node}}
		if i == 0 {
			instance, err := d.first(source)
			kit.Must(t, err)
			d.instance.Store(instance)
			first := source
			d.running = &first
		}
		d.reload(false)
		if got := nodefacts.For("f").Node; got != step.want || d.running.Facts.Node != step.want {
			t.Errorf("step %d: node %q, that of the running configuration %q, want %q", i, got, d.running.Facts.Node, step.want)
		}
		if reloaded := d.instance.Load() != before; reloaded != step.reloads {
			t.Errorf("step %d: reloaded %t, want %t", i, reloaded, step.reloads)
		}
	}
}
