package coherence

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// The limit of the subscriptions of a process depends on its memory limit, since clients fill the memory that it permits.
const (
	// minSubscriptions are those of 1,000 nodes, with 200 each.
	minSubscriptions = 200_000
	// maxSubscriptions is the limit from 900 MB on, and without a memory limit.
	maxSubscriptions = 8 << 20
	// reservedMemory is for the cluster's records, stored answers and connections, in bytes.
	reservedMemory = 100 << 20
	// subscriptionMemory is the memory for a subscription in bytes: 34 to 55, and the garbage that Go collects later.
	subscriptionMemory = 96
)

// cgroups is the folder of the container's control group, in version 2, or of those of all controllers, in version 1.
const cgroups = "/sys/fs/cgroup"

// memoryLimit returns the memory limit of the container, given the folder of its control groups, or another limit if that is
// lower; both in bytes.
func memoryLimit(folder string, limit int64) int64 {
	for _, file := range []string{"memory.max", "memory/memory.limit_in_bytes"} {
		text, err := os.ReadFile(filepath.Join(folder, file)) // #nosec G304 -- a constant, except in a test
		if err != nil {
			continue
		}
		if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil { // "max" is none
			limit = min(limit, n)
		}
	}
	return limit
}

// subscriptionsIn returns the limit of subscriptions for a memory limit in bytes.
func subscriptionsIn(memory int64) int {
	return int(min(max((memory-reservedMemory)/subscriptionMemory, minSubscriptions), maxSubscriptions))
}
