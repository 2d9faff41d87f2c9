//go:build unix

package daemon

import (
	"os"
	"syscall"
)

var (
	endSignals    = []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT}
	reloadSignals = []os.Signal{syscall.SIGUSR1}
	// The kernel sends SIGHUP when a terminal closes. On SIGUSR2 caddy starts a second process in place of this one, which
	// supervisors do not expect.
	ignoredSignals = []os.Signal{syscall.SIGHUP, syscall.SIGUSR2}
)

// name returns the usual name of a signal.
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
