package dropin

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/coredns/caddy/caddyfile"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/parse"
	"github.com/coredns/coredns/plugin/pkg/transport"

	"github.com/nearside-dns/nearside/internal/nodefacts"
)

// stanza is one forward directive.
type stanza struct {
	line    int            // where it begins
	zones   []string       // the zones that it forwards, of all server blocks that have it
	to      []string       // servers and files
	options map[string]int // the line of each option
}

// Options of forward.
const (
	optionTCP    = "force_tcp"
	optionCaller = "caller"
)

// noServer is a server that refuses each query at once, since nothing can listen on port 0: clients get SERVFAIL. Without
// the directive they might get REFUSED, or the answer of another forward directive of the block.
const noServer = "127.0.0.1:0"

// stanzas returns the forward directives of the Corefile itself, each once: several blocks may use a snippet. Directives
// in imported files get no defaults.
func stanzas(blocks []caddyfile.ServerBlock) (all []stanza) {
	seen := map[int]int{} // index in all, by line
	for _, b := range blocks {
		for _, tokens := range directives(b.Tokens["forward"]) {
			if tokens[0].File != "" || len(tokens) < 3 {
				continue
			}
			s := stanzaOf(tokens)
			s.zones = forwardedZones(b, tokens[1].Text)
			if i, twice := seen[s.line]; twice {
				all[i].zones = append(all[i].zones, s.zones...)
				continue
			}
			seen[s.line] = len(all)
			all = append(all, s)
		}
	}
	return all
}

// stanzaOf returns a forward directive without its zones.
func stanzaOf(tokens []caddyfile.Token) stanza {
	s := stanza{line: tokens[0].Line, options: map[string]int{}}
	inBlock := false
	for i := 2; i < len(tokens); i++ {
		t, before := tokens[i], tokens[i-1]
		_, twice := s.options[t.Text]
		switch {
		case !inBlock && t.Text == "{":
			inBlock = true
		case !inBlock:
			s.to = append(s.to, t.Text)
		case !twice && (before.Text == "{" || before.Line != t.Line):
			s.options[t.Text] = t.Line
		}
	}
	return s
}

// directives splits a server block's tokens of one directive name into single directives.
func directives(tokens []caddyfile.Token) (all [][]caddyfile.Token) {
	nesting := 0
	for i, t := range tokens {
		next := i > 0 && (t.Line != tokens[i-1].Line || t.File != tokens[i-1].File)
		if i == 0 || next && nesting == 0 && t.Text != "{" {
			all = append(all, nil)
		}
		switch t.Text {
		case "{":
			nesting++
		case "}":
			nesting--
		}
		all[len(all)-1] = append(all[len(all)-1], t)
	}
	return all
}

// forwardedZones returns the zones that a forward directive of a server block forwards: the zones of the block that are in
// the directive's zone, and the directive's zone if it is in a zone of the block.
func forwardedZones(b caddyfile.ServerBlock, from string) (zones []string) {
	for _, key := range b.Keys {
		for _, zone := range plugin.Host(key).NormalizeExact() {
			for _, own := range plugin.Host(from).NormalizeExact() {
				switch {
				case plugin.Name(own).Matches(zone):
					zones = append(zones, zone)
				case plugin.Name(zone).Matches(own):
					zones = append(zones, own)
				}
			}
		}
	}
	return zones
}

// forwardDefaults returns the defaults of the Corefile's forward directives by line. It removes force_tcp from lines
// where the servers are those of the kube-dns ConfigMap: they need not accept TCP, and node-local-dns queries them over
// UDP.
func (v values) forwardDefaults(name string, template, lines []string, all []stanza) (map[int]nodefacts.Forward, error) {
	byLine := map[int]nodefacts.Forward{}
	for _, s := range all {
		if s.line > len(lines) {
			return nil, fmt.Errorf("%s: no line %d", name, s.line)
		}
		if strings.Contains(template[s.line-1], upstreamServers) && len(v.kubeDNS.Upstreams) > 0 {
			if line := s.options[optionTCP]; line > 0 && line <= len(lines) {
				lines[line-1] = strings.TrimRight(strings.Replace(lines[line-1], optionTCP, "", 1), " \t\r")
			}
			continue
		}
		if !slices.ContainsFunc(s.to, isFile) && !slices.ContainsFunc(s.to, v.isClusterDNS) {
			continue
		}
		servers, err := v.expand(s.to)
		if err != nil {
			return nil, fmt.Errorf("%s:%d - %w", name, s.line, err)
		}
		d := nodefacts.Forward{TCP: len(servers) > 0}
		if len(servers) == 0 {
			servers = []string{noServer}
		}
		d.ClusterDNS = v.isAllClusterDNS(servers)
		d.Caller = v.sendsCaller(name, s, servers)
		if !slices.Equal(servers, s.to) {
			d.Servers = servers
		}
		byLine[s.line] = d
	}
	return byLine, nil
}

