package test

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin/metrics"
	clog "github.com/coredns/coredns/plugin/pkg/log"
	"github.com/coredns/coredns/plugin/pkg/nearside"
)

// Instance replaces caddy.Instance in the tests.
type Instance = nearside.Instance

// CoreDNSServer starts the program with a Corefile.
func CoreDNSServer(corefile string) (*Instance, error) {
	i, err := nearside.Start(corefile)
	if err == nil && i.Metrics != "" {
		metrics.ListenAddr = i.Metrics
	}
	return i, err
}

// CoreDNSServerStop stops it.
func CoreDNSServerStop(i *Instance) { i.Stop() }

// CoreDNSServerPorts returns the addresses of the k-th listener.
func CoreDNSServerPorts(i *Instance, k int) (udp, tcp string) {
	servers := i.Servers()
	if len(servers) < k+1 {
		return "", ""
	}
	if u := servers[k].LocalAddr(); u != nil {
		udp = u.String()
	}
	if t := servers[k].Addr(); t != nil {
		tcp = t.String()
	}
	return udp, tcp
}

// CoreDNSServerAndPorts combines CoreDNSServer and CoreDNSServerPorts.
func CoreDNSServerAndPorts(corefile string) (i *Instance, udp, tcp string, err error) {
	i, err = CoreDNSServer(corefile)
	if err != nil {
		return nil, "", "", err
	}
	udp, tcp = CoreDNSServerPorts(i, 0)
	return i, udp, tcp, nil
}

// Input is a Corefile.
type Input struct{ corefile []byte }

// NewInput returns a Corefile.
func NewInput(corefile string) *Input { return &Input{[]byte(corefile)} }

// Body returns its text.
func (i *Input) Body() []byte { return i.corefile }

// startExample starts the program with an example of a README. It replaces caddy.Start.
func startExample(example *Input) (*Instance, error) {
	text := string(example.Body())
	nearside.Stanza(nearside.Numbered("example"), text, text, nil, "-dns.port", dnsserver.Port)
	return nil, nil
}

// versionLine returns the beginning of the line that the program prints at its start.
func versionLine() string { return nearside.Version() }

// hook receives the started program.
var hook func(caddy.EventName, any) error

// registerEventHook replaces caddy.RegisterEventHook.
func registerEventHook(_ string, f func(caddy.EventName, any) error) { hook = f }

// runProgram replaces coremain.Run. It becomes the program, or, if the test reloads and stops the server, relays its output.
func runProgram() {
	if hook != nil {
		relay()
		return
	}
	if err := nearside.Exec(os.Args[1:]); err != nil {
		panic(err)
	}
}

// relay runs the program with the Corefile of the standard input, and returns after the hook has stopped it. After SIGINT it
// ends the process with the exit code of the program.
func relay() {
	corefile, err := io.ReadAll(os.Stdin)
	if err != nil {
		panic(err)
	}
	args := slices.DeleteFunc(os.Args[1:], func(arg string) bool { return arg == "-conf=stdin" })
	if slices.Contains(args, "-log-format=json") { // the test logs an error by itself
		if err := clog.Configure("json", os.Stdout); err != nil {
			panic(err)
		}
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt)
	nearside.Copy = true
	i, err := nearside.Start(string(corefile), args...)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	go func() {
		<-interrupted
		if err := i.Interrupt(); err != nil {
			panic(err)
		}
		i.Wait()
		os.Exit(i.ExitCode())
	}()
	if err := hook(caddy.InstanceStartupEvent, i); err != nil {
		panic(err)
	}
	i.Wait()
}
