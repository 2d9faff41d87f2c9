package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
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
		{"no repository of git", []string{"-version", "v1.2.3-rc.1", "-root", t.TempDir()}, 1, "tree without changes: git status"},
		{"no registry", []string{"-version", "v1.2.3", "-repository", "nearside-dns/nearside"}, 2, `invalid repository "nearside-dns/nearside"`},
		{"no folder", []string{"-version", "v1.2.3", "-repository", "ghcr.io"}, 2, `invalid repository "ghcr.io"`},
		{"upper case", []string{"-version", "v1.2.3", "-repository", "ghcr.io/Nearside"}, 2, `invalid repository "ghcr.io/Nearside"`},
		{"tag", []string{"-version", "v1.2.3", "-repository", "ghcr.io/nearside:v1"}, 2, `invalid repository "ghcr.io/nearside:v1"`},
		{"push to no registry", []string{"-version", "v1.2.3", "-push", "-key", "k"}, 2, "nearside.invalid/nearside exists nowhere"},
		{"push to invalid:5000", []string{"-version", "v1.2.3", "-push", "-key", "k", "-repository", "invalid:5000/b"}, 2, "exists nowhere"},
		{"push without an identity", []string{"-version", "v1.2.3", "-push", "-repository", "127.0.0.1:5000/a"}, 2, identityVariable},
		{"push with a key", []string{"-version", "v1.2.3", "-push", "-key", "k", "-repository", "a:50/b/c", "-root", t.TempDir()}, 1, "git status"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv(identityVariable, "")
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
		kit.Write(t, filepath.Join(r.root, name), text)
	}
	git(t, r, "init", "--quiet")
	git(t, r, "add", ".")
	commit(t, r)
	return r
}

func git(t *testing.T, r *release, args ...string) {
	t.Helper()
	kit.Output(t, exec.Command("git", append([]string{"-C", r.root}, args...)...))
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
		{"push", func(t *testing.T, r *release) {
			git(t, r, "tag", "v1.2.3")
			git(t, r, "update-ref", "refs/remotes/origin/main", "HEAD")
			r.push = true
		}, ""},
		{"push of another branch", func(t *testing.T, r *release) {
			git(t, r, "update-ref", "refs/remotes/origin/main", "HEAD")
			commit(t, r)
			git(t, r, "tag", "v1.2.3")
			r.push = true
		}, "is not a commit of origin/main"},
		{"changed file", func(t *testing.T, r *release) { write(t, r, "CHANGELOG.md", changelog+"\n") }, "M CHANGELOG.md"},
		{"unknown file", func(t *testing.T, r *release) {
			git(t, r, "config", "status.showUntrackedFiles", "no")
			write(t, r, "new", "")
		}, "?? new"},
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
	kit.Write(t, filepath.Join(r.root, name), text)
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
	kit.Must(t, err)
	want := []change{{"added", "One, in two lines."}, {"added", "Two."}, {"fixed", "Three."}}
	if got := changeList(changes); !slices.Equal(got, want) {
		t.Errorf("changes %q, want %q", got, want)
	}
}

func TestCompareFolders(t *testing.T) {
	one, other := t.TempDir(), t.TempDir()
	put := func(folder, name, text string) {
		kit.Write(t, filepath.Join(folder, name), text)
	}
	differs := func(name string) {
		t.Helper()
		if err := compareFolders(one, other); !errors.Is(err, errDiffers) || !strings.HasPrefix(err.Error(), name+": ") {
			t.Errorf("error %v, want %v of %s", err, errDiffers, name)
		}
	}
	put(one, "equal", "")
	put(other, "equal", "")
	if err := compareFolders(one, other); err != nil {
		t.Error(err)
	}
	put(other, "new", "")
	differs("new")
	put(one, "new", "")
	put(one, "changed", "a")
	put(other, "changed", "b")
	differs("changed")
	if err := compareFolders(one, filepath.Join(other, "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v, want %v", err, os.ErrNotExist)
	}
}

