package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// released is the version that TestRelease releases.
const released = "v9.9.9-rc.1"

// output runs a program and returns its output, with that for errors.
func output(t *testing.T, folder string, environment []string, program string, args ...string) (string, error) {
	t.Helper()
	c := exec.CommandContext(t.Context(), program, args...)
	c.Dir, c.Env = folder, slices.Concat(os.Environ(), []string{"GOWORK=off"}, environment)
	out, err := c.CombinedOutput()
	return string(out), err
}

// mustRun runs a program that has to succeed, and returns its output.
func mustRun(t *testing.T, folder string, environment []string, program string, args ...string) string {
	t.Helper()
	out, err := output(t, folder, environment, program, args...)
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", program, args, err, out)
	}
	return out
}

// replace replaces a text that a file has once.
func replace(t *testing.T, path, old, replacement string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(text), old) != 1 {
		t.Fatalf("%s does not have %q once", path, old)
	}
	put(t, path, strings.Replace(string(text), old, replacement, 1))
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// commit commits all changes of a clone.
func commit(t *testing.T, tree string) {
	t.Helper()
	mustRun(t, tree, nil, "git", "-c", "user.name=test", "-c", "user.email=test@example.com", "commit", "--quiet", "--all", "-m", "release")
}

// releaseTree returns a clone of the repository's last commit, with a commit that can be released as the head of origin's main branch.
func releaseTree(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	origin, tree := filepath.Join(t.TempDir(), "origin.git"), filepath.Join(t.TempDir(), "tree")
	mustRun(t, root, nil, "git", "clone", "--quiet", "--bare", root, origin)
	mustRun(t, root, nil, "git", "clone", "--quiet", origin, tree)
	replace(t, filepath.Join(tree, "CHANGELOG.md"), "## [Unreleased]\n", "## [Unreleased]\n\n## ["+released[1:]+"] - 2026-01-01\n")
	replace(t, filepath.Join(tree, "MAINTAINERS.md"), "|---|---|---|\n", "|---|---|---|\n| @example | none | all |\n")
	commit(t, tree)
	mustRun(t, tree, nil, "git", "push", "--quiet", "--force", "origin", "HEAD:refs/heads/main")
	mustRun(t, tree, nil, "git", "tag", released)
	return tree
}

// advisories returns the URL of a database with an advisory for a function of github.com/miekg/dns that does not exist.
func advisories(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	const modified = "2099-01-01T00:00:00Z"
	put(t, filepath.Join(folder, "index", "db.json"), `{"modified":"`+modified+`"}`)
	put(t, filepath.Join(folder, "index", "modules.json"),
		`[{"path":"github.com/miekg/dns","vulns":[{"id":"GO-2099-0001","modified":"`+modified+`"}]}]`)
	put(t, filepath.Join(folder, "ID", "GO-2099-0001.json"), `{"schema_version":"1.3.1","id":"GO-2099-0001","modified":"`+modified+`",`+
		`"published":"`+modified+`","summary":"A function that does not exist",`+
		`"affected":[{"package":{"name":"github.com/miekg/dns","ecosystem":"Go"},`+
		`"ranges":[{"type":"SEMVER","events":[{"introduced":"0"}]}],`+
		`"ecosystem_specific":{"imports":[{"path":"github.com/miekg/dns","symbols":["Absent"]}]}}]}`)
	return "file://" + folder
}

