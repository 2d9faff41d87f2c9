//go:build race

package fastpath

// underRace is set in a binary with the race detector, in which sync.Pool drops some buffers.
const underRace = true
