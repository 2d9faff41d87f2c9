//go:build !race

package coherence

const underRace = false
