package main

import (
	"errors"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

const root = "../.."

// firstDifference returns the first line in which two texts differ, with its number from 1, or 0.
func firstDifference(got, want string) (number int, gotLine, wantLine string) {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range max(len(g), len(w)) {
		line := func(all []string) string {
			if i < len(all) {
				return all[i]
			}
			return "(the end)"
		}
		if line(g) != line(w) {
			return i + 1, line(g), line(w)
		}
	}
	return 0, "", ""
}

// TestPage generates the page and compares it with docs/configuration.md.
func TestPage(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("nodecache doctor and cleanup are for Linux")
	}
	p, err := build(root, t.TempDir())
	kit.Must(t, err)
	now, err := page(root, p.output)
	kit.Must(t, err)
	t.Run("up to date", func(t *testing.T) {
		there := kit.Read(t, filepath.Join(root, pagePath))
		if n, got, want := firstDifference(there, now); n > 0 {
			t.Errorf("%s:%d is\n%s\nand should be\n%s\nrun: go run ./docs/generate", pagePath, n, got, want)
		}
	})
	t.Run("can fail", func(t *testing.T) {
		other, err := page(root, func(program string, args ...string) (string, error) {
			text, err := p.output(program, args...)
			return strings.Replace(text, "log format", "log shape", 1), err
		})
		kit.Must(t, err)
		if n, got, want := firstDifference(other, now); n == 0 || !strings.Contains(got, "log shape") || !strings.Contains(want, "log format") {
			t.Errorf("line %d: %q and %q", n, got, want)
		}
	})
}

// writePlugin creates a repository with one plugin.
func writePlugin(t *testing.T, name, readme string) (root string) {
	t.Helper()
	root = t.TempDir()
	folder := filepath.Join(root, "plugin", name)
	kit.Write(t, filepath.Join(folder, "README.md"), readme)
	return root
}

const echoReadme = "# echo\n\n## Name\n\n*echo* - repeats queries.\n\n## Syntax\n\n~~~ txt\necho\n# a comment\n~~~\n\nSee [below](#more).\n\n" +
	"## Metrics\n\n* `echo_total` - echoes.\n\n## More\n\nNot for the page.\n"

func TestPageOfPlugin(t *testing.T) {
	print := func(_ string, args ...string) (string, error) {
		if args[0] == "-plugins" {
			return "bind\necho\n", nil
		}
		return "Usage: p [flags]\n       p look [flags]; see p look -help\n" + strings.Join(args, " "), nil
	}
	got, err := page(writePlugin(t, "echo", echoReadme), print)
	kit.Must(t, err)
	for _, want := range []string{
		"| [echo](#echo) | yes | yes | repeats queries |",
		"| [bind](https://coredns.io/plugins/bind/) | yes | yes |",
		"\n### echo\n\n*echo* - repeats queries. More in its [README](../plugin/echo/README.md).\n\n#### echo: syntax\n\n~~~ txt\necho\n# a comment\n~~~\n",
		"See [below](../plugin/echo/README.md#more).",
		"#### echo: metrics\n\n* `echo_total` - echoes.\n",
		"\n### nodecache look\n",
		"look -help\n```",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in the page", want)
		}
	}
	for _, not := range []string{"Not for the page", "echo: metadata", "echo: ready"} {
		if strings.Contains(got, not) {
			t.Errorf("%q is in the page", not)
		}
	}
}

// TestPageFails has sources from which the page can't be generated.
func TestPageFails(t *testing.T) {
	fails := errors.New("it does not start")
	for _, tc := range []struct {
		name, readme string
		directives   string
		printed      error
		want         string
	}{
		{"unknown directive", echoReadme, "echo nonsense", nil, "directive nonsense of clusterdns: it has neither"},
		{"no purpose", "# echo\n\n## Name\n\necho\n", "echo", nil, "plugin/echo/README.md: the section Name is not of the form"},
		{"no directives", echoReadme, "", nil, "the programs list no directives"},
		{"a program that fails", echoReadme, "", fails, fails.Error()},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := page(writePlugin(t, "echo", tc.readme), func(string, ...string) (string, error) { return tc.directives, tc.printed })
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
	t.Run("no plugins", func(t *testing.T) {
		if _, err := page(t.TempDir(), nil); err == nil || !strings.Contains(err.Error(), "no README of a plugin") {
			t.Errorf("error %v", err)
		}
	})
}

func TestSections(t *testing.T) {
	got := sections("# x\nbefore\n## A\none\n```sh\n## no heading\n```\n### deeper\n## B \n\ntwo\n")
	want := []section{{"A", "one\n```sh\n## no heading\n```\n### deeper\n"}, {"B", "\ntwo\n"}}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestLower(t *testing.T) {
	got := lower("# a\ntext # b\n  ~~~\n# c\n  ~~~\n### d\n", 2)
	if want := "### a\ntext # b\n  ~~~\n# c\n  ~~~\n##### d\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestRelinked(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"elsewhere", "[a](https://example.org/x#y)", "[a](https://example.org/x#y)"},
		{"in the README", "[a](#b)", "[a](../plugin/echo/README.md#b)"},
		{"beside it", "[a](../cache/README.md#c) and\n[d\ne](x.yaml)", "[a](../plugin/cache/README.md#c) and\n[d\ne](../plugin/echo/x.yaml)"},
		{"above it", "[a](../../deploy/README.md)", "[a](../deploy/README.md)"},
		{"no link", "a [b] (c)", "a [b] (c)"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := relinked(tc.text, "plugin/echo/README.md", pagePath); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}
