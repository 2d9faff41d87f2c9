package nodelocaldns

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"hash"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/coredns/caddy/caddyfile"
)

// imports are the files that a Corefile imports, directly or not. The parser of Corefiles finds them as well, but reports
// neither where it searched nor a file without tokens.
type imports struct {
	reads    func(path string) // called with every file, and with the directory that a pattern searches
	snippets map[string]bool   // by name; they come before files
	seen     map[string]bool
	digest   hash.Hash // of names and contents
}

func newImports(reads func(string)) *imports {
	return &imports{reads: reads, snippets: map[string]bool{}, seen: map[string]bool{}, digest: sha256.New()}
}

// sum changes when other files are imported or their contents change; it is "" without any.
func (i *imports) sum() string {
	if len(i.seen) == 0 {
		return ""
	}
	return fmt.Sprintf("%x", i.digest.Sum(nil))
}

// follow reads the files that a text imports. The parser reports those that cannot be read.
func (i *imports) follow(name, text string) error {
	line, before := 0, ""
	for d := caddyfile.NewDispenser(name, strings.NewReader(text)); d.Next(); {
		word := d.Val()
		first := d.Line() != line || before == "{"
		line, before = d.Line(), word
		switch {
		case !first:
		case strings.HasPrefix(word, "(") && strings.HasSuffix(word, ")"):
			i.snippets[strings.Trim(word, "()")] = true
		case word == "import" && d.NextArg():
			if err := i.readAll(name, expandEnvironment(d.Val())); err != nil {
				return err
			}
		}
	}
	return nil
}

// readAll reads the files of a pattern, which is relative to the file that has it.
func (i *imports) readAll(from, pattern string) error {
	if pattern == "" || i.snippets[pattern] {
		return nil
	}
	if !filepath.IsAbs(pattern) {
		absolute, err := filepath.Abs(from)
		if err != nil {
			return err
		}
		pattern = filepath.Join(filepath.Dir(absolute), pattern)
	}
	i.reads(searched(pattern))
	if strings.Count(pattern, "*") > 1 || strings.Count(pattern, "?") > 1 || strings.Contains(pattern, "[") {
		return nil // the parser refuses it, since such a search may take very long
	}
	files, _ := filepath.Glob(pattern) // the parser reports an invalid pattern
	for _, file := range files {
		if err := i.read(file); err != nil {
			return err
		}
	}
	return nil
}

func (i *imports) read(file string) error {
	i.reads(file)
	if i.seen[file] {
		return nil
	}
	i.seen[file] = true
	text, err := os.ReadFile(file)
	if err != nil {
		return nil // the parser reports it
	}
	fmt.Fprintf(i.digest, "%s %d %s", file, len(text), text)
	for d := caddyfile.NewDispenser(file, bytes.NewReader(text)); d.Next(); {
		if found := variable.FindString(d.Val()); found != "" {
			return fmt.Errorf("%s:%d - %s is in an imported file, where variables have no values: write it in the template itself, or a value here", file, d.Line(), found)
		}
	}
	return i.follow(file, string(text))
}

// searched returns the directory in which files may match a pattern, or the file itself without wildcards.
func searched(pattern string) string {
	for strings.ContainsAny(pattern, "*?[") {
		pattern = filepath.Dir(pattern)
	}
	return pattern
}

var reference = regexp.MustCompile(`\{\$[^}]+\}|\{%[^%]+%\}`)

// expandEnvironment replaces environment variables as the parser does.
func expandEnvironment(text string) string {
	return reference.ReplaceAllStringFunc(text, func(found string) string {
		return os.Getenv(strings.Trim(found, "{$%}"))
	})
}
