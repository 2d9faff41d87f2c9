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
)

// reloadEnds bounds the wait of a signal that ends the process for a reload that is under way.
const reloadEnds = 5 * time.Second

// trapSignals handles signals from now on. It replaces caddy.TrapSignals, which ends at once on SIGQUIT
// and gives a program no say after the last query was answered.
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
				d.endOnce(s)
				continue
			}
			clog.Infof("%s: Reloading", name(s))
			select {
			case reload <- struct{}{}:
			default: // one is waiting already, and will see what this one would
			}
		}
	}()
}

// endOnce ends the process in order. A second signal ends it at once: somebody is in a hurry.
func (d *Daemon) endOnce(s os.Signal) {
	if d.restart.over() {
		clog.Warningf("%s again: ending at once", name(s))
		os.Exit(2)
	}
	clog.Infof("%s: Shutting down servers then terminating", name(s))
	instance := d.instance.Load()
	longest := reloadEnds
	if instance == nil {
		longest = 0 // nothing answers yet, so there is nothing to finish
	}
	go func() {
		d.restart.takeLast(longest)
		d.end()
		os.Exit(0)
	}()
	<-d.restart.end
}

// end lets the plugins say goodbye, then lets the servers answer what they have taken.
func (d *Daemon) end() {
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

// finish leaves nothing behind.
func (d *Daemon) finish() {
	d.finished.Do(func() {
		if d.Stopped != nil {
			d.Stopped()
		}
		if err := removePidfile(caddy.PidFile); err != nil {
			clog.Warningf("Pidfile: %s", oneLine(err))
		}
	})
}

// removePidfile removes the file if it has the number of this process: another may have begun with the
// same file while this one ended.
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
