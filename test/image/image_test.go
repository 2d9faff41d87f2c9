package image

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"
)

var expectations = []expectation{
	{program: "clusterdns", user: "65532:65532", capability: netBindService, ports: []string{"53/tcp", "53/udp", "9153/tcp"}},
	{program: "nodecache", user: "0:0", ports: []string{"53/tcp", "53/udp", "9253/tcp"}},
}

// TestImages builds the images twice, in two trees that have the same files at another path with other times, and checks
// the result.
func TestImages(t *testing.T) {
	kit.Require(t, "make")
	first, second := t.TempDir(), filepath.Join(t.TempDir(), "another", "place")
	paths := append(sources(t), "Makefile")
	plant(t, root, first, paths, time.Unix(1_600_000_000, 0))
	plant(t, first, second, paths, time.Unix(1_500_000_000, 0))
	if out, err := inModule(filepath.Join(first, "deploy", "image"), "go", "mod", "download").CombinedOutput(); err != nil {
		t.Logf("%s", out)
		kit.Lacking(t, err.Error())
	}
	made := makeImage(t, first, "022", "TZ=UTC")
	again := makeImage(t, second, "077", "TZ=Asia/Tokyo", "GOFLAGS=-buildvcs=auto", "GOAMD64=v3", "GOARM64=v8.2")
	for _, want := range expectations {
		want.repository, want.version, want.revision, want.created = "nearside.invalid/nearside", version, revision, created
		t.Run(want.program, func(t *testing.T) {
			a, entries := openFile(t, filepath.Join(made, want.program+".tar"))
			t.Run("archive", func(t *testing.T) {
				for _, p := range append(clocks(entries), problems(a, want)...) {
					t.Error(p)
				}
			})
			t.Run("bill of materials", func(t *testing.T) {
				text := kit.Read(t, filepath.Join(made, want.program+".sbom.json"))
				for _, p := range billProblems([]byte(text), a, want, certificatesModule(t)) {
					t.Error(p)
				}
			})
			t.Run("runs", func(t *testing.T) { runs(t, a, want) })
			t.Run("reproducible", func(t *testing.T) {
				for _, suffix := range []string{".tar", ".sbom.json"} {
					one, other := kit.Read(t, filepath.Join(made, want.program+suffix)), kit.Read(t, filepath.Join(again, want.program+suffix))
					if one != other {
						t.Errorf("%s%s: two builds give %s and %s", want.program, suffix, digest([]byte(one)), digest([]byte(other)))
					}
				}
			})
			t.Run("can fail", func(t *testing.T) { canFail(t, made, entries, want) })
		})
	}
	program := filepath.Join(t.TempDir(), "image")
	kit.Output(t, inModule(filepath.Join(first, "deploy", "image"), "go", "build", "-o", program, "."))
	t.Run("wrong flags", func(t *testing.T) { wrongFlags(t, program, made) })
	for _, want := range expectations {
		want.repository, want.version, want.revision, want.created = dockerHub+"example", version, revision, "1970-01-01T00:00:00Z"
		t.Run(want.program+" for Docker Hub", func(t *testing.T) {
			folder := t.TempDir()
			for _, architecture := range []string{"linux-amd64", "linux-arm64"} {
				plant(t, filepath.Join(made, architecture), filepath.Join(folder, architecture), []string{"clusterdns", "nodecache"}, time.Unix(0, 0))
			}
			kit.Output(t, exec.Command(program, "-folder", folder, "-version", version, "-revision", revision, "-repository", want.repository))
			a, _ := openFile(t, filepath.Join(folder, want.program+".tar"))
			for _, p := range problems(a, want) {
				t.Error(p)
			}
		})
	}
}

// runs starts the program of this machine's image.
func runs(t *testing.T, a archive, want expectation) {
	if runtime.GOOS != "linux" {
		t.Skip("the images are for Linux")
	}
	for _, i := range a.images {
		if i.platform.Architecture != runtime.GOARCH {
			continue
		}
		path := filepath.Join(t.TempDir(), want.program)
		kit.Must(t, os.WriteFile(path, i.files[len(i.files)-1].content, 0o755))
		out, err := exec.Command(path, "-version").CombinedOutput()
		if err != nil || !strings.HasPrefix(string(out), want.program+"-"+version+" linux/"+runtime.GOARCH+",") {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	t.Skipf("no image is for %s", runtime.GOARCH)
}

// certificatesModule returns the package URL of the module with deploy/image's certificates.
func certificatesModule(t *testing.T) string {
	t.Helper()
	const path = "golang.org/x/crypto/x509roots/fallback"
	found := regexp.MustCompile(regexp.QuoteMeta(path) + ` (\S+)`).FindStringSubmatch(kit.Read(t, filepath.Join(root, "deploy", "image", "go.mod")))
	if found == nil {
		t.Fatalf("deploy/image/go.mod does not name %s", path)
	}
	return golang(path, found[1])
}

// wrongFlags runs the program of `make image` with flags from which no image can be made.
func wrongFlags(t *testing.T, program, made string) {
	empty, mixed := t.TempDir(), t.TempDir()
	for from, to := range map[string]string{"linux-amd64": "linux-arm64", "linux-arm64": "linux-amd64"} {
		plant(t, filepath.Join(made, from), filepath.Join(mixed, to), []string{"clusterdns", "nodecache"}, time.Unix(0, 0))
	}
	for _, tc := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"no folder", []string{"-version", "v1"}, 2, "flag -folder is missing"},
		{"no version", []string{"-folder", made}, 2, "flag -version is missing"},
		{"unknown flag", []string{"-nope"}, 2, "flag provided but not defined: -nope"},
		{"argument", []string{"-folder", made, "-version", "v1", "x"}, 2, `unexpected argument "x"`},
		{"version that is no tag", []string{"-folder", made, "-version", "v1+2"}, 2, "do not form a valid image name"},
		{"repository that is no name", []string{"-folder", made, "-version", "v1", "-repository", "Near Side"}, 2, `invalid repository "Near Side"`},
		{"invalid time", []string{"-folder", made, "-version", "v1", "-created", "now"}, 2, `invalid value "now" for flag -created`},
		{"nothing built", []string{"-folder", empty, "-version", "v1"}, 1, "no such file"},
		{"built for another machine", []string{"-folder", mixed, "-version", "v1"}, 1, "linux-amd64/clusterdns: the program was not built with map[GOARCH:amd64]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := exec.Command(program, tc.args...)
			out, err := c.CombinedOutput()
			if c.ProcessState == nil {
				t.Fatal(err)
			}
			if c.ProcessState.ExitCode() != tc.code || !strings.Contains(string(out), tc.want) || bytes.Count(out, []byte("\n")) != 1 {
				t.Errorf("exit code %d and %q, want %d and one line with %q", c.ProcessState.ExitCode(), out, tc.code, tc.want)
			}
		})
	}
}
