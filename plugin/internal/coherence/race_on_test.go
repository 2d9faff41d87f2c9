//go:build race

package coherence

// underRace is set in a binary with the race detector, in which maps cost many times as much.
const underRace = true
