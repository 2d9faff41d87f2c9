package kit

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// stopTimeout bounds the time in which a program ends after a signal.
const stopTimeout = 15 * time.Second

// Process is a program that runs.
type Process struct {
	cmd    *exec.Cmd
	output Log
	ended  chan struct{} // closed when the process has ended and is reaped
}

// Start starts a program. It is killed at the end of the test; its output is logged if the test has failed.
func Start(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p := &Process{cmd: cmd, ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = &p.output, &p.output, childAttributes()
	if err := p.start(); err != nil {
		t.Fatalf("start %s: %v", cmd, err)
	}
	t.Cleanup(func() {
		p.Kill(t)
		if t.Failed() {
			t.Logf("output of process %d, %s:\n%s", p.Pid(), cmd, p.Output())
		}
	})
	return p
}

// start starts the process on a thread that exists as long as the process: Linux sends Pdeathsig when the parent thread ends. The
// thread has the network of the caller's.
func (p *Process) start() error {
	network, err := networkOfThread()
	if err != nil {
		return err
	}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		left, err := network.enter()
		if !left {
			defer runtime.UnlockOSThread()
		} // else the thread ends with the goroutine
		if err == nil {
			err = p.cmd.Start()
		}
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

// Succeeds is the function Succeeds, and ends the test when the program has ended.
func (p *Process) Succeeds(t testing.TB, limit time.Duration, what string, check func() error) {
	t.Helper()
	Succeeds(t, limit, what, func() error {
		err := check()
		if err != nil && p.hasEnded() {
			t.Fatalf("%s: %s has ended, %v: %v", what, p.cmd, p.cmd.ProcessState, err)
		}
		return err
	})
}

// Signal sends a signal to the program.
func (p *Process) Signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatalf("%v to %s: %v", s, p.cmd, err)
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
	code, err := p.WaitFor(stopTimeout)
	Must(t, err)
	return code
}

// WaitFor is Wait with a limit.
func (p *Process) WaitFor(limit time.Duration) (code int, err error) {
	select {
	case <-p.ended:
	case <-time.After(limit):
		if !p.hasEnded() {
			return 0, fmt.Errorf("%s (process %d) is still running after %v", p.cmd, p.Pid(), limit)
		}
	}
	return p.cmd.ProcessState.ExitCode(), nil
}

func (p *Process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// Kill ends the program with SIGKILL, frozen or not, and waits for the end. It has no effect on a process that has ended.
func (p *Process) Kill(t testing.TB) {
	t.Helper()
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("kill %s: %v", p.cmd, err)
	}
	if _, err := p.WaitFor(stopTimeout); err != nil {
		t.Error(err)
	}
}
