package block

import (
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/coredns/coredns/plugin/pkg/transport"

	"github.com/nearside-dns/nearside/internal/inuse"
)

// networks are the networks of each transport.
var networks = map[string][]string{
	transport.DNS:    {"udp", "tcp"},
	transport.TLS:    {"tcp"},
	transport.GRPC:   {"tcp"},
	transport.HTTPS:  {"tcp"},
	transport.QUIC:   {"udp"},
	transport.HTTPS3: {"udp"},
}

// checkPortsFirst registers checkPorts to be called before any plugin of the configuration starts.
func (conf *Configuration) checkPortsFirst() {
	if conf.instance != nil {
		conf.instance.OnStartup = slices.Insert(conf.instance.OnStartup, 0, conf.checkPorts)
	}
}

// checkPorts returns an error if another process listens on an address of the configuration's servers. Addresses of the
// present configuration are not checked, since this process uses them.
func (conf *Configuration) checkPorts() error {
	var own []string
	if present := configurations.present(conf); present != nil {
		own = slices.Collect(maps.Keys(present.servers()))
	}
	for address := range conf.servers() {
		name, endpoint, _ := strings.Cut(address, "://")
		for _, network := range networks[name] {
			if slices.ContainsFunc(own, func(o string) bool { return overlap(network, endpoint, o) }) {
				continue
			}
			if err := inuse.Check(network, endpoint); err != nil {
				return err
			}
		}
	}
	return nil
}

// present returns the configuration that serves while another one starts, nil without one. Refused configurations
// follow it in the list.
func (l *configurationList) present(next *Configuration) *Configuration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.all) == 0 || l.all[0] == next {
		return nil
	}
	return l.all[0]
}

// overlap reports whether a server, given its address with the transport, listens on an endpoint of a network.
func overlap(network, endpoint, address string) bool {
	name, other, _ := strings.Cut(address, "://")
	host, port, _ := net.SplitHostPort(endpoint)
	otherHost, otherPort, _ := net.SplitHostPort(other)
	return slices.Contains(networks[name], network) && port == otherPort && (host == otherHost || isWildcard(host) || isWildcard(otherHost))
}

func isWildcard(host string) bool {
	a, _ := netip.ParseAddr(host)
	return host == "" || a.IsUnspecified()
}
