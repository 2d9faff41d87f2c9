package autopath

import (
	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	clog "github.com/coredns/coredns/plugin/pkg/log"

	"github.com/nearside-dns/nearside/plugin/internal/corefile"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist/expand"
)

const pluginName = "autopath"

var log = clog.NewWithPlugin(pluginName)

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

func init() { corefile.Register(pluginName, setup) }

func setup(c *caddy.Controller) error {
	p, err := parse(c)
	if err != nil {
		return plugin.Error(pluginName, err)
	}
	a := &Autopath{zones: p.zones, Expander: expand.Expander{Plugin: pluginName, Metrics: expandMetrics}}
	a.Setup(c)
	config := dnsserver.GetConfig(c)
	if node, ok := p.lists.(NodeFinder); ok {
		node.Start(c)
	}
	c.OnStartup(func() error {
		if a.lists, err = p.finder(config); err != nil {
			return plugin.Error(pluginName, err)
		}
		if zone := a.lists.Zone(); zone != "" {
			a.Expander.Zones = []string{zone}
		}
		return nil
	})
	config.AddPlugin(func(next plugin.Handler) plugin.Handler {
		a.Next = next
		return a
	})
	return nil
}

// finder returns the search lists; it is called when all plugins of the server block exist. As in CoreDNS, an absent plugin, or one
// that has no search lists now, does not prevent the start: no query is expanded.
func (p *parsed) finder(config *dnsserver.Config) (searchlist.Finder, error) {
	if p.lists != nil {
		return p.lists, nil
	}
	switch h := config.Handler(p.plugin).(type) {
	case nil:
		log.Warningf("%s:%d: @%s: the server block has no such plugin: no query is expanded", p.at.File, p.at.Line, p.plugin)
		return sharedList{}, nil
	case SearchLister:
		lists, err := h.SearchLists()
		if err != nil {
			log.Warningf("%s:%d: @%s: %v: no query is expanded", p.at.File, p.at.Line, p.plugin, err)
			return sharedList{}, nil
		}
		return lists, nil
	}
	return nil, p.at.Errorf("invalid source @%s: want a plugin of this server block that has search lists, such as kubernetes with pods verified", p.plugin)
}
