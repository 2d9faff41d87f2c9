//go:build !unix

package daemon

import "os"

// Of the signals that signals_unix.go handles, other systems have os.Interrupt only.
var (
	endSignals     = []os.Signal{os.Interrupt}
	reloadSignals  []os.Signal
	ignoredSignals []os.Signal
)

// name returns the name of a signal.
func name(s os.Signal) string { return s.String() }
