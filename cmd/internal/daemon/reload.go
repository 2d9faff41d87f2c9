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

// reloadLock lets the start or one reload run at a time, and none after the shutdown has begun.
type reloadLock struct {
	token  chan struct{}
	closed chan struct{}
}

func newReloadLock() reloadLock {
	return reloadLock{token: make(chan struct{}, 1), closed: make(chan struct{})}
}

// acquire waits for the lock, and returns false once it is closed.
func (l reloadLock) acquire() bool {
	select {
	case <-l.closed:
		return false
	case l.token <- struct{}{}:
	}
	if l.isClosed() {
		<-l.token
		return false
	}
	return true
}

func (l reloadLock) release() { <-l.token }

// close closes the lock and waits for its holder until a timeout.
func (l reloadLock) close(timeout time.Duration) {
	close(l.closed)
	select {
	case l.token <- struct{}{}:
	case <-time.After(timeout):
	}
}

func (l reloadLock) isClosed() bool {
	select {
	case <-l.closed:
		return true
	default:
		return false
	}
}

// reload reads the configuration and restarts the server with it. If that fails, the server continues with its
// configuration, and one log line has the reason. Unless forced, reload ignores a configuration that is running or was
// refused the last time, and logs the same reason only once.
//
// It does not remove event hooks, as caddy's SIGUSR1 does: the reload plugin registers its hook once in a process, and
// would not notice a change again.
func (d *Daemon) reload(forced bool) {
	if !d.restart.acquire() {
		return
	}
	defer d.restart.release()
	corefile, err := d.load()
	if err != nil {
		d.complain(err, forced)
		return
	}
	if !forced && d.known(corefile) {
		return
	}
	if err := d.start(corefile); err != nil {
		d.refused = &corefile
		d.complain(d.explain(corefile, err), true)
		return
	}
	d.refused, d.complaint = nil, ""
}

// known reports whether a configuration is running or was refused the last time.
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
	previous := nodefacts.Set(corefile.Facts)
	started, err := d.instance.Load().Restart(corefile.input())
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

// complain logs and counts why a configuration is refused.
func (d *Daemon) complain(err error, forced bool) {
	reason := oneLine(err)
	if forced || reason != d.complaint {
		notReloaded.Inc()
		clog.Errorf("Not reloaded, the previous configuration stays in use: %s", reason)
	}
	d.complaint = reason
	reloadRefused.Set(1)
}

// watchRestarts sets reloadRefused when a restart of the instance fails, by this program or by the reload plugin.
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

// compare sets reloadRefused where the reload plugin does not restart: for a configuration that cannot be parsed, and for
// the one that is served. For any other configuration the restart sets it.
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

// tokens returns a configuration as the reload plugin compares it: without comments, with imported files.
func tokens(in caddy.Input) (string, error) {
	blocks, err := caddyfile.Parse(in.Path(), bytes.NewReader(in.Body()), nil)
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(blocks)
	return string(text), err
}
