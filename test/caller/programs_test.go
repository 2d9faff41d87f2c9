//go:build linux

package caller

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
)

const (
	// clusterHost is the address of cluster DNS, and otherHost that of other servers.
	clusterHost = "127.0.0.2"
	otherHost   = "127.0.0.3"
	// clusterVariable is the environment variable in which the kubelet sets the address of cluster DNS.
	clusterVariable = "KUBE_DNS_SERVICE_HOST"
	// maxWait bounds waiting for events that are due at once, on a busy machine.
	maxWait = 30 * time.Second
)

// TestMain sets the environment of the programs.
func TestMain(m *testing.M) {
	if err := errors.Join(os.Setenv(clusterVariable, clusterHost), os.Setenv("NODE_NAME", ""), os.Setenv("NODE_ZONE", "")); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// start starts nodecache with a Corefile, in which PORT is the port of the returned address, and waits until it answers.
// Server blocks that nodecache adds have the same port.
func start(t *testing.T, corefile string, args ...string) (p *daemon.Process, address string) {
	t.Helper()
	port := strconv.Itoa(daemon.FreePort(t))
	own := "alive.invalid:PORT {\n    whoami\n}\n" // which Start waits for
	p = daemon.Start(t, daemon.Program(t, "nodecache"), own+strings.ReplaceAll(corefile, "PORT", port), append(args, "-dns.port", port)...)
	address = net.JoinHostPort("127.0.0.1", port)
	kit.Eventually(t, "the blocks answer", func() bool {
		_, err := exchange("tcp", address, new(dns.Msg).SetQuestion("alive.invalid.", dns.TypeA))
		return err == nil
	})
	return p, address
}

// startCoreDNS starts real CoreDNS with a Corefile, until the end of the test, and waits until it answers at an address.
func startCoreDNS(t *testing.T, address, corefile string) {
	t.Helper()
	path := kit.File(t, "Corefile", corefile)
	kit.Start(t, exec.Command(controlplane.RequireBinary(t, "coredns"), "-conf", path))
	kit.Eventually(t, "CoreDNS answers", func() bool {
		_, err := exchange("tcp", address, new(dns.Msg).SetQuestion("alive.invalid.", dns.TypeA))
		return err == nil
	})
}

// exchange sends a query and returns the reply.
func exchange(network, address string, m *dns.Msg) (*dns.Msg, error) {
	c := dns.Client{Net: network, Timeout: maxWait / 2, UDPSize: dns.MaxMsgSize}
	reply, _, err := c.Exchange(m, address)
	return reply, err
}
