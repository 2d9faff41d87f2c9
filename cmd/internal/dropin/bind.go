package dropin

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/coredns/caddy/caddyfile"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/parse"
	"github.com/coredns/coredns/plugin/pkg/transport"

	"github.com/nearside-dns/nearside/cmd/internal/daemon"
)

// zonesOn returns the zones of a server block's key if the key is on the port of DNS, over UDP and TCP.
func (v values) zonesOn(key string) []string {
	scheme, rest := parse.Transport(key)
	_, port, err := plugin.SplitHostPort(rest)
	if port == "" {
		port = v.port
	}
	if err != nil || port != v.port || scheme != transport.DNS { // CoreDNS reports an invalid key
		return nil
	}
	return plugin.Host(key).NormalizeExact()
}

// blockOf returns where the block of exactly this zone on the port of DNS begins.
func (v values) blockOf(blocks []caddyfile.ServerBlock, domain, file string) (place string, found bool) {
	zone := plugin.Name(domain).Normalize()
	for _, b := range blocks {
		if slices.ContainsFunc(b.Keys, func(key string) bool { return slices.Contains(v.zonesOn(key), zone) }) {
			place, _ = daemon.FirstDirective(b, file)
			return place, true
		}
	}
	return "", false
}

// listeners are the addresses on which the server blocks on the port of DNS listen.
type listeners struct {
	blocks   int
	unbound  string // a block without bind, which listens on every address
	wildcard string // the unspecified address, if a block is bound to it
	names    []string
	ips      map[netip.Addr]bool
	device   bool // a block is bound to an interface, whose addresses are unknown here
}

func (v values) listeners(blocks []caddyfile.ServerBlock) listeners {
	l := listeners{ips: map[netip.Addr]bool{}}
	for _, b := range blocks {
		if !slices.ContainsFunc(b.Keys, func(key string) bool { return len(v.zonesOn(key)) > 0 }) {
			continue
		}
		l.blocks++
		names := arguments(b, "bind")
		if len(names) == 0 {
			l.unbound = b.Keys[0]
		}
		for _, n := range names {
			if !slices.Contains(l.names, n) {
				l.names = append(l.names, n)
			}
			ip, err := netip.ParseAddr(n)
			if err == nil && ip.IsUnspecified() {
				l.wildcard = n
			}
			l.ips[ip.Unmap()] = true
			l.device = l.device || err != nil
		}
	}
	return l
}

// bind returns the arguments of bind for added blocks, none if no block of the Corefile has bind. An added block must
// listen where the Corefile's blocks do: alone on an address, it would receive all queries to the address, and refuse
// those of pods. So a block of the Corefile must be bound to each address of -localip, or no block to any. A block
// bound to 0.0.0.0 or :: receives queries to every address of both families that has no listener of its own.
func (v values) bind(blocks []caddyfile.ServerBlock, file string) ([]string, error) {
	l := v.listeners(blocks)
	switch {
	case len(v.localIPs) == 0 && l.unbound != "":
		return nil, nil
	case len(v.localIPs) == 0:
		return l.names, nil
	case l.blocks == 0:
		return nil, fmt.Errorf("%s has no server block on port %s, so nothing would answer on -localip %s", file, v.port, &v.localIPs)
	case len(l.names) == 0:
		return nil, nil
	}
	if l.wildcard != "" && l.unbound != "" {
		return nil, fmt.Errorf("%s: block %s has no bind and another has bind %s, so two servers would receive queries to -localip: write the same in both", file, l.unbound, l.wildcard)
	}
	var bound []string
	for _, ip := range v.localIPs {
		switch {
		case l.wildcard != "" && !l.ips[ip]:
			continue
		case ip.Is6() && ip.IsLinkLocalUnicast():
			return nil, fmt.Errorf("%s: CoreDNS can't bind to %s of -localip, a link-local IPv6 address: leave bind out of every block, or choose another address", file, ip)
		case l.ips[ip] || l.device:
		case l.unbound != "":
			return nil, fmt.Errorf("%s: block %s has no bind and others have, none of them %s of -localip: write bind in each block", file, l.unbound, ip)
		default:
			return nil, fmt.Errorf("%s: no server block on port %s is bound to %s of -localip, so nothing would answer there: add it to bind, or remove it from -localip", file, v.port, ip)
		}
		bound = append(bound, ip.String())
	}
	if l.wildcard != "" {
		bound = append(bound, l.wildcard)
	}
	return bound, nil
}

// arguments returns the arguments of a directive without those of its options: bind's option except excludes addresses
// of interfaces, and nodelocal's option fallback has addresses of other servers.
func arguments(b caddyfile.ServerBlock, directive string) (names []string) {
	for _, tokens := range directives(b.Tokens[directive]) {
		for _, t := range tokens[1:] {
			if t.Text == "{" {
				break
			}
			names = append(names, t.Text)
		}
	}
	return names
}

// ownAddresses returns the addresses of the flags and of the directives bind and nodelocal.
func ownAddresses(local addresses, blocks []caddyfile.ServerBlock) addresses {
	own := slices.Clone(local)
	for _, b := range blocks {
		for _, name := range slices.Concat(arguments(b, "bind"), arguments(b, "nodelocal")) {
			if ip, err := netip.ParseAddr(name); err == nil {
				own = append(own, ip.Unmap())
			}
		}
	}
	return own
}
