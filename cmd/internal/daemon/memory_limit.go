package daemon

import (
	"errors"
	"os"
	"runtime/debug"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	clog "github.com/coredns/coredns/plugin/pkg/log"
)

const (
	// memoryShare is the share of the container's memory limit that Go's heap and stacks may take before the garbage collector works
	// all the time. The rest is for the kernel's memory and for the pages of the program.
	memoryShare = 0.9
	// memoryRefresh is the interval in which a limit that is changed in place is noticed (KEP-1287).
	memoryRefresh = time.Minute
)

// garbagePercent is the default percentage of the garbage collector: a query makes little garbage, so that memory costs more than the
// collector's time.
const garbagePercent = 50

// limitGarbage sets the percentage of the garbage collector. GOGC in the environment has precedence.
func limitGarbage() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbagePercent)
	}
}

// limitMemory sets Go's memory limit from that of the container, so that a process near its limit slows down instead of being killed.
// GOMEMLIMIT in the environment has precedence.
func limitMemory() {
	_, err := memlimit.SetGoMemLimitWithOpts(memlimit.WithRatio(memoryShare), memlimit.WithRefreshInterval(memoryRefresh))
	if err != nil && !errors.Is(err, memlimit.ErrNoLimit) && !errors.Is(err, memlimit.ErrCgroupsNotSupported) && !errors.Is(err, memlimit.ErrNoCgroup) {
		clog.Debugf("The memory limit of the container is not known: %v", err)
	}
}
