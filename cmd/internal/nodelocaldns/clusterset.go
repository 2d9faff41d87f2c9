package nodelocaldns

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strings"
	"unicode"

	"github.com/coredns/caddy/caddyfile"
	"github.com/miekg/dns"
)

// zoneNames are those of -clusterset-zone, in their order: in lower case, without the dot at the end.
type zoneNames []string

func (z *zoneNames) String() string { return strings.Join(*z, ",") }

// Set replaces the zones. Empty is none, as it is by default.
func (z *zoneNames) Set(list string) error {
	*z = nil
	if list == "" {
		return nil
	}
	for text := range strings.SplitSeq(list, ",") {
		name, err := clustersetZone(strings.TrimSpace(text))
		if err != nil {
			return err
		}
		if slices.Contains(*z, name) {
			return fmt.Errorf("%s stands there twice", name)
		}
		*z = append(*z, name)
	}
	return nil
}

// clustersetZone parses the name of a zone whose names are those of ServiceImports, and no others.
func clustersetZone(text string) (string, error) {
	zone := dns.CanonicalName(text)
	name := strings.TrimSuffix(zone, ".")
	switch {
	case text == "" || zone != "." && !isSubdomain(name):
		return "", fmt.Errorf("%q is not a domain name of letters, digits, - and ., such as clusterset.local", text)
	case mayLeave(zone):
		return "", fmt.Errorf("%q is the root or a zone of addresses, want the zone of a clusterset, such as clusterset.local", text)
	case zone == Zone:
		return "", fmt.Errorf("%s is the name of a block that nodecache adds", name)
	}
	return name, nil
}

// leftOut are the directives that a block for a clusterset zone does not have of its model: those of the whole
// process, and those of search lists, which have no such zone.
var leftOut = []string{"autopath", "health", "nodelocal", "pprof", "ready", "reload", "searchpath"}

// model is a server block that forwards a zone of the cluster to cluster DNS alone.
type model struct {
	block   caddyfile.ServerBlock
	zone    string            // with the dot at the end
	forward []caddyfile.Token // the stanza that does it
}

// clustersetBlocks returns server blocks for the zones of -clusterset-zone that have none in the Corefile, each like
// that of a zone of the cluster in the document, which has been rendered but for what is added.
func (v values) clustersetBlocks(d *document, blocks []caddyfile.ServerBlock) (all []string, err error) {
	var missing zoneNames
	for _, zone := range v.clusterset {
		if place, ok := v.serves(blocks, zone, d.name); ok {
			v.remark(remark{info, fmt.Sprintf("no block for %s of -clusterset-zone is added, it is a zone of %s already", zone, place)})
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
	rendered, err := d.parse()
	if err != nil {
		return nil, err
	}
	models := v.models(rendered)
	if len(models) == 0 {
		return nil, fmt.Errorf("%s: no server block on port %s forwards a zone of the cluster to cluster DNS, %s, alone, so -clusterset-zone has no model for %s: write such a block, or one for each of these zones",
			d.name, v.port, v.clusterDNS, &missing)
	}
	for _, zone := range missing {
		v.remark(remark{info, fmt.Sprintf("a block for %s of -clusterset-zone is added, like that of %s", zone, strings.TrimSuffix(models[0].zone, "."))})
		for _, m := range models {
			all = append(all, v.like(m, zone))
		}
	}
	return all, nil
}

// models returns the server blocks on the port of DNS that forward a zone of the cluster to cluster DNS alone. All
// are of one zone, the first; there is more than one where blocks are bound to different addresses.
func (v values) models(blocks []caddyfile.ServerBlock) (all []model) {
	for _, b := range blocks {
		m, ok := v.model(b)
		if ok && (len(all) == 0 || m.zone == all[0].zone) {
			all = append(all, m)
		}
	}
	return all
}

// model returns what a server block is as a model, for the first of its zones that can be one.
func (v values) model(b caddyfile.ServerBlock) (model, bool) {
	isOther := func(server string) bool { return !v.isClusterDNS(server) }
	all := directives(b.Tokens["forward"])
	for _, text := range b.Keys {
		k, ok := v.key(text)
		if !ok || !k.dns || k.port != v.port || !slices.ContainsFunc(k.zones, isOfCluster) {
			continue
		}
		zone := k.zones[0] // there are more only of addresses
		first := slices.IndexFunc(all, func(tokens []caddyfile.Token) bool {
			return len(tokens) > 2 && slices.Contains(forwarded(b, tokens[1].Text), zone)
		})
		if first < 0 {
			continue
		}
		if to := stanzaOf(all[first]).to; len(to) > 0 && !slices.ContainsFunc(to, isOther) {
			return model{b, zone, all[first]}, true
		}
	}
	return model{}, false
}

// like returns a block for another zone that is like a model: it has its directives, and of those that forward the
// one that makes it a model. Where they name the model's zone, the block names its own.
func (v values) like(m model, zone string) string {
	var all [][]caddyfile.Token
	for name, tokens := range m.block.Tokens {
		if !slices.Contains(leftOut, name) && name != "forward" {
			all = append(all, tokens)
		}
	}
	forward := slices.Clone(m.forward)
	forward[1].Text = "." // it may say a zone that the other is not in
	all = append(all, forward)
	slices.SortFunc(all, func(a, b []caddyfile.Token) int {
		return cmp.Or(strings.Compare(a[0].File, b[0].File), a[0].Line-b[0].Line)
	})
	lines := []string{net.JoinHostPort(zone, v.port) + " {"}
	for _, tokens := range all {
		lines = append(lines, v.withCaller(tokens, written(renamed(tokens, m.zone, zone)))...)
	}
	return strings.Join(append(lines, "}", ""), "\n")
}

// withCaller adds to the lines of a forward directive who is calling, if that is not said. It may not be where the
// model has zones of addresses as well. Directives of imported files stay as they are.
func (v values) withCaller(tokens []caddyfile.Token, lines []string) []string {
	s := stanzaOf(tokens)
	if tokens[0].Text != "forward" || tokens[0].File != "" || v.caller == "" || s.option(callerIs) > 0 {
		return lines
	}
	first, err := s.rewrite(lines[0], s.to, []string{v.caller})
	if err != nil {
		return lines // the brace is on another line, which CoreDNS does not take
	}
	return append(first, lines[1:]...)
}

// renamed returns the tokens of directives with another zone among their arguments.
func renamed(tokens []caddyfile.Token, from, to string) []caddyfile.Token {
	tokens = slices.Clone(tokens)
	for i := range tokens {
		if follows(tokens, i) && dns.CanonicalName(tokens[i].Text) == from {
			tokens[i].Text = to
		}
	}
	return tokens
}

// follows reports whether a token is an argument: it is on the line on which the token before ends.
func follows(tokens []caddyfile.Token, i int) bool {
	if i == 0 {
		return false
	}
	t, before := tokens[i], tokens[i-1]
	return t.File == before.File && t.Line == before.Line+strings.Count(before.Text, "\n")
}

// written returns the lines that the parser of Corefiles makes such directives of, in a server block.
func written(tokens []caddyfile.Token) (lines []string) {
	depth := 1
	for i, t := range tokens {
		if t.Text == "}" {
			depth--
		}
		if follows(tokens, i) {
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

// quoted returns a token as it stands in a Corefile. In quotes a backslash stands for itself, but before a quote.
func quoted(text string) string {
	special := func(r rune) bool { return unicode.IsSpace(r) || r == '#' }
	if text == "" || text[0] == '"' || strings.ContainsFunc(text, special) {
		return `"` + strings.ReplaceAll(text, `"`, `\"`) + `"`
	}
	return text
}
