package kit

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestOutput runs commands that succeed and fail.
func TestOutput(t *testing.T) {
	if got := Output(t, exec.Command("sh", "-c", "echo a; echo b >&2")); got != "a\nb\n" {
		t.Errorf("output %q", got)
	}
	got := reason(t, func(t testing.TB) { Output(t, exec.Command("sh", "-c", "echo text; exit 3")) })
	for _, want := range []string{"exit 3", "exit status 3", "\ntext\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("ended with %q, want %q in it", got, want)
		}
	}
}

// TestModule is run in a folder of this module, and outside of it.
func TestModule(t *testing.T) {
	text := Read(t, filepath.Join(Module(t), "go.mod"))
	if !strings.HasPrefix(text, "module github.com/nearside-dns/nearside\n") {
		t.Errorf("the module of this folder begins with %.60q", text)
	}
	t.Chdir(t.TempDir())
	if got := Module(t); got != "" {
		t.Errorf("outside: %q", got)
	}
}
