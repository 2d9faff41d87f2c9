package dropin

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/coredns/caddy/caddyfile"

	"github.com/nearside-dns/nearside/cmd/internal/corefileimports"
	"github.com/nearside-dns/nearside/cmd/internal/daemon"
	"github.com/nearside-dns/nearside/cmd/internal/kubednsconfig"
	"github.com/nearside-dns/nearside/internal/nodefacts"
)

// values are the inputs of a rendering besides the Corefile.
type values struct {
	options
	port       string               // of blocks that name none, and of added blocks
	clusterDNS string               // "" if unknown
	fallbacks  []string             // the arguments of the option fallback of nodelocal
	resolvConf string               // the file that upstreamServers stands for without a ConfigMap
	kubeDNS    kubednsconfig.Config // the content of the ConfigMap
	node, zone string               // of this node, "" if unknown
	own        addresses            // the addresses that this process answers on; set by render

	nameservers func(file string, own addresses) ([]string, error)
	reads       func(path string) // called with imported files, and with directories that an import pattern searches
	report      func(message)
}

// render returns a Corefile or a template as it is served:
//
//   - variables are replaced by their values, and the name of the interface after bind by its addresses,
//   - server blocks are added for the stub domains of the ConfigMap, for the zones of the clusterset, and for the
//     directive nodelocal,
//   - Facts has the defaults of the directives forward and autopath.
//
// The lines of the file keep their numbers; added blocks follow the last line.
func (v values) render(source daemon.Corefile) (daemon.Corefile, error) {
	v.own = v.localIPs
	text, err := v.substitute(source.Name, string(source.Text))
	if err != nil {
		return source, err
	}
	imported := corefileimports.New(v.reads, checkImported)
	if err := imported.Follow(source.Name, text); err != nil {
		return source, err
	}
	blocks, err := caddyfile.Parse(source.Name, strings.NewReader(text), nil)
	if err != nil {
		return source, err
	}
	if imported.Sum() == "" { // with imported files, braces may be paired across files
		if err := checkBraces(source.Name, text); err != nil {
			return source, err
		}
	}
	v.own = ownAddresses(v.localIPs, blocks)
	if err := v.check(source.Name, string(source.Text)); err != nil { // again, with the addresses after bind
		return source, err
	}
	if err := v.checkKubeDNS(); err != nil {
		return source, err
	}
	lines := strings.Split(text, "\n")
	v.replaceInterface(lines, blocks)
	v.reportImported(blocks)
	v.reportPlainMetrics(blocks)
	forward, err := v.forwardDefaults(source.Name, strings.Split(string(source.Text), "\n"), lines, stanzas(blocks))
	if err != nil {
		return source, err
	}
	added, err := v.addedBlocks(blocks, source.Name, forward)
	if err != nil {
		return source, err
	}
	out := daemon.Corefile{Name: source.Name, Text: []byte(strings.Join(lines, "\n")), Imported: imported.Sum()}
	out.Facts = nodefacts.Facts{Corefile: source.Name, Node: v.node, Zone: v.zone, Forward: forward}
	addBlocks(&out, added)
	v.reportCaller(string(out.Text), forward)
	return out, checkBlocks(out, len(blocks)+len(added))
}

// checkBraces returns an error for a closing brace without an opening one. CoreDNS's parser accepts it as a zone, or as the
// end of a server block without braces, and it would change where added blocks begin.
func checkBraces(file, text string) error {
	depth := 0
	for d := caddyfile.NewDispenser(file, strings.NewReader(text)); d.Next(); {
		switch d.Val() {
		case "{":
			depth++
		case "}":
			depth--
		}
		if depth < 0 {
			return d.Err("unexpected '}': no '{' is open")
		}
	}
	return nil
}

// addBlocks appends server blocks and the defaults of their forward directives.
func addBlocks(out *daemon.Corefile, added []addedBlock) {
	if len(added) == 0 {
		return
	}
	text := strings.TrimSuffix(string(out.Text), "\n") + "\n"
	out.Lines = strings.Count(text, "\n")
	for _, b := range added {
		if b.forwardLine > 0 {
			out.Facts.Forward[strings.Count(text, "\n")+b.forwardLine] = b.forward
		}
		text += b.text
	}
	out.Text = []byte(text)
}

// checkBlocks parses the result, which must have the blocks of the file and the added ones: the only server block of a
// file may lack braces, and would then include the added blocks.
func checkBlocks(out daemon.Corefile, want int) error {
	blocks, err := caddyfile.Parse(out.Name, strings.NewReader(string(out.Text)), nil)
	if err != nil {
		return fmt.Errorf("as rendered: %w", err)
	}
	if len(blocks) != want {
		return errors.New(out.Name + ":1 - a server block without braces cannot stand beside the blocks that nodecache adds: put its directives in braces")
	}
	return nil
}

// replaceInterface replaces the interface's name after bind by the addresses of -localip: CoreDNS looks up the
// interface before nodecache has made it. The name of an interface that nodecache does not make is left to CoreDNS.
func (v values) replaceInterface(lines []string, blocks []caddyfile.ServerBlock) {
	if len(v.localIPs) == 0 || !v.setupInterface {
		return
	}
	name := v.interfaceName
	word := regexp.MustCompile(`(^|\s)"?` + regexp.QuoteMeta(name) + `"?(\s|#|$)`)
	for _, b := range blocks {
		var tokens []caddyfile.Token
		for _, t := range b.Tokens["bind"] {
			if t.Text != name || t.File != "" {
				tokens = append(tokens, t)
				continue
			}
			lines[t.Line-1] = word.ReplaceAllString(lines[t.Line-1], "${1}"+strings.Join(v.localIPs.texts(), " ")+"${2}")
			for _, t.Text = range v.localIPs.texts() {
				tokens = append(tokens, t)
			}
		}
		b.Tokens["bind"] = tokens
	}
}
