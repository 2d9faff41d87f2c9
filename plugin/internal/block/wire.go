package block

import (
	"github.com/coredns/coredns/plugin"

	"github.com/nearside-dns/nearside/plugin/internal/block/wirechain"
)

// WireHandler returns the first handler of queries in wire form, nil if the block has another plugin that has to see the
// queries, or lacks cache or forward. capacity returns the number of queries that the upstreams can have in progress. Names
// in the zones of a ZoneOwner are for the plugin chain. WireHandler is called when the servers start.
func (b *Block) WireHandler() (first wirechain.Handler, capacity func() int) {
	b.linkWire.Do(func() { b.wire, b.capacity = linkWire(b.Handlers()) })
	return b.wire, b.capacity
}

// linkWire connects the cache of a block to the plugin that forwards, and returns the first wirechain.Handler: the cache, or a
// Handler before it. Between Handlers there must be no other plugin, since each passes queries to its Next. linkWire returns nil
// if the block has no such chain.
func linkWire(handlers []plugin.Handler) (first wirechain.Handler, capacity func() int) {
	var cache wirechain.Cache
	var owned []string
	for _, h := range handlers {
		owner, owns := h.(ZoneOwner)
		handler, handles := h.(wirechain.Handler)
		forward, forwards := h.(wirechain.Exchanger)
		switch {
		case owns:
			owned = append(owned, owner.OwnZones()...)
			fallthrough
		case traitsOf(h).misses:
			if first != nil && cache == nil {
				return nil, nil
			}
		case handles && cache == nil:
			if first == nil {
				first = handler
			}
			cache, _ = h.(wirechain.Cache)
		case forwards && cache != nil:
			cache.SetExchanger(forward, owned)
			return first, forward.Capacity
		default:
			return nil, nil
		}
	}
	return nil, nil
}
