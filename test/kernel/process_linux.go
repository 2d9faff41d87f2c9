package kernel

import "syscall"

// endWithParent lets qemu end when the test process ends in whatever way.
func endWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
