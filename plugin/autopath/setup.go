package autopath

import (
	"errors"
	"os"
	"slices"
	"strings"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/corefile"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist/expand"
)

const pluginName = "autopath"

// atNode is the argument for the search lists of this node's pods.
const atNode = "@nodelocal"

func init() { plugin.Register(pluginName, setup) }

func setup(c *caddy.Controller) error {
	p, err := parse(c)
	if err != nil {
		return plugin.Error(pluginName, err)
	}
	a := &Autopath{Zones: p.zones, Expander: expand.Expander{Plugin: pluginName, Block: block.Of(c), Results: results}}
	config := dnsserver.GetConfig(c)
	if p.node != nil {
		p.node.Start(c)
	}
	c.OnStartup(func() error {
		if a.Clients, err = p.clients(config); err != nil {
			return plugin.Error(pluginName, err)
		}
		if zone := a.Clients.Zone(); zone != "" {
			a.Expander.Zones = []string{zone}
		}
		a.KeepsPlain = config.Handler("cache") == nil
		return nil
	})
	config.AddPlugin(func(next plugin.Handler) plugin.Handler {
		a.Next = next
		return a
	})
	return nil
}

// parsed is the directive.
type parsed struct {
	zones []string
	at    corefile.Position
	list  *searchlist.List // of every client, or nil
	from  string           // name of the plugin that has the lists, "" for none
	node  NodeFinder       // of @nodelocal, or nil
}

// parse reads the directive. As in CoreDNS, the last one of a block counts.
func parse(c *caddy.Controller) (p *parsed, err error) {
	for c.Next() {
		p = &parsed{at: corefile.At(c)}
		args := c.RemainingArgs()
		if len(args) == 0 {
			return nil, c.Errf("no resolv.conf is given: autopath [ZONE...] FILE, @kubernetes or @nodelocal")
		}
		from := args[len(args)-1]
		p.zones = plugin.OriginsFromArgsOrServerBlock(args[:len(args)-1], c.ServerBlockKeys)
		switch {
		case from == atNode:
			if err := p.parseNode(c); err != nil {
				return nil, err
			}
			continue
		case from == "@":
			return nil, c.Errf("@ names no plugin: autopath [ZONE...] FILE, @kubernetes or @nodelocal")
		case strings.HasPrefix(from, "@"):
			p.from = from[1:]
		default:
			list, err := readList(from)
			if err != nil {
				return nil, c.Errf("%s is no resolv.conf: %v", from, err)
			}
			plugin.Zones(list.Search).Normalize()
			p.list = searchlist.New(list.Search)
		}
		if c.NextBlock() {
			return nil, c.Errf("%q: only %s has options", c.Val(), atNode)
		}
	}
	return p, nil
}

var errFolder = errors.New("it is a folder")

// readList reads a resolv.conf.
func readList(file string) (*dns.ClientConfig, error) {
	if info, err := os.Stat(file); err == nil && info.IsDir() {
		return nil, errFolder
	}
	return dns.ClientConfigFromFile(file)
}

// parseNode parses the block of @nodelocal.
func (p *parsed) parseNode(c *caddy.Controller) (err error) {
	forward := slices.IndexFunc(p.zones, func(zone string) bool { return !dns.IsSubDomain("arpa.", zone) })
	if forward < 0 || p.zones[forward] == "." {
		return c.Errf("the zone of the cluster is not known: autopath cluster.local %s", atNode)
	}
	zone := p.zones[forward]
	if block := plugin.OriginsFromArgsOrServerBlock(nil, c.ServerBlockKeys); plugin.Zones(block).Matches(zone) == "" {
		return c.Errf("the server block gets no query for names in %s: it is for %q", zone, block)
	}
	if NewNodeFinder == nil {
		return c.Errf("%s: this program does not know the pods of its node", atNode)
	}
	p.node, err = NewNodeFinder(c, zone)
	return err
}

// SearchLister is a plugin that has the search lists of clients, such as kubernetes.
type SearchLister interface {
	SearchLists() (searchlist.Finder, error)
}

// NodeFinder has the search lists of the pods of one node. Start is called once, in setup, to watch the pods from the
// start of the configuration to its end.
type NodeFinder interface {
	searchlist.Finder
	Start(c *caddy.Controller)
}

// NewNodeFinder parses the block of "autopath @nodelocal" and returns the search lists of the node's pods in a cluster
// with this zone, fully qualified. The program sets it before it starts; while it is nil, @nodelocal is an error.
var NewNodeFinder func(c *caddy.Controller, zone string) (NodeFinder, error)

// clients returns the Finder of the directive.
func (p *parsed) clients(config *dnsserver.Config) (searchlist.Finder, error) {
	switch {
	case p.node != nil:
		return p.node, nil
	case p.from == "":
		return everyone{p.list}, nil
	}
	h, ok := config.Handler(p.from).(SearchLister)
	if !ok {
		return nil, p.at.Errorf("@%s: there is no such plugin in this server block that knows the search lists of clients: kubernetes does, with pods verified", p.from)
	}
	clients, err := h.SearchLists()
	if err != nil {
		return nil, p.at.Errorf("@%s: %v", p.from, err)
	}
	return clients, nil
}
