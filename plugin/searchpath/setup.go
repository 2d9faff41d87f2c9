package searchpath

import (
	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist/expand"
)

const pluginName = "searchpath"

func init() { plugin.Register(pluginName, setup) }

func setup(c *caddy.Controller) error {
	s, err := parse(c)
	if err != nil {
		return plugin.Error(pluginName, err)
	}
	s.Expander = expand.Expander{Plugin: pluginName, Zones: s.grammar.zones, Metrics: expandMetrics}
	s.Setup(c)
	dnsserver.GetConfig(c).AddPlugin(func(next plugin.Handler) plugin.Handler {
		s.Next = next
		return s
	})
	return nil
}
