package report

import (
	"reflect"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"
)

// text is a report of the form that Ginkgo 2 writes.
const text = `[{"SuitePath": "/", "SuiteSucceeded": false, "StartTime": "2026-11-27T14:00:00Z", "SpecReports": [
	{"ContainerHierarchyTexts": null, "LeafNodeType": "SynchronizedBeforeSuite", "LeafNodeText": "", "State": "passed", "RunTime": 1},
	{"ContainerHierarchyTexts": ["[sig-network] DNS"], "LeafNodeType": "It", "LeafNodeText": "first [Conformance]", "State": "passed", "RunTime": 2000000000},
	{"ContainerHierarchyTexts": ["[sig-network] DNS", "inner"], "LeafNodeType": "It", "LeafNodeText": "second", "State": "failed", "RunTime": 1000000000,
	 "Failure": {"Message": "no answer", "Location": {}}},
	{"ContainerHierarchyTexts": ["[sig-network] DNS"], "LeafNodeType": "It", "LeafNodeText": "third", "State": "skipped", "RunTime": 0,
	 "Failure": {"Message": "Requires >= 3 zones"}},
	{"ContainerHierarchyTexts": ["[sig-network] DNS"], "LeafNodeType": "It", "LeafNodeText": "fourth", "State": "timedout", "RunTime": 0},
	{"ContainerHierarchyTexts": ["[sig-storage] x"], "LeafNodeType": "It", "LeafNodeText": "not selected", "State": "skipped", "RunTime": 0},
	{"ContainerHierarchyTexts": null, "LeafNodeType": "ReportAfterSuite", "LeafNodeText": "", "State": "failed", "Failure": {"Message": "disk full"}}]}]`

func TestRead(t *testing.T) {
	path := kit.File(t, "report.json", text)
	got, err := Read(path)
	kit.Must(t, err)
	want := Suite{Start: time.Date(2026, 11, 27, 14, 0, 0, 0, time.UTC), Broken: []string{"ReportAfterSuite: disk full"}, Cases: []Case{
		{"[sig-network] DNS first [Conformance]", Passed, "", 2 * time.Second},
		{"[sig-network] DNS inner second", "failed", "no answer", time.Second},
		{"[sig-network] DNS third", Skipped, "Requires >= 3 zones", 0},
		{"[sig-network] DNS fourth", "timedout", "", 0},
	}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	var failed int
	for _, c := range got.Cases {
		if c.Failed() {
			failed++
		}
	}
	if failed != 2 {
		t.Errorf("%d cases failed, want 2", failed)
	}
}

func TestReadFails(t *testing.T) {
	for name, text := range map[string]string{"no JSON": "passed", "no suite": "[]"} {
		t.Run(name, func(t *testing.T) {
			path := kit.File(t, "report.json", text)
			if got, err := Read(path); err == nil {
				t.Errorf("got %+v", got)
			}
		})
	}
}
