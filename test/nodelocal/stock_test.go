//go:build linux

package nodelocal

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// stockCorefile is the configuration of Kubernetes' manifest of node-local-dns. The installation replaces the words in
// capitals: CLUSTER_DOMAIN, LOCAL_DNS and HEALTH.
const stockCorefile = `CLUSTER_DOMAIN:53 {
    errors
    cache {
            success 9984 30
            denial 9984 5
    }
    reload
    loop
    bind LOCAL_DNS
    forward . __PILLAR__CLUSTER__DNS__ {
            force_tcp
    }
    prometheus :9253
    health HEALTH
    }
in-addr.arpa:53 {
    errors
    cache 30
    reload
    loop
    bind LOCAL_DNS
    forward . __PILLAR__CLUSTER__DNS__ {
            force_tcp
    }
    prometheus :9253
    }
ip6.arpa:53 {
    errors
    cache 30
    reload
    loop
    bind LOCAL_DNS
    forward . __PILLAR__CLUSTER__DNS__ {
            force_tcp
    }
    prometheus :9253
    }
.:53 {
    errors
    cache 30
    reload
    loop
    bind LOCAL_DNS
    forward . __PILLAR__UPSTREAM__SERVERS__
    prometheus :9253
    }
`

// The upstreams of a stock configuration besides cluster DNS.
const (
	resolver = "10.2.0.53" // server of the node's resolv.conf
	stub     = "10.2.0.54" // server of a stub domain
)

// stock is nodecache with the command line of the manifest of node-local-dns, except for paths.
type stock struct {
	locals  []netip.Addr // value of -localip
	cluster netip.Addr   // cluster IP of the Service kube-dns-upstream
}

// TestStock runs the manifest's configuration with its command line and a real kube-proxy.
func TestStock(t *testing.T) {
	n := newKubernetesNode(t, "iptables")
	n.startResolvers(t)
	before := n.kernelState(t)
	for name, s := range map[string]stock{
		"IPv4": {locals: []netip.Addr{local4, kubeDNS4}, cluster: upstream4},
		"IPv6": {locals: []netip.Addr{local6, kubeDNS6}, cluster: upstream6},
	} {
		t.Run(name, func(t *testing.T) {
			t.Run("serves", func(t *testing.T) { n.testStock(t, s, before) })
			t.Run("overlap", func(t *testing.T) { n.testStockOverlap(t, s, before) })
			t.Run("SIGKILL", func(t *testing.T) { n.testStockKilled(t, s) })
		})
	}
}

// startResolvers starts the servers besides cluster DNS.
func (n *node) startResolvers(t *testing.T) {
	t.Helper()
	n.Node.Etc(t, "resolv.conf", "nameserver "+resolver+"\nsearch example.com\n")
	for who, address := range map[string]string{"resolver": resolver, "stub": stub} {
		n.Upstream.Run(t, "ip", "addr", "add", address+"/24", "dev", "eth0")
		n.Upstream.Start(t, program(t), "-reuseport", "-conf", corefile(t, "bind "+address, answering(who)))
		kit.Succeeds(t, startTimeout, who+" to answer", func() error {
			record, err := n.Node.Ask("tcp", netip.MustParseAddr(address), "up.test.", time.Second)
			if err == nil && record[0] != who {
				return fmt.Errorf("%q answers", record)
			}
			return err
		})
	}
}

// run starts nodecache and waits until it serves.
func (s stock) run(t *testing.T, n *node) *netns.Process {
	t.Helper()
	folder := t.TempDir()
	text := strings.NewReplacer("CLUSTER_DOMAIN", "cluster.local", "LOCAL_DNS", addressList(s.locals),
		"HEALTH", netip.AddrPortFrom(s.locals[0], 8080).String()).Replace(stockCorefile)
	kit.Write(t, filepath.Join(folder, "Corefile.base"), text)
	kit.Write(t, filepath.Join(folder, "kube-dns", "stubDomains"), `{"stub.test": ["`+stub+`"]}`)
	p := n.Node.StartWith(t, []string{"KUBE_DNS_UPSTREAM_SERVICE_HOST=" + s.cluster.String()}, program(t),
		"-localip", strings.ReplaceAll(addressList(s.locals), " ", ","),
		"-conf", filepath.Join(folder, "Corefile"),
		"-upstreamsvc", "kube-dns-upstream",
		"-pidfile", filepath.Join(folder, "node-cache.pid"),
		"-basecorefile", filepath.Join(folder, "Corefile.base"),
		"-kubednscm", filepath.Join(folder, "kube-dns"),
	)
	for _, a := range s.locals {
		s.waitCached(t, n, a)
	}
	return p
}

