//go:build race

package push

// underRace is set in a binary with the race detector, in which maps cost many times as much.
const underRace = true
