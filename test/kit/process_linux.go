package kit

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// childAttributes ends a child process with the test process, however that ends, and keeps a Ctrl-C in the terminal from
// reaching it.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}

const threadNetwork = "/proc/thread-self/ns/net"

// network is the network namespace of a thread.
type network struct {
	file *os.File
	name string // such as net:[4026531840]
}

func networkOfThread() (network, error) {
	name, err := os.Readlink(threadNetwork)
	if err != nil {
		return network{}, err
	}
	file, err := os.Open(threadNetwork)
	return network{file, name}, err
}

// enter lets the present thread, which is locked, enter the namespace, and reports whether it has left its own.
func (n network) enter() (left bool, err error) {
	own, err := os.Readlink(threadNetwork)
	if err == nil && own != n.name {
		left, err = true, unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET)
	}
	return left, errors.Join(err, n.file.Close())
}
