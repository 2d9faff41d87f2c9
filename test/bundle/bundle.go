// Package bundle builds CoreDNS with other plugins, as docs/bundle.md describes, from CoreDNS's module and this one. Input is the
// commands that change plugin.cfg; output is a program.
package bundle

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

const module = "github.com/nearside-dns/nearside"

// Commands returns the commands of docs/bundle.md, except those that download and build, given the root of the repository.
func Commands(t testing.TB, root string) string {
	t.Helper()
	page := kit.Read(t, filepath.Join(root, "docs/bundle.md"))
	_, block, found := strings.Cut(page, "\n```sh\n")
	block, _, closed := strings.Cut(block, "\n```\n")
	if !found || !closed {
		t.Fatal("docs/bundle.md has no commands")
	}
	var commands []string
	for line := range strings.SplitSeq(block, "\n") {
		switch {
		case strings.HasPrefix(line, "git clone "), strings.HasPrefix(line, "cd "): // Build has a copy
		case line == "go get "+module: // Build has this repository
		case line == "go build": // Build has flags
		default:
			commands = append(commands, line)
		}
	}
	return strings.Join(commands, "\n")
}

// Build builds CoreDNS after the commands of a shell, which run in the folder of its sources, and returns the path of the
// program.
func Build(t testing.TB, root, commands string) string {
	t.Helper()
	root, err := filepath.Abs(root)
	kit.Must(t, err)
	folder := t.TempDir()
	sources := filepath.Join(folder, "sources")
	stock := strings.TrimSpace(run(t, root, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/coredns/coredns"))
	kit.Must(t, os.CopyFS(sources, os.DirFS(stock)))
	run(t, sources, "go", "mod", "edit", "-require="+module+"@v0.0.0", "-replace="+module+"="+root)
	appendFile(t, filepath.Join(sources, "go.sum"), filepath.Join(root, "go.sum"))
	run(t, sources, "bash", "-euo", "pipefail", "-c", commands)
	program := filepath.Join(folder, "coredns")
	// With the flags of the stock CoreDNS of test/install.sh, most packages are in Go's cache.
	run(t, sources, "go", "build", "-buildvcs=false", "-trimpath", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", program, ".")
	return program
}

func run(t testing.TB, folder, program string, args ...string) string {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	var out, messages bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &messages
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %q: %v\n%s", program, args, err, messages.String())
	}
	return out.String()
}

func appendFile(t testing.TB, to, from string) {
	t.Helper()
	more, err := os.ReadFile(from)
	kit.Must(t, err)
	f, err := os.OpenFile(to, os.O_APPEND|os.O_WRONLY, 0)
	kit.Must(t, err)
	_, err = f.Write(more)
	if closed := f.Close(); err != nil || closed != nil {
		t.Fatalf("write %s: %v, close: %v", to, err, closed)
	}
}
