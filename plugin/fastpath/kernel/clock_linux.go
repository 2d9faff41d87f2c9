package kernel

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/plugin/internal/validity"
)

// clock converts times of the store, which count from the start of the process, to CLOCK_MONOTONIC of the kernel, and back. The
// runtime reads the same clock, so that they differ by a constant.
type clock struct{ start time.Duration }

// newClock reads both clocks, one after the other. It repeats that until they are read within ten microseconds, at most a hundred
// times, since every answer ends earlier by the time in between.
func newClock() (c clock, err error) {
	for best, try := time.Duration(-1), 0; try < 100 && (best < 0 || best > 10*time.Microsecond); try++ {
		var now unix.Timespec
		before := validity.Now()
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
			return c, err
		}
		after := validity.Now()
		if took := after - before; best < 0 || took < best {
			best, c.start = took, time.Duration(now.Nano())-after
		}
	}
	return c, nil
}

// kernel returns a time of the store on the kernel's clock, in nanoseconds.
func (c clock) kernel(t time.Duration) uint64 { return uint64(max(c.start+t, 0)) } // #nosec G115 -- not negative
