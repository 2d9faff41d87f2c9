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

// imports are the files that a Corefile imports, directly or through one another. The parser of Corefiles
// finds them again by itself; it does not say where it looked, and says nothing of a file without tokens.
type imports struct {
	reads    func(path string) // told of every file, and of the directory where a pattern looks
	snippets map[string]bool   // by their names, which go before files
	seen     map[string]bool
	digest   hash.Hash // of names and contents
}

func newImports(reads func(string)) *imports {
	return &imports{reads: reads, snippets: map[string]bool{}, seen: map[string]bool{}, digest: sha256.New()}
}

// sum is another one if other files are imported or something else is in them, and "" if none are.
func (i *imports) sum() string {
	if len(i.seen) == 0 {
		return ""
	}
	return fmt.Sprintf("%x", i.digest.Sum(nil))
}

// follow reads what a text imports. What cannot be read is left to the parser, which says so.
func (i *imports) follow(name, text string) error {
	line, before := 0, ""
	for d := caddyfile.NewDispenser(name, strings.NewReader(text)); d.Next(); {
		word := d.Val()
		starts := d.Line() != line || before == "{"
		line, before = d.Line(), word
		switch {
		case !starts:
		case strings.HasPrefix(word, "(") && strings.HasSuffix(word, ")"):
			i.snippets[strings.Trim(word, "()")] = true
		case word == "import" && d.NextArg():
			if err := i.all(name, fromEnvironment(d.Val())); err != nil {
				return err
			}
		}
	}
	return nil
}

// all reads the files of a pattern, which is relative to the file that it stands in.
func (i *imports) all(from, pattern string) error {
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
	i.reads(withoutWildcard(pattern))
	if strings.Count(pattern, "*") > 1 || strings.Count(pattern, "?") > 1 || strings.Contains(pattern, "[") {
		return nil // the parser refuses it, since a search for it may take very long
	}
	files, err := filepath.Glob(pattern)
	if err != nil {
		return nil // the parser's to say
	}
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
		return nil // the parser's to say
	}
	fmt.Fprintf(i.digest, "%s %d %s", file, len(text), text)
	for d := caddyfile.NewDispenser(file, bytes.NewReader(text)); d.Next(); {
		if found := variable.FindString(d.Val()); found != "" {
			return fmt.Errorf("%s:%d - %s is in an imported file, where variables have no values: write it in the template itself, or a value here", file, d.Line(), found)
		}
	}
	return i.follow(file, string(text))
}

// withoutWildcard is a pattern up to its first wildcard: the file, or the directory in which new files may
// match.
func withoutWildcard(pattern string) string {
	for strings.ContainsAny(pattern, "*?[") {
		pattern = filepath.Dir(pattern)
	}
	return pattern
}

var reference = regexp.MustCompile(`\{\$[^}]+\}|\{%[^%]+%\}`)

// fromEnvironment puts variables of the environment in their places, as the parser does.
func fromEnvironment(text string) string {
	return reference.ReplaceAllStringFunc(text, func(found string) string {
		return os.Getenv(strings.Trim(found, "{$%}"))
	})
}
