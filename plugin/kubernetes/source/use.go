package source

import (
	"sync/atomic"

	"github.com/coredns/caddy"

	"github.com/nearside-dns/nearside/plugin/internal/reload"
)

// Use is the use of a source by one configuration, from its start to its end. At the end of the process that is after
// health's lameduck period, during which answers must be right, too.
type Use struct {
	lease atomic.Pointer[Lease] // nil before the start
}

// Follow acquires the source when the configuration of a controller starts, and releases it at the end. started is called
// after the source was acquired. Follow is called in setup.
func (u *Use) Follow(c *caddy.Controller, key func() string, src Source, started func(*Lease)) {
	reload.Follow(c, reload.Owner{
		Start: func() error {
			lease := Acquire(key(), src)
			u.lease.Store(lease)
			started(lease)
			return nil
		},
		Stop: func(reload.End) error {
			if lease := u.Lease(); lease != nil {
				lease.Release()
			}
			return nil
		},
	})
}

// Lease returns the lease of the source, nil before the start.
func (u *Use) Lease() *Lease { return u.lease.Load() }
