package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

func TestFlags(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"help", []string{"-help"}, 0, "-vulndb URL"},
		{"no version", nil, 2, `invalid version ""`},
		{"version without v", []string{"-version", "1.2.3"}, 2, `invalid version "1.2.3"`},
		{"version with build metadata", []string{"-version", "v1.2.3+4"}, 2, `invalid version "v1.2.3+4"`},
		{"leading zero", []string{"-version", "v1.02.3"}, 2, `invalid version "v1.02.3"`},
		{"argument", []string{"-version", "v1.2.3", "x"}, 2, `unexpected argument "x"`},
		{"unknown flag", []string{"-nope"}, 2, "flag provided but not defined: -nope"},
		{"no repository", []string{"-version", "v1.2.3-rc.1", "-root", t.TempDir()}, 1, "tree without changes: git status"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if code := run(t.Context(), tc.args, &stdout, &stderr); code != tc.code || !strings.Contains(stderr.String(), tc.want) {
				t.Errorf("code %d and %q, want %d and %q", code, &stderr, tc.code, tc.want)
			}
		})
	}
}

// repositoryOf returns a repository with one commit of files.
func repositoryOf(t *testing.T, files map[string]string) *release {
	t.Helper()
	r := &release{root: t.TempDir(), version: "v1.2.3"}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(r.root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	git(t, r, "init", "--quiet")
	git(t, r, "add", ".")
	commit(t, r)
	return r
}

func git(t *testing.T, r *release, args ...string) {
	t.Helper()
	if out, err := exec.Command("git", append([]string{"-C", r.root}, args...)...).CombinedOutput(); err != nil {
		t.Fatalf("git %q: %v\n%s", args, err, out)
	}
}

func commit(t *testing.T, r *release) {
	t.Helper()
	git(t, r, "-c", "user.name=test", "-c", "user.email=test@example.com", "commit", "--quiet", "--allow-empty", "-m", "change")
}

func TestCheckTree(t *testing.T) {
	const changelog = "# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2026-11-27\n\n### Added\n\n- A release.\n"
	for _, tc := range []struct {
		name   string
		change func(t *testing.T, r *release)
		want   string // part of the error, "" for none
	}{
		{"clean", func(*testing.T, *release) {}, ""},
		{"tagged", func(t *testing.T, r *release) { git(t, r, "tag", "v1.2.3"); r.push = true }, ""},
		{"changed file", func(t *testing.T, r *release) { write(t, r, "CHANGELOG.md", changelog+"\n") }, "M CHANGELOG.md"},
		{"unknown file", func(t *testing.T, r *release) { write(t, r, "new", "") }, "?? new"},
		{"tag at another commit", func(t *testing.T, r *release) { git(t, r, "tag", "v1.2.3"); commit(t, r) }, "tag v1.2.3 is at"},
		{"push without a tag", func(_ *testing.T, r *release) { r.push = true }, "tag v1.2.3 does not exist"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := repositoryOf(t, map[string]string{"CHANGELOG.md": changelog})
			tc.change(t, r)
			err := r.checkTree(t.Context())
			if tc.want == "" && (err != nil || len(r.commit) != 40 || r.created == 0) || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("commit %q, time %d, error %v, want %q", r.commit, r.created, err, tc.want)
			}
		})
	}
}

