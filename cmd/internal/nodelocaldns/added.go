package nodelocaldns

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/coredns/caddy/caddyfile"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/parse"
	"github.com/coredns/coredns/plugin/pkg/transport"
)

// nodelocal is what the nodelocal directive says if the flags ask for it.
type nodelocal struct {
	interfaceName string
	device, rules bool // which of them to set up
	keep          bool
	healthPort    string
	interval      string
	fallback      []string // addresses of cluster DNS, at most one per family
	question      []string // the words after this option
	services      []string // those of the node-local addresses that kube-proxy knows
}

// Zone is the name of the block that holds the directive. It ends in invalid (RFC 6761), so nobody asks
// for it but the directive itself.
const Zone = "nodelocal.nearside.invalid."

// added returns the server blocks that the Corefile does not have: those of stub domains, and that of
// the nodelocal directive.
func (v values) added(blocks []caddyfile.ServerBlock, file string) ([]string, error) {
	for _, b := range blocks {
		if tokens := b.Tokens["nodelocal"]; len(tokens) > 0 && len(v.local) > 0 {
			return nil, fmt.Errorf("%s:%d - the nodelocal directive and the flag -localip both say what the addresses of this node are: choose one", file, tokens[0].Line)
		}
	}
	bind, err := v.bind(blocks, file)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, domain := range slices.Sorted(maps.Keys(v.kubeDNS.stubDomains)) {
		if domain+"." == Zone {
			return nil, fmt.Errorf("stub domain %s is the name of a block that nodecache adds", domain)
		}
		if place, ok := v.serves(blocks, domain, file); ok {
			return nil, fmt.Errorf("stub domain %s is a zone of %s already", domain, place)
		}
		if slices.Contains(v.clusterset, domain) {
			return nil, fmt.Errorf("stub domain %s is a zone of -clusterset-zone already", domain)
		}
		all = append(all, v.stubBlock(domain, bind))
	}
	if len(v.local) > 0 {
		all = append(all, v.nodelocalBlock(bind, readiness(blocks)))
	}
	return all, nil
}

// stubBlock is the block that node-local-dns makes of a stub domain.
func (v values) stubBlock(domain string, bind []string) string {
	lines := []string{net.JoinHostPort(domain, v.port) + " {", "    errors", "    cache 30"}
	if len(bind) > 0 {
		lines = append(lines, "    bind "+strings.Join(bind, " "))
	}
	servers := strings.Join(v.kubeDNS.stubDomains[domain], " ")
	return strings.Join(append(lines, "    forward . "+servers, "}", ""), "\n")
}

// readiness returns the lines of the ready directive, if the Corefile has one: it looks at the plugins of its own block
// alone, and whether nodecache answers is known to one in the added block.
func readiness(blocks []caddyfile.ServerBlock) []string {
	for _, b := range blocks {
		if tokens := b.Tokens["ready"]; len(tokens) > 0 {
			return written(tokens)
		}
	}
	return nil
}

func (v values) nodelocalBlock(bind, ready []string) string {
	d, ips := v.directive, strings.Join(v.local.texts(), " ")
	lines := []string{Zone + ":" + v.port + " {"}
	if len(bind) > 0 {
		lines = append(lines, "    bind "+strings.Join(bind, " "))
	}
	lines = append(lines, ready...)
	setup := []string{"setup"}
	if d.device {
		setup = append(setup, "interface")
	}
	if d.rules {
		setup = append(setup, "rules")
	}
	if len(setup) == 1 {
		setup = append(setup, "none")
	}
	lines = append(lines, "    nodelocal "+ips+" {",
		"        interface "+d.interfaceName,
		"        "+strings.Join(setup, " "),
		"        health "+d.healthPort,
		"        interval "+d.interval)
	if d.keep {
		lines = append(lines, "        keep")
	}
	if len(d.question) > 0 {
		lines = append(lines, "        question "+strings.Join(d.question, " "))
	}
	if len(d.fallback) > 0 {
		words := append([]string{"        fallback"}, d.fallback...)
		if len(d.services) > 0 {
			words = append(append(words, "except"), d.services...)
		}
		lines = append(lines, strings.Join(words, " "))
	}
	return strings.Join(append(lines, "    }", "}", ""), "\n")
}

// key is one name of a server block.
type key struct {
	zones []string
	port  string
	dns   bool // over UDP and TCP, and not over TLS or the like
}

func (v values) key(text string) (key, bool) {
	scheme, rest := parse.Transport(text)
	_, number, err := plugin.SplitHostPort(rest)
	if err != nil {
		return key{}, false // CoreDNS will say what is wrong with it
	}
	if number == "" {
		number = v.port
	}
	return key{zones: plugin.Host(text).NormalizeExact(), port: number, dns: scheme == transport.DNS}, true
}

// answers tells if a block answers on the port of DNS.
func (v values) answers(b caddyfile.ServerBlock) bool {
	return slices.ContainsFunc(b.Keys, func(text string) bool {
		k, ok := v.key(text)
		return ok && k.dns && k.port == v.port
	})
}

// serves tells if a block is responsible for exactly this zone on the port of DNS, and where its first
// directive is.
func (v values) serves(blocks []caddyfile.ServerBlock, domain, file string) (place string, found bool) {
	for _, b := range blocks {
		for _, text := range b.Keys {
			k, ok := v.key(text)
			if ok && k.dns && k.port == v.port && slices.Contains(k.zones, plugin.Name(domain).Normalize()) {
				return begin(b, file), true
			}
		}
	}
	return "", false
}

