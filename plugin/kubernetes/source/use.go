package source

import (
	"sync/atomic"

	"github.com/coredns/caddy"
)

// Use holds the lease of one configuration on its source, from its start to its end. In a reload the end is the shutdown
// of the configuration; at the end of the process it is the final shutdown, after health's lameduck period, in which
// answers must still be right.
type Use struct {
	lease     atomic.Pointer[Lease] // atomic: a signal may end the server while it starts
	reloading atomic.Bool
}

// Follow releases the lease with the configuration of a controller. It is called in setup.
func (u *Use) Follow(c *caddy.Controller) {
	c.OnRestart(u.reloadBegins)
	c.OnRestartFailed(u.reloadFailed)
	c.OnShutdown(u.shutdown)
	c.OnFinalShutdown(u.end)
}

// Begin acquires the source. It is called when the configuration starts.
func (u *Use) Begin(key string, src Source) *Lease {
	lease := Acquire(key, src)
	u.lease.Store(lease)
	return lease
}

// Lease returns the lease of the source, nil before Begin.
func (u *Use) Lease() *Lease { return u.lease.Load() }

func (u *Use) reloadBegins() error {
	u.reloading.Store(true)
	ReloadBegins()
	return nil
}

func (u *Use) reloadFailed() error {
	u.reloading.Store(false)
	ReloadFailed()
	return nil
}

func (u *Use) shutdown() error {
	if u.reloading.Load() {
		return u.end()
	}
	return nil
}

func (u *Use) end() error {
	if lease := u.Lease(); lease != nil {
		lease.Release()
	}
	return nil
}
