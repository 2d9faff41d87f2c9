package nodelocaldns

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/coredns/caddy/caddyfile"

	"github.com/nearside-dns/nearside/cmd/internal/daemon"
)

// values are what a Corefile is rendered with.
type values struct {
	local      addresses
	port       string // of blocks that name none, and of the blocks that are added
	clusterDNS string // "" if it is not known
	service    serviceName
	prometheus string
	resolvConf string // what upstreamServers means without a ConfigMap
	kubeDNS    kubeDNS
	directive  nodelocal
	node       nodeName  // which node this is, "" if it is not known
	caller     string    // option of forward for what goes to cluster DNS, "" for none
	own        addresses // what this process answers on; render finds it
	clusterset zoneNames // zones whose names are those of ServiceImports

	nameservers func(file string, own addresses) ([]string, error)
	reads       func(path string) // told of imported files, and of directories where more may come
	remark      func(remark)      // what is worth a line in the log
}

// document is a Corefile being rendered. Line i+1 of the text is lines[i]; it came from line origin[i]
// of the file.
type document struct {
	name   string
	lines  []string
	origin []int
}

// render turns a Corefile or the template of one into what is served:
//
//   - variables have their values,
//   - the forward stanzas name servers and not files; these and cluster DNS are asked over TCP, and over UDP
//     where that does not work,
//   - cluster DNS is told which node asks for names of the cluster,
//   - autopath is told whose pods are meant,
//   - the stub domains of the ConfigMap have server blocks,
//   - the zones of the clusterset have server blocks,
//   - the directive that makes interface, rules and lease stands in a block of its own.
//
// What the user wrote stays on its line, but for up to four lines that options of forward may need;
// the result says where each line came from.
func (v values) render(source daemon.Corefile) (daemon.Corefile, error) {
	v.own = v.local
	text, err := v.substitute(source.Name, string(source.Text))
	if err != nil {
		return source, err
	}
	imported := newImports(v.reads)
	if err := imported.follow(source.Name, text); err != nil {
		return source, err
	}
	blocks, err := caddyfile.Parse(source.Name, strings.NewReader(text), nil)
	if err != nil {
		return source, err
	}
	v.own = ownAddresses(v.local, blocks)
	if err := v.check(source.Name, string(source.Text)); err != nil {
		return source, err
	}
	if err := v.checkKubeDNS(); err != nil {
		return source, err
	}
	d := newDocument(source.Name, text)
	v.nameAddresses(d, blocks)
	v.remarkImported(blocks)
	if err := v.forward(d, strings.Split(string(source.Text), "\n"), stanzas(blocks)); err != nil {
		return source, err
	}
	if err := v.namePods(d, blocks); err != nil {
		return source, err
	}
	added, err := v.added(blocks, source.Name)
	if err != nil {
		return source, err
	}
	ofClusterset, err := v.clustersetBlocks(d, blocks)
	if err != nil {
		return source, err
	}
	added = append(ofClusterset, added...)
	for _, block := range added {
		d.append(block)
	}
	out := d.corefile()
	out.Beside = imported.sum()
	return out, d.check(len(blocks) + len(added))
}

func newDocument(name, text string) *document {
	d := &document{name: name, lines: strings.Split(text, "\n")}
	for i := range d.lines {
		d.origin = append(d.origin, i+1)
	}
	return d
}

// forward rewrites stanzas, the last one first, so that the numbers of the lines before it stay right.
func (v values) forward(d *document, template []string, all []stanza) error {
	slices.SortFunc(all, func(a, b stanza) int { return b.line - a.line })
	for _, s := range all {
		if s.line > len(d.lines) {
			return fmt.Errorf("%s: no line %d", d.name, s.line)
		}
		if strings.Contains(template[s.line-1], upstreamServers) && len(v.kubeDNS.upstreams) > 0 {
			// Servers that someone named need not take TCP, and node-local-dns does not ask them over it.
			if line := s.option(overTCP); line > 0 {
				d.remove(line, overTCP)
			}
			continue
		}
		if !slices.ContainsFunc(s.to, isFile) && !slices.ContainsFunc(s.to, v.isClusterDNS) {
			continue
		}
		if err := v.rewrite(d, s); err != nil {
			return fmt.Errorf("%s:%d - %w", d.name, s.line, err)
		}
	}
	return nil
}

