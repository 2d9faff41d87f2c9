// Package daemon is what both programs have in common: the flags that CoreDNS has, the way from a
// Corefile to a running server, its reload, and the end of it. In go the name of the program, its
// directives and what is its own; it returns the exit code.
package daemon

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	clog "github.com/coredns/coredns/plugin/pkg/log"

	"github.com/nearside-dns/nearside/cmd/internal/flagvalue"
	"github.com/nearside-dns/nearside/internal/nodefacts"
)

// Version is the version of the program; the build sets it.
var Version = "(untracked build)"

const serverType = "dns"

// Daemon is one program. Everything but Name and Directives may be left out.
type Daemon struct {
	// Name is what the program calls itself.
	Name string
	// Directives are the names that a Corefile may use, in the order in which plugins see a query.
	Directives []string
	// Replaced is the program in whose place this one runs, besides CoreDNS; its directives are those that
	// a Corefile may have from there.
	Replaced Replaced
	// GCPercent is how much garbage there may be, in percent of what is alive; 0 is as much as Go allows.
	GCPercent int
	// Commands are what the program does instead of serving if its first argument is their name. They
	// get the arguments after it and return the exit code.
	Commands map[string]func(args []string) int
	// Flags adds the program's own flags. A value that is wrong is refused by the flag itself.
	Flags func(*flag.FlagSet)
	// Source returns the configuration, at the start and whenever it is asked for again. It takes the
	// place of reading the file that -conf names; read does that, for it to use.
	Source func(conf string, read Reader) (Corefile, error)
	// Started is called once the server answers. It may keep refresh and call it whenever the
	// configuration may have changed, from any goroutine but its own: one that says the same is left alone.
	Started func(refresh func())
	// Stopped is called at the end of the process, after the last query was answered, or if the server
	// did not start.
	Stopped func()

	conf             string
	logFormat        string
	version, plugins bool
	stdin            []byte // what standard input held; it can be read once only

	instance  atomic.Pointer[caddy.Instance] // the one that answers; nil before the first
	restart   turn                           // of reloading and ending
	running   *Corefile                      // what the instance was started with; guarded by restart
	refused   *Corefile                      // what could not be started; guarded by restart
	complaint string                         // the last reason for not reloading; guarded by restart
	served    atomic.Pointer[string]         // the tokens of what the instance was started with
	finished  sync.Once
	ended     chan struct{} // closed when the end has come
}

// Replaced is a program with Corefiles of its own.
type Replaced struct {
	Name       string
	Directives []string
}

// Run starts the server and returns when it has ended, with the exit code of the process.
func (d *Daemon) Run(args []string) int {
	if len(args) > 0 && d.Commands[args[0]] != nil {
		return d.Commands[args[0]](args[1:])
	}
	flags := d.flags()
	err := flags.Parse(args)
	if err == nil {
		err = checkArguments(flags, args)
	}
	switch {
	case errors.Is(err, flag.ErrHelp):
		flags.SetOutput(os.Stderr)
		d.usage(flags)
		return 0
	case err != nil:
		fmt.Fprintf(os.Stderr, "%s: %v; see -help\n", d.Name, oneLine(err))
		return 2
	}
	if err := d.run(); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", d.Name, oneLine(err))
		return 1
	}
	return 0
}

// flags are those of CoreDNS and the program's own. The set is silent: a wrong flag is worth one line,
// not the whole list.
func (d *Daemon) flags() *flag.FlagSet {
	f := flag.NewFlagSet(d.Name, flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&d.conf, "conf", "", `Corefile to load, "stdin" to read it from there (default "Corefile")`)
	dnsserver.Port = dnsserver.DefaultPort
	port := flagvalue.Text{Value: &dnsserver.Port, Check: flagvalue.CheckPort}
	f.Var(port, "dns.port", "`port` of server blocks that name none")
	f.Var(port, "p", "short for -dns.port")
	f.StringVar(&caddy.PidFile, "pidfile", "", "file to write the process id to")
	f.BoolVar(&d.plugins, "plugins", false, "list the plugins and exit")
	f.BoolVar(&d.version, "version", false, "show the version and exit")
	f.BoolVar(&dnsserver.Quiet, "quiet", false, "do not print which zones are served")
	d.logFormat = "text"
	f.Var(flagvalue.Text{Value: &d.logFormat, Check: checkLogFormat}, "log-format", "log `format`, text or json")
	if d.Flags != nil {
		d.Flags(f)
	}
	return f
}

