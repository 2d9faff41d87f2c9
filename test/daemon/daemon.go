// Package daemon builds the programs of this module and runs them for tests. Input is a Corefile; output is the address
// that the program answers on and its output.
package daemon

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
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
	*kit.Process

	// Addr is the address that it answers DNS on.
	Addr string
	// Port is the port of Addr.
	Port int
	// Corefile is the path of its configuration.
	Corefile string
}

// Launch starts a program with a Corefile, in which PORT stands for the port to answer on, and does not wait. The
// program is stopped at the end of the test; its output is logged if the test failed.
func Launch(t testing.TB, path, corefile string, args ...string) *Process {
	t.Helper()
	p := &Process{Port: FreePort(t)}
	p.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(p.Port))
	p.Corefile = filepath.Join(t.TempDir(), "Corefile")
	p.Configure(t, corefile)
	p.Process = kit.Start(t, exec.Command(path, append([]string{"-conf", p.Corefile}, args...)...))
	t.Cleanup(func() { p.Stop(t) })
	return p
}

// Start is Launch, and waits until the program answers.
func Start(t testing.TB, path, corefile string, args ...string) *Process {
	t.Helper()
	p := Launch(t, path, corefile, args...)
	p.Succeeds(t, kit.Patience, "an answer on "+p.Addr, func() error {
		_, err := kit.Exchange("udp", p.Addr, new(dns.Msg).SetQuestion(".", dns.TypeNS))
		return err
	})
	return p
}

// Configure writes another Corefile. The program reads it on a reload.
func (p *Process) Configure(t testing.TB, corefile string) {
	t.Helper()
	text := strings.ReplaceAll(corefile, "PORT", strconv.Itoa(p.Port))
	kit.Write(t, p.Corefile, text)
}

// Wait is WaitFor of kit.Process.
func (p *Process) Wait(limit time.Duration) (code int, err error) { return p.WaitFor(limit) }

// Stop ends the program by SIGTERM, and by SIGKILL if that does not end it.
func (p *Process) Stop(t testing.TB) {
	t.Helper()
	if _, err := p.Wait(0); err == nil {
		return
	}
	if err := syscall.Kill(p.Pid(), syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		t.Error(err)
	}
	if _, err := p.Wait(10 * time.Second); err != nil {
		p.Kill(t)
	}
}
