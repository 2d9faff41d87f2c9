package dropin

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strings"
	"unicode"

	"github.com/coredns/caddy/caddyfile"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/cmd/internal/kubednsconfig"
	"github.com/nearside-dns/nearside/internal/nodefacts"
)

// zoneNames are the value of -clusterset-zone: in lower case, without the dot at the end.
type zoneNames []string

func (z *zoneNames) String() string { return strings.Join(*z, ",") }

// Set replaces the zones.
func (z *zoneNames) Set(list string) (err error) {
	*z, err = parseList(list, clustersetZone)
	return err
}

// clustersetZone parses the name of a zone with the names of ServiceImports only.
func clustersetZone(text string) (string, error) {
	zone := dns.CanonicalName(text)
	name := strings.TrimSuffix(zone, ".")
	switch {
	case text == "" || zone != "." && !kubednsconfig.IsSubdomain(name):
		return "", fmt.Errorf("%q is not a domain name of letters, digits, - and ., such as clusterset.local", text)
	case mayLeave(zone):
		return "", fmt.Errorf("%q is the root or a zone of addresses, want the zone of a clusterset, such as clusterset.local", text)
	case zone == Zone:
		return "", fmt.Errorf("%s is the name of a block that nodecache adds", name)
	}
	return name, nil
}

// notCopied are the directives that a block for a clusterset zone does not copy: those of the whole process, and those of
// search lists, which have no such zone.
var notCopied = []string{"autopath", "health", "nodelocal", "pprof", "ready", "reload", "searchpath"}

// model is a server block that forwards a zone of the cluster to cluster DNS alone.
type model struct {
	block    caddyfile.ServerBlock
	zone     string            // with the dot at the end
	forward  []caddyfile.Token // the directive for the zone
	defaults nodefacts.Forward // of that directive
}

// clustersetBlocks returns server blocks for the zones of -clusterset-zone that have none in the Corefile. Each is a copy
// of the block of a zone of the cluster.
func (v values) clustersetBlocks(blocks []caddyfile.ServerBlock, file string, forward map[int]nodefacts.Forward) (all []addedBlock, err error) {
	var missing zoneNames
	for _, zone := range v.clusterset {
		if place, ok := v.blockOf(blocks, zone, file); ok {
			v.report(message{info, fmt.Sprintf("no block for %s of -clusterset-zone is added, it is a zone of %s already", zone, place)})
			continue
		}
		missing = append(missing, zone)
	}
	if len(missing) == 0 {
		return nil, nil
	}
	if err := v.usable(clusterDNS); err != nil {
		return nil, fmt.Errorf("-clusterset-zone %s: %w", &missing, err)
	}
	models := v.models(blocks, forward)
	if len(models) == 0 {
		return nil, fmt.Errorf("%s: no server block on port %s forwards a zone of the cluster to cluster DNS, %s, alone, so -clusterset-zone has no model for %s: write such a block, or one for each of these zones",
			file, v.port, v.clusterDNS, &missing)
	}
	for _, zone := range missing {
		v.report(message{info, fmt.Sprintf("a block for %s of -clusterset-zone is added, like that of %s", zone, strings.TrimSuffix(models[0].zone, "."))})
		for _, m := range models {
			all = append(all, v.copyOf(m, zone))
		}
	}
	return all, nil
}

// models returns the server blocks on the port of DNS that forward a zone of the cluster to cluster DNS alone. All have
// the same zone, the first of the Corefile; there are several where they are bound to different addresses.
func (v values) models(blocks []caddyfile.ServerBlock, forward map[int]nodefacts.Forward) (all []model) {
	for _, b := range blocks {
		m, ok := v.model(b, forward)
		if ok && (len(all) == 0 || m.zone == all[0].zone) {
			all = append(all, m)
		}
	}
	return all
}

