package dropin

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"

	clog "github.com/coredns/coredns/plugin/pkg/log"
	"github.com/coredns/coredns/plugin/pkg/parse"
	"github.com/coredns/coredns/plugin/pkg/transport"

	"github.com/nearside-dns/nearside/cmd/internal/kubednsconfig"
	"github.com/nearside-dns/nearside/cmd/internal/resolvconf"
)

// configMap reads the ConfigMap of kube-dns. Without -kubednscm it may be missing, unless its last content is in use.
func (n *Node) configMap() (kubednsconfig.Config, error) {
	directory := n.kubeDNSDirectory()
	if n.options.kubeDNS == "" && len(n.kubeDNS.StubDomains)+len(n.kubeDNS.Upstreams) == 0 {
		if _, err := os.Stat(directory); errors.Is(err, os.ErrNotExist) {
			return kubednsconfig.Config{}, nil
		}
	}
	return kubednsconfig.Read(directory)
}

func (n *Node) kubeDNSDirectory() string { return cmp.Or(n.options.kubeDNS, n.kubeDNSPath) }

// reportConfigMap logs and counts once why the ConfigMap is not used.
func (n *Node) reportConfigMap(reason error) {
	if reason == nil {
		n.kubeDNSReason = ""
		return
	}
	if text := reason.Error(); text != n.kubeDNSReason {
		n.kubeDNSReason = text
		n.setupError("configmap")
		clog.Errorf("ConfigMap of kube-dns not used, its last valid content stays in use: %s", text)
	}
}

// checkKubeDNS returns an error if a server of the ConfigMap has a loopback address or one of this process: queries would
// loop back, which ends the process if the Corefile has the loop plugin. On another port it may be another process.
func (v values) checkKubeDNS() error {
	for _, server := range v.kubeDNS.Upstreams {
		if v.isItself(server) {
			return fmt.Errorf("upstreamNameservers: %s would loop back to this node", server)
		}
	}
	for _, domain := range slices.Sorted(maps.Keys(v.kubeDNS.StubDomains)) {
		for _, server := range v.kubeDNS.StubDomains[domain] {
			if v.isItself(server) {
				return fmt.Errorf("stubDomains: %s of %s would loop back to this node", server, domain)
			}
		}
	}
	return nil
}

func (v values) isItself(server string) bool {
	scheme, host := parse.Transport(server)
	port := transport.Port
	if scheme == transport.TLS {
		port = transport.TLSPort
	}
	if h, p, err := net.SplitHostPort(host); err == nil {
		host, port = h, p
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && (resolvconf.IsLocal(host) || slices.Contains(v.own, ip.Unmap())) && (port == v.port || port == transport.Port)
}
