package clients

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// booted returns the boot time of this node in whole seconds, zero if the kernel has no boot clock. It is read once, so that it
// is the same for all configurations of the process.
var booted = sync.OnceValue(func() time.Time {
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
		return time.Time{}
	}
	return time.Unix(time.Now().Unix()-up.Sec, 0).UTC()
})
