//go:build race

package daemon

// RaceDetector tells that the tests run under the race detector; so do the programs then.
const RaceDetector = true