// TestStatements merges the statements about an advisory from two runs.
func TestStatements(t *testing.T) {
	purl := func(module string) string { return "pkg:golang/example.com%2F" + module + "@v1.0.0" }
	statement := func(status, justification, module string) vexStatement {
		return vexStatement{
			Vulnerability: vexVulnerability{Name: "GO-2026-0001"}, Status: status, Justification: justification,
			Products: []vexProduct{{ID: "Unknown Product", Subcomponents: []vexProduct{{ID: purl(module)}}}},
		}
	}
	const absent, uncalled = "vulnerable_code_not_present", "vulnerable_code_not_in_execute_path"
	images := []vexProduct{{ID: "pkg:oci/clusterdns"}, {ID: "pkg:oci/nodecache"}}
	for _, tc := range []struct {
		name       string
		one, other vexStatement
		reason     string   // of the merged statement
		parts      []string // of each image
		err        string
	}{
		{"equal", statement(notAffected, uncalled, "a"), statement(notAffected, uncalled, "a"), uncalled, []string{purl("a")}, ""},
		{"worse in the first", statement(notAffected, uncalled, "a"), statement(notAffected, absent, "a"), uncalled, []string{purl("a")}, ""},
		{"worse in the second", statement(notAffected, absent, "a"), statement(notAffected, uncalled, "b"), uncalled,
			[]string{purl("a"), purl("b")}, ""},
		{"affected in the second", statement(notAffected, absent, "a"), statement("affected", "", "a"), "", nil,
			"advisory GO-2026-0001 affects example.com/a@v1.0.0: update it"},
		{"affected in the first", statement("affected", "", "a"), statement(notAffected, absent, "b"), "", nil,
			"advisory GO-2026-0001 affects example.com/a@v1.0.0 and example.com/b@v1.0.0: update it"},
		{"no reason", statement(notAffected, "", "a"), statement(notAffected, absent, "a"), "", nil,
			"advisory GO-2026-0001 has no reason why it does not affect example.com/a@v1.0.0"},
		{"unknown", statement(fixed, "", "a"), statement("under_investigation", "", "a"), "", nil,
			"advisory GO-2026-0001 affects example.com/a@v1.0.0: update it"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := statementsFor([][]vexStatement{{tc.one}, {tc.other}}, images)
			if tc.err != "" {
				if err == nil || err.Error() != tc.err {
					t.Errorf("error %v, want %q", err, tc.err)
				}
				return
			}
			if err != nil || len(got) != 1 || got[0].Justification != tc.reason || len(got[0].Products) != len(images) {
				t.Fatalf("statements %v, error %v", got, err)
			}
			for i, p := range got[0].Products {
				var parts []string
				for _, s := range p.Subcomponents {
					parts = append(parts, s.ID)
				}
				if p.ID != images[i].ID || !slices.Equal(parts, tc.parts) {
					t.Errorf("product %v with %q, want %q", p.ID, parts, tc.parts)
				}
			}
		})
	}
}

func TestTimestamp(t *testing.T) {
	r := &release{created: 1767225600} // 2026-01-01
	for version, want := range map[string]string{
		"Go: go1.26.11\nDB updated: 2026-01-02 03:04:05 +0000 UTC\n":           "2026-01-02T03:04:05Z",
		"DB updated: 2026-01-02 03:04:05.123456789 +0100 CET\n":                "2026-01-02T02:04:05Z",
		"DB: file:///db\nDB updated: 2025-01-02 03:04:05 +0000 UTC\n\nMore.\n": "2026-01-01T00:00:00Z", // the commit is newer
		"DB updated: today\n":    "",
		"Scanner: govulncheck\n": "",
	} {
		if got, err := r.timestamp(version); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %s, error %v; want %s", version, got, err, want)
		}
	}
}

// TestReleaseOnGitHub checks which versions are pre-releases.
func TestReleaseOnGitHub(t *testing.T) {
	for version, want := range map[string]bool{"v1.2.3": false, "v1.2.3-rc.1": true} {
		out, err := exec.Command("make", "-C", root, "-n", "release-github", "VERSION="+version).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		created := strings.Contains(string(out), "gh release create '"+version+"'")
		if got := strings.Contains(string(out), "--prerelease"); got != want || !created {
			t.Errorf("%s: prerelease %v, want %v:\n%s", version, got, want, out)
		}
	}
}

func TestMaintainers(t *testing.T) {
	const table = "# Maintainers\n\n| account | employer | parts |\n|---|---|---|\n"
	for text, complete := range map[string]bool{
		table:                                 false,
		table + "\nEmeritus: | none | |\n":    false,
		table + "| | | |\n":                   false,
		"# Maintainers\n":                     false,
		table + "| @example | none | all |\n": true,
	} {
		if err := repositoryOf(t, map[string]string{"MAINTAINERS.md": text}).checkMaintainers(t.Context()); (err == nil) != complete {
			t.Errorf("%q: error %v", text, err)
		}
	}
}

func TestSource(t *testing.T) {
	for address, want := range map[string]string{
		"https://github.com/nearside-dns/nearside":                "git+https://github.com/nearside-dns/nearside",
		"https://user:secret@git.example.com:8443/a/nearside.git": "git+https://git.example.com:8443/a/nearside",
		"git@github.com:nearside-dns/nearside.git":                "git+ssh://github.com/nearside-dns/nearside",
		"ssh://git@github.com/nearside-dns/nearside.git":          "git+ssh://github.com/nearside-dns/nearside",
		"/srv/nearside.git":                                       "",
		"../nearside":                                             "",
		"file:///srv/nearside.git":                                "",
	} {
		if got := sourceOf(address); got != want {
			t.Errorf("%s: %q, want %q", address, got, want)
		}
	}
}

