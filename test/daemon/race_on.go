//go:build race

package daemon

// raceDetector tells that the tests run under the race detector; so do the programs then.
const raceDetector = true