// model returns a server block as a model, for the first of its zones that can be one.
func (v values) model(b caddyfile.ServerBlock, forward map[int]nodefacts.Forward) (model, bool) {
	isOther := func(server string) bool { return !v.isClusterDNS(server) }
	for _, key := range b.Keys {
		zones := v.zonesOn(key)
		if !slices.ContainsFunc(zones, isOfCluster) {
			continue
		}
		m := model{block: b, zone: zones[0]} // only the key of a network stands for several zones
		for _, tokens := range directives(b.Tokens["forward"]) {
			if len(tokens) < 3 || !slices.Contains(forwardedZones(b, tokens[1].Text), m.zone) {
				continue
			}
			if tokens[0].File == "" {
				m.defaults = forward[tokens[0].Line]
			}
			to := stanzaOf(tokens).to
			if m.defaults.Servers != nil {
				to = m.defaults.Servers
			}
			if len(to) == 0 || slices.ContainsFunc(to, isOther) {
				break // the first directive for the zone receives all queries for it
			}
			m.forward = tokens
			return m, true
		}
	}
	return model{}, false
}

// copyOf returns a block for a zone with the directives of a model, of the forward directives only the one for the model's
// zone. In the arguments of the directives, the zone replaces the model's.
func (v values) copyOf(m model, zone string) addedBlock {
	var all [][]caddyfile.Token
	for name, tokens := range m.block.Tokens {
		if !slices.Contains(notCopied, name) && name != "forward" {
			all = append(all, tokens)
		}
	}
	forward := slices.Clone(m.forward)
	forward[1].Text = "." // the zone of the model's forward need not include the new block's
	all = append(all, forward)
	slices.SortFunc(all, func(a, b []caddyfile.Token) int {
		return cmp.Or(strings.Compare(a[0].File, b[0].File), a[0].Line-b[0].Line)
	})
	var lines []string
	forwardLine := 0
	for _, tokens := range all {
		if tokens[0].Text == "forward" && tokens[0].File == "" {
			forwardLine = 2 + strings.Count(strings.Join(append(lines, ""), "\n"), "\n")
		}
		lines = append(lines, format(renamed(tokens, m.zone, zone))...)
	}
	block := v.newBlock(zone, lines...)
	block.forwardLine, block.forward = forwardLine, m.defaults
	block.forward.Caller = v.node != "" && stanzaOf(forward).options[optionCaller] == 0 // also if the model has reverse zones
	return block
}

// renamed returns the tokens of directives with another zone among their arguments. Addresses stay: a zone may have the
// text of an address.
func renamed(tokens []caddyfile.Token, from, to string) []caddyfile.Token {
	tokens = slices.Clone(tokens)
	for i := range tokens {
		if isArgument(tokens, i) && dns.CanonicalName(tokens[i].Text) == from && net.ParseIP(tokens[i].Text) == nil {
			tokens[i].Text = to
		}
	}
	return tokens
}

// isArgument reports whether a token is on the line on which the token before it ends.
func isArgument(tokens []caddyfile.Token, i int) bool {
	if i == 0 {
		return false
	}
	t, before := tokens[i], tokens[i-1]
	return t.File == before.File && t.Line == before.Line+strings.Count(before.Text, "\n")
}

// format returns lines that the parser of Corefiles reads as these directives of a server block.
func format(tokens []caddyfile.Token) (lines []string) {
	depth := 1
	for i, t := range tokens {
		if t.Text == "}" {
			depth--
		}
		if isArgument(tokens, i) {
			lines[len(lines)-1] += " " + quoted(t.Text)
		} else {
			lines = append(lines, strings.Repeat("    ", depth)+quoted(t.Text))
		}
		if t.Text == "{" {
			depth++
		}
	}
	return lines
}

// quoted returns a token as it stands in a Corefile. In quotes a backslash stands for itself, except before a quote.
func quoted(text string) string {
	special := func(r rune) bool { return unicode.IsSpace(r) || r == '#' }
	if text == "" || text[0] == '"' || strings.ContainsFunc(text, special) {
		return `"` + strings.ReplaceAll(text, `"`, `\"`) + `"`
	}
	return text
}
