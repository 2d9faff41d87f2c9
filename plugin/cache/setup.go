package cache

import (
	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	clog "github.com/coredns/coredns/plugin/pkg/log"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/reload"
)

const pluginName = "cache"

var log = clog.NewWithPlugin(pluginName)

func init() { plugin.Register(pluginName, setup) }

func setup(c *caddy.Controller) error {
	h, budgetAt, err := parse(c)
	if err != nil {
		return plugin.Error(pluginName, err)
	}
	b := block.Of(c)
	budget := budgetOf(c)
	if err := budget.set(h.budget, budgetAt); err != nil {
		return plugin.Error(pluginName, err)
	}
	h.space = b.Keyspace
	reload.Follow(c, reload.Owner{
		Start: func() error { budget.take(); h.start(dnsserver.GetConfig(c)); return nil },
		Stop: func(end reload.End) error {
			if end != reload.Refused { // the present configuration takes its budget back
				budget.leave()
			}
			return nil
		},
		Retain: budget.take,
	})
	dnsserver.GetConfig(c).AddPlugin(func(next plugin.Handler) plugin.Handler {
		h.Next = next
		return h
	})
	return nil
}

// ZoneBypasser is a plugin that has zones of which nothing may be kept, because they change without
// notice. It is looked for in the server block at start.
type ZoneBypasser interface {
	// CacheBypassZones returns the zones, normalized.
	CacheBypassZones() []string
}

// start finds out about the other plugins of the block, and limits what is kept.
func (c *Cache) start(config *dnsserver.Config) {
	c.view = config.ViewName
	for _, h := range config.Handlers() {
		if b, ok := h.(ZoneBypasser); ok {
			c.bypass = append(c.bypass, b.CacheBypassZones()...)
		}
	}
	c.limit()
}

// limit tells the store how many entries there may be.
func (c *Cache) limit() {
	for _, k := range []answers.Kind{answers.Success, answers.Denial} {
		c.space.Limit(k, c.kinds[k].capacity, func() { c.evicted(k) })
	}
}