// TestRelease makes a release of the last commit with a registry on this machine, and verifies it as docs/releases.md describes.
func TestRelease(t *testing.T) {
	if os.Getenv("NEARSIDE_RELEASE") != "1" {
		t.Skip("a release takes a quarter of an hour: make release-test")
	}
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	repository := strings.TrimPrefix(server.URL, "http://") + "/nearside"
	tree, keys := releaseTree(t), t.TempDir()
	settings := []string{"VERSION=" + released, "REPOSITORY=" + repository, "VULNDB=" + advisories(t)}
	t.Run("a second build that differs", func(t *testing.T) {
		other := releaseTree(t)
		replace(t, filepath.Join(other, "Makefile"), "-created '$(SOURCE_DATE_EPOCH)'", "-created `date +%s`")
		commit(t, other)
		mustRun(t, other, nil, "git", "tag", "--delete", released)
		out, err := output(t, other, nil, "make", append([]string{"release-check"}, settings...)...)
		if err == nil || !strings.Contains(out, "second build: clusterdns.sbom.json: two builds differ") {
			t.Errorf("error %v, want one of a second build that differs:\n%s", err, out)
		}
	})

	cosign, password := filepath.Join(keys, "cosign"), []string{"COSIGN_PASSWORD=secret"}
	mustRun(t, filepath.Join(tree, "deploy/release/tools"), []string{"CGO_ENABLED=0"},
		"go", "build", "-o", cosign, "github.com/sigstore/cosign/v3/cmd/cosign")
	mustRun(t, keys, password, cosign, "generate-key-pair")
	mustRun(t, keys, password, cosign, "generate-key-pair", "--output-key-prefix", "other")
	t.Log(mustRun(t, tree, password, "make", append([]string{"release", "KEY=" + filepath.Join(keys, "cosign.key")}, settings...)...))
	files := filepath.Join(tree, "bin/release")

	// verify runs a verification by cosign with the key, which has to succeed, and with another one, which has to fail.
	verify := func(t *testing.T, command string, args ...string) string {
		t.Helper()
		with := func(key string) []string {
			return slices.Concat([]string{command, "--key", filepath.Join(keys, key), "--insecure-ignore-tlog"}, args)
		}
		verified := mustRun(t, files, nil, cosign, with("cosign.pub")...)
		if out, err := output(t, files, nil, cosign, with("other.pub")...); err == nil {
			t.Errorf("%s %q succeeds with another key:\n%s", command, args, out)
		}
		return verified
	}
	t.Run("checksums", func(t *testing.T) {
		mustRun(t, files, nil, "sha256sum", "--check", "--strict", "SHA256SUMS")
		verify(t, "verify-blob", "--bundle", "SHA256SUMS.sigstore.json", "SHA256SUMS")
	})
	for _, p := range programs {
		t.Run(p.name, func(t *testing.T) { verifyImage(t, repository+"/"+p.name, filepath.Join(files, p.name), verify) })
	}
	t.Run("chart", func(t *testing.T) {
		verify(t, "verify", repository+"/charts/nearside:"+released[1:])
		bin := strings.TrimSpace(mustRun(t, tree, nil, "test/install.sh", "--print-bin"))
		pulled := t.TempDir()
		mustRun(t, pulled, nil, filepath.Join(bin, "helm"), "pull", "oci://"+repository+"/charts/nearside", "--version", released[1:],
			"--plain-http")
		const chart = "nearside-9.9.9-rc.1.tgz"
		if get(t, filepath.Join(pulled, chart)) != get(t, filepath.Join(files, chart)) {
			t.Error("the registry has another chart")
		}
	})
	t.Run("documents", func(t *testing.T) {
		commit := strings.TrimSpace(mustRun(t, tree, nil, "git", "rev-parse", "HEAD"))
		for file, want := range map[string][]string{
			"nearside.openvex.json": {
				`"timestamp": "2099-01-01T00:00:00Z"`, `"GO-2099-0001"`, `"status": "not_affected"`,
				`"justification": "vulnerable_code_not_in_execute_path"`, "pkg:oci/nodecache@sha256:",
			},
			"nodecache.provenance.json": {`"gitCommit": "` + commit + `"`, `"REPOSITORY": "` + repository + `"`},
			"changes.md":                {"### Added\n"},
		} {
			text := get(t, filepath.Join(files, file))
			for _, part := range want {
				if !strings.Contains(text, part) {
					t.Errorf("%s has no %s:\n%s", file, part, text)
				}
			}
		}
	})
}

// verifyImage verifies an image in a registry, with its attestations. The files of the release have a prefix.
func verifyImage(t *testing.T, image, prefix string, verify func(t *testing.T, command string, args ...string) string) {
	reference, err := name.ParseReference(image + ":" + released)
	if err != nil {
		t.Fatal(err)
	}
	index, err := remote.Index(reference)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	digest, err := index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(get(t, prefix+".sbom.json"), `"`+digest.Hex+`"`) {
		t.Errorf("the bill of materials does not have the image %s", digest)
	}
	verify(t, "verify", image+"@"+digest.String())
	for kind, file := range map[string]string{
		"slsaprovenance1": prefix + ".provenance.json", "cyclonedx": prefix + ".sbom.json",
		"openvex": filepath.Join(filepath.Dir(prefix), "nearside.openvex.json"),
	} {
		out := verify(t, "verify-attestation", "--type", kind, image+"@"+digest.String())
		var want any
		if err := json.Unmarshal([]byte(get(t, file)), &want); err != nil {
			t.Fatal(err)
		}
		if got := predicate(t, out); !reflect.DeepEqual(got, want) {
			t.Errorf("the attestation of type %s is not %s: %v", kind, file, got)
		}
	}
}

// predicate returns the predicate of an attestation that cosign prints after other lines.
func predicate(t *testing.T, out string) any {
	t.Helper()
	start := strings.Index(out, `{"payload":`)
	if start < 0 {
		t.Fatalf("no attestation in:\n%s", out)
	}
	var envelope struct{ Payload string }
	if err := json.NewDecoder(strings.NewReader(out[start:])).Decode(&envelope); err != nil {
		t.Fatal(err)
	}
	text, err := base64.StdEncoding.DecodeString(envelope.Payload)
	if err != nil {
		t.Fatal(err)
	}
	var statement struct{ Predicate any }
	if err := json.NewDecoder(bytes.NewReader(text)).Decode(&statement); err != nil {
		t.Fatal(err)
	}
	return statement.Predicate
}
