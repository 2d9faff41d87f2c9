package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/controlplane"
)

// The cores of the machine: one for the server that is measured, one for everything else.
const (
	serverCore = "0"
	loadCore   = "1"
)

// server is one of those that are measured.
type server struct {
	name string
	port int
	*process
}

// process is a child process, pinned to a core.
type process struct {
	cmd  *exec.Cmd
	pid  int
	logs string
}

// launch starts a program on a core. Its output goes to a file.
func launch(ctx context.Context, core, folder, path string, args ...string) (*process, error) {
	logs := filepath.Join(folder, filepath.Base(path)+".log")
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
	return &process{cmd: cmd, pid: cmd.Process.Pid, logs: logs}, nil // taskset becomes the program
}

func (p *process) stop() {
	if err := p.cmd.Process.Kill(); err == nil || errors.Is(err, os.ErrProcessDone) {
		_ = p.cmd.Wait() // killed
	}
}

// cpu returns the time that the process has used, user and system: the sum of what the scheduler notes
// for its threads, in nanoseconds, since the ticks of /proc/PID/stat are too coarse for a short run.
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

// memory returns resident memory in MiB, now and at its highest.
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

func scan(line, key string, kib *float64) bool {
	if !strings.HasPrefix(line, key) {
		return false
	}
	_, err := fmt.Sscanf(strings.TrimPrefix(line, key), "%f", kib)
	return err == nil
}

// bench is a run: an API server, and the two servers that read it.
type bench struct {
	settings
	folder  string
	api     *process
	url     string
	coredns string // the programs' paths
	cache   string
	servers []*server // cluster DNS
	caches  []*server // node caches
	results results
}

const corefile = `.:%d {
    bind 127.0.0.1
    errors
    prometheus 127.0.0.1:%d
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        endpoint %s
        ttl 30
    }
}
`

// start builds what is to be built and starts the API server.
func start(ctx context.Context, s settings, folder string) (*bench, error) {
	b := &bench{settings: s, folder: folder, results: results{}}
	var err error
	if b.coredns, err = controlplane.Binary("coredns"); err != nil {
		return nil, err
	}
	own, fake := filepath.Join(folder, "clusterdns"), filepath.Join(folder, "fakeapi")
	b.cache = filepath.Join(folder, "nodecache")
	for path, pkg := range map[string]string{own: "./cmd/clusterdns", b.cache: "./cmd/nodecache", fake: "./test/fakeapi/cmd/fakeapi"} {
		build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, pkg)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("build %s: %w\n%s", pkg, err, out)
		}
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(freePort()))
	b.url = "http://" + address
	b.api, err = launch(ctx, loadCore, folder, fake, "-listen", address,
		"-services", strconv.Itoa(s.cluster.Services), "-endpoints", strconv.Itoa(s.cluster.Endpoints), "-nodes", strconv.Itoa(s.cluster.Nodes))
	if err != nil {
		return nil, err
	}
	if err := await(ctx, time.Minute, "the API server", func() bool {
		text, err := os.ReadFile(b.api.logs)
		return err == nil && strings.Contains(string(text), "serving")
	}); err != nil {
		b.stop()
		return nil, err
	}
	for name, path := range map[string]string{"clusterdns": own, "CoreDNS": b.coredns} {
		if err := b.startServer(ctx, name, path); err != nil {
			b.stop()
			return nil, err
		}
	}
	return b, nil
}

func (b *bench) startServer(ctx context.Context, name, path string) error {
	port := freePort()
	conf := filepath.Join(b.folder, name+".Corefile")
	if err := os.WriteFile(conf, fmt.Appendf(nil, corefile, port, freePort(), b.url), 0o600); err != nil {
		return err
	}
	p, err := launch(ctx, serverCore, b.folder, path, "-conf", conf)
	if err != nil {
		return err
	}
	b.servers = append(b.servers, &server{name, port, p})
	last := b.cluster.Service(b.cluster.Services - 1)
	return await(ctx, time.Minute, name, func() bool {
		return answers(port, fmt.Sprintf("%s.%s.svc.cluster.local.", last.Name, last.Namespace))
	})
}

func answers(port int, name string) bool {
	c := dns.Client{Timeout: time.Second, UDPSize: 4096}
	r, _, err := c.Exchange(new(dns.Msg).SetQuestion(name, dns.TypeA), net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	return err == nil && len(r.Answer) > 0
}

func (b *bench) stop() {
	for _, s := range append(b.servers, b.caches...) {
		s.stop()
	}
	b.api.stop()
}

// relist makes both servers list everything again.
func (b *bench) relist() error {
	if err := b.api.cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		return fmt.Errorf("relist: %w", err)
	}
	return nil
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

func freePort() int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0 // the server that gets it says what is wrong
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}
