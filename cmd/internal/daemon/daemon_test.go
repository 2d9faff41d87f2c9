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
)

// TestExplain has errors about a text that is not the file.
func TestExplain(t *testing.T) {
	rendered := Corefile{Name: "/etc/Corefile.base", Text: []byte("a\nb\nc\nd\n"), Lines: []int{1, 2, 2, 3, 0}}
	for _, tc := range []struct {
		name     string
		corefile Corefile
		err      string
		want     string
	}{
		{"line that moved", rendered, "plugin/cache: /etc/Corefile.base:4 - Error during parsing: x", "plugin/cache: /etc/Corefile.base:3 - Error during parsing: x"},
		{"line that did not", rendered, "/etc/Corefile.base:1 - x", "/etc/Corefile.base:1 - x"},
		{"two", rendered, "/etc/Corefile.base:3 and /etc/Corefile.base:4", "/etc/Corefile.base:2 and /etc/Corefile.base:3"},
		{"line that was added", rendered, "/etc/Corefile.base:5 - x", "/etc/Corefile.base (line 5 as rendered) - x"},
		{"beyond the end", rendered, "/etc/Corefile.base:9 - x", "/etc/Corefile.base:9 - x"},
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

func TestTurn(t *testing.T) {
	turns := newTurn()
	if !turns.take() || turns.over() {
		t.Fatal("no turn")
	}
	second := make(chan bool)
	go func() { second <- turns.take() }()
	select {
	case <-second:
		t.Fatal("two turns at once")
	case <-time.After(50 * time.Millisecond):
	}
	turns.give()
	if !<-second {
		t.Fatal("no second turn")
	}
	turns.takeLast(time.Millisecond) // does not wait for the second for ever
	if !turns.over() || turns.take() {
		t.Error("a turn after the end")
	}
}

func TestWithoutCaddy(t *testing.T) {
	var out bytes.Buffer
	w := withoutCaddy{&out}
	for _, line := range []string{"[INFO] Reloading\n", "[ERROR] Restart failed: x\n", `{"level":"INFO","msg":"[ERROR] Restart failed: x"}` + "\n", "[ERROR] else\n"} {
		if n, err := fmt.Fprint(w, line); err != nil || n != len(line) {
			t.Errorf("wrote %d of %q: %v", n, line, err)
		}
	}
	if got, want := out.String(), "[INFO] Reloading\n[ERROR] else\n"; got != want {
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
			path := filepath.Join(t.TempDir(), "pid")
			if err := os.WriteFile(path, []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
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
