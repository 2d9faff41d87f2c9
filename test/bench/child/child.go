// Package child runs the measured programs of the benchmarks: child processes, each pinned to a core, with their CPU time
// and memory from /proc, and the facts about the machine that a report begins with.
package child

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
	"slices"
	"strconv"
	"strings"
	"time"
)

// The cores of the machine: one for the measured server, one for everything else.
const (
	ServerCore = "0"
	LoadCore   = "1"
)

// Process is a child process, pinned to a core.
type Process struct {
	Cmd  *exec.Cmd
	PID  int
	Logs string // path of its output
}

// Start starts a program on a core, or on all cores if core is "". Its output goes to a file with this name.
func Start(ctx context.Context, core, folder, name, path string, args ...string) (*Process, error) {
	logs := filepath.Join(folder, name+".log")
	out, err := os.Create(logs)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }()
	command := append([]string{path}, args...)
	if core != "" {
		command = append([]string{"taskset", "-c", core}, command...) // which executes the program
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...) // #nosec G204
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	return &Process{Cmd: cmd, PID: cmd.Process.Pid, Logs: logs}, nil
}

func (p *Process) Stop() {
	if err := p.Cmd.Process.Kill(); err == nil || errors.Is(err, os.ErrProcessDone) {
		_ = p.Cmd.Wait() // killed
	}
}

// CPU returns the CPU time of the process, user and system: the sum over its threads in the scheduler's statistics, in
// nanoseconds, since the ticks of /proc/PID/stat are too coarse for a short run.
func (p *Process) CPU() (sum time.Duration, err error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", p.PID))
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

// Memory returns resident memory in MiB, now and its maximum.
func (p *Process) Memory() (now, peak float64, err error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", p.PID))
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

// ResetPeak makes the maximum the present memory (proc_pid_clear_refs(5)).
func (p *Process) ResetPeak() error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p.PID), []byte("5"), 0)
}

func scan(line, key string, kib *float64) bool {
	if !strings.HasPrefix(line, key) {
		return false
	}
	_, err := fmt.Sscanf(strings.TrimPrefix(line, key), "%f", kib)
	return err == nil
}

// Await waits for a condition, and returns an error if it is not met in time.
func Await(ctx context.Context, within time.Duration, what string, condition func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for !condition() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: not within %s", what, within)
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

// Pause waits, until the run ends at the latest.
func Pause(ctx context.Context, d time.Duration) error {
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

// FreePort returns a port that no process uses, over TCP and UDP.
func FreePort() int {
	for range 100 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		l, err := net.Listen("tcp", address(port))
		if err != nil {
			continue
		}
		packets, err := net.ListenPacket("udp", address(port))
		_ = l.Close()
		if err == nil {
			_ = packets.Close()
			return port
		}
	}
	return 0 // the server that binds it reports the error
}

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// Build builds a program of this module.
func Build(ctx context.Context, path, pkg string, flags ...string) error {
	args := slices.Concat([]string{"build", "-trimpath", "-ldflags", "-s -w", "-o", path}, flags, []string{pkg})
	build := exec.CommandContext(ctx, "go", args...)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, out)
	}
	return nil
}
