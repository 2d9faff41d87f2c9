package test

import (
	"fmt"
	"os"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin/metrics"
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
	nearside.Stanza(nearside.Numbered("example"), text, text, true, "-dns.port", dnsserver.Port)
	return nil, nil
}

// runProgram replaces coremain.Run.
func runProgram() {
	if os.Getenv("COREDNS_TEST_LOG_SERVE") == "true" {
		fmt.Fprintln(os.Stderr, "unsupported: the server is stopped and reloaded in the process of the test")
		os.Exit(1)
	}
	if err := nearside.Exec(os.Args[1:]); err != nil {
		panic(err)
	}
}
