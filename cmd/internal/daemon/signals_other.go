//go:build !unix

package daemon

import "os"

// Every system has interrupts only.
var (
	endSignals     = []os.Signal{os.Interrupt}
	reloadSignals  []os.Signal
	ignoredSignals []os.Signal
)

// name returns the name of a signal.
func name(s os.Signal) string { return s.String() }
