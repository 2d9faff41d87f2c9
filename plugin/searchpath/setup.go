package searchpath

import (
	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"

	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist/expand"
)

const pluginName = "searchpath"

func init() { plugin.Register(pluginName, setup) }

func setup(c *caddy.Controller) error {
	s, err := parse(c)
	if err != nil {
		return plugin.Error(pluginName, err)
	}
	config := dnsserver.GetConfig(c)
	x := &expand.Expander{Plugin: pluginName, Block: block.Of(c), Zones: s.grammar.zones, Results: results}
	s.expander = x
	c.OnStartup(func() error { x.KeepsPlain = keepsPlain(config); return nil })
	config.AddPlugin(func(next plugin.Handler) plugin.Handler {
		s.Next, x.Next = next, next
		return s
	})
	return nil
}

// keepsPlain reports whether nobody in a server block keeps the answers to what the next plugin is asked.
func keepsPlain(config *dnsserver.Config) bool { return config.Handler("cache") == nil }
