package daemon

import "syscall"

// childAttributes lets a child process end when the test process ends in
// whatever way, and keeps a Ctrl-C in the terminal from reaching it.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
