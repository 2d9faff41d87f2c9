//go:build unix

package daemon

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

var (
	endSignals    = []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT}
	reloadSignals = []os.Signal{syscall.SIGUSR1}
	// The kernel sends SIGHUP when a terminal closes. On SIGUSR2 caddy starts a second process in place of this one, which
	// supervisors do not expect. At SIGPIPE Go ends a process that writes a log line to a closed standard output.
	ignoredSignals = []os.Signal{syscall.SIGHUP, syscall.SIGUSR2, syscall.SIGPIPE}
)

// name returns the usual name of a signal, such as SIGTERM.
func name(s os.Signal) string { return unix.SignalName(s.(syscall.Signal)) }
