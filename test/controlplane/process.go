package controlplane

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// process is one child process that writes its output to a log file.
type process struct {
	name   string
	cmd    *exec.Cmd
	exited chan struct{} // closed once the process is gone and reaped
	result error         // reason of its end; read it only after exited is closed
}

// startProcess starts the program at path in the folder dir, and appends its
// output to the file at logPath.
func startProcess(name, path, dir, logPath string, args ...string) (*process, error) {
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	cmd := exec.Command(path, args...)
	cmd.Dir = dir
	cmd.Stdout = log
	cmd.Stderr = log
	cmd.SysProcAttr = childAttributes()
	p := &process{name: name, cmd: cmd, exited: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// Linux ends a child with the thread that started it, not with the parent process: so the thread stays locked
		// for the life of the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		closeErr := log.Close()
		started <- err
		if err != nil {
			return
		}
		p.result = errors.Join(cmd.Wait(), closeErr)
		close(p.exited)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// running reports whether the process has not ended. A frozen process is running.
func (p *process) running() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// ended returns the reason of the process's end. Call it only after exited is closed.
func (p *process) ended() error {
	if p.result != nil {
		return fmt.Errorf("%s ended: %w", p.name, p.result)
	}
	return fmt.Errorf("%s ended without an error", p.name)
}

// signal sends the process a signal.
func (p *process) signal(s syscall.Signal) error {
	if p == nil {
		return fmt.Errorf("send %v: the process was not started", s)
	}
	if err := p.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("send %v to %s: %w", s, p.name, err)
	}
	return nil
}

// killTimeout bounds the wait for the end of a killed process.
const killTimeout = 10 * time.Second

// kill ends the process at once, even a frozen one, and waits for its end. It does nothing when the process is not
// running.
func (p *process) kill() error {
	if !p.running() {
		return nil
	}
	if err := p.signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.exited:
		return nil
	case <-time.After(killTimeout):
		return fmt.Errorf("kill %s: process %d is still there after %v", p.name, p.cmd.Process.Pid, killTimeout)
	}
}

// logTail returns the last whole lines of the log file at path, at most limit
// bytes.
func logTail(path string, limit int64) (_ string, err error) {
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("log tail: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	info, err := file.Stat()
	if err != nil {
		return "", fmt.Errorf("log tail: %w", err)
	}
	start := info.Size() - limit
	if start <= 0 {
		text, err := io.ReadAll(file)
		if err != nil {
			return "", fmt.Errorf("log tail: %w", err)
		}
		return string(text), nil
	}
	text, err := io.ReadAll(io.NewSectionReader(file, start-1, limit+1))
	if err != nil {
		return "", fmt.Errorf("log tail: %w", err)
	}
	if _, whole, found := bytes.Cut(text, []byte("\n")); found {
		text = whole
	}
	return string(text), nil
}
