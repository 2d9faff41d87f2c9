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
	// defaultResolvConf is the file with the search list of the host.
	defaultResolvConf = "/etc/resolv.conf"
)

// options are the options of the directive.
type options struct {
	zones      plugin.Zones
	schemas    []schema
	host       bool // candidates with the search list of the host are tried as well
	resolvConf string
}

func parse(c *caddy.Controller) (*SearchPath, error) { return corefile.Once(c, parseBlock) }

func parseBlock(c *caddy.Controller) (*SearchPath, error) {
	start := corefile.At(c)
	suffix, err := parseSuffix(c.RemainingArgs(), plugin.OriginsFromArgsOrServerBlock(nil, c.ServerBlockKeys))
	if err != nil {
		return nil, start.Errorf("invalid searchpath %w", err)
	}
	o := options{schemas: schemas, host: true, resolvConf: defaultResolvConf}
	seen, err := parsers.Parse(c, &o)
	if err != nil {
		return nil, err
	}
	if err := o.check(suffix, start, seen); err != nil {
		return nil, err
	}
	s := &SearchPath{grammar: grammar{suffix: suffix, zones: o.zones, schemas: o.schemas}}
	here, required := seen["resolv_conf"]
	if s.host, err = o.hostSearch(&s.grammar, required); err != nil {
		return nil, cmp.Or(here, start).Errorf("search list of the host: %v", err)
	}
	return s, nil
}

// parseSuffix parses the arguments of the directive. The suffix must be in a zone of the server block, which receives no
// other queries.
func parseSuffix(args []string, block plugin.Zones) (string, error) {
	suffix := defaultSuffix
	if len(args) > 1 {
		return "", fmt.Errorf("%s: want one suffix or none", corefile.Quote(args))
	}
	if len(args) == 1 {
		suffix = plugin.Name(args[0]).Normalize()
	}
	if !isHostname(suffix) {
		return "", fmt.Errorf("%q: want a name of letters, digits and hyphens, such as ap.k8s.io", suffix)
	}
	if block.Matches(suffix) == "" {
		key := strings.TrimSuffix(suffix, ".")
		return "", fmt.Errorf("%q: the server block is for %q and receives no query for names under it: add %s to its zones, or move the directive to a server block for %s:53",
			key, []string(block), key, key)
	}
	return suffix, nil
}

// check returns an error if options contradict each other, or if there is no zone.
func (o *options) check(suffix string, start corefile.Position, seen map[string]corefile.Position) error {
	if len(o.zones) == 0 {
		return start.Errorf("missing zone of a cluster: want an option such as zone cluster.local")
	}
	if here, ok := seen["resolv_conf"]; ok && !o.host {
		return here.Errorf("resolv_conf and host-searches off cannot both be set: the file is for the search list of the host")
	}
	for _, zone := range o.zones {
		if dns.IsSubDomain(suffix, zone) {
			return seen["zone"].Errorf("invalid zone %q: want one that is not under the suffix %q", zone, suffix)
		}
	}
	return nil
}

// hostSearch returns the search list of the host without the names in a zone of the cluster, which the schema has, and
// the names under the suffix. A missing file is an error only if it is required; otherwise the list is empty.
func (o *options) hostSearch(g *grammar, required bool) (suffixes []string, err error) {
	if !o.host {
		return nil, nil
	}
	list, err := searchlist.ReadResolvConf(o.resolvConf)
	if !required && errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, s := range list {
		s = plugin.Name(s).Normalize()
		if _, ok := dns.IsDomainName(s); ok && !g.zones.Contains(s) && !g.contains(s) {
			suffixes = append(suffixes, s)
		}
	}
	return suffixes, nil
}

var parsers = corefile.Options[*options]{
	"zone":          {Min: 1, Max: -1, Once: true, Form: "zones of clusters, of letters, digits and hyphens, such as cluster.local", Parse: parseZones},
	"schema":        {Min: 1, Max: -1, Once: true, Form: "versions of the search path, of " + versions(schemas), Parse: parseSchemas},
	"host-searches": {Min: 1, Max: 1, Once: true, Form: "on or off", Parse: parseHostSearches},
	"resolv_conf":   {Min: 1, Max: 1, Once: true, Form: "a file in the form of resolv.conf(5)", Parse: func(o *options, args []string) error { o.resolvConf = args[0]; return nil }},
}

func parseZones(o *options, args []string) error {
	for _, arg := range args {
		zone := plugin.Name(arg).Normalize()
		if !isHostname(zone) {
			return fmt.Errorf("%q", arg)
		}
		if dns.IsSubDomain("arpa.", zone) {
			return fmt.Errorf("%q: reverse zone", arg)
		}
		if slices.Contains(o.zones, zone) {
			return fmt.Errorf("%q: duplicate", arg)
		}
		o.zones = append(o.zones, zone)
	}
	return nil
}

func parseSchemas(o *options, args []string) error {
	o.schemas = nil
	for _, arg := range args {
		hasLabel := func(s schema) bool { return s.label == arg }
		i := slices.IndexFunc(schemas, hasLabel)
		if i < 0 {
			return fmt.Errorf("%q", arg)
		}
		if slices.ContainsFunc(o.schemas, hasLabel) {
			return fmt.Errorf("%q: duplicate", arg)
		}
		o.schemas = append(o.schemas, schemas[i])
	}
	return nil
}

func parseHostSearches(o *options, args []string) error {
	if args[0] != "on" && args[0] != "off" {
		return fmt.Errorf("%q", args[0])
	}
	o.host = args[0] == "on"
	return nil
}

// isHostname reports whether a name can be in the search list of a pod: each label has letters, digits and hyphens (RFC
// 1123 section 2.1). The name is fully qualified, in lower case.
func isHostname(name string) bool {
	_, ok := dns.IsDomainName(name)
	for label := range strings.SplitSeq(strings.TrimSuffix(name, "."), ".") {
		ok = ok && isNamespace(label)
	}
	return ok
}
