//go:build linux

package netns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/nearside-dns/nearside/test/daemon"
)

// stopTimeout bounds the time in which a program ends after a signal.
const stopTimeout = 15 * time.Second

// Process is a program that runs in a namespace.
type Process struct {
	name   string
	cmd    *exec.Cmd
	output daemon.Output
	ended  chan struct{} // closed when the process has ended and is reaped
}

// Start starts a program in the namespace. The program is killed at the end of the test; its output is logged if the test
// has failed.
func (n *Namespace) Start(t testing.TB, program string, args ...string) *Process {
	t.Helper()
	return n.StartWith(t, nil, program, args...)
}

// StartWith is Start, with variables ("NAME=value") added to the environment.
func (n *Namespace) StartWith(t testing.TB, environment []string, program string, args ...string) *Process {
	t.Helper()
	// ip executes the program, so that signals and the process ID are the program's.
	cmd := exec.Command("ip", append([]string{"netns", "exec", n.Name, program}, args...)...)
	cmd.Env = append(os.Environ(), environment...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	p := &Process{name: filepath.Base(program), cmd: cmd, ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.output, &p.output
	if err := p.start(); err != nil {
		t.Fatalf("start %s in %s: %v", p.name, n.Name, err)
	}
	t.Cleanup(func() {
		p.Kill(t)
		if t.Failed() {
			t.Logf("output of %s (process %d) in %s:\n%s", p.name, p.Pid(), n.Name, p.Output())
		}
	})
	return p
}

// start starts the process on a thread that exists as long as the process: Linux sends Pdeathsig when the parent thread ends.
func (p *Process) start() error {
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		_ = p.cmd.Wait() // the result is in ProcessState
		close(p.ended)
	}()
	return <-started
}

// Pid returns the process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Output returns the output of the program until now.
func (p *Process) Output() string { return p.output.String() }

// Ended is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Signal sends a signal to the program.
func (p *Process) Signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatalf("%v to %s: %v", s, p.name, err)
	}
}

// Freeze stops the program with SIGSTOP.
func (p *Process) Freeze(t testing.TB) { t.Helper(); p.Signal(t, syscall.SIGSTOP) }

// Thaw continues a frozen program with SIGCONT.
func (p *Process) Thaw(t testing.TB) { t.Helper(); p.Signal(t, syscall.SIGCONT) }

// Stop ends the program with SIGTERM and returns its exit code.
func (p *Process) Stop(t testing.TB) int {
	t.Helper()
	p.Signal(t, syscall.SIGTERM)
	return p.Wait(t)
}

// Wait waits until the program ends and returns its exit code, which is -1 after a signal that it did not handle.
func (p *Process) Wait(t testing.TB) int {
	t.Helper()
	kit.Must(t, p.wait())
	return p.cmd.ProcessState.ExitCode()
}

// Kill ends the program with SIGKILL, frozen or not, and waits for the end. It has no effect on a process that has ended.
func (p *Process) Kill(t testing.TB) {
	t.Helper()
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("kill %s: %v", p.name, err)
	}
	if err := p.wait(); err != nil {
		t.Error(err)
	}
}

func (p *Process) wait() error {
	select {
	case <-p.ended:
		return nil
	case <-time.After(stopTimeout):
		return fmt.Errorf("%s (process %d) is still running after %v", p.name, p.Pid(), stopTimeout)
	}
}
