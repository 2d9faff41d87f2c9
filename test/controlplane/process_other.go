//go:build !linux

package controlplane

import "syscall"

// childAttributes keeps a Ctrl-C in the terminal from reaching a child process.
// Only Linux can end the child when the test process dies without cleaning up.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// stopped is not implemented: a thread may run for a while after SIGSTOP was sent.
func (*process) stopped() bool { return true }
