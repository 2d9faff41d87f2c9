package daemon

import (
	"errors"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coredns/caddy"
	clog "github.com/coredns/coredns/plugin/pkg/log"

	"github.com/nearside-dns/nearside/plugin/fastpath"
	"github.com/nearside-dns/nearside/plugin/trace"
)

// reloadTimeout bounds how long a shutdown waits for a running reload.
const reloadTimeout = 5 * time.Second

// trapSignals handles signals. It replaces caddy.TrapSignals, which ends the process at once on SIGQUIT, and has no hook
// after the last answer.
func (d *Daemon) trapSignals() {
	received, reload := make(chan os.Signal, 4), make(chan struct{}, 1)
	signal.Notify(received, slices.Concat(endSignals, reloadSignals)...)
	if len(ignoredSignals) > 0 {
		signal.Ignore(ignoredSignals...)
	}
	go func() {
		for range reload {
			d.reload(true)
		}
	}()
	go func() {
		for s := range received {
			if slices.Contains(endSignals, s) {
				d.shutdown(s)
				continue
			}
			clog.Infof("%s: Reloading", name(s))
			select {
			case reload <- struct{}{}:
			default: // a pending reload reads the same configuration
			}
		}
	}()
}

// shutdown ends the process after the last answer. A second signal ends it at once.
func (d *Daemon) shutdown(s os.Signal) {
	if d.restart.isClosed() {
		clog.Warningf("%s again: ending at once", name(s))
		os.Exit(2)
	}
	clog.Infof("%s: Shutting down servers then terminating", name(s))
	instance := d.instance.Load()
	timeout := reloadTimeout
	if instance == nil {
		timeout = 0 // no server answers yet
	}
	go func() {
		d.restart.close(timeout)
		d.stopServers()
		os.Exit(0)
	}()
	<-d.restart.closed
}

// stopServers runs the plugins' shutdown hooks, then stops the servers once they have answered the queries that they have
// received.
func (d *Daemon) stopServers() {
	defer close(d.ended)
	if instance := d.instance.Load(); instance != nil {
		for _, err := range instance.ShutdownCallbacks() {
			clog.Errorf("Shutdown: %s", oneLine(err))
		}
		fastpath.Stop()
		if err := caddy.Stop(); err != nil {
			clog.Errorf("Stop: %s", oneLine(err))
		}
	}
	d.finish()
}

// finish runs the program's hook, sends the last spans and removes the pidfile.
func (d *Daemon) finish() {
	d.finished.Do(func() {
		if d.Stopped != nil {
			d.Stopped()
		}
		trace.Stopped()
		if err := removePidfile(caddy.PidFile); err != nil {
			clog.Warningf("Pidfile: %s", oneLine(err))
		}
	})
}

// removePidfile removes the file if it has the id of this process: another process may have written it since.
func removePidfile(path string) error {
	if path == "" {
		return nil
	}
	text, err := os.ReadFile(filepath.Clean(path))
	if err == nil && strings.TrimSpace(string(text)) == strconv.Itoa(os.Getpid()) {
		err = os.Remove(path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
