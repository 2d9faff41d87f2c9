package source

import (
	"sync/atomic"

	"github.com/coredns/caddy"
)

// Use is the use of a source by one configuration, from its start to its end. At the end of a reload that is its
// shutdown; at the end of the process it is the final shutdown, after the lameduck time of the health plugin, in
// which answers are to be right as well.
type Use struct {
	lease     atomic.Pointer[Lease] // a signal may end the server while it starts
	reloading atomic.Bool
}

// Follow has the use end with the configuration of a controller. It is called in setup.
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

// Lease returns that of the source, nil before the beginning.
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
