package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// The cores of the machine: one for the measured server, one for everything else.
const (
	serverCore = "0"
	loadCore   = "1"
)

// process is a child process, pinned to a core.
type process struct {
	cmd  *exec.Cmd
	pid  int
	logs string
}

// launch starts a program on a core. Its output goes to a file with this name.
func launch(ctx context.Context, core, folder, name, path string, args ...string) (*process, error) {
	logs := filepath.Join(folder, name+".log")
	out, err := os.Create(logs)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }()
	cmd := exec.CommandContext(ctx, "taskset", append([]string{"-c", core, path}, args...)...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	return &process{cmd: cmd, pid: cmd.Process.Pid, logs: logs}, nil // taskset executes the program
}

func (p *process) stop() {
	if err := p.cmd.Process.Kill(); err == nil || errors.Is(err, os.ErrProcessDone) {
		_ = p.cmd.Wait() // killed
	}
}

// cpu returns the CPU time of the process, user and system: the sum over its threads in the scheduler's statistics, in
// nanoseconds, since the ticks of /proc/PID/stat are too coarse for a short run.
func (p *process) cpu() (sum time.Duration, err error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", p.pid))
	if err != nil {
		return 0, err
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return 0, err
		}
		var ns int64
		if _, err := fmt.Sscan(string(text), &ns); err != nil {
			return 0, fmt.Errorf("%s: %w", f, err)
		}
		sum += time.Duration(ns)
	}
	return sum, nil
}

// memory returns resident memory in MiB, now and its maximum.
func (p *process) memory() (now, peak float64, err error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", p.pid))
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var kib float64
		switch {
		case scan(lines.Text(), "VmRSS:", &kib):
			now = kib / 1024
		case scan(lines.Text(), "VmHWM:", &kib):
			peak = kib / 1024
		}
	}
	return now, peak, nil
}

// resetPeak makes the maximum the present memory (proc_pid_clear_refs(5)).
func (p *process) resetPeak() error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p.pid), []byte("5"), 0)
}

// atRest records the memory of a server without queries, from which growth is counted.
func (s *server) atRest() (err error) {
	if s.rest, _, err = s.memory(); err != nil {
		return err
	}
	return s.resetPeak()
}

// growth returns the maximum of memory above that at rest, in MiB.
func (s *server) growth() (float64, error) {
	_, peak, err := s.memory()
	return peak - s.rest, err
}

func scan(line, key string, kib *float64) bool {
	if !strings.HasPrefix(line, key) {
		return false
	}
	_, err := fmt.Sscanf(strings.TrimPrefix(line, key), "%f", kib)
	return err == nil
}

func await(ctx context.Context, within time.Duration, what string, condition func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for !condition() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: not within %s", what, within)
		case <-time.After(50 * time.Millisecond):
		}
	}
	return nil
}

// pause waits, until the run ends at the latest.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// The ports of servers are below those that the kernel assigns to clients, of which there are many on a busy machine.
const (
	firstPort = 20000
	lastPort  = 32000
)

// freePort returns a port that no process uses, over TCP and UDP.
func freePort() int {
	for range 100 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		l, err := net.Listen("tcp", addressAt(port))
		if err != nil {
			continue
		}
		packets, err := net.ListenPacket("udp", addressAt(port))
		_ = l.Close()
		if err == nil {
			_ = packets.Close()
			return port
		}
	}
	return 0 // the server that binds it reports the error
}
