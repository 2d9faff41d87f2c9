//go:build !race

package daemon

// RaceDetector tells whether the tests, and so the programs, run under the race detector.
const RaceDetector = false
