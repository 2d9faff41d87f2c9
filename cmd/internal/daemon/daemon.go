// Package daemon runs the server of both programs: the flags of CoreDNS, start, reload, signals and shutdown. Input:
// the name of the program, its directives and its hooks; output: the exit code.
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
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	clog "github.com/coredns/coredns/plugin/pkg/log"

	"github.com/nearside-dns/nearside/cmd/internal/flagvalue"
	"github.com/nearside-dns/nearside/internal/inuse"
	"github.com/nearside-dns/nearside/internal/memory"
	"github.com/nearside-dns/nearside/internal/nodefacts"
)

// Version is the version of the program; the build sets it.
var Version = "(untracked build)"

const serverType = "dns"

// startTime is the time after which the plugins have started.
const startTime = 2 * time.Second

// Daemon is one program. Name and Directives are required.
type Daemon struct {
	// Name is the name of the program.
	Name string
	// Directives are the names that a Corefile may use, in the order in which plugins see a query.
	Directives []string
	// Commands are the program's subcommands by name. They get the arguments after the name and return the exit code.
	Commands map[string]func(args []string) int
	// Flags adds the program's own flags. They check their values.
	Flags func(*flag.FlagSet)
	// Source returns the configuration, at the start and for each reload, instead of the file that -conf names; read reads
	// such a file.
	Source func(conf string, read Reader) (Corefile, error)
	// Started is called once the server answers. refresh reloads the configuration if it has changed; it may be called
	// after Started has returned, from any goroutine.
	Started func(refresh func())
	// Stopped is called at the end of the process, after the last answer, or if the server did not start.
	Stopped func()

	conf             string
	logFormat        string
	version, plugins bool
	reusePort        bool
	stdin            []byte // standard input, which can be read once

	instance  atomic.Pointer[caddy.Instance] // the running one; nil before the first
	restart   reloadLock                     // held by the start, a reload and the shutdown
	running   *Corefile                      // of the instance; guarded by restart
	refused   *Corefile                      // the last that did not start; guarded by restart
	complaint string                         // the last logged reason for not reloading; guarded by restart
	served    atomic.Pointer[string]         // the tokens of the instance's Corefile
	finished  sync.Once
	ended     chan struct{} // closed at the end of the shutdown
}

// Run runs the server until it ends, and returns the exit code of the process.
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
		d.printError(err)
		return 1
	}
	return 0
}

// printError prints the reason for which the program ends, with -log-format json as a line of JSON.
func (d *Daemon) printError(err error) {
	text := d.Name + ": " + oneLine(err)
	if clog.IsJSON() {
		clog.SetOutput(os.Stderr)
		clog.Fatal(text) // ends the process with code 1
	}
	fmt.Fprintln(os.Stderr, text)
}

// flags returns the flags of CoreDNS and the program's own. The set prints nothing: an invalid flag is one line, not the
// whole list.
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
	f.BoolVar(&d.reusePort, "reuseport", false, "start also if another process of the same user listens on a port of this one: the kernel divides the queries between them; directive nodelocal implies it")
	d.logFormat = "text"
	f.Var(flagvalue.Text{Value: &d.logFormat, Check: checkLogFormat}, "log-format", "log `format`, text or json")
	if d.Flags != nil {
		d.Flags(f)
	}
	return f
}

// usage prints commands and flags.
func (d *Daemon) usage(f *flag.FlagSet) {
	out := f.Output()
	fmt.Fprintf(out, "Usage: %s [flags]\n", d.Name)
	for _, command := range slices.Sorted(maps.Keys(d.Commands)) {
		fmt.Fprintf(out, "       %s %s [flags]; see %[1]s %[2]s -help\n", d.Name, command)
	}
	fmt.Fprintln(out, "Flags:")
	f.PrintDefaults()
}

// checkArguments returns an error for an argument that is not a flag.
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
	if d.reusePort {
		inuse.Share()
	}
	return d.serve()
}

// serve runs the server until it ends. After a signal, shutdown may exit the process before serve returns.
func (d *Daemon) serve() error {
	d.ended, d.restart = make(chan struct{}), newReloadLock()
	limitMemory()
	limitGarbage()
	// The reload plugin reads the configuration with this loader.
	caddy.RegisterCaddyfileLoader("corefile", caddy.LoaderFunc(d.loader))
	caddy.RegisterEventHook("instance", d.hook)
	d.trapSignals()
	if d.restart.acquire() { // reloads wait
		instance, err := d.begin()
		if err != nil {
			return err // with the lock: nothing can be reloaded
		}
		d.restart.release()
		instance.Wait()
	}
	if d.restart.isClosed() {
		<-d.ended
	}
	d.finish()
	return nil
}

// begin starts the first instance of the server.
func (d *Daemon) begin() (*caddy.Instance, error) {
	corefile, err := d.load()
	if err != nil {
		return nil, err
	}
	instance, err := d.first(corefile)
	if err != nil {
		d.finish()
		return nil, d.explain(corefile, err)
	}
	if !dnsserver.Quiet {
		clog.Info(d.versionLine())
	}
	d.running = &corefile
	if d.Started != nil && !d.restart.isClosed() { // with the lock, so that it precedes Stopped
		d.Started(func() { d.reload(false) })
	}
	return instance, nil
}

// first starts the first instance of the server.
func (d *Daemon) first(c Corefile) (*caddy.Instance, error) {
	nodefacts.Set(c.Facts)
	return caddy.Start(c.input())
}

// hook stores the running instance. A restart may come from this program or from the reload plugin.
func (d *Daemon) hook(event caddy.EventName, info any) error {
	if instance, ok := info.(*caddy.Instance); ok && event == caddy.InstanceStartupEvent {
		guardDnstap(instance)
		d.watchRestarts(instance)
		d.instance.Store(instance)
		time.AfterFunc(startTime, func() {
			if err := memory.ReleaseProgram(); err != nil {
				clog.Debugf("Resident memory is not reduced: %v", err)
			}
		})
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
