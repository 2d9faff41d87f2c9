// Package daemon builds the programs of this module and runs them for tests. Input is a Corefile; output is the address
// that the program answers on and its output.
package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/kit"
)

// Range of FreePort: below the ephemeral ports, so that no client's socket has the port when a program binds it.
const (
	firstPort = 12000
	lastPort  = 32000
)

var reservations sync.Map // by port; without a reference, they are closed

// FreePort returns a port that was free a moment ago, on all addresses, for TCP and UDP. Until the end of the process no other
// call has it, of the tests of other packages neither: a Unix socket reserves it.
func FreePort(t testing.TB) int {
	t.Helper()
	for range 100 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		address := ":" + strconv.Itoa(port)
		l, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		p, perr := net.ListenPacket("udp", address)
		kit.Must(t, l.Close())
		if perr != nil {
			continue
		}
		kit.Must(t, p.Close())
		if reservation, err := net.Listen("unix", fmt.Sprintf("@nearside-test-port-%d", port)); err == nil {
			reservations.Store(port, reservation)
			return port
		}
	}
	t.Fatal("no port is free for both TCP and UDP")
	return 0
}

// Process is a running program.
type Process struct {
	// Addr is the address that it answers DNS on.
	Addr string
	// Port is the port of Addr.
	Port int
	// Corefile is the path of its configuration.
	Corefile string

	cmd    *exec.Cmd
	output Output
	ended  chan struct{}
	err    error // reason of its end; read after ended is closed
}

// Output collects what a program prints; it may be read while the program runs.
type Output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// Launch starts a program with a Corefile, in which PORT stands for the port to answer on, and does not wait. The
// program is stopped at the end of the test; its output is logged if the test failed.
func Launch(t testing.TB, path, corefile string, args ...string) *Process {
	t.Helper()
	p := &Process{Port: FreePort(t), ended: make(chan struct{})}
	p.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(p.Port))
	p.Corefile = filepath.Join(t.TempDir(), "Corefile")
	p.Configure(t, corefile)
	p.cmd = exec.Command(path, append([]string{"-conf", p.Corefile}, args...)...)
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	p.cmd.SysProcAttr = childAttributes()
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", path, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.Stop(t)
		if t.Failed() {
			t.Logf("output of %s:\n%s", filepath.Base(path), p.Output())
		}
	})
	return p
}

// Start is Launch, and waits until the program answers.
func Start(t testing.TB, path, corefile string, args ...string) *Process {
	t.Helper()
	p := Launch(t, path, corefile, args...)
	m := new(dns.Msg).SetQuestion(".", dns.TypeNS)
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		c := dns.Client{Timeout: 3 * time.Second} // an upstream that does not reply delays the answer by at most two
		if _, _, err := c.Exchange(m, p.Addr); err == nil {
			return p
		}
		select {
		case <-p.ended:
			t.Fatalf("%s ended: %v\n%s", filepath.Base(path), p.err, p.Output())
		default:
		}
		if time.Now().After(end) {
			t.Fatalf("%s does not answer on %s", filepath.Base(path), p.Addr)
		}
	}
}

// Configure writes another Corefile. The program reads it on a reload.
func (p *Process) Configure(t testing.TB, corefile string) {
	t.Helper()
	text := strings.ReplaceAll(corefile, "PORT", strconv.Itoa(p.Port))
	kit.Write(t, p.Corefile, text)
}

// Output returns the program's output.
func (p *Process) Output() string { return p.output.String() }

// Signal sends a signal to the program.
func (p *Process) Signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatalf("signal %s: %v", s, err)
	}
}

// Pid returns the process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Wait waits for the end of the program and returns its exit code.
func (p *Process) Wait(timeout time.Duration) (int, error) {
	select {
	case <-p.ended:
		return p.cmd.ProcessState.ExitCode(), nil
	case <-time.After(timeout):
		return 0, fmt.Errorf("still running after %s", timeout)
	}
}

// Stop ends the program by SIGTERM, and by SIGKILL if that does not end it.
func (p *Process) Stop(t testing.TB) {
	t.Helper()
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("signal %s: %v", s, err)
		}
		if _, err := p.Wait(10 * time.Second); err == nil {
			return
		}
	}
	t.Errorf("process %d does not end", p.Pid())
}
