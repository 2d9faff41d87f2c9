package validity

import "time"

// epoch is the start of the process; times of validity are offsets from it. It has a monotonic reading, so that setting
// the clock neither expires answers nor extends them.
var epoch = time.Now()

// Now returns the time since the start of the process.
func Now() time.Duration { return time.Since(epoch) }
