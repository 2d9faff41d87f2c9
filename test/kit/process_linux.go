package kit

import "syscall"

// childAttributes ends a child process with the test process, however that ends, and keeps a Ctrl-C in the terminal from
// reaching it.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
