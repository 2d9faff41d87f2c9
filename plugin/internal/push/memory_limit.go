package push

import (
	"math"
	"os"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// The limit of subscriptions depends on the memory limit of the process, since clients may use all of it.
const (
	// minSubscriptions is for 1,000 nodes with 200 subscriptions each.
	minSubscriptions = 200_000
	// maxSubscriptions is the limit from 900 MB on, and without a memory limit.
	maxSubscriptions = 8 << 20
	// reservedMemory is for the cluster's records, stored answers and connections, in bytes.
	reservedMemory = 100 << 20
	// subscriptionMemory is the memory for a subscription in bytes: 34 to 55, and the garbage that Go collects later.
	subscriptionMemory = 96
)

// memoryLimit returns the memory limit of the container in bytes, or GOMEMLIMIT if that is lower.
func memoryLimit(container memlimit.Provider) int64 {
	limit := int64(math.MaxInt64)
	if os.Getenv("GOMEMLIMIT") != "" { // otherwise Go's limit is a share of the container's
		limit = debug.SetMemoryLimit(-1)
	}
	if n, err := container(); err == nil && n < uint64(limit) { // #nosec G115 -- not negative
		limit = int64(n) // #nosec G115 -- less than an int64
	}
	return limit
}

// subscriptionsIn returns the limit of subscriptions for a memory limit in bytes.
func subscriptionsIn(memory int64) int {
	return int(min(max((memory-reservedMemory)/subscriptionMemory, minSubscriptions), maxSubscriptions))
}
