//go:build !linux

package kernel

import "syscall"

// endWithParent does nothing: only Linux ends a child with its parent.
func endWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
