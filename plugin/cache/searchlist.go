package cache

import (
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// lookup returns the entry for a query under its key, and its freshness. A query with a search list is also answered by the
// entry for the name alone, which has no option: the client then tries the list itself.
func (c *Cache) lookup(key, packed []byte, q *wire.Query, now time.Duration) (*store.Entry, freshness) {
	e := c.store.Get(key)
	state := freshnessOf(e, now)
	if q.Search == nil || state == fresh {
		return e, state
	}
	var buf [store.MaxKey]byte
	name := *q
	name.Search = nil
	forName := c.store.Get(c.space.Key(buf[:0], packed, &name))
	stateForName := freshnessOf(forName, now)
	switch {
	case stateForName == fresh && state == stale && forName.State.(*entryState).failure:
		return e, state // a failure does not replace a stale answer
	case stateForName > state, e == nil:
		return forName, stateForName
	}
	return e, state
}
