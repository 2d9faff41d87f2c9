// Package fastpath answers datagrams from packed answers, and hands those for which there is none to the
// server: it is an accelerator, and every answer that it gives was made by the plugins. In go datagrams
// of the sockets that it opens beside CoreDNS's; out come patched answers. Plugins take part through
// the Block of their server block.
package fastpath

import (
	"slices"
	"sync/atomic"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"

	"github.com/nearside-dns/nearside/plugin/fastpath/store"
)

// Block is a server block that has plugins whose answers can be kept.
type Block struct {
	// Space is where its answers are.
	Space *store.Space

	configs []*dnsserver.Config // one for each of its zones
	off     bool                // by the directive
	most    int                 // by the directive; 0 if it says nothing
}

// configuration is what one reading of a Corefile has made. It lives as long as caddy's instance.
type configuration struct {
	blocks    map[int]*Block // by their place in the Corefile
	reloading atomic.Bool
}

// storageKey is where an instance of caddy has its configuration.
type storageKey struct{}

// BlockOf returns the Block of the server block that a plugin is being set up for, and gives the block a
// fast path if it can have one. It is called in setup.
func BlockOf(c *caddy.Controller) *Block {
	conf, ok := c.Get(storageKey{}).(*configuration)
	if !ok {
		conf = newConfiguration(c)
		c.Set(storageKey{}, conf)
	}
	config := dnsserver.GetConfig(c)
	b := conf.blocks[c.ServerBlockIndex]
	if b == nil {
		b = &Block{Space: store.Shared.NewSpace()}
		conf.blocks[c.ServerBlockIndex] = b
		// CoreDNS calls it when it begins to serve datagrams, and decorates nothing if it returns nil.
		config.UDPDecorateWriterFunc = conf.serve
	}
	for i := range c.ServerBlockKeys { // caddy calls setup for the first of them only
		key := *c
		key.ServerBlockKeyIndex = i
		if config := dnsserver.GetConfig(&key); !slices.Contains(b.configs, config) {
			b.configs = append(b.configs, config)
		}
	}
	return b
}

func newConfiguration(c *caddy.Controller) *configuration {
	conf := &configuration{blocks: map[int]*Block{}}
	c.OnStartup(func() error { conf.announce(); return nil })
	c.OnRestart(func() error { conf.reloading.Store(true); return nil })
	c.OnRestartFailed(func() error {
		conf.reloading.Store(false)
		listeners.forget(conf)
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
	return conf
}

// end ends what only this configuration has: listeners that no other has taken over, and what it keeps.
func (conf *configuration) end(reloading bool) {
	listeners.leave(conf, reloading)
	for _, b := range conf.blocks {
		b.Space.ByGeneration.Store(false)
		store.Shared.Drop(b.Space)
	}
}
