package dropin

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"

	"github.com/coredns/caddy/caddyfile"

	"github.com/nearside-dns/nearside/internal/nodefacts"
)

// Zone is the zone of the server block with the nodelocal directive. It ends in invalid (RFC 6761), so that only the
// directive itself queries it.
const Zone = "nodelocal.nearside.invalid."

// addedBlock is a server block that the Corefile does not have.
type addedBlock struct {
	text        string            // whole lines
	forwardLine int               // the line of text, from 1, of a forward directive with defaults; 0 for none
	forward     nodefacts.Forward // the defaults
}

// newBlock returns a server block with these lines in it; they begin in line 2.
func (v values) newBlock(zone string, lines ...string) addedBlock {
	return addedBlock{text: net.JoinHostPort(zone, v.port) + " {\n" + strings.Join(lines, "\n") + "\n}\n"}
}

// addedBlocks returns the server blocks for the zones of the clusterset, for stub domains, and for the nodelocal
// directive. forward has the defaults of the Corefile's forward directives.
func (v values) addedBlocks(blocks []caddyfile.ServerBlock, file string, forward map[int]nodefacts.Forward) ([]addedBlock, error) {
	for _, b := range blocks {
		if tokens := b.Tokens["nodelocal"]; len(tokens) > 0 && len(v.localIPs) > 0 {
			return nil, fmt.Errorf("%s:%d - the nodelocal directive and the flag -localip both set the addresses of this node: choose one", file, tokens[0].Line)
		}
	}
	bind, err := v.bind(blocks, file)
	if err != nil {
		return nil, err
	}
	var stubs []addedBlock
	for _, domain := range slices.Sorted(maps.Keys(v.kubeDNS.StubDomains)) {
		if domain+"." == Zone {
			return nil, fmt.Errorf("stub domain %s is the name of a block that nodecache adds", domain)
		}
		if place, ok := v.blockOf(blocks, domain, file); ok {
			return nil, fmt.Errorf("stub domain %s is a zone of %s already", domain, place)
		}
		if slices.Contains(v.clusterset, domain) {
			return nil, fmt.Errorf("stub domain %s is a zone of -clusterset-zone already", domain)
		}
		stubs = append(stubs, v.stubBlock(domain, bind))
	}
	all, err := v.clustersetBlocks(blocks, file, forward)
	if err != nil {
		return nil, err
	}
	all = append(all, stubs...)
	if len(v.localIPs) > 0 {
		all = append(all, v.nodelocalBlock(bind, readiness(blocks)))
	}
	return all, nil
}

// bindLine returns the line of a bind directive, none without arguments.
func bindLine(arguments []string) []string {
	if len(arguments) == 0 {
		return nil
	}
	return []string{"    bind " + strings.Join(arguments, " ")}
}

// stubBlock returns the block that node-local-dns makes of a stub domain.
func (v values) stubBlock(domain string, bind []string) addedBlock {
	lines := append([]string{"    errors", "    cache 30"}, bindLine(bind)...)
	return v.newBlock(domain, append(lines, "    forward . "+strings.Join(v.kubeDNS.StubDomains[domain], " "))...)
}

// readiness returns the lines of the ready directive, if the Corefile has one: the directive queries the plugins of its
// own block only, and nodelocal, which is ready while nodecache answers, is in the added block.
func readiness(blocks []caddyfile.ServerBlock) []string {
	for _, b := range blocks {
		if tokens := b.Tokens["ready"]; len(tokens) > 0 {
			return format(tokens)
		}
	}
	return nil
}

func (v values) nodelocalBlock(bind, ready []string) addedBlock {
	var setup []string
	if v.setupInterface {
		setup = append(setup, "interface")
	}
	if v.setupIptables {
		setup = append(setup, "rules")
	}
	if setup == nil {
		setup = []string{"none"}
	}
	lines := append(bindLine(bind), ready...)
	lines = append(lines, "    nodelocal "+strings.Join(v.localIPs.texts(), " ")+" {")
	option := func(name string, arguments ...string) {
		lines = append(lines, "        "+strings.Join(append([]string{name}, arguments...), " "))
	}
	option("interface", v.interfaceName)
	option("setup", setup...)
	option("health", v.healthPort)
	option("interval", v.interval.String())
	if v.skipTeardown {
		option("keep")
	}
	if question := v.question.option(); len(question) > 0 {
		option("question", question...)
	}
	if len(v.fallbacks) > 0 {
		option("fallback", v.fallbacks...)
	}
	return v.newBlock(Zone, append(lines, "    }")...)
}
