package nodelocaldns

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"unicode"

	"github.com/coredns/caddy/caddyfile"
	"github.com/coredns/coredns/plugin/pkg/parse"
	"github.com/coredns/coredns/plugin/pkg/transport"
)

// stanza is one forward directive.
type stanza struct {
	line    int      // where it begins
	zones   []string // whose queries it forwards, in all blocks that it stands in
	to      []string // the servers and files
	options []caddyfile.Token
}

// stanzas finds the forward directives that stand in the file itself, each once: a snippet is used in
// many places. Those of an imported file are left as they are.
func stanzas(blocks []caddyfile.ServerBlock) (all []stanza) {
	seen := map[int]int{} // where a line is in all
	for _, b := range blocks {
		for _, tokens := range directives(b.Tokens["forward"]) {
			if tokens[0].File != "" || len(tokens) < 3 {
				continue
			}
			zones := forwarded(b, tokens[1].Text)
			if i, twice := seen[tokens[0].Line]; twice {
				all[i].zones = append(all[i].zones, zones...)
				continue
			}
			s := stanzaOf(tokens)
			s.zones = zones
			seen[s.line] = len(all)
			all = append(all, s)
		}
	}
	return all
}

// stanzaOf returns what a forward directive says, without the zones.
func stanzaOf(tokens []caddyfile.Token) stanza {
	s := stanza{line: tokens[0].Line}
	if open := slices.IndexFunc(tokens, func(t caddyfile.Token) bool { return t.Text == "{" }); open >= 0 {
		s.options, tokens = tokens[open+1:], tokens[:open]
	}
	for _, t := range tokens[min(2, len(tokens)):] {
		s.to = append(s.to, t.Text)
	}
	return s
}

// directives splits the tokens that a server block has for one name into single directives.
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

// option returns the line of an option, or 0.
func (s stanza) option(name string) int {
	for i, t := range s.options {
		if t.Text == name && (i == 0 || s.options[i-1].Line != t.Line) {
			return t.Line
		}
	}
	return 0
}

// nobody is a server that refuses each query at once, since nothing can listen on port 0: the clients get
// SERVFAIL. Without the directive they might get REFUSED, or what another stanza of the block says.
const nobody = "127.0.0.1:0"

// remarkImported tells of stanzas in imported files that name a file, which are the plugin's to read.
func (v values) remarkImported(blocks []caddyfile.ServerBlock) {
	for _, b := range blocks {
		for _, tokens := range directives(b.Tokens["forward"]) {
			for _, t := range tokens {
				if t.Text == "{" {
					break
				}
				if t.File != "" && isFile(t.Text) {
					v.remark(remark{info, fmt.Sprintf("%s:%d - forward stands in an imported file: all servers of %s are asked, also such as would come back to this node, and over UDP when a client asks over UDP", t.File, t.Line, t.Text)})
				}
			}
		}
	}
}

// isFile tells if a name after forward is a file and not a server.
func isFile(to string) bool {
	scheme, host := parse.Transport(to)
	return scheme == transport.DNS && host == to && strings.Contains(to, "/")
}

// expand replaces files by the nameservers that they name.
func (v values) expand(to []string) ([]string, error) {
	var servers []string
	for _, name := range to {
		if !isFile(name) {
			servers = append(servers, name)
			continue
		}
		found, err := v.nameservers(name, v.own)
		if err != nil {
			return nil, err
		}
		servers = append(servers, found...)
	}
	return servers, nil
}

// The options of forward that say how servers are asked.
const (
	overTCP = "force_tcp"
	overUDP = "prefer_udp"
	orUDP   = "fallback udp" // where TCP does not work
)

// saysTransport reports whether the user has chosen how servers are asked.
func (s stanza) saysTransport() bool {
	return s.option(overTCP)+s.option(overUDP)+s.option("fallback")+s.option("tls") > 0
}

// isEncrypted tells if a server has a transport of its own.
func isEncrypted(server string) bool {
	scheme, _ := parse.Transport(server)
	return scheme != transport.DNS
}

// isClusterDNS tells if a server is cluster DNS, which takes TCP.
func (v values) isClusterDNS(server string) bool {
	_, host := parse.Transport(server)
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && v.clusterDNS != "" && ip.Unmap().String() == v.clusterDNS
}

// field is a word of a line, as the parser of Corefiles takes it.
type field struct{ start, end int }

// fields returns the words of a line that holds no quoted word of several lines.
func fields(line string) (all []field, ok bool) {
	const none = -1
	start, quoted, escaped := none, false, false
	for i, r := range line {
		switch {
		case quoted && escaped:
			escaped = false
		case quoted && r == '\\':
			escaped = true
		case quoted && r == '"':
			quoted = false
			all = append(all, field{start, i + 1})
			start = none
		case quoted:
		case r == '#':
			if start != none {
				all = append(all, field{start, i})
			}
			return all, true
		case unicode.IsSpace(r):
			if start != none {
				all = append(all, field{start, i})
			}
			start = none
		case start == none:
			start, quoted = i, r == '"'
		}
	}
	if start != none {
		all = append(all, field{start, len(line)})
	}
	return all, !quoted
}

// rewrite returns the first line of a stanza with other servers and with more options, each of which makes
// a line, and the braces another.
func (s stanza) rewrite(line string, servers, options []string) ([]string, error) {
	words, ok := fields(line)
	at := slices.IndexFunc(words, func(w field) bool { return line[w.start:w.end] == "forward" })
	opened := s.options != nil
	last := at + 1 + len(s.to) // of the servers
	if !ok || at < 0 || len(words) <= last {
		return nil, fmt.Errorf("forward stands on a line together with something that nodecache cannot tell from it; write it on lines of its own")
	}
	head := line[:words[at+2].start] + strings.Join(servers, " ")
	return withOptions("forward", head, line[words[last].end:], opened, options)
}

// withOptions returns the lines of a directive that gets more options: head is what its first line says up to the
// last argument, rest what comes after, which has the brace if a block is open.
func withOptions(directive, head, rest string, opened bool, options []string) ([]string, error) {
	indent := head[:len(head)-len(strings.TrimLeft(head, " \t"))]
	var more []string
	for _, o := range options {
		more = append(more, indent+"    "+o)
	}
	words, _ := fields(rest)
	switch {
	case len(options) == 0:
		return []string{head + rest}, nil
	case !opened:
		return append(append([]string{head + " {" + rest}, more...), indent+"}"), nil
	case len(words) == 0:
		return nil, fmt.Errorf("%s has its brace on another line", directive)
	}
	brace := words[0].end
	lines := append([]string{head + rest[:brace]}, more...)
	switch after := strings.TrimSpace(rest[brace:]); {
	case strings.HasPrefix(after, "#"):
		lines[0] += rest[brace:]
	case after != "":
		lines = append(lines, indent+after)
	}
	return lines, nil
}
