package forward

import (
	"context"
	"sync"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"

	serverblock "github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/reload"

	"github.com/nearside-dns/nearside/plugin/internal/corefile"
)

func init() { corefile.Register(pluginName, setup) }

func setup(c *caddy.Controller) error {
	configs, err := parse(c)
	if err != nil {
		return plugin.Error(pluginName, err)
	}
	b := newBlock(configs)
	for _, f := range b.stanzas {
		// Stanzas are added in their order, so that the next handler of one is the stanza after it.
		dnsserver.GetConfig(c).AddPlugin(func(next plugin.Handler) plugin.Handler {
			f.Next = next
			return f
		})
	}
	reload.Follow(c, reload.Owner{
		Start: func() error {
			b.setShared(serverblock.IsShared(dnsserver.GetConfig(c)))
			b.setNames(dnsserver.GetConfig(c).Handlers())
			return b.start()
		},
		Stop: func(reload.End) error { return b.stop() },
	})
	return nil
}

// block is the state of a server block's stanzas.
type block struct {
	stanzas []*Forward
	targets []*targets

	ctx    context.Context // ends with the block
	cancel context.CancelFunc

	mu      sync.Mutex // a signal may stop the server while it starts
	watches sync.WaitGroup
}

func newBlock(configs []config) *block {
	b := new(block)
	b.ctx, b.cancel = context.WithCancel(context.Background())
	for i, c := range configs {
		f := newForward(c)
		f.before = b.stanzas[:i:i]
		b.stanzas = append(b.stanzas, f)
		b.targets = append(b.targets, newTargets(c))
	}
	return b
}

// setShared sets whether other plugins of the server block may answer names of the cluster.
func (b *block) setShared(shared bool) {
	for _, f := range b.stanzas {
		f.shared = shared
	}
}

// setNames sets the names that are leaks. Zones of plugins such as kubernetes are cluster zones: names in them get here if the
// plugin passes them on.
func (b *block) setNames(handlers []plugin.Handler) {
	var zones []string
	for _, h := range handlers {
		if owner, ok := h.(serverblock.ZoneOwner); ok {
			zones = append(zones, owner.OwnZones()...)
		}
	}
	for _, f := range b.stanzas {
		f.names = newNames(&f.config, zones, f.readSearchDomains())
	}
}

// start finds the upstreams of all stanzas before it starts any: after an error nothing runs.
func (b *block) start() error {
	endpoints := make([][]endpoint, len(b.targets))
	failures := make([]error, len(b.targets))
	var all sync.WaitGroup
	for i, t := range b.targets {
		all.Go(func() { endpoints[i], failures[i] = t.first(b.ctx) })
	}
	all.Wait()
	for _, err := range failures {
		if err != nil {
			return plugin.Error(pluginName, err)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ctx.Err() != nil {
		return nil
	}
	for i, f := range b.stanzas {
		f.use(endpoints[i])
		b.watches.Go(func() { b.targets[i].watch(b.ctx, f.use) })
	}
	return nil
}

// stop ends the goroutines and connections of start. It may be called without start, and repeatedly.
func (b *block) stop() error {
	b.cancel()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.watches.Wait()
	for _, f := range b.stanzas {
		f.stop()
	}
	return nil
}
