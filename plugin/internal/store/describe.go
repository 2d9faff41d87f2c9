package store

import (
	"fmt"
	"time"
)

// Describe describes when the entry was stored, whether it is fresh, and each bound of its validity.
func (e *Entry) Describe(now time.Duration) string {
	state := "not valid"
	if e.Fresh(now) {
		state = "valid"
	}
	origin := "stored"
	if e.Restored {
		origin = "restored from the snapshot of an earlier process, received"
	}
	age := max(0, now-e.Stored).Round(time.Millisecond) // another goroutine may have stored it later
	return fmt.Sprintf("%s %s ago, %s: %s", origin, age, state, e.Validity.Describe(now))
}