// rewrite puts servers in the place of files, and adds the transport where the stanza says none.
func (v values) rewrite(d *document, s stanza) error {
	servers, err := v.expand(s.to)
	if err != nil {
		return err
	}
	var options []string
	if len(servers) == 0 {
		servers = []string{nobody}
	} else if !s.saysTransport() && !slices.ContainsFunc(servers, isEncrypted) {
		options = []string{overTCP, orUDP}
	}
	if v.tellsCaller(d, s, servers) {
		options = append(options, v.caller)
	}
	if options == nil && slices.Equal(servers, s.to) {
		return nil
	}
	lines, err := s.rewrite(d.lines[s.line-1], servers, options)
	if err != nil && slices.Equal(servers, s.to) {
		if slices.Contains(options, v.caller) {
			v.remark(remark{warning, fmt.Sprintf("%s:%d - cluster DNS is not told which node asks: %s", d.name, s.line, err)})
		}
		return nil // it works as it is, over UDP when a client asks over UDP
	}
	if err != nil {
		return err
	}
	d.replace(s.line, lines)
	return nil
}

// at returns where a line of the file is now, or begins.
func (d *document) at(line int) int { return slices.Index(d.origin, line) + 1 }

// replace puts lines in the place of one.
func (d *document) replace(line int, by []string) {
	origin := slices.Repeat([]int{d.origin[line-1]}, len(by))
	d.lines = slices.Replace(d.lines, line-1, line, by...)
	d.origin = slices.Replace(d.origin, line-1, line, origin...)
}

// remove takes a word out of a line, and leaves the line.
func (d *document) remove(line int, word string) {
	d.lines[line-1] = strings.TrimRight(strings.Replace(d.lines[line-1], word, "", 1), " \t\r")
}

// put puts other words in the place of a word of a line.
func (d *document) put(line int, word, by string) {
	text := d.lines[line-1]
	words, _ := fields(text)
	for _, w := range slices.Backward(words) {
		if strings.Trim(text[w.start:w.end], `"`) == word {
			text = text[:w.start] + by + text[w.end:]
		}
	}
	d.lines[line-1] = text
}

// append adds the lines of a block.
func (d *document) append(block string) {
	if last := len(d.lines) - 1; d.lines[last] == "" {
		d.lines, d.origin = d.lines[:last], d.origin[:last]
	}
	lines := strings.Split(block, "\n")
	d.lines = append(d.lines, lines...)
	d.origin = append(d.origin, make([]int, len(lines))...)
}

func (d *document) corefile() daemon.Corefile {
	return daemon.Corefile{Name: d.name, Text: []byte(strings.Join(d.lines, "\n")), Lines: d.origin}
}

// check parses the result. It has to have the blocks of the file and those that were added: a file may
// have one server block without braces, which would swallow them.
func (d *document) check(want int) error {
	blocks, err := d.parse()
	if err != nil {
		return err
	}
	if len(blocks) != want {
		return errors.New(d.name + ":1 - a server block without braces cannot stand beside the blocks that nodecache adds: put its directives in braces")
	}
	return nil
}

// parse parses the document as it is now.
func (d *document) parse() ([]caddyfile.ServerBlock, error) {
	blocks, err := caddyfile.Parse(d.name, strings.NewReader(strings.Join(d.lines, "\n")), nil)
	if err != nil {
		return nil, fmt.Errorf("as rendered: %w", err)
	}
	return blocks, nil
}
