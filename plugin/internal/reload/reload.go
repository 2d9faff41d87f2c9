// Package reload calls functions of a plugin when its configuration starts, is replaced or stays: caddy starts the next
// configuration beside the present one, ends the present one only after that, and calls nothing of a configuration that
// could not start. Input is a caddy.Controller in setup; output is calls of an Owner's functions. It imports no other
// package of the project.
package reload

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/coredns/caddy"
)

// End is the way in which a configuration ends.
type End int

// The ends of a configuration.
const (
	Replaced End = iota // the next configuration has started
	Refused             // another part of the configuration could not start, and the present configuration stays
	Exit                // the process ends, after health's lameduck period
)

// Owner has the callbacks of a plugin with resources of one configuration. Each may be nil.
type Owner struct {
	// Start is called when the configuration starts. An error refuses the configuration; Start leaves nothing behind then.
	Start func() error
	// Stop is called once. At Exit, Start may not have been called, or may still run: a signal ends the process at any
	// time.
	Stop func(End) error
	// Retain is called after a failed reload, when the refused configuration was stopped and this one stays.
	Retain func()
}

// started are the followers that have started since the last reload began. If the reload fails, the followers of the
// refused configuration are stopped. Followers of the present configuration are in the list if the OnRestart function of
// an earlier plugin fails.
var started struct {
	mu  sync.Mutex
	all []*follower
}

func takeStarted() []*follower {
	started.mu.Lock()
	defer started.mu.Unlock()
	all := started.all
	started.all = nil
	return all
}

type follower struct {
	Owner
	configuration caddy.Context
	reloading     atomic.Bool
	stopped       sync.Once
}

// Follow calls the functions of an Owner when the configuration of a controller starts, ends or stays. It is called in setup.
func Follow(c *caddy.Controller, o Owner) {
	f := &follower{Owner: o, configuration: c.Context()}
	c.OnStartup(f.start)
	c.OnRestart(f.restart)
	c.OnRestartFailed(f.restartFailed)
	c.OnShutdown(f.shutdown)
	c.OnFinalShutdown(func() error { return f.stop(Exit) })
}

func (f *follower) start() error {
	if f.Start != nil {
		if err := f.Start(); err != nil {
			return err
		}
	}
	started.mu.Lock()
	defer started.mu.Unlock()
	started.all = append(started.all, f)
	return nil
}

// restart is called before the next configuration starts.
func (f *follower) restart() error {
	f.reloading.Store(true)
	takeStarted()
	return nil
}

// restartFailed is called for each follower of the configuration that stays; the first call stops all followers of the
// refused one.
func (f *follower) restartFailed() error {
	f.reloading.Store(false)
	var errs []error
	for _, next := range takeStarted() {
		if next.configuration != f.configuration {
			errs = append(errs, next.stop(Refused))
		}
	}
	if f.Retain != nil {
		f.Retain()
	}
	return errors.Join(errs...)
}

// shutdown is called at the end of a reload, and at the end of the process, where OnFinalShutdown follows.
func (f *follower) shutdown() error {
	if !f.reloading.Load() {
		return nil
	}
	return f.stop(Replaced)
}

func (f *follower) stop(end End) (err error) {
	f.stopped.Do(func() {
		if f.Stop != nil {
			err = f.Stop(end)
		}
	})
	return err
}
