package nodelocaldns

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/coredns/coredns/plugin/pkg/parse"
	"github.com/coredns/coredns/plugin/pkg/transport"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/cmd/internal/resolvconf"
)

// The keys of the ConfigMap.
const (
	stubDomains         = "stubDomains"
	upstreamNameservers = "upstreamNameservers"
)

const (
	maxUpstreams   = 3  // as in node-local-dns and resolv.conf(5)
	maxStubServers = 15 // as in the forward plugin
)

// kubeDNS is the kube-dns ConfigMap. Each key is a file of the directory that the kubelet mounts, which may be missing or
// empty. The key federations is ignored: Kubernetes has none since 1.21.
type kubeDNS struct {
	stubDomains map[string][]string // the nameservers of zones
	upstreams   []string            // they replace the node's resolv.conf
}

// readKubeDNS reads the directory of the ConfigMap. It has the rules of kube-dns and of node-local-dns, and accepts
// dns:// and tls:// before an address besides, which the forward plugin does.
func readKubeDNS(directory string) (c kubeDNS, err error) {
	info, err := os.Stat(directory)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is not a directory", directory)
	}
	if err != nil {
		return c, err
	}
	for _, key := range []struct {
		name  string
		parse func([]byte) error
	}{
		{stubDomains, c.parseStubDomains},
		{upstreamNameservers, c.parseUpstreams},
	} {
		path := filepath.Join(directory, key.name)
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return kubeDNS{}, err // it has the path
		}
		if len(strings.TrimSpace(string(text))) == 0 {
			continue
		}
		if err := key.parse(text); err != nil {
			return kubeDNS{}, fmt.Errorf("%s: %w", path, err)
		}
	}
	return c, nil
}

// parseStubDomains reads an object of lists, such as {"corp.example": ["10.1.2.3"]}.
func (c *kubeDNS) parseStubDomains(text []byte) error {
	var domains map[string][]string
	if err := parseJSON(text, &domains, `{"corp.example": ["10.1.2.3"]}`); err != nil {
		return err
	}
	for domain, servers := range domains {
		if !isSubdomain(domain) {
			return fmt.Errorf("%q is not a domain name of lower-case letters, digits, - and .", domain)
		}
		if len(servers) == 0 || len(servers) > maxStubServers {
			return fmt.Errorf("%s has %d nameservers, want 1 to %d", domain, len(servers), maxStubServers)
		}
		for _, s := range servers {
			if err := checkServer(s); err != nil {
				return fmt.Errorf("%s: %w", domain, err)
			}
		}
	}
	c.stubDomains = domains
	return nil
}

// parseUpstreams reads a list, such as ["10.1.2.3", "10.1.2.4:5353"].
func (c *kubeDNS) parseUpstreams(text []byte) error {
	var servers []string
	if err := parseJSON(text, &servers, `["10.1.2.3", "10.1.2.4"]`); err != nil {
		return err
	}
	if len(servers) > maxUpstreams {
		return fmt.Errorf("%d nameservers, want at most %d", len(servers), maxUpstreams)
	}
	for _, s := range servers {
		if err := checkServer(s); err != nil {
			return err
		}
	}
	c.upstreams = servers
	return nil
}

// parseJSON returns an error with the expected form and the position.
func parseJSON(text []byte, into any, example string) error {
	err := json.Unmarshal(text, into)
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &kind):
		return fmt.Errorf("want JSON such as %s, got type %s before byte %d", example, kind.Value, kind.Offset)
	case errors.As(err, &syntax) && syntax.Offset >= int64(len(text)):
		return fmt.Errorf("want JSON such as %s, the end is missing", example)
	case errors.As(err, &syntax):
		return fmt.Errorf("want JSON such as %s, unexpected byte %d", example, syntax.Offset)
	}
	return err
}

// checkKubeDNS returns an error if a server of the ConfigMap is this node's own: its queries would come back, which ends
// the process if the Corefile has the loop plugin. Another port may be that of another process.
func (v values) checkKubeDNS() error {
	for _, server := range v.kubeDNS.upstreams {
		if v.isItself(server) {
			return fmt.Errorf("upstreamNameservers: %s would come back to this node", server)
		}
	}
	for _, domain := range slices.Sorted(maps.Keys(v.kubeDNS.stubDomains)) {
		for _, server := range v.kubeDNS.stubDomains[domain] {
			if v.isItself(server) {
				return fmt.Errorf("stubDomains: %s of %s would come back to this node", server, domain)
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

// isSubdomain reports whether a name has the form of RFC 1123, as Kubernetes checks it, and the length of a domain name.
func isSubdomain(name string) bool {
	for label := range strings.SplitSeq(name, ".") {
		bad := func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' }
		if label == "" || strings.ContainsFunc(label, bad) || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
	}
	_, ok := dns.IsDomainName(name)
	return ok
}

// checkServer checks an IP address with or without a port.
func checkServer(server string) error {
	scheme, host := parse.Transport(server)
	if scheme != transport.DNS && scheme != transport.TLS {
		return fmt.Errorf("%q: the transport is not dns:// or tls://", server)
	}
	if ip, port, err := net.SplitHostPort(host); err == nil {
		host = ip
		if err := checkPort(port); err != nil {
			return fmt.Errorf("%q: %w", server, err)
		}
	}
	if ip, err := netip.ParseAddr(host); err != nil || ip.Zone() != "" {
		return fmt.Errorf("%q is not an IP address with or without a port", server)
	}
	return nil
}
