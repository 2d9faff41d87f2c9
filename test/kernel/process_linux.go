package kernel

import "syscall"

// endWithParent ends qemu with the test process, however that ends.
func endWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
