package kernel

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

// TestArchive has another program unpack an archive.
func TestArchive(t *testing.T) {
	parts := requireParts(t, Job{})
	files := map[string]string{"init": "#!/bin/sh\n", "a/b/empty": "", "a/b/c/one": "1", "a/two": "22", "four": "4444"}
	var b bytes.Buffer
	a := newArchive(&b)
	a.folder("/a/b")
	a.folder("a/b/only")
	for name, text := range files {
		a.file("/"+name, 0o755, []byte(text))
	}
	kit.Must(t, a.close())
	to := t.TempDir()
	unpack := exec.Command(parts.Busybox, "cpio", "-i")
	unpack.Dir, unpack.Stdin = to, &b
	kit.Output(t, unpack)
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(to, name))
		if err != nil || string(got) != want {
			t.Errorf("%s holds %q, %v; want %q", name, got, err, want)
		}
		if info, err := os.Stat(filepath.Join(to, name)); err != nil || info.Mode() != 0o755 {
			t.Errorf("%s: %v, %v; want a file of 0755", name, info, err)
		}
	}
	if info, err := os.Stat(filepath.Join(to, "a/b/only")); err != nil || !info.IsDir() {
		t.Errorf("a/b/only: %v, %v; want a folder", info, err)
	}
}

func TestArchiveKeepsItsError(t *testing.T) {
	var b bytes.Buffer
	a := newArchive(&b)
	a.copy("x", 0o644, filepath.Join(t.TempDir(), "missing"))
	a.file("y", 0o644, nil)
	if err := a.close(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v, want %v", err, fs.ErrNotExist)
	}
}

// TestModules loads files of real modules: each once, and after its dependencies.
func TestModules(t *testing.T) {
	parts := requireParts(t, Job{})
	found, err := findModules(parts.Modules)
	kit.Must(t, err)
	order, err := found.load(wanted)
	kit.Must(t, err)
	var names []string
	for _, m := range order {
		needs, err := dependencies(m.data)
		kit.Must(t, err)
		for _, need := range needs {
			if !slices.Contains(names, need) {
				t.Errorf("%s comes before %s", m.name, need)
			}
		}
		if slices.Contains(names, m.name) {
			t.Errorf("%s comes twice", m.name)
		}
		names = append(names, m.name)
	}
	for _, w := range append([]string{"nfnetlink", "nf_defrag_ipv6"}, wanted...) {
		if !slices.Contains(names, w) {
			t.Errorf("%q lacks %s", names, w)
		}
	}
	if _, err := found.load([]string{"dummy", "no_such_module"}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v for a module that is not there, want %v", err, fs.ErrNotExist)
	}
}

// TestFindModules finds a module whose file is compressed and named with a dash.
func TestFindModules(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "a-module.ko")
	kit.Write(t, path, "of any kind")
	kit.Write(t, filepath.Join(folder, "modules.order"), "")
	for _, compress := range []bool{false, true} {
		if compress {
			if _, err := exec.LookPath("xz"); err != nil {
				t.Skip(err)
			}
			kit.Output(t, exec.Command("xz", path))
		}
		found, err := findModules(folder)
		kit.Must(t, err)
		if len(found) != 1 {
			t.Errorf("found %v, want one", found)
		}
		if data, err := found.read("a_module"); err != nil || string(data) != "of any kind" {
			t.Errorf("compressed %t: %q, %v", compress, data, err)
		}
	}
}

func TestShellWord(t *testing.T) {
	for _, word := range []string{"", "plain", "two words", "it's", "'", `$HOME "x" \ *`} {
		out, err := exec.Command("sh", "-c", "printf %s "+shellWord(word)).Output()
		if err != nil || string(out) != word {
			t.Errorf("%q became %q, %v", word, out, err)
		}
	}
}

// TestInitScript asserts that each program starts in its own folder.
func TestInitScript(t *testing.T) {
	script := initScript([]module{{name: "dummy"}}, []Program{{Name: "one", Args: []string{"-a", "b c"}}, {Name: "two"}})
	for _, want := range []string{
		"\ninsmod /lib/modules/dummy.ko\n",
		"\ncd '/job/one' && ./'one' '-a' 'b c'\n",
		"\ncd '/job/two' && ./'two'\n",
	} {
		if !strings.Contains(script, want) {
			t.Errorf("the script lacks %q:\n%s", want, script)
		}
	}
}
