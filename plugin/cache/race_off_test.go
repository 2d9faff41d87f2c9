//go:build !race

package cache

// underRace is set in a binary with the race detector, in which sync.Pool drops some buffers.
const underRace = false
