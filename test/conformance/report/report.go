// Package report reads the JSON reports of Ginkgo, the test framework of Kubernetes' e2e suite. Input is a file that
// e2e.test wrote; output is its cases that were selected. It imports nothing of the project.
package report

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"
)

// States of a case. Ginkgo has more, all of which mean that the case did not pass.
const (
	Passed  = "passed"
	Skipped = "skipped"
)

// Case is a test case that was selected.
type Case struct {
	Name   string // the texts of its containers and its own
	State  string
	Reason string // of a case that failed or was skipped
	Time   time.Duration
}

// Failed reports whether the case neither passed nor was skipped.
func (c Case) Failed() bool { return c.State != Passed && c.State != Skipped }

// Suite is the result of one run of e2e.test.
type Suite struct {
	Start time.Time
	Cases []Case
	// Broken are failures outside of cases, such as of the preparation of the suite.
	Broken []string
}

// ginkgo is the part of Ginkgo's report that is read.
type ginkgo []struct {
	StartTime   time.Time
	SpecReports []struct {
		ContainerHierarchyTexts    []string
		LeafNodeType, LeafNodeText string
		State                      string
		RunTime                    time.Duration
		Failure                    struct{ Message string }
	}
}

// Read returns the cases of a report. A case that the expressions of the run did not select has the state of a skipped
// case as well, but no reason.
func Read(path string) (Suite, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return Suite{}, err
	}
	var reports ginkgo
	if err := json.Unmarshal(text, &reports); err != nil {
		return Suite{}, fmt.Errorf("read %s: %w", path, err)
	}
	if len(reports) != 1 {
		return Suite{}, fmt.Errorf("read %s: %d suites, want 1", path, len(reports))
	}
	suite := Suite{Start: reports[0].StartTime}
	for _, r := range reports[0].SpecReports {
		c := Case{Name: strings.Join(append(r.ContainerHierarchyTexts, r.LeafNodeText), " "), State: r.State, Reason: r.Failure.Message, Time: r.RunTime}
		switch {
		case r.LeafNodeType != "It":
			if c.Failed() {
				suite.Broken = append(suite.Broken, r.LeafNodeType+": "+c.Reason)
			}
		case c.State != Skipped || c.Reason != "":
			suite.Cases = append(suite.Cases, c)
		}
	}
	return suite, nil
}
