// Package kubednsconfig reads the ConfigMap of kube-dns, with the rules of kube-dns and of node-local-dns. Input: the
// directory where the kubelet mounts it; output: stub domains and upstream nameservers. It imports nothing of nodecache
// but the check of a port.
package kubednsconfig

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/coredns/coredns/plugin/pkg/parse"
	"github.com/coredns/coredns/plugin/pkg/transport"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/cmd/internal/flagvalue"
)

// The keys of the ConfigMap, each a file of the directory. The key federations is ignored: Kubernetes has none since 1.21.
const (
	StubDomains         = "stubDomains"
	UpstreamNameservers = "upstreamNameservers"
)

const (
	maxUpstreams   = 3  // as in node-local-dns and resolv.conf(5)
	maxStubServers = 15 // as in the forward plugin
)

// Config is the content of the ConfigMap. A missing or empty key is an empty field. Servers are IP addresses, with or
// without a port; they may begin with dns:// or tls://, which the forward plugin accepts and node-local-dns does not.
type Config struct {
	StubDomains map[string][]string // the nameservers of zones
	Upstreams   []string            // they replace the node's resolv.conf
}

// Read reads the directory of the ConfigMap.
func Read(directory string) (c Config, err error) {
	info, err := os.Stat(directory)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is not a directory", directory)
	}
	if err != nil {
		return c, err
	}
	if err = c.readKey(directory, StubDomains); err == nil {
		err = c.readKey(directory, UpstreamNameservers)
	}
	if err != nil {
		return Config{}, err
	}
	return c, nil
}

func (c *Config) readKey(directory, key string) error {
	path := filepath.Join(directory, key)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(strings.TrimSpace(string(text))) == 0 {
		return nil
	}
	if err != nil {
		return err // it has the path
	}
	if err := c.parse(key, text); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func (c *Config) parse(key string, text []byte) error {
	if key == StubDomains {
		if err := json.Unmarshal(text, &c.StubDomains); err != nil {
			return fmt.Errorf(`want JSON such as {"corp.example": ["10.1.2.3"]}: %w`, withOffset(err))
		}
		return checkStubDomains(c.StubDomains)
	}
	if err := json.Unmarshal(text, &c.Upstreams); err != nil {
		return fmt.Errorf(`want JSON such as ["10.1.2.3", "10.1.2.4:5353"]: %w`, withOffset(err))
	}
	if len(c.Upstreams) > maxUpstreams {
		return fmt.Errorf("%d nameservers, want at most %d", len(c.Upstreams), maxUpstreams)
	}
	return checkServers(c.Upstreams)
}

// withOffset adds the place of an error of encoding/json, in bytes.
func withOffset(err error) error {
	var syntax *json.SyntaxError
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("byte %d: %w", syntax.Offset, err)
	case errors.As(err, &wrong):
		return fmt.Errorf("byte %d: %w", wrong.Offset, err)
	}
	return err
}

func checkStubDomains(domains map[string][]string) error {
	for domain, servers := range domains {
		if !IsSubdomain(domain) {
			return fmt.Errorf("%q is not a domain name of lower-case letters, digits, - and .", domain)
		}
		if len(servers) == 0 || len(servers) > maxStubServers {
			return fmt.Errorf("%s has %d nameservers, want 1 to %d", domain, len(servers), maxStubServers)
		}
		if err := checkServers(servers); err != nil {
			return fmt.Errorf("%s: %w", domain, err)
		}
	}
	return nil
}

// IsSubdomain reports whether a name has the form of RFC 1123, as Kubernetes checks it, and the length of a domain name.
func IsSubdomain(name string) bool {
	for label := range strings.SplitSeq(name, ".") {
		bad := func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' }
		if label == "" || strings.ContainsFunc(label, bad) || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
	}
	_, ok := dns.IsDomainName(name)
	return ok
}

func checkServers(servers []string) error {
	for _, server := range servers {
		scheme, host := parse.Transport(server)
		if scheme != transport.DNS && scheme != transport.TLS {
			return fmt.Errorf("%q: the transport is not dns:// or tls://", server)
		}
		if ip, port, err := net.SplitHostPort(host); err == nil {
			host = ip
			if err := flagvalue.CheckPort(port); err != nil {
				return fmt.Errorf("%q: %w", server, err)
			}
		}
		if ip, err := netip.ParseAddr(host); err != nil || ip.Zone() != "" {
			return fmt.Errorf("%q is not an IP address with or without a port", server)
		}
	}
	return nil
}
