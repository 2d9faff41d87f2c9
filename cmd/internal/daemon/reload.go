package daemon

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/caddy/caddyfile"
	clog "github.com/coredns/coredns/plugin/pkg/log"

	"github.com/nearside-dns/nearside/internal/nodefacts"
)

// turn is a lock for which one can wait a bounded time. Once taken for the end it is never given back.
type turn struct {
	token chan struct{}
	end   chan struct{}
}

func newTurn() turn { return turn{token: make(chan struct{}, 1), end: make(chan struct{})} }

// take waits for its turn, and tells if it was had before the end began.
func (t turn) take() bool {
	select {
	case <-t.end:
		return false
	case t.token <- struct{}{}:
	}
	if t.over() {
		<-t.token
		return false
	}
	return true
}

func (t turn) give() { <-t.token }

// takeLast begins the end and waits for who is at it, at most so long.
func (t turn) takeLast(longest time.Duration) {
	close(t.end)
	select {
	case t.token <- struct{}{}:
	case <-time.After(longest):
	}
}

// over tells if the end has begun.
func (t turn) over() bool {
	select {
	case <-t.end:
		return true
	default:
		return false
	}
}

// reload reads the configuration and restarts the server with it, one reload at a time. If that is not
// possible the server goes on with what it had, and one line says why. Unless told always, it leaves
// alone what runs and what was refused before, and complains of one thing once.
//
// The event hooks stay, where caddy's own SIGUSR1 purges them: the reload plugin registers its hook once
// in the life of a process, and would never see a change again.
func (d *Daemon) reload(always bool) {
	if !d.restart.take() {
		return
	}
	defer d.restart.give()
	corefile, err := d.load()
	if err != nil {
		d.complain(err, always)
		return
	}
	if !always && d.known(corefile) {
		return
	}
	if err := d.start(corefile); err != nil {
		d.refused = &corefile
		d.complain(d.explain(corefile, err), true)
		return
	}
	d.refused, d.complaint = nil, ""
}

// known tells if a configuration is what runs or what was refused the last time.
func (d *Daemon) known(c Corefile) bool {
	if d.running != nil && d.running.equal(c) {
		reloadRefused.Set(0)
		d.refused, d.complaint = nil, ""
		return true
	}
	return d.refused != nil && d.refused.equal(c)
}

func (c Corefile) equal(other Corefile) bool {
	return bytes.Equal(c.Text, other.Text) && c.Imported == other.Imported && reflect.DeepEqual(c.Facts, other.Facts)
}

func (d *Daemon) start(corefile Corefile) error {
	instance := d.instance.Load()
	if instance == nil {
		return errors.New("the server has not started")
	}
	previous := nodefacts.Set(corefile.Facts)
	started, err := instance.Restart(corefile.input())
	if err == nil && started == nil {
		err = errors.New("a plugin panicked, see the line before") // caddy recovers and returns nothing
	}
	if err != nil {
		nodefacts.Set(previous)
		return err
	}
	d.running = &corefile
	return nil
}

func (d *Daemon) complain(err error, always bool) {
	reason := oneLine(err)
	if always || reason != d.complaint {
		notReloaded.Inc()
		clog.Errorf("Not reloaded, the configuration before goes on: %s", reason)
	}
	d.complaint = reason
	reloadRefused.Set(1)
}

// watchRestarts has an instance that has started tell of the next one that does not, whoever wants it.
func (d *Daemon) watchRestarts(instance *caddy.Instance) {
	instance.OnRestartFailed = append(instance.OnRestartFailed, func() error {
		reloadRefused.Set(1)
		return nil
	})
	if text, err := tokens(instance.Caddyfile()); err == nil {
		d.served.Store(&text)
	}
	reloadRefused.Set(0)
}

// compare sees what the reload plugin leaves alone: a configuration that can't be taken apart, and one that
// is again what is served. Of any other, a restart tells, or has told.
func (d *Daemon) compare(in caddy.Input) {
	text, err := tokens(in)
	served := d.served.Load()
	switch {
	case err != nil:
		reloadRefused.Set(1)
	case served != nil && *served == text:
		reloadRefused.Set(0)
	}
}

// tokens are what caddy sees of a configuration, imported files included. The reload plugin compares the same.
func tokens(in caddy.Input) (string, error) {
	blocks, err := caddyfile.Parse(in.Path(), bytes.NewReader(in.Body()), nil)
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(blocks)
	return string(text), err
}