// TestProvenance checks which facts about the repository and the run a provenance has.
func TestProvenance(t *testing.T) {
	for _, tc := range []struct {
		name       string
		origin     string
		tagged     bool
		actions    map[string]string
		source     string
		invocation string
	}{
		{"no origin", "", true, nil, "", ""},
		{"origin", "https://example.com/nearside.git", false, nil, "git+https://example.com/nearside", ""},
		{"origin, tagged", "https://example.com/nearside.git", true, nil, "git+https://example.com/nearside@refs/tags/v1.2.3", ""},
		{"workflow", "https://example.com/nearside.git", true, map[string]string{
			"GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "a/b", "GITHUB_RUN_ID": "1", "GITHUB_RUN_ATTEMPT": "2",
		}, "git+https://github.com/a/b@refs/tags/v1.2.3", "https://github.com/a/b/actions/runs/1/attempts/2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, name := range []string{"GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID", "GITHUB_RUN_ATTEMPT"} {
				t.Setenv(name, tc.actions[name])
			}
			r := repositoryOf(t, nil)
			r.folder, r.commit, r.tagged = t.TempDir(), strings.Repeat("1", 40), tc.tagged
			if tc.origin != "" {
				git(t, r, "remote", "add", "origin", tc.origin)
			}
			kit.Must(t, r.writeProvenance(t.Context()))
			text, err := os.ReadFile(filepath.Join(r.folder, "nodecache.provenance.json"))
			kit.Must(t, err)
			var p provenance
			kit.Must(t, json.Unmarshal(text, &p))
			named := p.BuildDefinition.ExternalParameters["source"]
			if got := p.BuildDefinition.ResolvedDependencies[0]; named != tc.source || got.URI != tc.source || got.Digest["gitCommit"] != r.commit {
				t.Errorf("source %q, dependency %+v, want %q", named, got, tc.source)
			}
			if m := p.RunDetails.Metadata; (m != nil) != (tc.invocation != "") || m != nil && m.InvocationID != tc.invocation {
				t.Errorf("metadata %+v, want %q", m, tc.invocation)
			}
		})
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
		text := kit.Read(t, filepath.Join(root, chartFolder, name))
		change := map[string]func(string) (string, error){"values.yaml": r.releasedValues, "Chart.yaml": r.annotated}[name]
		got, err := change(text)
		kit.Must(t, err)
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
	kit.Must(t, err)
	for program, want := range map[string]string{"clusterdns": "## clusterdns probe\n", "nodecache": "## nodecache doctor\n"} {
		text, err := programPage(string(reference), program)
		kit.Must(t, err)
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
		kit.Write(t, filepath.Join(from, name+".json"), text)
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

// toolchainProblems returns the files of a list that name another version of Go than the toolchain, such as go1.26.11.
func toolchainProblems(toolchain string, files map[string]string) (names []string) {
	for name, text := range files {
		found := regexp.MustCompile(`golang:([\w.-]+)|(?m)^toolchain go(\S+)$`).FindAllStringSubmatch(text, -1)
		for _, f := range found {
			if version := strings.TrimSuffix(f[1]+f[2], "-bookworm"); "go"+version != toolchain {
				names = append(names, name)
			}
		}
		if len(found) == 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// TestToolchain checks that the images of Go that build and test the programs, and the module of their images, have the toolchain of
// releases.
func TestToolchain(t *testing.T) {
	r := &release{root: root}
	if err := r.readToolchain(t.Context()); err != nil || !strings.HasPrefix(r.toolchain, "go1.") {
		t.Errorf("toolchain %q, error %v", r.toolchain, err)
	}
	files := map[string]string{}
	for _, name := range []string{"deploy/image/Dockerfile", "deploy/image/go.mod", ".github/workflows/test.yml"} {
		text := kit.Read(t, filepath.Join(root, name))
		files[name] = text
	}
	if names := toolchainProblems(r.toolchain, files); len(names) > 0 {
		t.Errorf("%q do not have %s", names, r.toolchain)
	}
	got := toolchainProblems("go1.26.11", map[string]string{
		"a": "FROM golang:1.26-bookworm", "b": "image: golang:1.26.11-bookworm\n", "c": "toolchain go1.26.10\n", "d": "go 1.26.0\n",
		"e": "golang:1.26.11\ngolang:latest",
	})
	if want := []string{"a", "c", "d", "e"}; !slices.Equal(got, want) {
		t.Errorf("problems %q, want %q", got, want)
	}
	r = repositoryOf(t, map[string]string{"go.mod": "module m\n\ngo 1.26.0\n"})
	if err := r.readToolchain(t.Context()); err == nil {
		t.Error("a module without a toolchain is no error")
	}
}

// TestSameForm: deploy/image, a module of its own, accepts the same repositories.
func TestSameForm(t *testing.T) {
	text := kit.Read(t, filepath.Join(root, "deploy/image/main.go"))
	if !strings.Contains(text, "`"+repositoryForm.String()+"`") {
		t.Errorf("deploy/image/main.go lacks the form %s", repositoryForm)
	}
}
