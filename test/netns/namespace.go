//go:build linux

package netns

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/test/kit"
)

// ownFiles is the folder with a folder for each namespace, whose files "ip netns exec" mounts over those of /etc.
const ownFiles = "/etc/netns"

// runTimeout bounds the time of a program that Run or Try starts.
const runTimeout = 20 * time.Second

// Namespace is a network namespace with a name.
type Namespace struct {
	// Name is the name for "ip netns".
	Name string
	// IPv4 and IPv6 are the addresses of eth0; those of a Bed's node are on the link to Upstream.
	IPv4, IPv6 netip.Addr
}

// Run runs a program in the namespace and returns what it writes to the standard output. It fails the test if the
// program fails.
func (n *Namespace) Run(t testing.TB, program string, args ...string) string {
	t.Helper()
	out, err := n.Try(program, args...)
	kit.Must(t, err)
	return out
}

// Try is Run for a program that may fail: then the output has what it writes to the standard error as well.
func (n *Namespace) Try(program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), runTimeout)
	defer cancel()
	var stderr bytes.Buffer
	command := exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", n.Name, program}, args...)...)
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		out = append(out, stderr.Bytes()...)
		return string(out), fmt.Errorf("%s %s in %s: %w\n%s", program, strings.Join(args, " "), n.Name, err, out)
	}
	return string(out), nil
}

// Process is a program that runs in a namespace.
type Process = kit.Process

// Start starts a program in the namespace, see kit.Start.
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
	return kit.Start(t, cmd)
}

// ip runs lines of "ip -batch".
func (n *Namespace) ip(t testing.TB, lines ...string) {
	t.Helper()
	command := exec.Command("ip", "-n", n.Name, "-batch", "-")
	command.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("ip in %s: %v\n%s\n%s", n.Name, err, out, strings.Join(lines, "\n"))
	}
}

// threads limits the number of threads in namespaces: after a pause of the machine thousands of queries are due at once,
// and the runtime allows 10,000 threads.
var threads = make(chan struct{}, 1000)

// Do calls f on a thread in the namespace. Sockets that f opens belong to the namespace from then on. Goroutines that f
// starts are outside. f must not call Do.
func (n *Namespace) Do(f func() error) (err error) {
	threads <- struct{}{}
	defer func() { <-threads }()
	runtime.LockOSThread()
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter %s: %w", n.Name, err)
	}
	defer func() {
		// A thread that is left in the namespace must end, so that it stays locked to this goroutine.
		back := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET)
		if back == nil {
			runtime.UnlockOSThread()
		}
		err = errors.Join(err, back, own.Close())
	}()
	other, err := os.Open(filepath.Join(pinned, n.Name))
	if err != nil {
		return fmt.Errorf("enter %s: %w", n.Name, err)
	}
	err = unix.Setns(int(other.Fd()), unix.CLONE_NEWNET)
	if err := errors.Join(err, other.Close()); err != nil {
		return fmt.Errorf("enter %s: %w", n.Name, err)
	}
	return f()
}

// Sysctl sets a kernel parameter of the namespace, such as "net/ipv4/ip_forward".
func (n *Namespace) Sysctl(t testing.TB, name, value string) {
	t.Helper()
	// The kernel shows each thread the parameters of its own namespace.
	err := n.Do(func() error { return os.WriteFile("/proc/sys/"+name, []byte(value), 0o600) })
	if err != nil {
		t.Fatalf("set %s of %s: %v", name, n.Name, err)
	}
}

// Etc writes or replaces a file that programs in the namespace read as /etc/NAME, such as "resolv.conf". It applies to
// programs started afterwards.
func (n *Namespace) Etc(t testing.TB, name, text string) {
	t.Helper()
	folder := filepath.Join(ownFiles, n.Name)
	kit.Must(t, os.MkdirAll(folder, 0o755))
	kit.Must(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644))
}

// Dig runs dig in the namespace, without retries, and returns its output.
func (n *Namespace) Dig(t testing.TB, args ...string) string {
	t.Helper()
	out, err := n.Try("dig", append([]string{"+tries=1", "+time=3"}, args...)...)
	if err != nil {
		t.Error(err)
	}
	return out
}
