//go:build unix

package daemon

import (
	"os"
	"syscall"
)

var (
	endSignals    = []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT}
	reloadSignals = []os.Signal{syscall.SIGUSR1}
	// SIGHUP comes when a terminal closes, which is nobody's wish. SIGUSR2 made caddy start a second
	// process in its place, which the tools that watch a daemon do not expect.
	ignoredSignals = []os.Signal{syscall.SIGHUP, syscall.SIGUSR2}
)

// name is how people call a signal.
func name(s os.Signal) string {
	switch s {
	case syscall.SIGTERM:
		return "SIGTERM"
	case syscall.SIGINT:
		return "SIGINT"
	case syscall.SIGQUIT:
		return "SIGQUIT"
	case syscall.SIGUSR1:
		return "SIGUSR1"
	}
	return s.String()
}
