// Package corefileimports finds the files that a Corefile imports. The parser of Corefiles reports neither where it
// searched nor files without tokens. Input: the text of a Corefile; output: the files and the directories whose change
// may change the configuration, and a digest of the imported files. The package imports no other package of the project.
package corefileimports

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

// Imports are the files that a Corefile imports, directly or not.
type Imports struct {
	reads    func(path string)
	check    func(file string, line int, word string) error
	snippets map[string]bool // by name; they have precedence over files
	seen     map[string]bool
	digest   hash.Hash // of names and contents
}

// New returns an empty Imports. Follow calls reads with each file and with each directory that a pattern searches, and
// check with each word of an imported file.
func New(reads func(path string), check func(file string, line int, word string) error) *Imports {
	return &Imports{reads: reads, check: check, snippets: map[string]bool{}, seen: map[string]bool{}, digest: sha256.New()}
}

// Sum changes when other files are imported or their contents change; it is "" without imported files.
func (i *Imports) Sum() string {
	if len(i.seen) == 0 {
		return ""
	}
	return fmt.Sprintf("%x", i.digest.Sum(nil))
}

// Follow reads the files that a text imports. It skips files that cannot be read, which the parser reports.
func (i *Imports) Follow(name, text string) error {
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
			if err := i.readAll(name, ExpandEnvironment(d.Val())); err != nil {
				return err
			}
		}
	}
	return nil
}

// readAll reads the files that match a pattern, which is relative to the folder of the importing file.
func (i *Imports) readAll(from, pattern string) error {
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
		return nil // the parser refuses it, since such a search may be very long
	}
	files, _ := filepath.Glob(pattern) // the parser reports an invalid pattern
	for _, file := range files {
		if err := i.read(file); err != nil {
			return err
		}
	}
	return nil
}

func (i *Imports) read(file string) error {
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
		if err := i.check(file, d.Line(), d.Val()); err != nil {
			return err
		}
	}
	return i.Follow(file, string(text))
}

// searched returns the directory below which files may match a pattern, or the path itself if it has no wildcards.
func searched(pattern string) string {
	for strings.ContainsAny(pattern, "*?[") {
		pattern = filepath.Dir(pattern)
	}
	return pattern
}

var reference = regexp.MustCompile(`\{\$[^}]+\}|\{%[^%]+%\}`)

// ExpandEnvironment replaces environment variables as the parser does.
func ExpandEnvironment(text string) string {
	return reference.ReplaceAllStringFunc(text, func(found string) string {
		return os.Getenv(strings.Trim(found, "{$%}"))
	})
}
