//go:build !linux

package kernel

import "syscall"

// endWithParent has nothing to set: only Linux ends a child with its parent.
func endWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
