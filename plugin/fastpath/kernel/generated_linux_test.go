package kernel

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

// TestGenerated compiles answer.c as go generate does, and compares the object and its Go file with those of the repository.
func TestGenerated(t *testing.T) {
	kit.Require(t, "clang")
	version, err := exec.Command("clang", "--version").Output()
	kit.Must(t, err)
	doc := kit.Read(t, "doc.go")
	const command = "//go:generate go run github.com/cilium/ebpf/cmd/bpf2go "
	_, directive, found := strings.Cut(doc, command)
	if !found {
		t.Fatalf("doc.go has no line %q", command)
	}
	directive, _, _ = strings.Cut(directive, "\n")
	folder := t.TempDir()
	args := []string{"run", "github.com/cilium/ebpf/cmd/bpf2go", "-output-dir", folder}
	for _, arg := range regexp.MustCompile(`"[^"]*"|\S+`).FindAllString(directive, -1) {
		if unquoted, err := strconv.Unquote(arg); err == nil {
			arg = unquoted
		}
		args = append(args, arg)
	}
	kit.Output(t, kit.Go(args...))
	for _, name := range []string{"answer_bpfel.go", "answer_bpfel.o"} {
		if kit.Read(t, filepath.Join(folder, name)) != kit.Read(t, name) {
			t.Errorf("%s is not what go generate makes of answer.c with this compiler:\n%s", name, version)
		}
	}
}
