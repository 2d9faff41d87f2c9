//go:build race

package daemon

// RaceDetector is true if the tests, and so the programs, run under the race detector.
const RaceDetector = true
