package forward

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	scheme "github.com/coredns/coredns/plugin/pkg/parse"
	"github.com/coredns/coredns/plugin/pkg/transport"
	"github.com/miekg/dns"
)

// ports are the default ports of the protocols of an upstream.
var ports = map[string]string{
	transport.DNS:   transport.Port,
	transport.TLS:   transport.TLSPort,
	transport.QUIC:  transport.QUICPort,
	transport.HTTPS: transport.HTTPSPort,
}

const targetForm = "an address such as 192.0.2.53, 192.0.2.53:5353 or tls://192.0.2.53%dns.example.org, a file such as /etc/resolv.conf, or a hostname"

func (s *stanza) parseTargets(to []string) error {
	upstreams := 0
	for _, text := range to {
		t, err := s.parseTarget(text)
		if err != nil {
			return s.at.Errorf("invalid upstream %q: %w: want %s", text, err, targetForm)
		}
		if protocol := t.protocol(); s.coherent && protocol != transport.DNS {
			return s.seen["coherent"].Errorf("invalid coherent: upstream %q uses %s: want upstreams over TCP without TLS", text, protocol)
		}
		empty := false
		if t.file != "" {
			servers, _, err := readServers(t.file)
			if err != nil {
				return s.at.Errorf("invalid upstream %q: %w: want %s", text, err, targetForm)
			}
			empty = len(servers) == 0
		}
		if !empty {
			upstreams++
		}
		s.to = append(s.to, t)
	}
	if upstreams == 0 {
		return s.at.Errorf("no upstream in %s: want at least one", strings.Join(to, ", "))
	}
	if upstreams > maxUpstreams {
		return s.at.Errorf("%d upstreams: want 1-%d", upstreams, maxUpstreams)
	}
	return nil
}

// parseTarget parses one TO. A name without an existing file is a hostname.
func (s *stanza) parseTarget(text string) (target, error) {
	protocol, rest := scheme.Transport(text)
	standard, ok := ports[protocol]
	switch {
	case !ok:
		return target{}, fmt.Errorf("protocol %s is not dns, tls, quic or https", protocol)
	case rest == "":
		return target{}, errors.New("no address")
	case protocol == transport.HTTPS && strings.Contains(rest, "/"):
		return target{}, errors.New("unexpected path: it is always /dns-query")
	}
	host, port, err := net.SplitHostPort(rest)
	path := rest
	if err != nil {
		host, port = strings.Trim(rest, "[]"), standard
		path = host
	}
	name, serverName := host, ""
	if i := strings.LastIndexByte(host, '%'); i >= 0 {
		name, serverName = host[:i], host[i+1:]
	}
	address, err := netip.ParseAddr(name)
	if err == nil {
		return s.addressTarget(text, protocol, address, port, serverName)
	}
	if strings.Contains(rest, "://") {
		return target{}, errors.New("unknown protocol")
	}
	if file, err := isFile(path); err != nil {
		return target{}, err
	} else if file {
		return target{text: text, file: path, endpoint: endpoint{protocol: protocol}}, nil
	}
	return s.hostTarget(text, protocol, name, port, serverName)
}

func (s *stanza) addressTarget(text, protocol string, address netip.Addr, port, serverName string) (target, error) {
	port, err := portNumber(port)
	if err != nil {
		return target{}, err
	}
	if protocol == transport.DNS {
		// Without TLS a % can only separate the interface of a link-local address.
		address = zoned(address, serverName)
	}
	serverName, err = s.serverNameOf(protocol, serverName)
	e := endpoint{protocol: protocol, address: net.JoinHostPort(address.String(), port), serverName: serverName}
	return target{text: text, endpoint: e}, err
}

// hostTarget parses a TO with the name of a host. By default the certificate must be for that name: a lookup of its
// address proves nothing (RFC 8310 section 8.1).
func (s *stanza) hostTarget(text, protocol, name, port, serverName string) (target, error) {
	if strings.Contains(name, "/") {
		return target{}, errors.New("no such file")
	}
	if err := checkHostname(name); err != nil {
		return target{}, err
	}
	port, err := portNumber(port)
	if err != nil {
		return target{}, err
	}
	if serverName, err = s.serverNameOf(protocol, serverName); err != nil {
		return target{}, err
	}
	if protocol != transport.DNS && s.tlsServerName == "" {
		serverName = cmp.Or(serverName, strings.ToLower(strings.TrimSuffix(name, ".")))
	}
	h := hostname{name: dns.Fqdn(name), port: port, endpoint: endpoint{protocol: protocol, serverName: serverName}}
	return target{text: text, host: h}, nil
}

