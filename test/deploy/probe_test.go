package deploy

import (
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path"
	"strconv"
	"strings"
	"testing"

	"github.com/miekg/dns"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
)

// dnsServer serves both protocols on one port, until it is stopped.
type dnsServer struct {
	at   string
	stop func()
}

// stoppable is upstream, which can be stopped.
func stoppable(t *testing.T, address string) dnsServer {
	t.Helper()
	packets, streams := kit.ListenBoth(t, net.JoinHostPort("127.0.0.1", strconv.Itoa(daemon.FreePort(t))))
	servers := []*dns.Server{{PacketConn: packets, Handler: always(address)}, {Listener: streams, Handler: always(address)}}
	for _, server := range servers {
		kit.Run(t, server)
	}
	return dnsServer{at: packets.LocalAddr().String(), stop: func() {
		for _, server := range servers {
			kit.Must(t, server.Shutdown())
		}
	}}
}

// probed is nodecache as in Cilium's overlay, on loopback, with the command of the kubelet's startup probe.
type probed struct {
	*daemon.Process
	command []string
}

// startProbed starts it with cluster DNS at an address.
func startProbed(t *testing.T, all objects, clusterDNS string) probed {
	t.Helper()
	corefile := find[*corev1.ConfigMap](t, all, "ConfigMap nodecache").Data["Corefile.base"]
	corefile = strings.NewReplacer("__PILLAR__CLUSTER__DNS__", clusterDNS, "__PILLAR__UPSTREAM__SERVERS__", "/etc/resolv.conf").Replace(corefile)
	startup := find[*appsv1.DaemonSet](t, all, "DaemonSet nodecache").Spec.Template.Spec.Containers[0].StartupProbe
	if startup == nil || startup.Exec == nil {
		t.Fatalf("the startup probe is %v, and /ready says nothing about cluster DNS", startup)
	}
	p := daemon.Start(t, daemon.Program(t, "nodecache"), onLoopback(t, corefile, cluster(t).URL(), upstream(t, "192.0.2.80")))
	command := []string{daemon.Program(t, path.Base(startup.Exec.Command[0]))}
	for _, word := range startup.Exec.Command[1:] {
		command = append(command, strings.ReplaceAll(word, "127.0.0.1:53", p.Addr))
	}
	return probed{Process: p, command: command}
}

// probe runs the command, and returns its exit code and its output.
func (p probed) probe(t *testing.T) (int, string) {
	t.Helper()
	out, err := exec.Command(p.command[0], p.command[1:]...).CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if exit != nil {
		return exit.ExitCode(), string(out)
	}
	return 0, string(out)
}

// awaitExit waits until the command ends with a code.
func (p probed) awaitExit(t *testing.T, want int) {
	t.Helper()
	kit.Succeeds(t, deadline, "exit code "+strconv.Itoa(want), func() error {
		if code, output := p.probe(t); code != want {
			return fmt.Errorf("exit code %d: %s", code, output)
		}
		return nil
	})
}

// TestProbeWithoutAddresses runs the startup probe of a nodecache that is a pod.
func TestProbeWithoutAddresses(t *testing.T) {
	for name, all := range map[string]objects{
		"overlay": decoded(t, kustomize(t, deployed+"/overlays/cilium")),
		"chart":   decoded(t, templated(t, "proxyMode: cilium\nclusterDomain: k8s.example.com")),
	} {
		t.Run(name, func(t *testing.T) {
			t.Run("cluster DNS has the Service", func(t *testing.T) {
				behind := stoppable(t, "10.96.0.1")
				p := startProbed(t, all, behind.at)
				p.awaitExit(t, 0)
				behind.stop()
				kit.Succeeds(t, deadline, "the answer has expired", func() error {
					if code, output := p.probe(t); code != 0 {
						return fmt.Errorf("not ready, with the answer in its cache: exit code %d: %s", code, output)
					}
					if !strings.Contains(p.Output(), "serving stale answers") {
						return fmt.Errorf("it says\n%s", p.Output())
					}
					return nil
				})
			})
			t.Run("cluster DNS does not have it", func(t *testing.T) {
				p := startProbed(t, all, upstream(t, "")) // with which no name exists
				p.awaitExit(t, 1)
			})
			t.Run("cluster DNS is down", func(t *testing.T) {
				behind := stoppable(t, "10.96.0.1")
				behind.stop()
				p := startProbed(t, all, behind.at)
				if code, output := p.probe(t); code != 1 {
					t.Errorf("exit code %d: %s", code, output)
				}
			})
		})
	}
}
