package daemon

import (
	"runtime/debug"
	"testing"
)

// TestLimitGarbage: the percentage of the garbage collector is the program's, unless the environment has one.
func TestLimitGarbage(t *testing.T) {
	const other = 70
	before := debug.SetGCPercent(other)
	defer debug.SetGCPercent(before)
	for environment, want := range map[string]int{"": 50, "70": other} {
		t.Setenv("GOGC", environment)
		debug.SetGCPercent(other)
		limitGarbage()
		if got := debug.SetGCPercent(other); got != want {
			t.Errorf("GOGC=%q: %d, want %d", environment, got, want)
		}
	}
}