// serverNameOf checks a server name after a %.
func (s *stanza) serverNameOf(protocol, name string) (string, error) {
	if name == "" || protocol == transport.DNS {
		return "", nil
	}
	if s.tlsServerName != "" {
		if protocol == transport.HTTPS {
			return "", nil // as in CoreDNS
		}
		return "", fmt.Errorf("server name both after %% and by tls_servername: %s and %s", name, s.tlsServerName)
	}
	if _, err := netip.ParseAddr(name); err != nil && !onlyHostnameBytes(name) {
		return "", fmt.Errorf("invalid server name %q", name)
	}
	return strings.ToLower(name), nil
}

// zoned returns an address with the zone (RFC 4007 section 11) if it is link-local, and without it otherwise.
func zoned(address netip.Addr, zone string) netip.Addr {
	if address.Is6() && address.IsLinkLocalUnicast() {
		return address.WithZone(zone)
	}
	return address.WithZone("")
}

// checkHostname checks the name of a host. It is stricter than the DNS, in which a mistyped address or list of addresses
// is a valid name.
func checkHostname(name string) error {
	_, ok := dns.IsDomainName(name)
	if !ok || !onlyHostnameBytes(name) || name == "." {
		return errors.New("neither an address nor a file nor a hostname")
	}
	labels := dns.SplitDomainName(name)
	if _, err := strconv.ParseUint(labels[len(labels)-1], 10, 64); err == nil {
		return errors.New("invalid address") // no top-level domain is a number (RFC 3696 section 2)
	}
	return nil
}

// onlyHostnameBytes reports whether a name has only letters, digits, hyphens, dots, and underscores, which are common
// though no part of hostnames.
func onlyHostnameBytes(name string) bool {
	for i := range len(name) {
		b := name[i] | 0x20
		if !(b >= 'a' && b <= 'z' || name[i] >= '0' && name[i] <= '9' || name[i] == '-' || name[i] == '.' || name[i] == '_') {
			return false
		}
	}
	return true
}

// portNumber returns a port in digits, given as a number or the name of a service. Port 0 is valid.
func portNumber(port string) (string, error) {
	n, err := net.LookupPort("tcp", port)
	if err != nil {
		return "", fmt.Errorf("invalid port %q", port)
	}
	return strconv.Itoa(n), nil
}

// isFile reports whether a file exists. A directory, a pipe and a socket are errors.
func isFile(path string) (bool, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil && (errors.Is(err, fs.ErrNotExist) || !strings.Contains(path, "/")):
		return false, nil
	case err != nil:
		return false, err
	case info.IsDir() || info.Mode()&(fs.ModeNamedPipe|fs.ModeSocket) != 0:
		return false, errors.New("not a text file")
	}
	return true, nil
}

// maxServersFile limits the bytes that are read of a file.
const maxServersFile = 1 << 20

// readServers returns the addresses of the nameserver lines of a file in the form of resolv.conf(5), and the servers that
// are not addresses.
func readServers(path string) (servers []netip.Addr, ignored []string, err error) {
	file, err := os.Open(path) // #nosec G304 -- from the Corefile
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = file.Close() }() // the file was only read
	text, err := io.ReadAll(io.LimitReader(file, maxServersFile))
	if err != nil {
		return nil, nil, err
	}
	resolvConf, err := dns.ClientConfigFromReader(strings.NewReader(string(text)))
	if err != nil {
		return nil, nil, err
	}
	for _, server := range resolvConf.Servers {
		address, err := netip.ParseAddr(server)
		if err != nil {
			ignored = append(ignored, server)
			continue
		}
		servers = append(servers, zoned(address, address.Zone()))
	}
	return servers, ignored, nil
}
