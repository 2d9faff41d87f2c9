// Package docs tests the pages of the repository: that targets of links exist, that the tests, metrics and log lines that a
// page names exist, and that docs/configuration.md has every metric of the programs.
package docs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/nearside-dns/nearside/test/kit"
)

const root = ".." // of the repository

// documents returns the Markdown files of the repository, by their path from its root.
func documents(t *testing.T) (all map[string]string) {
	t.Helper()
	all = map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			if errors.Is(err, fs.ErrNotExist) {
				return nil // removed by a test that runs at the same time
			}
			return err
		case d.IsDir() && (d.Name() == "testdata" || d.Name() == "bin" || strings.HasPrefix(d.Name(), ".") && d.Name() != ".."):
			return fs.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".md":
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		all[filepath.ToSlash(name)] = string(text)
		return err
	})
	kit.Must(t, err)
	return all
}

// prose returns a text with empty lines for blocks of code, and without inline code.
func prose(markdown string) string {
	var b strings.Builder
	fenced := false
	for line := range strings.Lines(markdown) {
		text := strings.TrimLeft(line, " ")
		fence := strings.HasPrefix(text, "```") || strings.HasPrefix(text, "~~~")
		if fence || fenced {
			line = "\n"
		}
		fenced = fenced != fence
		b.WriteString(line)
	}
	return regexp.MustCompile("`[^`\n]*`").ReplaceAllString(b.String(), "code")
}

// target matches the target of a link or a picture, in Markdown or HTML.
var target = regexp.MustCompile(`\]\(([^()\s]+)\)|(?:src|srcset|href)="([^"]+)"`)

// anchors returns the anchors of a text: those that GitHub generates for its headings.
func anchors(markdown string) (all []string) {
	fenced := false
	for line := range strings.Lines(markdown) {
		text := strings.TrimLeft(line, " ")
		if strings.HasPrefix(text, "```") || strings.HasPrefix(text, "~~~") {
			fenced = !fenced
		}
		heading := strings.TrimLeft(line, "#")
		if fenced || heading == line || !strings.HasPrefix(heading, " ") {
			continue
		}
		heading = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`).ReplaceAllString(heading, "$1")
		var b strings.Builder
		for _, r := range strings.ToLower(strings.TrimSpace(heading)) {
			switch {
			case r == ' ':
				b.WriteRune('-')
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				b.WriteRune(r)
			}
		}
		name := b.String()
		for n := 1; slices.Contains(all, name); n++ {
			name = fmt.Sprintf("%s-%d", b.String(), n)
		}
		all = append(all, name)
	}
	return all
}

// broken returns the links of documents whose target does not exist. exists reports whether a folder or another file exists.
func broken(documents map[string]string, exists func(path string) bool) (all []string) {
	for name, text := range documents {
		for _, found := range target.FindAllStringSubmatch(prose(text), -1) {
			link := found[1] + found[2]
			if strings.Contains(link, "://") || strings.HasPrefix(link, "mailto:") {
				continue
			}
			file, anchor, _ := strings.Cut(link, "#")
			path := name
			if file != "" {
				path = filepath.ToSlash(filepath.Join(filepath.Dir(name), file))
			}
			text, isDocument := documents[path]
			if !isDocument && !exists(path) {
				all = append(all, name+": "+link+" leads to no file")
			} else if isDocument && anchor != "" && !slices.Contains(anchors(text), anchor) {
				all = append(all, name+": "+link+" leads to no heading")
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func TestLinks(t *testing.T) {
	exists := func(path string) bool {
		_, err := os.Stat(filepath.Join(root, path))
		return err == nil
	}
	for _, problem := range broken(documents(t), exists) {
		t.Error(problem)
	}
	t.Run("can fail", func(t *testing.T) {
		got := broken(map[string]string{
			"docs/a.md": "# A: `b`, c_d\n## A: `b`, c_d\n[x](b.md#two-parts) [x](#a-b-c_d) [x](#a-b-c_d-1) [x](../README.md) [x](gone.md) `[x](code.md)`\n" +
				"~~~ sh\n# comment\n[x](code.md)\n~~~\n[x](b.md#comment) [x](#nowhere) [x](https://example.org/none) <img src=\"gone.svg\">\n[in two\nlines](gone-too.md)\n",
			"docs/b.md": "## Two parts\n",
		}, func(path string) bool { return path == "README.md" })
		want := []string{
			"docs/a.md: #nowhere leads to no heading", "docs/a.md: b.md#comment leads to no heading", "docs/a.md: gone-too.md leads to no file",
			"docs/a.md: gone.md leads to no file", "docs/a.md: gone.svg leads to no file",
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}
