package source

import (
	"fmt"
	"time"
)

// AnnotationWaitForNames is the annotation of a headless Service for the time that queries wait for its names without an
// endpoint, a duration in Go's form.
const AnnotationWaitForNames = "nearside.dev/wait-for-names"

// maxWaitForNames limits the annotation: resolvers query again after five seconds.
const maxWaitForNames = 4 * time.Second

// waitForNames returns the time of the annotation in milliseconds, rounded up, 0 without a valid one.
func waitForNames(annotations map[string]string, skip skippedObject) uint16 {
	text, ok := annotations[AnnotationWaitForNames]
	if !ok {
		return 0
	}
	wait, err := time.ParseDuration(text)
	if err != nil || wait < 0 {
		skip.part("annotation "+AnnotationWaitForNames, fmt.Sprintf("invalid duration %q: want 0s to 4s, for example 4s or 500ms", text))
		return 0
	}
	wait = min(wait, maxWaitForNames) + time.Millisecond - 1
	return uint16(wait / time.Millisecond) // #nosec G115 -- at most 4000
}
