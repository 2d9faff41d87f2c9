package nodelocaldns

import (
	"errors"
	"fmt"
	"slices"

	"github.com/coredns/caddy/caddyfile"
)

// The directive that expands search paths, what it says where they are those of the pods of a node, and the option
// that names the node.
const (
	searchPaths = "autopath"
	ofThisNode  = "@nodelocal"
	nodeIs      = "node"
)

// namePods says to the directives that want the pods of this node which node it is, if that is known. What the user
// wrote holds, and directives of imported files stay as they are.
func (v values) namePods(d *document, blocks []caddyfile.ServerBlock) error {
	if v.node == "" {
		return nil
	}
	seen := map[int]bool{} // a snippet is used in many places
	for _, b := range blocks {
		for _, tokens := range directives(b.Tokens[searchPaths]) {
			line := tokens[0].Line
			if tokens[0].File != "" || seen[line] {
				continue
			}
			seen[line] = true
			if err := v.nameNode(d, tokens); err != nil {
				return fmt.Errorf("%s:%d - %w", d.name, line, err)
			}
		}
	}
	return nil
}

// nameNode adds the node to one directive.
func (v values) nameNode(d *document, tokens []caddyfile.Token) error {
	open := slices.IndexFunc(tokens, func(t caddyfile.Token) bool { return t.Text == "{" })
	arguments, s := tokens, stanza{}
	if open >= 0 {
		arguments, s.options = tokens[:open], tokens[open+1:]
	}
	if arguments[len(arguments)-1].Text != ofThisNode || s.option(nodeIs) > 0 {
		return nil
	}
	at := d.at(tokens[0].Line)
	if at == 0 {
		return errors.New("no such line")
	}
	line := d.lines[at-1]
	words, ok := fields(line)
	first := slices.IndexFunc(words, func(w field) bool { return line[w.start:w.end] == searchPaths })
	last := first + len(arguments) - 1
	if !ok || first < 0 || last >= len(words) {
		return errors.New(searchPaths + " stands on a line together with something that nodecache cannot tell from it; write it on lines of its own")
	}
	end := words[last].end
	lines, err := withOptions(searchPaths, line[:end], line[end:], open >= 0, []string{nodeIs + " " + string(v.node)})
	if err != nil {
		return err
	}
	d.replace(at, lines)
	return nil
}
