package daemon

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/coredns/caddy/caddyfile"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/parse"
	"github.com/coredns/coredns/plugin/pkg/transport"

	"github.com/nearside-dns/nearside/cmd/internal/corefileimports"
	"github.com/nearside-dns/nearside/internal/pages"
)

// directivesOfCoreDNS are those of CoreDNS itself, before a program sets its own.
var directivesOfCoreDNS = slices.Clone(dnsserver.Directives)

// explain adds to an error of CoreDNS how to correct the file: the lines of two conflicting server blocks, or the program
// that has an unknown directive.
func (d *Daemon) explain(c Corefile, err error) error {
	if err == nil {
		return nil
	}
	text := d.adviseOnDirective(err.Error())
	text = c.locateBlocks(text)
	return c.explain(errors.New(text))
}

var unknownDirective = regexp.MustCompile(`Unknown directive '([^']+)'$`)

// adviseOnDirective adds to the error about an unknown directive the program that has it, or a directive with a similar
// name.
func (d *Daemon) adviseOnDirective(text string) string {
	found := unknownDirective.FindStringSubmatch(text)
	if found == nil {
		return text
	}
	name := found[1]
	ofCoreDNS := slices.Contains(directivesOfCoreDNS, name)
	if near := d.nearest(name); !ofCoreDNS && near != "" {
		return text + fmt.Sprintf(": did you mean %q?", near)
	}
	if ofCoreDNS {
		text += fmt.Sprintf(", which CoreDNS has and %s does not: remove it, or keep CoreDNS where it is needed", d.Name)
	}
	return text + fmt.Sprintf("; %s -plugins lists the directives; a program with other plugins: %s", d.Name, pages.Bundle)
}

// nearest returns the directive at a distance of one or two letters from a name, or "".
func (d *Daemon) nearest(name string) (near string) {
	limit := 3
	for _, directive := range d.Directives {
		if n := distance(name, directive); n < limit && n < len(directive)/2 {
			near, limit = directive, n
		}
	}
	return near
}

// distance returns the Levenshtein distance of two words.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			changed := diagonal
			if a[i] != b[j] {
				changed++
			}
			diagonal = row[j+1]
			row[j+1] = min(changed, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// notServed is the error of CoreDNS about two server blocks for one zone.
var notServed = regexp.MustCompile(`cannot serve (\S+)(?: on (\S+))? - `)

// locateBlocks adds the lines of two server blocks for one zone to an error.
func (c Corefile) locateBlocks(text string) string {
	at := notServed.FindStringSubmatchIndex(text)
	if at == nil {
		return text
	}
	before, text := text[:at[0]], text[at[0]:] // the error of a restart has a prefix
	found := notServed.FindStringSubmatch(text)
	places := c.places(found[1], found[2])
	if len(places) < 2 {
		places = c.places(found[1], "") // bind may have the name of an interface, or an address of the other family
	}
	switch len(places) {
	case 0:
		return before + text
	case 1:
		return fmt.Sprintf("%s%s - %s in the same server block", before, places[0], text)
	}
	return fmt.Sprintf("%s%s - %s at %s: leave out one of them, or bind each to other addresses", before, places[1], text, places[0])
}

// places returns the first lines of the server blocks that have a zone, such as "dns://.:53". With an address, only blocks
// that are bound to it, or not bound, count.
func (c Corefile) places(zone, address string) (all []string) {
	blocks, err := caddyfile.Parse(c.Name, bytes.NewReader(c.Text), nil)
	if err != nil {
		return nil
	}
	begins := c.begins()
	for _, b := range blocks {
		place, imported := FirstDirective(b, c.Name)
		if !imported || len(begins) > 0 && begins[0].keys != nil {
			own := slices.IndexFunc(begins, func(own blockBegin) bool { return slices.Equal(own.keys, b.Keys) })
			if own >= 0 {
				place = fmt.Sprintf("%s:%d", c.Name, begins[own].line)
				begins = begins[own+1:]
			}
		}
		bound := slices.ContainsFunc(b.Tokens["bind"], func(t caddyfile.Token) bool { return t.Text == address })
		if address != "" && len(b.Tokens["bind"]) > 0 && !bound {
			continue
		}
		if slices.ContainsFunc(b.Keys, func(key string) bool { return slices.Contains(zones(key), zone) }) && !slices.Contains(all, place) {
			all = append(all, place)
		}
	}
	return all
}

// FirstDirective returns the place of the first directive of a block of a file, FILE:LINE, and whether all its directives
// are in imported files. A block without directives begins in the file.
func FirstDirective(b caddyfile.ServerBlock, file string) (place string, imported bool) {
	var first *caddyfile.Token
	for _, tokens := range b.Tokens {
		for _, t := range tokens { // File is "" for tokens of the file itself
			if first == nil || t.File < first.File || t.File == first.File && t.Line < first.Line {
				first = &t
			}
		}
	}
	if first == nil {
		return file, false
	}
	return fmt.Sprintf("%s:%d", cmp.Or(first.File, file), first.Line), first.File != ""
}

// blockBegin is the line with the keys of a server block. Without keys it is an import of server blocks.
type blockBegin struct {
	keys []string
	line int
}

// begins returns where the file's server blocks begin, and where it imports others.
func (c Corefile) begins() (all []blockBegin) {
	depth := 0
	var b blockBegin
	for d := caddyfile.NewDispenser(c.Name, bytes.NewReader(c.Text)); d.Next(); {
		switch word := d.Val(); {
		case word == "{":
			if depth == 0 && len(b.keys) > 0 && !strings.HasPrefix(b.keys[0], "(") {
				all = append(all, b)
			}
			b = blockBegin{}
			depth++
		case word == "}":
			depth--
		case depth > 0:
		case word == "import" && len(b.keys) == 0:
			d.NextArg() // the file
			all = append(all, blockBegin{})
		default:
			if len(b.keys) == 0 {
				b.line = d.Line()
			}
			b.keys = append(b.keys, strings.TrimSuffix(corefileimports.ExpandEnvironment(word), ","))
		}
	}
	return all
}

// ports are the default ports of transports other than DNS.
var ports = map[string]string{
	transport.TLS:    transport.TLSPort,
	transport.QUIC:   transport.QUICPort,
	transport.GRPC:   transport.GRPCPort,
	transport.HTTPS:  transport.HTTPSPort,
	transport.HTTPS3: transport.HTTPSPort,
}

// zones returns the zones of a key in the form of CoreDNS's errors.
func zones(key string) (all []string) {
	scheme, rest := parse.Transport(key)
	_, port, err := plugin.SplitHostPort(rest)
	if err != nil {
		return nil
	}
	if port == "" {
		port = ports[scheme]
	}
	if port == "" {
		port = dnsserver.Port
	}
	for _, zone := range plugin.Host(key).NormalizeExact() {
		all = append(all, scheme+"://"+zone+":"+port)
	}
	return all
}

// explain returns an error about the text as one about the file: lines that the program has added are not in the file.
func (c Corefile) explain(err error) error {
	if err == nil || c.Lines == 0 {
		return err
	}
	place := regexp.MustCompile(regexp.QuoteMeta(c.Name) + `:(\d+)`)
	text := place.ReplaceAllStringFunc(err.Error(), func(found string) string {
		line, convErr := strconv.Atoi(place.FindStringSubmatch(found)[1])
		if convErr != nil || line <= c.Lines {
			return found
		}
		return fmt.Sprintf("%s (line %d as rendered)", c.Name, line)
	})
	return errors.New(text)
}
