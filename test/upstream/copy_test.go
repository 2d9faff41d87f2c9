package upstream

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

// edit replaces a pattern in files of the copy. A pattern that does not occur fails the test: CoreDNS has changed.
type edit struct{ files, pattern, replacement string }

// serveDNS renames the method that answers a query, which a file of the harness replaces.
func serveDNS(file string) edit { return edit{file, `\) ServeDNS\(`, ") coreServeDNS("} }

var edits = []edit{
	{"test/*_test.go", `\bcaddy\.Instance\b`, "Instance"},
	{"test/readme_test.go", `caddy\.Start\(in\)`, "startExample(in)"},
	{"test/json_log_test.go", `coremain\.Run\(\)`, "runProgram()"},
	{"test/json_log_test.go", `caddy\.RegisterEventHook\(`, "registerEventHook("},
	{"test/json_log_test.go", `"CoreDNS-"`, "versionLine()"},
	{"plugin/test/helpers.go", `func SortAndCheck\(`, "func sortAndCheck("},
	serveDNS("plugin/kubernetes/handler.go"),
	serveDNS("plugin/cache/handler.go"),
	serveDNS("plugin/forward/forward.go"),
	serveDNS("plugin/autopath/autopath.go"),
	{"plugin/kubernetes/xfr.go", `\) Transfer\(`, ") coreTransfer("},
	{"plugin/kubernetes/setup.go", `func kubernetesParse\(`, "func coreKubernetesParse("},
	{"plugin/cache/setup.go", `func cacheParse\(`, "func coreCacheParse("},
	{"plugin/forward/setup.go", `func parseForward\(`, "func coreParseForward("},
	{"plugin/autopath/setup.go", `func autoPathParse\(`, "func coreAutoPathParse("},
	{"plugin/kubernetes/*_test.go", `caddy\.NewTestController\(`, "newController("},
	{"plugin/cache/*_test.go", `caddy\.NewTestController\(`, "newController("},
	{"plugin/forward/*_test.go", `caddy\.NewTestController\(`, "newController("},
	{"plugin/autopath/*_test.go", `caddy\.NewTestController\(`, "newController("},
	{"plugin/kubernetes/xfr_test.go", `func validateAXFR\(`, "func coreValidateAXFR("},
	{"plugin/forward/dot_test.go", `time\.Now\(\)\.Add\(2 \* time\.Second\)`, "time.Now().Add(10 * time.Second)"},
	{"plugin/forward/doq_test.go", `roots\.AddCert\(parsed\)`, "addRoot(roots, parsed)"},
	{"plugin/forward/proxy_test.go", `f\.proxies\[0\]\.SetHTTPClient\(s\.Client\(\)\)`, "trust(f, s.Certificate())"},
	{"plugin/cache/*_test.go", `\bc\.pcache\.Len\(\)`, `entries(c, "success", c.pcache.Len())`},
	{"plugin/cache/*_test.go", `\bc\.ncache\.Len\(\)`, `entries(c, "denial", c.ncache.Len())`},
}

// uses keep the imports that an edit may leave without a use.
var uses = map[string]string{
	`"github.com/coredns/caddy"`:                   "\nvar _ *caddy.Controller\n",
	`"github.com/coredns/coredns/coremain"` + "\n": "\nvar _ = coremain.Run\n",
}

// module returns the folder of CoreDNS in the module cache.
func module(t *testing.T) string {
	t.Helper()
	folder, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/coredns/coredns").Output()
	kit.Must(t, err)
	return strings.TrimSpace(string(folder))
}

// copyModule returns a copy of CoreDNS with the harness.
func copyModule(t *testing.T) string {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "coredns")
	kit.Must(t, os.CopyFS(folder, os.DirFS(module(t))))
	kit.Must(t, os.Remove(filepath.Join(folder, "test", "server.go")))
	for _, e := range edits {
		e.apply(t, folder)
	}
	kit.Must(t, os.CopyFS(folder, os.DirFS(filepath.Join("testdata", "harness"))))
	return folder
}

func (e edit) apply(t *testing.T, folder string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(folder, e.files))
	kit.Must(t, err)
	pattern, edited := regexp.MustCompile(e.pattern), 0
	for _, path := range paths {
		before := kit.Read(t, path)
		after := pattern.ReplaceAllString(before, e.replacement)
		if after == before {
			continue
		}
		edited++
		for imported, use := range uses {
			if strings.Contains(after, "\t"+imported) && !strings.HasSuffix(after, use) {
				after += use
			}
		}
		kit.Write(t, path, after)
	}
	if edited == 0 {
		t.Fatalf("no %q in %s of CoreDNS", e.pattern, e.files)
	}
}
