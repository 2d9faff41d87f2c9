// Package fastpath answers datagrams from packed answers, and hands those for which there is none to the
// server: it is an accelerator, and every answer that it gives was made by the plugins. In go datagrams
// of the sockets that it opens beside CoreDNS's; out come patched answers. Plugins take part through
// the Block of their server block.
package fastpath

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
)

// Block is a server block that has plugins whose answers can be kept.
type Block struct {
	// Space is where its answers are.
	Space *answers.Keyspace

	conf   *configuration
	config *dnsserver.Config // of its first zone, which has its plugins
	zones  sync.Map          // of servers: from the address to the zones, and whether each is the block's
	off    bool              // by the directive
	most   int               // by the directive; 0 if it says nothing
}

// BlockOf returns the Block of the server block that a plugin is being set up for, and gives the block a
// fast path if it can have one. It is called in setup.
func BlockOf(c *caddy.Controller) *Block {
	config := dnsserver.GetConfig(c)
	conf := configurations.of(c.Context())
	if !conf.ends {
		conf.ends = true
		conf.callBack(c)
	}
	for _, b := range conf.blocks {
		if b.config == config {
			return b
		}
	}
	b := &Block{Space: answers.Shared.NewKeyspace(), conf: conf, config: config}
	conf.blocks = append(conf.blocks, b)
	return b
}

// Serves reports whether the server that has a query would give one for a name to this block.
func (b *Block) Serves(ctx context.Context, name string) bool {
	zones := b.zonesOf(ctx)
	return zones == nil || zones.own[zones.all.Matches(name)]
}

// ZoneOf returns the zone of the server that has a query to which one for a name belongs, "" if there is none. What
// is in one zone is answered by one block.
func (b *Block) ZoneOf(ctx context.Context, name string) string {
	if zones := b.zonesOf(ctx); zones != nil {
		return zones.all.Matches(name)
	}
	return ""
}

// blockZones are the zones of a server, and which of them are a block's.
type blockZones struct {
	all plugin.Zones
	own map[string]bool
}

// zonesOf returns the zones of the server that has a query, nil if there is no server: then there is no other block.
func (b *Block) zonesOf(ctx context.Context) *blockZones {
	server, ok := ctx.Value(dnsserver.Key{}).(*dnsserver.Server)
	if !ok || b.conf == nil {
		return nil
	}
	zones, ok := b.zones.Load(server.Addr)
	if !ok {
		zones, _ = b.zones.LoadOrStore(server.Addr, b.zonesOn(server.Addr))
	}
	known, _ := zones.(*blockZones)
	return known
}

func (b *Block) zonesOn(address string) *blockZones {
	z := &blockZones{own: map[string]bool{}}
	for _, zone := range b.conf.zonesOn(address) {
		z.all = append(z.all, zone.name)
		z.own[zone.name] = z.own[zone.name] || zone.block == b
	}
	return z
}

// configuration is what one reading of a Corefile has made.
type configuration struct {
	context   caddy.Context
	instance  *caddy.Instance // that has the servers, nil in a test without any
	blocks    []*Block
	ends      bool // it is told when it ends
	reloading atomic.Bool
}

// maxConcurrent returns the highest max_concurrent of the configuration, 0 if it has none.
func (conf *configuration) maxConcurrent() (highest int) {
	for _, b := range conf.blocks {
		highest = max(highest, b.most)
	}
	return highest
}

// callBack has the configuration told what happens to it.
func (conf *configuration) callBack(c *caddy.Controller) {
	c.OnRestart(func() error { conf.reloading.Store(true); return nil })
	c.OnRestartFailed(func() error {
		conf.reloading.Store(false)
		configurations.stays(conf)
		return nil
	})
	c.OnShutdown(func() error {
		// At the end of the process there is one more call, after the time in which health is lame.
		if conf.reloading.Load() {
			conf.end(true)
		}
		return nil
	})
	c.OnFinalShutdown(func() error { conf.end(false); return nil })
}

// end ends what only this configuration has: listeners that no other has taken over, and what it keeps.
func (conf *configuration) end(reloading bool) {
	listeners.leave(func(other *configuration) bool { return other == conf }, reloading)
	for _, b := range conf.blocks {
		b.Space.ByGeneration.Store(false)
		answers.Shared.Drop(b.Space)
	}
	configurations.remove(conf)
}

// Stop answers what the listeners have received, and closes them. A program calls it before it stops its
// servers; where plugins have been told of the end, nothing is left to do.
func Stop() {
	listeners.leave(func(*configuration) bool { return true }, false)
}

// zonesOn returns the zones of a server, with the server block that each belongs to.
func (conf *configuration) zonesOn(address string) (zones []zone) {
	for _, config := range configsOf(conf.context) {
		first := firstOf(config)
		if !slices.ContainsFunc(first.ListenHosts, func(host string) bool { return addressOf(config, host) == address }) {
			continue
		}
		z := zone{name: config.Zone, block: &Block{config: first}}
		for _, b := range conf.blocks {
			if b.config == first {
				z.block = b
			}
		}
		zones = append(zones, z)
	}
	return zones
}

// zone is a zone of a server.
type zone struct {
	name  string
	block *Block // without a Space if no plugin keeps answers
}
