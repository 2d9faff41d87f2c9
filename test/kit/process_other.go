//go:build !linux

package kit

import "syscall"

// childAttributes keeps a Ctrl-C in the terminal from reaching a child process.
// Only Linux can end the child when the test process dies without cleaning up.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

type network struct{}

func networkOfThread() (network, error) { return network{}, nil }

func (network) enter() (left bool, err error) { return false, nil }
