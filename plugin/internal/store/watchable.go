package store

import "github.com/nearside-dns/nearside/plugin/internal/push"

// Watchable appends the Generations that end a stored answer to dst, for a session that watches them. It appends none if
// anything else may end the answer. The expiry of an entry of plugin cache whose reply depends on Generations is only its
// TTL; any other expiry is that of data of another server. An answer for a query that has waited ends at once: the next
// query waits, too. The answer by the search list of the client's address ends when another client gets the address.
func (e *Entry) Watchable(dst []push.Generation) []push.Generation {
	if e.Waits || !e.Shared() || e.Expires != 0 && (!e.Cached || e.Costly) {
		return dst
	}
	n := len(dst)
	for i := range e.Bounds {
		if e.Bounds[i].Generation == nil {
			break
		}
		g, ok := e.Bounds[i].Generation.(push.Generation)
		if !ok {
			return dst[:n]
		}
		dst = append(dst, g)
	}
	return dst
}
