//go:build !linux

package differential

import "syscall"

// childAttributes has nothing to say here: a server outlives a test that is killed.
func childAttributes() *syscall.SysProcAttr { return nil }
