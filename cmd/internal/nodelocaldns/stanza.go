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
	to      []string // the servers and files
	options []caddyfile.Token
}

// stanzas finds the forward directives that stand in the file itself, each once: a snippet is used in
// many places. Those of an imported file are left as they are.
func stanzas(blocks []caddyfile.ServerBlock) (all []stanza) {
	seen := map[int]bool{}
	for _, b := range blocks {
		for _, tokens := range directives(b.Tokens["forward"]) {
			if tokens[0].File != "" || seen[tokens[0].Line] || len(tokens) < 3 {
				continue
			}
			s := stanza{line: tokens[0].Line}
			seen[s.line] = true
			open := slices.IndexFunc(tokens, func(t caddyfile.Token) bool { return t.Text == "{" })
			if open >= 0 {
				s.options = tokens[open+1:]
				tokens = tokens[:open]
			}
			for _, t := range tokens[min(2, len(tokens)):] {
				s.to = append(s.to, t.Text)
			}
			all = append(all, s)
		}
	}
	return all
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

// remarkImported tells of stanzas in imported files that name a file, which are CoreDNS's to read.
func (v values) remarkImported(blocks []caddyfile.ServerBlock) {
	for _, b := range blocks {
		for _, tokens := range directives(b.Tokens["forward"]) {
			for _, t := range tokens {
				if t.Text == "{" {
					break
				}
				if t.File != "" && isFile(t.Text) {
					v.remark(remark{info, fmt.Sprintf("%s:%d - forward stands in an imported file: %s is read once, not watched, and its servers are asked as CoreDNS does", t.File, t.Line, t.Text)})
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

// transportOf returns the option that servers want, or none if it does not depend on them: a server
// that is asked over TLS, or one that is a name.
func (v values) transportOf(servers []string) string {
	var plain []string
	for _, s := range servers {
		scheme, host := parse.Transport(s)
		if scheme != transport.DNS {
			return ""
		}
		address := host
		if h, _, err := net.SplitHostPort(host); err == nil {
			address = h
		} else {
			host = net.JoinHostPort(strings.Trim(host, "[]"), transport.Port)
			address = strings.Trim(address, "[]")
		}
		if _, err := netip.ParseAddr(address); err != nil {
			return ""
		}
		plain = append(plain, host)
	}
	return v.transport(plain)
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

// rewrite returns the first line of a stanza with other servers and with one more option, which makes
// up to two more lines. An empty option adds none.
func (s stanza) rewrite(line string, servers []string, option string) ([]string, error) {
	words, ok := fields(line)
	at := slices.IndexFunc(words, func(w field) bool { return line[w.start:w.end] == "forward" })
	opened := s.options != nil
	last := at + 1 + len(s.to) // of the servers
	if !ok || at < 0 || len(words) <= last {
		return nil, fmt.Errorf("forward stands on a line together with something that nodecache cannot tell from it; write it on lines of its own")
	}
	head := line[:words[at+2].start] + strings.Join(servers, " ")
	rest := line[words[last].end:]
	indent := line[:len(line)-len(strings.TrimLeft(line, " \t"))]
	switch {
	case option == "":
		return []string{head + rest}, nil
	case !opened:
		return []string{head + " {" + rest, indent + "    " + option, indent + "}"}, nil
	case len(words) <= last+1:
		return nil, fmt.Errorf("forward has its brace on another line")
	}
	brace := words[last+1].end
	lines := []string{head + line[words[last].end:brace], indent + "    " + option}
	switch after := strings.TrimSpace(line[brace:]); {
	case strings.HasPrefix(after, "#"):
		lines[0] += line[brace:]
	case after != "":
		lines = append(lines, indent+after)
	}
	return lines, nil
}
