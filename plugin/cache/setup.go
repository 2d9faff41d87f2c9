package cache

import (
	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	clog "github.com/coredns/coredns/plugin/pkg/log"

	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/corefile"
	"github.com/nearside-dns/nearside/plugin/internal/reload"
	"github.com/nearside-dns/nearside/plugin/internal/store"
)

const pluginName = "cache"

var log = clog.NewWithPlugin(pluginName)

func init() { corefile.Register(pluginName, setup) }

func setup(c *caddy.Controller) error {
	h, err := parse(c)
	if err != nil {
		return plugin.Error(pluginName, err)
	}
	b := block.Of(c)
	budget := budgetOf(c)
	if err := budget.set(h.budget, h.budgetAt); err != nil {
		return plugin.Error(pluginName, err)
	}
	if err := h.snapshot.claim(c); err != nil {
		return plugin.Error(pluginName, err)
	}
	h.space, h.isDispatched = b.Keyspace, b.IsDispatched
	s := newSnapshotter(h)
	b.OnExit(s.exit)
	reload.Follow(c, reload.Owner{
		Start: func() error {
			budget.apply()
			h.start(dnsserver.GetConfig(c))
			s.start(b)
			return nil
		},
		Stop: func(end reload.End) error {
			s.stop(end)
			if end != reload.Refused { // after Refused, Retain of the present configuration restores its budget
				budget.release()
			}
			return nil
		},
		Retain: budget.apply,
	})
	dnsserver.GetConfig(c).AddPlugin(func(next plugin.Handler) plugin.Handler {
		h.Next = next
		return h
	})
	return nil
}

// ZoneBypasser is a plugin with zones that must not be cached, since their records change at any time. The cache looks for
// such plugins in its server block at start.
type ZoneBypasser interface {
	// CacheBypassZones returns the zones, normalized.
	CacheBypassZones() []string
}

// start finds the zones that must not be cached and those that other plugins own, and sets the capacities.
func (c *Cache) start(config *dnsserver.Config) {
	c.view = config.ViewName
	for _, h := range config.Handlers() {
		if b, ok := h.(ZoneBypasser); ok {
			c.bypass = append(c.bypass, b.CacheBypassZones()...)
		}
		if o, ok := h.(block.ZoneOwner); ok {
			c.owned = append(c.owned, o.OwnZones()...)
		}
	}
	c.limit()
}

// limit sets the capacities in the store, and the functions for evicted and invalidated entries.
func (c *Cache) limit() {
	c.space.OnInvalidated(c.invalidated)
	for _, k := range []store.Kind{store.Success, store.Denial} {
		c.space.Limit(k, c.kinds[k].capacity, func() { c.evicted(k) })
	}
}
