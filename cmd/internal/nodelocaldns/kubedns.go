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
)

// The keys of the ConfigMap that are read.
const (
	stubDomains         = "stubDomains"
	upstreamNameservers = "upstreamNameservers"
)

const (
	mostUpstreams   = 3  // node-local-dns, and resolv.conf(5)
	mostStubServers = 15 // the forward plugin
)

// kubeDNS is what the kube-dns ConfigMap says. Each key of it is a file of the directory that the
// kubelet mounts; one that is missing or empty says nothing. "federations" is not read: Kubernetes has
// none since 1.21.
type kubeDNS struct {
	// stubDomains are the zones with nameservers of their own.
	stubDomains map[string][]string
	// upstreams take the place of the node's resolv.conf.
	upstreams []string
}

// readKubeDNS reads the directory of the ConfigMap. Its rules are those of kube-dns and of
// node-local-dns together, with one difference: dns:// and tls:// before an address, which the forward
// plugin understands, are taken.
func readKubeDNS(directory string) (kubeDNS, error) {
	var c kubeDNS
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
			return kubeDNS{}, err // has the path
		}
		if err := key.parse(text); err != nil {
			return kubeDNS{}, fmt.Errorf("%s: %w", path, err)
		}
	}
	return c, nil
}

// parseStubDomains reads an object of lists, such as {"corp.example": ["10.1.2.3"]}.
func (c *kubeDNS) parseStubDomains(text []byte) error {
	if strings.TrimSpace(string(text)) == "" {
		return nil
	}
	var domains map[string][]string
	if err := parseJSON(text, &domains, `{"corp.example": ["10.1.2.3"]}`); err != nil {
		return err
	}
	for domain, servers := range domains {
		if !isSubdomain(domain) {
			return fmt.Errorf("%q is not a domain name of lower-case letters, digits, - and .", domain)
		}
		if len(servers) == 0 || len(servers) > mostStubServers {
			return fmt.Errorf("%s has %d nameservers, want 1 to %d", domain, len(servers), mostStubServers)
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
	if strings.TrimSpace(string(text)) == "" {
		return nil
	}
	var servers []string
	if err := parseJSON(text, &servers, `["10.1.2.3", "10.1.2.4"]`); err != nil {
		return err
	}
	if len(servers) > mostUpstreams {
		return fmt.Errorf("%d nameservers, at most %d are possible", len(servers), mostUpstreams)
	}
	for _, s := range servers {
		if err := checkServer(s); err != nil {
			return err
		}
	}
	c.upstreams = servers
	return nil
}

// parseJSON says what is wanted and where something else is.
func parseJSON(text []byte, into any, example string) error {
	err := json.Unmarshal(text, into)
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &kind):
		return fmt.Errorf("want JSON such as %s, and before byte %d is something else, of type %s", example, kind.Offset, kind.Value)
	case errors.As(err, &syntax) && syntax.Offset >= int64(len(text)):
		return fmt.Errorf("want JSON such as %s, and the end is missing", example)
	case errors.As(err, &syntax):
		return fmt.Errorf("want JSON such as %s, and byte %d does not belong there", example, syntax.Offset)
	}
	return err
}

// checkKubeDNS returns an error if a server of the ConfigMap is this node's own: its queries would come
// back, which the loop plugin ends the process for. Another port is somebody else's.
func (v values) checkKubeDNS() error {
	for _, server := range v.kubeDNS.upstreams {
		if v.comesBack(server) {
			return fmt.Errorf("upstreamNameservers: %s would come back to this node", server)
		}
	}
	for _, domain := range slices.Sorted(maps.Keys(v.kubeDNS.stubDomains)) {
		for _, server := range v.kubeDNS.stubDomains[domain] {
			if v.comesBack(server) {
				return fmt.Errorf("stubDomains: %s of %s would come back to this node", server, domain)
			}
		}
	}
	return nil
}

func (v values) comesBack(server string) bool {
	scheme, host := parse.Transport(server)
	number := transport.Port
	if scheme == transport.TLS {
		number = transport.TLSPort
	}
	if h, n, err := net.SplitHostPort(host); err == nil {
		host, number = h, n
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && (isLocal(host) || slices.Contains(v.own, ip.Unmap())) && (number == v.port || number == transport.Port)
}

// isSubdomain is the rule of Kubernetes for names (RFC 1123), and that of DNS for their length.
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

// checkServer checks an IP address, with or without a port.
func checkServer(server string) error {
	scheme, host := parse.Transport(server)
	if scheme != transport.DNS && scheme != transport.TLS {
		return fmt.Errorf("%q: the transport is not dns:// or tls://", server)
	}
	if ip, number, err := net.SplitHostPort(host); err == nil {
		host = ip
		if err := new(port).Set(number); err != nil {
			return fmt.Errorf("%q: %w", server, err)
		}
	}
	if ip, err := netip.ParseAddr(host); err != nil || ip.Zone() != "" {
		return fmt.Errorf("%q is not an IP address with or without a port", server)
	}
	return nil
}
