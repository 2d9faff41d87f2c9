//go:build !unix

package daemon

import "os"

// Only an interrupt can be sent everywhere.
var (
	endSignals     = []os.Signal{os.Interrupt}
	reloadSignals  []os.Signal
	ignoredSignals []os.Signal
)

// name is how people call a signal.
func name(s os.Signal) string { return s.String() }