// usage lists commands and flags.
func (d *Daemon) usage(f *flag.FlagSet) {
	out := f.Output()
	fmt.Fprintf(out, "Usage: %s [flags]\n", d.Name)
	for _, command := range slices.Sorted(maps.Keys(d.Commands)) {
		fmt.Fprintf(out, "       %s %s [flags]; see %[1]s %[2]s -help\n", d.Name, command)
	}
	fmt.Fprintln(out, "Flags:")
	f.PrintDefaults()
}

// checkArguments returns an error if something is left that is no flag.
func checkArguments(f *flag.FlagSet, args []string) error {
	if f.NArg() == 0 {
		return nil
	}
	if begin := len(args) - f.NArg(); begin > 0 {
		before := f.Lookup(strings.TrimLeft(args[begin-1], "-"))
		if _, err := strconv.ParseBool(f.Arg(0)); err == nil && before != nil && isBool(before) {
			return fmt.Errorf("unexpected argument %q: write -%s=%[1]s", f.Arg(0), before.Name)
		}
	}
	return fmt.Errorf("unexpected argument %q: options begin with a dash", f.Arg(0))
}

func isBool(f *flag.Flag) bool {
	b, ok := f.Value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}

func (d *Daemon) run() error {
	if err := dnsserver.SetDirectives(d.Directives); err != nil {
		return fmt.Errorf("directives: %w", err)
	}
	caddy.AppName, caddy.AppVersion = d.Name, Version
	caddy.Quiet = true
	switch {
	case d.version:
		fmt.Println(d.versionLine())
		return nil
	case d.plugins:
		fmt.Println(strings.Join(d.Directives, "\n"))
		return nil
	}
	if err := configureLog(d.logFormat); err != nil {
		return err
	}
	return d.serve()
}

// serve returns when the server has ended. If a signal ends it, the process ends here.
func (d *Daemon) serve() error {
	d.ended, d.restart = make(chan struct{}), newTurn()
	d.boundGarbage()
	// The reload plugin reads with it.
	caddy.RegisterCaddyfileLoader("corefile", caddy.LoaderFunc(d.loader))
	caddy.RegisterEventHook("instance", d.hook)
	d.trapSignals()
	corefile, err := d.load()
	if err != nil {
		return err
	}
	instance, err := d.first(corefile)
	if err != nil {
		d.finish()
		return d.explain(corefile, err)
	}
	if !dnsserver.Quiet {
		clog.Info(d.versionLine())
	}
	if d.restart.take() {
		if d.running == nil { // a signal may have reloaded it already
			d.running = &corefile
		}
		if d.Started != nil { // in turn, so that Stopped comes after it
			d.Started(func() { d.reload(false) })
		}
		d.restart.give()
	}
	instance.Wait()
	if d.restart.over() {
		<-d.ended
	}
	d.finish()
	return nil
}

// first starts the first instance.
func (d *Daemon) first(c Corefile) (*caddy.Instance, error) {
	nodefacts.Set(c.Facts)
	return caddy.Start(c.input())
}

// boundGarbage does so unless the environment says something, as every program in Go allows.
func (d *Daemon) boundGarbage() {
	if d.GCPercent > 0 && os.Getenv("GOGC") == "" {
		debug.SetGCPercent(d.GCPercent)
	}
}

// hook learns which instance answers, whoever restarted it.
func (d *Daemon) hook(event caddy.EventName, info any) error {
	if instance, ok := info.(*caddy.Instance); ok && event == caddy.InstanceStartupEvent {
		d.watchRestarts(instance)
		d.instance.Store(instance)
	}
	return nil
}

func (d *Daemon) versionLine() string {
	coredns := "?"
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == "github.com/coredns/coredns" {
				coredns = strings.TrimPrefix(m.Version, "v")
			}
		}
	}
	return fmt.Sprintf("%s-%s %s/%s, %s, CoreDNS-%s", d.Name, Version, runtime.GOOS, runtime.GOARCH, runtime.Version(), coredns)
}

// oneLine returns an error's text as one line.
func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
