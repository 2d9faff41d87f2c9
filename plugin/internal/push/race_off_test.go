//go:build !race

package push

const underRace = false
