// Package block describes the server blocks of a Corefile as CoreDNS has read them: their zones, the block that a name is
// dispatched to, and whether their plugins permit the fast path. Plugins call Of in setup; the fast path registers with
// Register. All reflection into CoreDNS and caddy is in reflect.go. The package answers no queries and imports no plugin
// of this project.
package block

import (
	"context"
	"strings"
	"sync"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/block/wirechain"
	"github.com/nearside-dns/nearside/plugin/internal/store"
)

// Block is a server block. Without a plugin that called Of, it has no Keyspace.
type Block struct {
	// Keyspace separates the block's answers in the store from those of other blocks.
	Keyspace *store.Keyspace
	// FastPathOff and the limits are the settings of the fastpath directive; a limit is 0 without one.
	FastPathOff          bool
	MaxConcurrent        int
	MaxConnections       int // over TCP, of the process
	MaxClientConnections int // over TCP, of a source address
	// Kernel is set if the kernel answers queries from stored answers, and KernelForced if it does so also where other
	// programs filter packets.
	Kernel, KernelForced bool

	conf   *Configuration
	config *dnsserver.Config // of the block's first zone, which has the plugins
	index  int               // in the Corefile
	exits  []func()
	zones  sync.Map // server address -> *ServerZones

	linkWire sync.Once
	wire     wirechain.Handler
	capacity func() int
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
	b := &Block{Keyspace: store.Shared.NewKeyspace(), conf: conf, config: config, index: c.ServerBlockIndex}
	conf.blocks = append(conf.blocks, b)
	return b
}

// OnExit registers a function that is called at the exit of the process, when the fast path has answered its last query, and
// before the block's answers are dropped. OnExit is called in setup.
func (b *Block) OnExit(f func()) { b.exits = append(b.exits, f) }

// Handlers returns the plugins of the block in the order of the chain. They exist when the servers start.
func (b *Block) Handlers() []plugin.Handler { return b.config.Handlers() }

// Config returns CoreDNS's settings of the block's first zone.
func (b *Block) Config() *dnsserver.Config { return b.config }

// ServerZones are the zones of a server; those of one block are marked. Without a server, as in tests, it is nil: the
// block then serves all names.
type ServerZones struct {
	own map[string]bool // false for the zones of other blocks
}

// Serves reports whether the server dispatches a name to the block.
func (z *ServerZones) Serves(name string) bool { return z == nil || z.own[z.ZoneOf(name)] }

// ZoneOf returns the zone of the server that a name is dispatched to, the longest one as in CoreDNS, "" for none.
func (z *ServerZones) ZoneOf(name string) (longest string) {
	if z == nil {
		return ""
	}
	return ZoneOf(z.own, name)
}

// ZoneOf returns the longest of the zones that a name is in, "" for none. The zones are normalized. ZoneOf is plugin.Zones.Matches
// in a time that does not depend on the number of zones.
func ZoneOf[V any](zones map[string]V, name string) string {
	name = strings.ToLower(name)
	for at, end := 0, false; !end; at, end = dns.NextLabel(name, at) {
		if _, ok := zones[name[at:]]; ok {
			return name[at:]
		}
	}
	if _, ok := zones["."]; ok {
		return "."
	}
	return ""
}

// ZoneSet returns zones in the form for ZoneOf.
func ZoneSet(zones []string) map[string]bool {
	set := make(map[string]bool, len(zones))
	for _, zone := range zones {
		set[zone] = true
	}
	return set
}

// Serves reports whether the server that handles a query dispatches a name to the block.
func (b *Block) Serves(ctx context.Context, name string) bool { return b.ZonesOf(ctx).Serves(name) }

// ZonesOf returns the zones of the server that handles a query of the plugin chain.
func (b *Block) ZonesOf(ctx context.Context) *ServerZones {
	if server, ok := ctx.Value(dnsserver.Key{}).(*dnsserver.Server); ok {
		return b.ZonesOn(server.Addr)
	}
	return nil
}

// ZonesOn returns the zones of the server with an address in CoreDNS's form, which may be empty for no server.
func (b *Block) ZonesOn(server string) *ServerZones {
	if server == "" || b.conf == nil {
		return nil
	}
	zones, ok := b.zones.Load(server)
	if !ok {
		zones, _ = b.zones.LoadOrStore(server, b.zonesOn(server))
	}
	known, _ := zones.(*ServerZones)
	return known
}

// IsDispatched reports whether a server dispatches a name to the block. It is called when the servers start.
func (b *Block) IsDispatched(name string) bool {
	servers := b.conf.servers()
	for address := range servers {
		if b.ZonesOn(address).Serves(name) {
			return true
		}
	}
	return len(servers) == 0 // in a test without servers
}

func (b *Block) zonesOn(address string) *ServerZones {
	z := &ServerZones{own: map[string]bool{}}
	for _, zone := range b.conf.ServerZones(address) {
		z.own[zone.Name] = z.own[zone.Name] || zone.Block == b
	}
	return z
}
