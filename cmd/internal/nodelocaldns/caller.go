package nodelocaldns

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/coredns/caddy/caddyfile"
	"github.com/coredns/coredns/plugin"
)

// The variables of the environment that say which node this is. The kubelet sets them where the manifest
// asks it to, by the downward API.
const (
	nodeNameVariable = "NODE_NAME"
	nodeZoneVariable = "NODE_ZONE"
)

// The greatest lengths in bytes: of the name of a Node, an RFC 1123 subdomain, and of what a label says.
const (
	maxNodeName = 253
	maxNodeZone = 63
)

// nodeNames are the names of Nodes, subdomains of RFC 1123; labelValues are what a label may say, such as
// the zone of a Node. Both may be empty here.
var (
	nodeNames   = regexp.MustCompile(`^([a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*)?$`)
	labelValues = regexp.MustCompile(`^([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?$`)
)

// nodeName is that of a Node. Empty is none.
type nodeName string

func (n *nodeName) String() string { return string(*n) }

func (n *nodeName) Set(text string) error {
	if len(text) > maxNodeName || !nodeNames.MatchString(text) {
		return fmt.Errorf("%q is not the name of a node, which has 1 to %d characters a-z, 0-9, - and ., and a letter or digit at both ends", text, maxNodeName)
	}
	*n = nodeName(text)
	return nil
}

// nodeZone is what the label topology.kubernetes.io/zone of a Node says. Empty is none.
type nodeZone string

func (z *nodeZone) String() string { return string(*z) }

func (z *nodeZone) Set(text string) error {
	if len(text) > maxNodeZone || !labelValues.MatchString(text) {
		return fmt.Errorf("%q is not the value of a label, which has 1 to %d letters, digits, -, _ and ., and a letter or digit at both ends", text, maxNodeZone)
	}
	*z = nodeZone(text)
	return nil
}

// itself returns which node this is, and its zone: what the flags say, or the environment where they say nothing.
// Both are empty if nobody says it. A variable of the environment may be there for another purpose, so what is
// wrong with it ends nothing.
func (n *Node) itself() (name nodeName, zone nodeZone, wrong error) {
	name, zone = n.options.nodeName, n.options.nodeZone
	if !n.set("node-name") {
		wrong = n.fromVariable(nodeNameVariable, name.Set)
	}
	if !n.set("node-zone") && wrong == nil {
		wrong = n.fromVariable(nodeZoneVariable, zone.Set)
	}
	return name, zone, wrong
}

// callerOption returns the option of forward by which cluster DNS is told for whom it is asked, or nothing if that
// is not known.
func callerOption(name nodeName, zone nodeZone) string {
	if name == "" {
		return ""
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s %s", callerIs, name, zone))
}

// fromVariable sets a value to what the environment says.
func (n *Node) fromVariable(variable string, set func(string) error) error {
	if err := set(n.environ(variable)); err != nil {
		return fmt.Errorf("variable %s of the environment: %w; cluster DNS is not told it", variable, err)
	}
	return nil
}

// callerIs is the option of forward that says who is calling.
const callerIs = "caller"

// tellsCaller reports whether a stanza is to say who is calling: all its servers are cluster DNS, and all
// that it forwards is in zones of the cluster. What the user wrote holds.
func (v values) tellsCaller(d *document, s stanza, servers []string) bool {
	isOther := func(server string) bool { return !v.isClusterDNS(server) }
	if v.caller == "" || s.option(callerIs) > 0 || slices.ContainsFunc(servers, isOther) {
		return false
	}
	i := slices.IndexFunc(s.zones, mayLeave)
	if i >= 0 && !slices.ContainsFunc(s.zones, isOfCluster) {
		return false
	}
	if i >= 0 {
		v.remark(remark{info, fmt.Sprintf("%s:%d - cluster DNS is not told which node asks, since %s is forwarded here as well: write a block for each", d.name, s.line, s.zones[i])})
		return false
	}
	return len(s.zones) > 0
}

// tell adds whether a Corefile tells cluster DNS which node this is.
func (r *remarks) tell(caller, corefile string) {
	switch {
	case caller == "":
	case strings.Contains(corefile, caller):
		r.add(remark{info, fmt.Sprintf("cluster DNS is told which node asks: %s", strings.TrimPrefix(caller, callerIs+" "))})
	default:
		r.add(remark{info, "cluster DNS is not told which node asks: nothing forwards zones of the cluster to cluster DNS alone, in this file itself"})
	}
}

func isOfCluster(zone string) bool { return !mayLeave(zone) }

// mayLeave tells of the zones whose names cluster DNS may ask others for: the root, and those of addresses,
// in-addr.arpa and ip6.arpa.
func mayLeave(zone string) bool { return zone == "." || plugin.Name("arpa.").Matches(zone) }

// forwarded returns the zones that a stanza of a server block forwards: of the block's and that which it
// names, the narrower ones.
func forwarded(b caddyfile.ServerBlock, from string) (zones []string) {
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
