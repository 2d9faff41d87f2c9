// Package daemon is what both programs have in common: the flags that CoreDNS has, the way from a
// Corefile to a running server, and the end of it. In go the name of the program and its directives;
// it returns the exit code.
package daemon

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	clog "github.com/coredns/coredns/plugin/pkg/log"
)

// Version is the version of the program; the build sets it.
var Version = "(untracked build)"

const serverType = "dns"

// Daemon is one program.
type Daemon struct {
	// Name is what the program calls itself.
	Name string
	// Directives are the names that a Corefile may use, in the order in which plugins see a query.
	Directives []string

	conf, logFormat  string
	version, plugins bool

	unread error  // why the Corefile could not be read the last time
	stdin  []byte // what standard input held; it can be read once only
}

// Run starts the server and returns when it has ended, with the exit code of the process.
func (d *Daemon) Run(args []string) int {
	flags := d.flags()
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2 // the flag set has printed what is wrong
	}
	if err := d.run(flags); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", d.Name, oneLine(err))
		return 1
	}
	return 0
}

// flags are those of CoreDNS.
func (d *Daemon) flags() *flag.FlagSet {
	f := flag.NewFlagSet(d.Name, flag.ContinueOnError)
	f.StringVar(&d.conf, "conf", "", `Corefile to load, "stdin" to read it from there (default "Corefile")`)
	f.StringVar(&dnsserver.Port, "dns.port", dnsserver.DefaultPort, "port of server blocks that name none")
	f.StringVar(&dnsserver.Port, "p", dnsserver.DefaultPort, "short for dns.port")
	f.StringVar(&caddy.PidFile, "pidfile", "", "file to write the process id to")
	f.BoolVar(&d.plugins, "plugins", false, "list the plugins and exit")
	f.BoolVar(&d.version, "version", false, "show the version and exit")
	f.BoolVar(&dnsserver.Quiet, "quiet", false, "do not print which zones are served")
	f.StringVar(&d.logFormat, "log-format", "text", "log format, text or json")
	return f
}

func (d *Daemon) run(flags *flag.FlagSet) error {
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q: options begin with a dash, see -help", flags.Arg(0))
	}
	if err := dnsserver.SetDirectives(d.Directives); err != nil {
		return fmt.Errorf("directives: %w", err)
	}
	caddy.AppName, caddy.AppVersion = d.Name, Version
	caddy.DefaultConfigFile = "Corefile"
	caddy.Quiet = true
	switch {
	case d.version:
		fmt.Println(d.versionLine())
		return nil
	case d.plugins:
		fmt.Println(strings.Join(d.Directives, "\n"))
		return nil
	}
	if err := d.configureLog(); err != nil {
		return err
	}
	// A reload reads with the loader that read at the start.
	caddy.RegisterCaddyfileLoader("corefile", caddy.LoaderFunc(d.corefile))
	corefile, err := caddy.LoadCaddyfile(serverType)
	if d.unread != nil {
		return d.unread
	}
	if err != nil {
		return err
	}
	caddy.TrapSignals()
	instance, err := caddy.Start(corefile)
	if err != nil {
		return err
	}
	if !dnsserver.Quiet {
		clog.Info(d.versionLine())
	}
	instance.Wait()
	return nil
}

func (d *Daemon) configureLog() error {
	clog.SetOutput(os.Stdout)
	if d.logFormat != "text" {
		if err := clog.Configure(d.logFormat, os.Stdout); err != nil {
			return fmt.Errorf("log-format: %w", err)
		}
		return nil
	}
	log.SetFlags(0)
	return nil
}

// corefile reads the configuration, at the start and at each reload.
func (d *Daemon) corefile(serverType string) (caddy.Input, error) {
	name, contents, err := d.read()
	if err == nil && len(bytes.TrimSpace(contents)) == 0 {
		err = fmt.Errorf("%s is empty", name)
	}
	if d.unread = err; err != nil {
		d.unread = fmt.Errorf("no configuration: %w; name a Corefile with -conf", err)
		return nil, d.unread
	}
	return caddy.CaddyfileInput{Contents: contents, Filepath: name, ServerTypeName: serverType}, nil
}

func (d *Daemon) read() (name string, contents []byte, err error) {
	switch d.conf {
	case "":
		contents, err = os.ReadFile(caddy.DefaultConfigFile)
		return caddy.DefaultConfigFile, contents, err
	case "stdin":
		if d.stdin == nil {
			d.stdin, err = io.ReadAll(os.Stdin)
		}
		return "stdin", d.stdin, err
	}
	contents, err = os.ReadFile(filepath.Clean(d.conf))
	return d.conf, contents, err
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