// expand replaces files by the nameservers in them. As in the plugin forward, it uses as many of them as the limit of
// upstreams permits besides the servers that the directive names itself.
func (v values) expand(to []string) (servers []string, err error) {
	room := nodefacts.MaxUpstreams
	for _, name := range to {
		if !isFile(name) {
			room--
		}
	}
	for _, name := range to {
		if !isFile(name) {
			servers = append(servers, name)
			continue
		}
		found, err := v.nameservers(name, v.own)
		if err != nil {
			return nil, err
		}
		used := found[:min(len(found), max(room, 0))]
		if n := len(found) - len(used); n > 0 {
			v.report(message{warning, fmt.Sprintf("%s has %d usable nameservers: the last %d are not used, since the limit of forward is %d upstreams",
				name, len(found), n, nodefacts.MaxUpstreams)})
		}
		servers, room = append(servers, used...), room-len(used)
	}
	return servers, nil
}

// sendsCaller reports whether the name of the node is sent with the queries of a stanza: all its servers are cluster DNS,
// and it forwards only zones of the cluster. The option caller of the Corefile has precedence.
func (v values) sendsCaller(name string, s stanza, servers []string) bool {
	if v.node == "" || s.options[optionCaller] > 0 || !v.isAllClusterDNS(servers) {
		return false
	}
	i := slices.IndexFunc(s.zones, mayLeave)
	if i >= 0 && slices.ContainsFunc(s.zones, isOfCluster) {
		v.report(message{info, fmt.Sprintf("%s:%d - node name is not sent to cluster DNS, since %s is forwarded here as well: write a block for each", name, s.line, s.zones[i])})
	}
	return i < 0 && len(s.zones) > 0
}

// reportCaller logs whether any forward directive sends the name of the node.
func (v values) reportCaller(out string, byLine map[int]nodefacts.Forward) {
	if v.node == "" {
		return
	}
	sent := strings.Contains(out, optionCaller+" "+v.caller())
	for _, d := range byLine {
		sent = sent || d.Caller
	}
	if sent {
		v.report(message{info, "node name is sent to cluster DNS: " + v.caller()})
		return
	}
	v.report(message{info, "node name is not sent to cluster DNS: nothing forwards zones of the cluster to cluster DNS alone, in this file itself"})
}

// caller returns the arguments of the option caller.
func (v values) caller() string { return strings.TrimSpace(v.node + " " + v.zone) }

func isOfCluster(zone string) bool { return !mayLeave(zone) }

// mayLeave reports whether cluster DNS may forward names of a zone to other servers: the root, in-addr.arpa and ip6.arpa.
func mayLeave(zone string) bool { return zone == "." || plugin.Name("arpa.").Matches(zone) }

// reportImported reports forward directives of imported files that name a file, which the plugin reads itself.
func (v values) reportImported(blocks []caddyfile.ServerBlock) {
	for _, b := range blocks {
		for _, tokens := range directives(b.Tokens["forward"]) {
			for _, t := range tokens {
				if t.Text == "{" {
					break
				}
				if t.File != "" && isFile(t.Text) {
					v.report(message{info, fmt.Sprintf("%s:%d - forward stands in an imported file: all servers of %s are queried, also those that loop back to this node, and over UDP when a client queries over UDP", t.File, t.Line, t.Text)})
				}
			}
		}
	}
}

// isFile reports whether an argument of forward is a file and not a server.
func isFile(to string) bool {
	scheme, host := parse.Transport(to)
	return scheme == transport.DNS && host == to && strings.Contains(to, "/")
}

// isAllClusterDNS reports whether all servers of a stanza are cluster DNS.
func (v values) isAllClusterDNS(servers []string) bool {
	return !slices.ContainsFunc(servers, func(server string) bool { return !v.isClusterDNS(server) })
}

// isClusterDNS reports whether a server is cluster DNS, which accepts TCP.
func (v values) isClusterDNS(server string) bool {
	_, host := parse.Transport(server)
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && v.clusterDNS != "" && ip.Unmap().String() == v.clusterDNS
}
