package autopath

import (
	"bytes"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/corefile"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
)

const (
	// nodeLists is the argument for the search lists of the node's own pods.
	nodeLists = "@nodelocal"
	usage     = "autopath [ZONES...] RESOLV-CONF, @kubernetes or @nodelocal"
)

// parsed is a directive. Either plugin names the plugin that has the search lists, or lists has them.
type parsed struct {
	at     corefile.Position
	zones  []string
	plugin string
	lists  searchlist.Finder
}

// parse parses the directives of a server block. As in CoreDNS, the last one is used.
func parse(c *caddy.Controller) (p *parsed, err error) {
	for c.Next() {
		if p, err = parseOne(c); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func parseOne(c *caddy.Controller) (*parsed, error) {
	p := &parsed{at: corefile.At(c)}
	args := c.RemainingArgs()
	if len(args) == 0 {
		return nil, c.Errf("missing source of search lists: want %s", usage)
	}
	source := args[len(args)-1]
	p.zones = plugin.OriginsFromArgsOrServerBlock(args[:len(args)-1], c.ServerBlockKeys)
	switch {
	case source == nodeLists:
		return p, p.parseNode(c)
	case source == "@":
		return nil, c.Errf("missing plugin after @: want %s", usage)
	case strings.HasPrefix(source, "@"):
		p.plugin = source[1:]
	default:
		list, err := readList(source)
		if err != nil {
			return nil, c.Errf("invalid resolv.conf %q: %v: want %s", source, err, usage)
		}
		p.lists = sharedList{list}
	}
	if c.NextBlock() {
		return nil, c.Errf("unexpected option %q: only %s has options", c.Val(), nodeLists)
	}
	return p, nil
}

// readList returns the search list of a resolv.conf as resolvers read it, nil if there is none.
func readList(file string) (*searchlist.List, error) {
	text, err := os.ReadFile(file) // ClientConfigFromFile ignores errors of reading, as of a directory
	if err != nil {
		return nil, err
	}
	conf, err := dns.ClientConfigFromReader(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	plugin.Zones(conf.Search).Normalize()
	return searchlist.New(conf.Search), nil
}

// parseNode parses the block of @nodelocal. The zone of the cluster is the first zone that is not a reverse zone.
func (p *parsed) parseNode(c *caddy.Controller) (err error) {
	forward := slices.IndexFunc(p.zones, func(zone string) bool { return !dns.IsSubDomain("arpa.", zone) })
	if forward < 0 || p.zones[forward] == "." {
		return c.Errf("unknown zone of the cluster: want it before %[1]s, as in autopath cluster.local %[1]s", nodeLists)
	}
	zone := p.zones[forward]
	if keys := plugin.OriginsFromArgsOrServerBlock(nil, c.ServerBlockKeys); plugin.Zones(keys).Matches(zone) == "" {
		return c.Errf("invalid zone %s: the server block receives queries for %q only", zone, keys)
	}
	if NewNodeFinder == nil {
		return c.Errf("invalid source %s: this program does not watch the pods of its node", nodeLists)
	}
	p.lists, err = NewNodeFinder(c, zone)
	return err
}

// sharedList is a Finder with one list for all clients, or with none.
type sharedList struct{ list *searchlist.List }

// Find implements searchlist.Finder.
func (s sharedList) Find(netip.Addr) (*searchlist.List, searchlist.Unknown) {
	if s.list == nil {
		return nil, searchlist.NoList
	}
	return s.list, searchlist.Known
}

// Zone implements searchlist.Finder.
func (sharedList) Zone() string { return "" }
