//go:build !linux

package differential

import "syscall"

// childAttributes does nothing here: a server outlives a test that is killed.
func childAttributes() *syscall.SysProcAttr { return nil }