func write(t *testing.T, r *release, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(r.root, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestChanges(t *testing.T) {
	const text = "# Changelog\n\n## [Unreleased]\n\n- Not yet.\n\n## [1.1.0] - 2026-11-27\n\n### Added\n\n- One,\n  in two lines.\n- Two.\n\n" +
		"### Fixed\n\n- Three.\n\n## [1.0.0] - 2026-10-01\n\n## [0.9.0]\n\n- Without a date.\n"
	for number, want := range map[string]string{"1.0.0": "no entry", "0.9.0": "no heading", "1.1": "no heading", "1.1.00": "no heading"} {
		if _, err := changesOf(text, number); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", number, err, want)
		}
	}
	changes, err := changesOf(text, "1.1.0")
	if err != nil {
		t.Fatal(err)
	}
	want := []change{{"added", "One, in two lines."}, {"added", "Two."}, {"fixed", "Three."}}
	if got := changeList(changes); !slices.Equal(got, want) {
		t.Errorf("changes %q, want %q", got, want)
	}
}

func TestCompareFiles(t *testing.T) {
	one, other := t.TempDir(), t.TempDir()
	for folder, text := range map[string]string{one: "a", other: "b"} {
		for name, content := range map[string]string{"equal": "", "different": text} {
			if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := compareFiles(one, other, []string{"equal"}); err != nil {
		t.Error(err)
	}
	if err := compareFiles(one, other, []string{"equal", "different"}); !errors.Is(err, errDiffers) || !strings.HasPrefix(err.Error(), "different: ") {
		t.Errorf("error %v, want %v", err, errDiffers)
	}
	if err := compareFiles(one, other, []string{"missing"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v, want %v", err, os.ErrNotExist)
	}
}

func TestStatements(t *testing.T) {
	statement := func(status, justification string) vexStatement {
		return vexStatement{
			Vulnerability: vexVulnerability{Name: "GO-2026-0001"}, Status: status, Justification: justification,
			Products: []vexProduct{{ID: "Unknown Product", Subcomponents: []vexProduct{{ID: "pkg:golang/example.com/m@v1.0.0"}}}},
		}
	}
	images := []vexProduct{{ID: "pkg:oci/clusterdns"}, {ID: "pkg:oci/nodecache"}}
	got, err := statementsFor([]vexStatement{statement("not_affected", "vulnerable_code_not_in_execute_path")}, images)
	if err != nil {
		t.Fatal(err)
	}
	if p := got[0].Products; len(p) != 2 || p[0].ID != "pkg:oci/clusterdns" || p[1].ID != "pkg:oci/nodecache" || p[1].Subcomponents[0].ID != "pkg:golang/example.com/m@v1.0.0" {
		t.Errorf("products %v", p)
	}
	for name, s := range map[string]vexStatement{"affected": statement("affected", ""), "no reason": statement("not_affected", ""), "unknown": statement("under_investigation", "")} {
		if _, err := statementsFor([]vexStatement{s}, images); err == nil || !strings.Contains(err.Error(), "GO-2026-0001") {
			t.Errorf("%s: error %v, want one with the advisory", name, err)
		}
	}
}

// TestChart checks the changes to the files of the chart: those of the repository have the places that are changed.
func TestChart(t *testing.T) {
	r := &release{root: root, version: "v1.2.3-rc.1", repository: "ghcr.io/nearside-dns/dns", changes: "### Added\n\n- A release."}
	for name, want := range map[string][]string{
		"values.yaml": {"  registry: ghcr.io\n", "    repository: nearside-dns/dns/clusterdns\n", "    repository: nearside-dns/dns/nodecache\n"},
		"Chart.yaml": {
			"artifacthub.io/category: networking", "artifacthub.io/prerelease: \"true\"", "image: ghcr.io/nearside-dns/dns/nodecache:v1.2.3-rc.1",
			"kind: added", "description: A release.",
		},
	} {
		text, err := os.ReadFile(filepath.Join(root, chartFolder, name))
		if err != nil {
			t.Fatal(err)
		}
		change := map[string]func(string) (string, error){"values.yaml": r.releasedValues, "Chart.yaml": r.annotated}[name]
		got, err := change(string(text))
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range want {
			if !strings.Contains(got, line) {
				t.Errorf("%s has no %q:\n%s", name, line, got)
			}
		}
		if _, err := change(""); err == nil {
			t.Errorf("%s: an empty file is no error", name)
		}
	}
}

// TestPages checks the sources of man pages.
func TestPages(t *testing.T) {
	reference, err := os.ReadFile(filepath.Join(root, "docs/configuration.md"))
	if err != nil {
		t.Fatal(err)
	}
	for program, want := range map[string]string{"clusterdns": "## clusterdns probe\n", "nodecache": "## nodecache doctor\n"} {
		text, err := programPage(string(reference), program)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{want, "# Name\n\n" + program + " - ", "| SIGTERM, SIGINT, SIGQUIT |", "  -log-format format\n"} {
			if !strings.Contains(text, want) {
				t.Errorf("the page of %s has no %q", program, want)
			}
		}
		if strings.Contains(text, "](") {
			t.Errorf("the page of %s has a link", program)
		}
	}
	if _, err := programPage("# Configuration\n", "clusterdns"); err == nil {
		t.Error("a reference without sections is no error")
	}
	got := pluginPage("# cache\n\n## Name\n\n*cache* - stores [answers](../a.md#b), as in [RFC 8767](https://www.rfc-editor.org/rfc/rfc8767).\n\n### More\n")
	if want := "\n# Name\n\n*cache* - stores answers, as in [RFC 8767](https://www.rfc-editor.org/rfc/rfc8767).\n\n## More\n"; got != want {
		t.Errorf("page %q, want %q", got, want)
	}
}

// TestDatabase makes a database of two advisories: one for two modules, and one that was withdrawn.
func TestDatabase(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{
		"GO-2026-0001": `{"id": "GO-2026-0001", "modified": "2026-01-02T00:00:00Z", "affected": [{"package": {"name": "stdlib"}, "ranges": [{"events": ` +
			`[{"introduced": "0"}, {"fixed": "1.25.3"}, {"introduced": "1.26.0"}, {"fixed": "1.26.1"}]}]}, {"package": {"name": "example.com/m"}}]}`,
		"GO-2026-0002": `{"id": "GO-2026-0002", "modified": "2026-01-03T00:00:00Z", "withdrawn": "2026-01-03T00:00:00Z"}`,
	} {
		if err := os.WriteFile(filepath.Join(from, name+".json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	at, err := writeDatabase(from, to)
	if err != nil || at != "file://"+to {
		t.Fatalf("URL %s, error %v", at, err)
	}
	for name, want := range map[string]string{
		"db": `{"modified":"2026-01-02T00:00:00Z"}`,
		"modules": `[{"path":"example.com/m","vulns":[{"id":"GO-2026-0001","modified":"2026-01-02T00:00:00Z"}]},` +
			`{"path":"stdlib","vulns":[{"id":"GO-2026-0001","modified":"2026-01-02T00:00:00Z","fixed":"1.26.1"}]}]`,
	} {
		if text, err := os.ReadFile(filepath.Join(to, "index", name+".json")); err != nil || string(text) != want {
			t.Errorf("%s: %s, error %v; want %s", name, text, err, want)
		}
	}
	if _, err := os.Stat(filepath.Join(to, "ID", "GO-2026-0001.json")); err != nil {
		t.Error(err)
	}
	if _, err := writeDatabase(t.TempDir(), to); err == nil {
		t.Error("a folder without advisories is no error")
	}
}

func TestToolchain(t *testing.T) {
	r := &release{root: root}
	if err := r.readToolchain(t.Context()); err != nil || !strings.HasPrefix(r.toolchain, "go1.") {
		t.Errorf("toolchain %q, error %v", r.toolchain, err)
	}
	r = repositoryOf(t, map[string]string{"go.mod": "module m\n\ngo 1.26.0\n"})
	if err := r.readToolchain(t.Context()); err == nil {
		t.Error("a module without a toolchain is no error")
	}
}
