// Package nearside runs the programs of nearside for CoreDNS's own tests. It is compiled in a temporary copy of CoreDNS's module,
// see test/upstream of nearside. Input is a Corefile; output is a running program with the methods of a caddy.Instance that
// the tests call.
package nearside

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/coredns/caddy/caddyfile"
)

// The runner sets these environment variables.
const (
	folderVariable  = "NEARSIDE_UPSTREAM_PROGRAMS" // folder with clusterdns, nodecache and coredns
	programVariable = "NEARSIDE_UPSTREAM_PROGRAM"  // program that serves the Corefiles that it has all directives of
	eventsVariable  = "NEARSIDE_UPSTREAM_EVENTS"   // file for the events
)

// Control is the name of CoreDNS's own program.
const Control = "coredns"

// Copy also writes the output of the programs to that of the process.
var Copy bool

// timeout bounds the start, a reload and the end of a program.
const timeout = 30 * time.Second

// Instance is a running program.
type Instance struct {
	Program string
	// Metrics is the address of prometheus in the Corefile, if that has port 0.
	Metrics string

	folder    string
	ports     map[string]int // by group, for port 0
	listeners []listener
	cmd       *exec.Cmd
	output    output
	ended     chan struct{}
	stop      sync.Once
}

type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// Start starts the program that suits a Corefile, for the queries of a test, and returns when it serves, as caddy.Start does. It is
// a use of the program even if that refuses the Corefile.
func Start(corefile string, args ...string) (*Instance, error) {
	program := suitable(corefile)
	use(program)
	record(Event{Kind: "Corefile", Program: program})
	return StartProgram(program, corefile, args...)
}

// StartProgram starts a program with a Corefile. Port 0 is replaced by a free port, the same one for all server blocks of a
// protocol: CoreDNS opens one listener for an address.
func StartProgram(program, corefile string, args ...string) (*Instance, error) {
	folder, err := os.MkdirTemp("", "nearside-upstream-")
	if err != nil {
		return nil, err
	}
	i := &Instance{Program: program, folder: folder, ports: map[string]int{}, ended: make(chan struct{})}
	if err := i.write(corefile); err != nil {
		return nil, err
	}
	args = append(args, "-conf", i.corefile())
	if program != Control {
		args = append(args, "-metrics-listen-address=")
	}
	i.cmd = exec.Command(filepath.Join(os.Getenv(folderVariable), program), args...)
	i.cmd.Stdout, i.cmd.Stderr = &i.output, &i.output
	if Copy {
		i.cmd.Stdout, i.cmd.Stderr = io.MultiWriter(&i.output, os.Stdout), io.MultiWriter(&i.output, os.Stderr)
	}
	i.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := startForever(i.cmd); err != nil {
		return nil, err
	}
	go func() {
		_ = i.cmd.Wait()
		close(i.ended)
	}()
	if err := i.serves(args); err != nil {
		i.Stop()
		return nil, err
	}
	return i, nil
}

// serves waits until the program serves.
func (i *Instance) serves(args []string) error {
	if !slices.Contains(args, "-quiet") {
		return i.await(0, versionLine, nil)
	}
	if i.Servers(); !i.running() {
		return errors.New(lastLine(i.Output()))
	}
	return nil
}

// startForever starts a process on a thread that never ends: Pdeathsig is the end of the thread.
func startForever(cmd *exec.Cmd) error {
	done := make(chan error)
	starters <- func() { done <- cmd.Start() }
	return <-done
}

var starters = func() chan func() {
	work := make(chan func())
	go func() {
		lockThread()
		for f := range work {
			f()
		}
	}()
	return work
}()

// versionLine is the line that the programs print once they serve.
var versionLine = regexp.MustCompile(`(?m)^(\[INFO\] |.*"msg":")?(CoreDNS|clusterdns|nodecache)-`)

// Version returns the beginning of this line.
func Version() string {
	if program := os.Getenv(programVariable); program != Control {
		return program + "-"
	}
	return "CoreDNS-"
}

// await waits for a line of the output after a position. The error is a line that refused matches, or the last lines at the
// end of the program.
func (i *Instance) await(from int, line, refused *regexp.Regexp) error {
	for end := time.Now().Add(timeout); ; time.Sleep(2 * time.Millisecond) {
		over := false
		select {
		case <-i.ended:
			over = true
		default:
		}
		text := i.output.String()[from:]
		if refused != nil && refused.MatchString(text) {
			return errors.New(lastLine(refused.FindString(text)))
		}
		switch {
		case line.MatchString(text):
			return nil
		case over:
			return errors.New(lastLine(text))
		case time.Now().After(end):
			return fmt.Errorf("%s: no %q in %s", i.Program, line, timeout)
		}
	}
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

// Input is a Corefile, such as Input of CoreDNS's tests.
type Input interface{ Body() []byte }

var (
	reloaded    = regexp.MustCompile(`Reloading complete`)
	notReloaded = regexp.MustCompile(`(?m)^.*(Not reloaded|\[ERROR\] SIGUSR1|"level":"ERROR".*SIGUSR1).*$`)
)

// Restart replaces the Corefile and reloads it. As caddy's, it returns the running instance with an error.
func (i *Instance) Restart(in Input) (*Instance, error) {
	from := len(i.output.String())
	if err := i.write(string(in.Body())); err != nil {
		return i, err
	}
	if err := i.cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		return i, err
	}
	return i, i.await(from, reloaded, notReloaded)
}

