// Command generate writes docs/configuration.md: flags and directives from the output of the programs; syntax, metadata
// and metrics from the READMEs of the plugins. Input is the source of the module; output is one page. It may not import
// packages of the module: it runs the programs, as users do.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// pagePath is the path of the page, from the root of the repository.
const pagePath = "docs/configuration.md"

func main() {
	root := flag.String("root", ".", "root of the repository")
	flag.Parse()
	if err := run(*root); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func run(root string) error {
	folder, err := os.MkdirTemp("", "nearside-docs-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(folder) }() // only temporary files would remain
	p, err := build(root, folder)
	if err != nil {
		return err
	}
	text, err := page(root, p.output)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, pagePath), []byte(text), 0o644)
}

// names are those of the programs, in the order of the page.
var names = []string{"clusterdns", "nodecache"}

// programs is the folder of the built programs.
type programs string

// build builds the programs, for this machine.
func build(root, folder string) (programs, error) {
	args := []string{"build", "-trimpath", "-o", folder + "/"} // as make build: most packages are in Go's cache
	for _, name := range names {
		args = append(args, "./cmd/"+name)
	}
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	return programs(folder), nil
}

// output returns the output of a program. Its environment is empty, since variables change defaults.
func (p programs) output(name string, args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(string(p), name), args...)
	cmd.Env = []string{}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out), nil
}