// waitCached waits until cluster DNS receives a query for this address from the node, so from nodecache, and not from
// the pod.
func (s stock) waitCached(t *testing.T, n *node, address netip.Addr) {
	t.Helper()
	kit.Succeeds(t, startTimeout, fmt.Sprintf("nodecache to ask cluster DNS for a client of %v", address), func() error {
		name := fmt.Sprintf("q%d.cluster.local.", time.Now().UnixNano())
		record, err := n.Pod[0].Ask("udp", address, name, time.Second)
		if err != nil {
			return err
		}
		if own := []string{n.Node.IPv4.String(), n.Node.IPv6.String()}; record[0] != "upstream" || record[1] != own[0] && record[1] != own[1] {
			return fmt.Errorf("got %q", record)
		}
		return nil
	})
}

func (n *node) testStock(t *testing.T, s stock, before string) {
	p := s.run(t, n)
	for _, network := range []string{"udp", "tcp"} {
		for name, want := range map[string]string{
			"web.default.svc.cluster.local.": "upstream", "1.0.96.10.in-addr.arpa.": "upstream",
			"1.0.0.0.9.6.0.0.0.0.d.f.ip6.arpa.": "upstream",
			"www.example.com.":                  "resolver", "a.stub.test.": "stub",
		} {
			for _, a := range s.locals {
				record, err := n.Pod[1].Ask(network, a, name, 5*time.Second)
				if err != nil || record[0] != want {
					t.Errorf("%s over %s from %v: %q, %v, want %s", name, network, a, record, err, want)
				}
			}
		}
	}
	for url, want := range map[string]string{
		"http://" + netip.AddrPortFrom(s.locals[0], 8080).String() + "/health": "OK",
		"http://127.0.0.1:9253/metrics":                                        "coredns_dns_requests_total",
		"http://127.0.0.1:9353/metrics":                                        "coredns_nodecache_setup_errors_total",
	} {
		if got, err := get(n.Node, url); err != nil || !strings.Contains(got, want) {
			t.Errorf("%s: %v, %s", url, err, got)
		}
	}
	if code := p.Stop(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if after := n.kernelState(t); after != before {
		t.Errorf("after the end:\n%s\nbefore:\n%s", after, before)
	}
}

// testStockOverlap replaces nodecache as a DaemonSet with maxSurge does: both instances share all ports.
func (n *node) testStockOverlap(t *testing.T, s stock, before string) {
	first := s.run(t, n)
	second := s.run(t, n)
	kit.Succeeds(t, startTimeout, "the second to serve", func() error {
		if !strings.Contains(second.Output(), "CoreDNS-") {
			return errors.New(second.Output())
		}
		return nil
	})
	first.Stop(t)
	for _, a := range s.locals {
		s.waitCached(t, n, a)
	}
	if len(n.links(t)) != 1 || n.rules() == "" {
		t.Errorf("the leaving one took something along: %v\n%s", n.links(t), n.rules())
	}
	second.Stop(t)
	if after := n.kernelState(t); after != before {
		t.Errorf("after the end:\n%s\nbefore:\n%s", after, before)
	}
}

// testStockKilled asserts that cluster DNS answers on both addresses after nodecache is killed.
func (n *node) testStockKilled(t *testing.T, s stock) {
	p := s.run(t, n)
	p.Kill(t)
	for _, a := range s.locals {
		kit.Succeeds(t, bounded, fmt.Sprintf("cluster DNS to answer on %v", a), func() error {
			record, err := n.Pod[0].Ask("udp", a, "killed.cluster.local.", 500*time.Millisecond)
			if err == nil && record[0] != "upstream" {
				return fmt.Errorf("got %q", record)
			}
			return err
		})
	}
	s.run(t, n).Stop(t)
}

// get returns the page at a URL, requested in a namespace.
func get(from *netns.Namespace, url string) (page string, err error) {
	client := from.Client()
	client.Timeout = bounded
	return kit.Get(client, url)
}
