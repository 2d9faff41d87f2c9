package differential

import "syscall"

// childAttributes lets a server end with the test, however that ends, and keeps a Ctrl-C in the terminal
// from reaching it.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
