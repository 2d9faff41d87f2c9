package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

// writeReport writes the report of a suite with cases of Ginkgo's form.
func writeReport(t *testing.T, path string, cases ...string) {
	t.Helper()
	kit.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	text := `[{"StartTime": "2026-11-27T14:00:00Z", "SpecReports": [` + strings.Join(cases, ",") + `]}]`
	kit.Write(t, path, text)
}

func TestRender(t *testing.T) {
	folder := t.TempDir()
	const (
		first   = `{"ContainerHierarchyTexts": ["[sig-network] DNS"], "LeafNodeType": "It", "LeafNodeText": "first [Conformance]", "State": "passed", "RunTime": 2000000000}`
		second  = `{"ContainerHierarchyTexts": ["[sig-network] DNS"], "LeafNodeType": "It", "LeafNodeText": "second", "State": "failed", "RunTime": 1000000000, "Failure": {"Message": "no answer\nof cluster DNS"}}`
		fixed   = `{"ContainerHierarchyTexts": ["[sig-network] DNS"], "LeafNodeType": "It", "LeafNodeText": "second", "State": "passed", "RunTime": 1000000000}`
		traffic = `{"ContainerHierarchyTexts": ["[sig-network] Traffic Distribution"], "LeafNodeType": "It", "LeafNodeText": "third", "State": "skipped", "Failure": {"Message": "zones"}}`
	)
	for path, cases := range map[string][]string{
		"coredns/conformance.json": {first}, "clusterdns/conformance.json": {first}, "nodecache/conformance.json": {first},
		"coredns/dns.json": {fixed}, "clusterdns/dns.json": {second},
		"traffic-coredns/traffic.json": {traffic}, "traffic-clusterdns/traffic.json": {traffic}, "traffic-nodecache/traffic.json": {traffic},
	} {
		writeReport(t, filepath.Join(folder, path), cases...)
	}
	page, err := render(folder, "..")
	kit.Must(t, err)
	for _, want := range []string{
		"Date: 2026-11-27.",
		"| CoreDNS | 2 | 0 | 1 | 0 |\n| clusterdns | 1 | 1 | 1 | 0 |\n| clusterdns and nodecache | 1 | 0 | 1 | 1 |\n",
		"| conformance | DNS first | passed, 2 s | passed, 2 s | passed, 2 s |\n",
		"| DNS | DNS second | passed, 1 s | failed, 1 s | not run |\n",
		"| traffic distribution | Traffic Distribution third | skipped | skipped | skipped |\n",
		"The report has: no answer\n\n- clusterdns: DNS second\n",
		"The report has: zones\n",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if t.Failed() {
		t.Log(page)
	}

	t.Run("failure outside of cases", func(t *testing.T) {
		writeReport(t, filepath.Join(folder, "coredns/scale.json"), `{"LeafNodeType": "SynchronizedBeforeSuite", "State": "failed", "Failure": {"Message": "no node"}}`)
		if page, err := render(folder, ".."); err == nil || !strings.Contains(err.Error(), "no node") {
			t.Errorf("error %v, page %s", err, page)
		}
	})
}

// TestVersions compares the module of the suite with that of Kubernetes' programs.
func TestVersions(t *testing.T) {
	read := func(path string) (requirement string, replaced string) {
		requirement, err := version(path, "k8s.io/kubernetes")
		kit.Must(t, err)
		text := kit.Read(t, path)
		_, replaced, _ = strings.Cut(text, "\nreplace (\n")
		return requirement, replaced
	}
	suite, suiteReplaced := read("suite/go.mod")
	programs, programsReplaced := read("../kubernetes/go.mod")
	if suite != programs {
		t.Errorf("suite/go.mod has Kubernetes %s, test/kubernetes %s", suite, programs)
	}
	if suiteReplaced == "" || suiteReplaced != programsReplaced {
		t.Errorf("replaced modules differ:\n%s\nin test/kubernetes:\n%s", suiteReplaced, programsReplaced)
	}
}