// begin is the first place of a block that is known, in the file if it has a directive there.
func begin(b caddyfile.ServerBlock, file string) string {
	var first *caddyfile.Token
	for _, tokens := range b.Tokens {
		for _, t := range tokens {
			if first == nil || t.File < first.File || t.File == first.File && t.Line < first.Line {
				first = &t
			}
		}
	}
	switch {
	case first == nil:
		return file
	case first.File != "":
		file = first.File
	}
	return fmt.Sprintf("%s:%d", file, first.Line)
}

// listening is where the server blocks on the port of DNS listen.
type listening struct {
	blocks int
	open   string // a block without bind, which listens everywhere
	wild   string // the address that stands for every one, if a block is bound to it
	names  []string
	ips    map[netip.Addr]bool
	device bool // a name of an interface, whose addresses are not known here
}

func (v values) listening(blocks []caddyfile.ServerBlock) listening {
	l := listening{ips: map[netip.Addr]bool{}}
	for _, b := range blocks {
		if !v.answers(b) {
			continue
		}
		l.blocks++
		names := boundTo(b)
		if len(names) == 0 {
			l.open = b.Keys[0]
		}
		for _, n := range names {
			if !slices.Contains(l.names, n) {
				l.names = append(l.names, n)
			}
			ip, err := netip.ParseAddr(n)
			if err == nil && ip.IsUnspecified() {
				l.wild = n
			}
			l.ips[ip.Unmap()] = true
			l.device = l.device || err != nil
		}
	}
	return l
}

// bind returns what the added blocks are bound to, nothing if the blocks of the Corefile are bound to
// nothing. An added block has to listen where they do: a server of an address of its own would take all
// that comes to the address, know only the added block, and refuse what pods ask. So each address of
// -localip has to be bound by a block of the Corefile, or none. A block that is bound to 0.0.0.0 or ::
// takes what comes to every address without a server of its own, of both families.
func (v values) bind(blocks []caddyfile.ServerBlock, file string) ([]string, error) {
	l := v.listening(blocks)
	switch {
	case len(v.local) == 0 && l.open != "":
		return nil, nil
	case len(v.local) == 0:
		return l.names, nil
	case l.blocks == 0:
		return nil, fmt.Errorf("%s has no server block on port %s, so nothing would answer on -localip %s", file, v.port, &v.local)
	case len(l.names) == 0:
		return nil, nil
	}
	if l.wild != "" && l.open != "" {
		return nil, fmt.Errorf("%s: block %s has no bind and another has bind %s, so two servers would take what comes to -localip: write the same in both", file, l.open, l.wild)
	}
	var bound []string
	for _, ip := range v.local {
		switch {
		case l.wild != "" && !l.ips[ip]:
			continue
		case ip.Is6() && ip.IsLinkLocalUnicast():
			return nil, fmt.Errorf("%s: CoreDNS can't bind to %s of -localip, a link-local IPv6 address: leave bind out of every block, or take another address", file, ip)
		case l.ips[ip] || l.device:
		case l.open != "":
			return nil, fmt.Errorf("%s: block %s has no bind and others have, none of them %s of -localip: write bind in each block", file, l.open, ip)
		default:
			return nil, fmt.Errorf("%s: no server block on port %s is bound to %s of -localip, so nothing would answer there: add it to bind, or leave it out", file, v.port, ip)
		}
		bound = append(bound, ip.String())
	}
	if l.wild != "" {
		bound = append(bound, l.wild)
	}
	return bound, nil
}

// nameAddresses puts the addresses of -localip in the place of the interface's name after bind. The
// interface is made when the servers start, and CoreDNS looks for it before. One that is there already,
// without setup of it, is left to CoreDNS.
func (v values) nameAddresses(d *document, blocks []caddyfile.ServerBlock) {
	if len(v.local) == 0 || !v.directive.device {
		return
	}
	for _, b := range blocks {
		var tokens []caddyfile.Token
		for _, t := range b.Tokens["bind"] {
			if t.Text != v.directive.interfaceName || t.File != "" {
				tokens = append(tokens, t)
				continue
			}
			d.put(t.Line, t.Text, strings.Join(v.local.texts(), " "))
			for _, t.Text = range v.local.texts() {
				tokens = append(tokens, t)
			}
		}
		b.Tokens["bind"] = tokens
	}
}

// boundTo returns what bind names in a block.
func boundTo(b caddyfile.ServerBlock) []string { return named(b, "bind") }

// named returns what stands after a directive, without its options: except of bind takes away addresses
// of interfaces, and fallback of nodelocal names addresses of others.
func named(b caddyfile.ServerBlock, directive string) (names []string) {
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

// ownAddresses are those on which the Corefile and the flags let this process answer.
func ownAddresses(local addresses, blocks []caddyfile.ServerBlock) addresses {
	own := slices.Clone(local)
	for _, b := range blocks {
		names := slices.Concat(boundTo(b), named(b, "nodelocal"))
		for _, n := range names {
			if ip, err := netip.ParseAddr(n); err == nil {
				own = append(own, ip.Unmap())
			}
		}
	}
	return own
}
