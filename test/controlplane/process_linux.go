package controlplane

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// childAttributes ends a child process with the test process, however that ends, and keeps a Ctrl-C in the terminal from
// reaching it.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}

// stopped reports whether all threads of the process are stopped: one that runs on another CPU continues for a while after
// SIGSTOP was sent.
func (p *process) stopped() bool {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
	if err != nil || len(threads) == 0 {
		return false
	}
	for _, thread := range threads {
		stat, err := os.ReadFile(thread)
		if _, state, ok := bytes.Cut(stat, []byte(") ")); err != nil || !ok || state[0] != 'T' {
			return false
		}
	}
	return true
}
