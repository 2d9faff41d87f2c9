package test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
)

// zoneOfChart is a server block of the chart of Labyrinth Labs (k8s-nodelocaldns-helm) with default values.
const zoneOfChart = `ZONE {
  errors
  cache 30 {
  }
  reload
  log . combined {
    class all
  }
  loop
  bind 169.254.20.11
  forward . __PILLAR__UPSTREAM__SERVERS__ {
  }
  prometheus :9253
  health 169.254.20.11:8080
}
`

// TestNodecacheChart starts nodecache as node-local-dns in the chart of Labyrinth Labs, with its arguments:
// -syncinterval is 1ns there, which is a second in node-local-dns. Older versions of the chart also set -setupebtables.
func TestNodecacheChart(t *testing.T) {
	path := inNamespace(t, "10.99.0.1/32")
	if path == "" {
		return
	}
	resolver(t, "10.99.0.1", "udp", "tcp")
	etc := t.TempDir()
	kit.Must(t, os.Mkdir(filepath.Join(etc, "coredns"), 0o700))
	var zones strings.Builder
	for _, zone := range []string{".:53", "in-addr.arpa:53", "ip6.arpa:53"} {
		zones.WriteString(strings.Replace(zoneOfChart, "ZONE", zone, 1))
	}
	kit.Write(t, filepath.Join(etc, "coredns", "Corefile.base"), zones.String())
	kit.Write(t, filepath.Join(etc, "resolv.conf"), "nameserver 10.99.0.1\n")
	mount(t, etc, "/etc")
	t.Setenv("KUBE_DNS_SERVICE_HOST", "10.96.0.10")
	args := []string{"-localip", "169.254.20.11", "-skipteardown=true", "-setupinterface=true", "-setupiptables=false", "-health-port", "8080",
		"-upstreamsvc", "kube-dns", "-conf", "/etc/Corefile", "-syncinterval", "1ns", "-interfacename", "nodelocaldns", "-metrics-listen-address", "0.0.0.0:9353"}
	for _, more := range [][]string{nil, {"-setupebtables"}} {
		p := daemon.Launch(t, path, "", append(args, more...)...)
		kit.Eventually(t, "an answer", func() bool { return textOf("169.254.20.11:53", "a.example.") == "10.99.0.1/tcp" })
		kit.Eventually(t, "the line about -setupebtables, if it is set", func() bool {
			return lines(p, "-setupebtables ignored: nodecache makes no ebtables rules") == len(more)
		})
		p.Signal(t, syscall.SIGTERM)
		if code, err := p.Wait(20 * time.Second); code != 0 || err != nil {
			t.Errorf("exit code %d, error %v", code, err)
		}
	}
}