// Stop ends the program.
func (i *Instance) Stop() error {
	if i == nil {
		return nil
	}
	i.stop.Do(func() {
		for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
			_ = i.cmd.Process.Signal(s)
			select {
			case <-i.ended:
				_ = os.RemoveAll(i.folder)
				return
			case <-time.After(timeout / 3):
			}
		}
	})
	return nil
}

// ShutdownCallbacks does nothing: Stop runs them in the program.
func (i *Instance) ShutdownCallbacks() []error { return nil }

// Wait waits for the end of the program.
func (i *Instance) Wait() { <-i.ended }

// Interrupt sends SIGINT to the program.
func (i *Instance) Interrupt() error { return i.cmd.Process.Signal(os.Interrupt) }

// ExitCode returns the code with which the program ended.
func (i *Instance) ExitCode() int { return i.cmd.ProcessState.ExitCode() }

// Output returns the program's output.
func (i *Instance) Output() string { return i.output.String() }

func (i *Instance) corefile() string { return filepath.Join(i.folder, "Corefile") }

// write writes the Corefile as a whole: nodecache reads it by itself after a change.
func (i *Instance) write(corefile string) error {
	text := i.withPorts(corefile)
	i.listeners = listenersOf(text)
	if err := os.WriteFile(i.corefile()+".new", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(i.corefile()+".new", i.corefile())
}

var portZero = regexp.MustCompile(`([^\s,]*):0([\s,{]|$)`)

// withPorts replaces port 0. Server blocks of one protocol share a port, and so do all lines of one directive.
func (i *Instance) withPorts(corefile string) string {
	lines := strings.SplitAfter(corefile, "\n")
	for n, line := range lines {
		lines[n] = portZero.ReplaceAllStringFunc(line, func(found string) string {
			parts := portZero.FindStringSubmatch(found)
			group, _, ok := strings.Cut(parts[1], "://")
			if !ok {
				group = "dns"
			}
			first := strings.Fields(line)[0]
			if slices.Contains([]string{"prometheus", "health", "ready", "pprof"}, first) {
				group = first
			}
			address := parts[1] + ":" + strconv.Itoa(i.port(group))
			if first == "prometheus" {
				i.Metrics = address
			}
			return address + parts[2]
		})
	}
	return strings.Join(lines, "")
}

func (i *Instance) port(group string) int {
	if i.ports[group] == 0 {
		i.ports[group] = freePort()
	}
	return i.ports[group]
}

// freePort returns a port that is free for TCP and UDP, below the ephemeral ports.
func freePort() int {
	for {
		port := 12000 + rand.IntN(18000)
		address := ":" + strconv.Itoa(port)
		l, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		p, err := net.ListenPacket("udp", address)
		_ = l.Close()
		if err != nil {
			continue
		}
		_ = p.Close()
		return port
	}
}

var directives = sync.OnceValue(func() []string {
	out, err := exec.Command(filepath.Join(os.Getenv(folderVariable), os.Getenv(programVariable)), "-plugins").Output()
	if err != nil {
		panic(err)
	}
	return strings.Fields(string(out))
})

// suitable returns the program of the run if it has all directives of a Corefile, else clusterdns.
func suitable(corefile string) string {
	program := os.Getenv(programVariable)
	if program == Control {
		return Control
	}
	for _, d := range directivesOf(corefile) {
		if !slices.Contains(directives(), d) {
			return "clusterdns"
		}
	}
	return program
}

// directivesOf returns the directives of a Corefile, none if it cannot be parsed.
func directivesOf(corefile string) (all []string) {
	blocks, err := caddyfile.Parse("Corefile", strings.NewReader(corefile), nil)
	if err != nil {
		return nil
	}
	for _, b := range blocks {
		all = slices.AppendSeq(all, maps.Keys(b.Tokens))
	}
	return all
}

// Exec replaces the process by the program, with its arguments.
func Exec(args []string) error {
	program := os.Getenv(programVariable)
	use(program)
	path := filepath.Join(os.Getenv(folderVariable), program)
	return syscall.Exec(path, append([]string{path}, args...), os.Environ())
}
