package searchpath

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/corefile"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
)

const (
	defaultSuffix = "ap.k8s.io."
	// hostFile is where the search list of the host is, if no other file is given.
	hostFile = "/etc/resolv.conf"
)

// options are what the block of the directive says.
type options struct {
	zones   plugin.Zones
	schemas []schema
	host    bool   // the search list of the host is tried as well
	file    string // that it is in
}

// parse reads the searchpath block of a server block; there may be one.
func parse(c *caddy.Controller) (s *SearchPath, err error) {
	for c.Next() {
		if s != nil {
			return nil, corefile.At(c).Errorf("%v", plugin.ErrOnce)
		}
		if s, err = parseBlock(c); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func parseBlock(c *caddy.Controller) (*SearchPath, error) {
	start := corefile.At(c)
	suffix, err := parseSuffix(c.RemainingArgs(), plugin.OriginsFromArgsOrServerBlock(nil, c.ServerBlockKeys))
	if err != nil {
		return nil, start.Errorf("searchpath: %v", err)
	}
	o := options{schemas: schemas, host: true, file: hostFile}
	seen, err := parsers.Parse(c, &o)
	if err != nil {
		return nil, err
	}
	if err := o.check(suffix, start, seen); err != nil {
		return nil, err
	}
	s := &SearchPath{grammar: grammar{suffix: suffix, zones: o.zones, schemas: o.schemas}}
	here, given := seen["resolv_conf"]
	if s.host, err = o.hostSearch(&s.grammar, given); err != nil {
		return nil, cmp.Or(here, start).Errorf("the search list of the host: %v", err)
	}
	return s, nil
}

// parseSuffix reads the arguments of the directive, given the zones of the server block: what is not in one of them
// is never asked of the block.
func parseSuffix(args []string, block plugin.Zones) (string, error) {
	suffix := defaultSuffix
	if len(args) > 1 {
		return "", fmt.Errorf("it takes one suffix or none, got %q", args)
	}
	if len(args) == 1 {
		suffix = plugin.Name(args[0]).Normalize()
	}
	if err := checkHostname(suffix); err != nil {
		return "", fmt.Errorf("%w; the suffix is a name such as ap.k8s.io", err)
	}
	if block.Matches(suffix) == "" {
		key := strings.TrimSuffix(suffix, ".")
		return "", fmt.Errorf("the server block is for %q and gets no query for names under %s: add %s to its zones, or put the directive into a block %s:53 of its own",
			[]string(block), key, key, key)
	}
	return suffix, nil
}

// check returns an error where options contradict each other, or a zone is missing.
func (o *options) check(suffix string, start corefile.Position, seen map[string]corefile.Position) error {
	if len(o.zones) == 0 {
		return start.Errorf("searchpath: no zone of a cluster is given: say which, such as zone cluster.local")
	}
	if here, ok := seen["resolv_conf"]; ok && !o.host {
		return here.Errorf("resolv_conf and host-searches off cannot both be set: the file is for the search list of the host")
	}
	for _, zone := range o.zones {
		if dns.IsSubDomain(suffix, zone) {
			return seen["zone"].Errorf("zone: %q is under the suffix %q, whose names are no others", zone, suffix)
		}
	}
	return nil
}

// hostSearch returns the search list of the host: what is not in a zone of the cluster, where the list of the
// schema says for itself what to try, nor under the suffix. The file has to be there if it is given.
func (o *options) hostSearch(g *grammar, given bool) (suffixes []string, err error) {
	if !o.host {
		return nil, nil
	}
	search, err := searchlist.ReadResolvConf(o.file)
	if !given && errors.Is(err, fs.ErrNotExist) {
		return nil, nil // a host without it has no search list
	}
	if err != nil {
		return nil, err
	}
	for _, s := range search {
		s = plugin.Name(s).Normalize()
		if _, ok := dns.IsDomainName(s); ok && !g.zones.Contains(s) && !g.contains(s) {
			suffixes = append(suffixes, s)
		}
	}
	return suffixes, nil
}

var parsers = corefile.Options[*options]{
	"zone":          {Min: 1, Max: -1, Once: true, Form: "zones of clusters, such as cluster.local", Parse: parseZones},
	"schema":        {Min: 1, Max: -1, Once: true, Form: "versions of the search path, of " + known(schemas), Parse: parseSchemas},
	"host-searches": {Min: 1, Max: 1, Once: true, Form: "on or off", Parse: parseHostSearches},
	"resolv_conf":   {Min: 1, Max: 1, Once: true, Form: "a file in the form of resolv.conf(5)", Parse: func(o *options, args []string) error { o.file = args[0]; return nil }},
}

func parseZones(o *options, args []string) error {
	for _, arg := range args {
		zone := plugin.Name(arg).Normalize()
		if err := checkHostname(zone); err != nil {
			return err
		}
		if dns.IsSubDomain("arpa.", zone) {
			return fmt.Errorf("%q is a zone of addresses", arg)
		}
		if slices.Contains(o.zones, zone) {
			return fmt.Errorf("%q is given twice", arg)
		}
		o.zones = append(o.zones, zone)
	}
	return nil
}

func parseSchemas(o *options, args []string) error {
	o.schemas = nil
	for _, arg := range args {
		i := slices.IndexFunc(schemas, func(s schema) bool { return s.label == arg })
		if i < 0 {
			return fmt.Errorf("%q is not known", arg)
		}
		if slices.ContainsFunc(o.schemas, func(s schema) bool { return s.label == arg }) {
			return fmt.Errorf("%q is given twice", arg)
		}
		o.schemas = append(o.schemas, schemas[i])
	}
	return nil
}

func parseHostSearches(o *options, args []string) error {
	switch args[0] {
	case "on":
		o.host = true
	case "off":
		o.host = false
	default:
		return fmt.Errorf("%q is neither", args[0])
	}
	return nil
}

// checkHostname returns an error for what can't be in a search list of a pod: names that are fully qualified and in
// lower case, of letters, digits and hyphens (RFC 1123 section 2.1).
func checkHostname(name string) error {
	if _, ok := dns.IsDomainName(name); !ok {
		return fmt.Errorf("%q is no name", name)
	}
	for label := range strings.SplitSeq(strings.TrimSuffix(name, "."), ".") {
		if !isNamespace(label) {
			return fmt.Errorf("%q is no name of letters, digits and hyphens", name)
		}
	}
	return nil
}
