// Package block describes the server blocks of a Corefile as CoreDNS has read them: their zones, the block that a name is
// dispatched to, and whether their plugins permit the fast path. Plugins call Of in setup; the fast path registers with
// Register. All reflection into CoreDNS and caddy is in reflect.go. The package answers no queries and imports no plugin
// of this project.
package block

import (
	"context"
	"sync"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
)

// Block is a server block. Without a plugin that called Of, it has no Keyspace.
type Block struct {
	// Keyspace separates the block's answers in the store from those of other blocks.
	Keyspace *answers.Keyspace
	// FastPathOff and the limits are the settings of the fastpath directive; a limit is 0 without one.
	FastPathOff          bool
	MaxConcurrent        int
	MaxConnections       int // over TCP, of the process
	MaxClientConnections int // over TCP, of a source address

	conf   *Configuration
	config *dnsserver.Config // of the block's first zone, which has the plugins
	zones  sync.Map          // server address -> *serverZones
}

// Of returns the server block of the plugin that calls it in setup.
func Of(c *caddy.Controller) *Block {
	config := dnsserver.GetConfig(c)
	conf := configurations.find(c.Context())
	conf.follow(c)
	for _, b := range conf.blocks {
		if b.config == config {
			return b
		}
	}
	b := &Block{Keyspace: answers.Shared.NewKeyspace(), conf: conf, config: config}
	conf.blocks = append(conf.blocks, b)
	return b
}

// Serves reports whether the server that handles a query dispatches a name to this block.
func (b *Block) Serves(ctx context.Context, name string) bool {
	zones := b.zonesOf(ctx)
	return zones == nil || zones.own[zones.all.Matches(name)]
}

// ZoneOf returns the zone of the server that a name is dispatched to, "" for none.
func (b *Block) ZoneOf(ctx context.Context, name string) string {
	if zones := b.zonesOf(ctx); zones != nil {
		return zones.all.Matches(name)
	}
	return ""
}

// Handlers returns the plugins of the block in the order of the chain. They exist when the servers start.
func (b *Block) Handlers() []plugin.Handler { return b.config.Handlers() }

// Config returns CoreDNS's settings of the block's first zone.
func (b *Block) Config() *dnsserver.Config { return b.config }

// serverZones are the zones of a server, and those that belong to one block.
type serverZones struct {
	all plugin.Zones
	own map[string]bool
}

// zonesOf returns the zones of the server that handles a query, nil in a test without a server.
func (b *Block) zonesOf(ctx context.Context) *serverZones {
	server, ok := ctx.Value(dnsserver.Key{}).(*dnsserver.Server)
	if !ok || b.conf == nil {
		return nil
	}
	zones, ok := b.zones.Load(server.Addr)
	if !ok {
		zones, _ = b.zones.LoadOrStore(server.Addr, b.zonesOn(server.Addr))
	}
	known, _ := zones.(*serverZones)
	return known
}

func (b *Block) zonesOn(address string) *serverZones {
	z := &serverZones{own: map[string]bool{}}
	for _, zone := range b.conf.ServerZones(address) {
		z.all = append(z.all, zone.Name)
		z.own[zone.Name] = z.own[zone.Name] || zone.Block == b
	}
	return z
}
