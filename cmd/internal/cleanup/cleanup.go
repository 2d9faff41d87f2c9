//go:build linux

// Package cleanup is "nodecache cleanup": it removes what an earlier run of nodecache or node-local-dns
// left on a node, and says what. In go the flags and the machine; out come lines of what was removed.
// It finds everything first and removes afterwards, rules before the interface: rules that keep packets
// from cluster DNS must not outlive the address that they lead to. While nodecache or node-local-dns
// runs, it refuses.
package cleanup

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/nearside-dns/nearside/cmd/internal/doctor/proc"
)

// options are the flags.
type options struct {
	iface     string       // the interface
	named     bool         // it was named: other interfaces of nodecache stay
	addresses []netip.Addr // that nodecache served, to find them on lo
	only      string       // "iptables" for its rules alone, else empty
	dryRun    bool
	force     bool
	timeout   time.Duration // of each step
}

const defaultInterface = "nodelocaldns"

// Command runs "nodecache cleanup" with the arguments after the word cleanup, and returns the exit
// code: 0, also when there was nothing to remove; 1 if something could not be removed or is in use; 2
// for wrong flags.
func Command(args []string) int {
	fs, err := proc.Open("/proc")
	if err != nil {
		complain(os.Stderr, err)
		return 1
	}
	return command(args, newNode(fs), os.Stdout, os.Stderr)
}

func command(args []string, n *node, out, complaints io.Writer) int {
	o, err := parse(args, out)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		complain(complaints, err)
		return 2
	}
	if err := run(o, n, out); err != nil {
		for _, e := range split(err) {
			if errors.Is(e, fs.ErrPermission) {
				e = fmt.Errorf("%w: run it as root, or in the nodecache container", e)
			}
			complain(complaints, e)
		}
		return 1
	}
	return 0
}

// parse reads the flags. Every error is one line.
func parse(args []string, help io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("cleanup", flag.ContinueOnError)
	f.SetOutput(io.Discard) // an error is printed once, by the caller
	f.StringVar(&o.iface, "interfacename", defaultInterface, "the node-local interface; named, it is the only one that is removed")
	addresses := f.String("localip", "", "comma list of the addresses that nodecache served: those of them on lo are removed")
	f.StringVar(&o.only, "only", "", `"iptables": remove the rules of iptables alone, also beside a nodecache that uses nftables`)
	f.BoolVar(&o.dryRun, "dry-run", false, "say what would be removed, and remove nothing")
	f.BoolVar(&o.force, "force", false, "remove it even while it is in use; a nodecache that runs makes it again")
	f.DurationVar(&o.timeout, "timeout", 10*time.Second, "bound of each step")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			usage(f, help)
			return o, err
		}
		return o, fmt.Errorf("%w; see nodecache cleanup -help", err)
	}
	f.Visit(func(set *flag.Flag) { o.named = o.named || set.Name == "interfacename" })
	for _, text := range strings.FieldsFunc(*addresses, func(r rune) bool { return r == ',' || r == ' ' }) {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return o, fmt.Errorf("-localip: %q is not an address", text)
		}
		o.addresses = append(o.addresses, a.Unmap())
	}
	switch {
	case f.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q; see nodecache cleanup -help", f.Arg(0))
	case o.only != "" && o.only != "iptables":
		return o, fmt.Errorf("-only: %q is not iptables", o.only)
	case o.iface == "" || o.iface == "lo":
		return o, fmt.Errorf("-interfacename: %q cannot be nodecache's", o.iface)
	case o.timeout <= 0:
		return o, fmt.Errorf("-timeout: %s is not longer than 0", o.timeout)
	}
	return o, nil
}

func usage(f *flag.FlagSet, out io.Writer) {
	const text = `nodecache cleanup removes what an earlier run of nodecache or node-local-dns left on this
node: tables of nftables, rules of iptables, the interface, addresses on lo. Exit code: 0, 1 if
something could not be removed or is in use, 2 for wrong flags.

`
	if _, err := io.WriteString(out, text); err != nil {
		return // nobody reads
	}
	f.SetOutput(out)
	f.PrintDefaults()
}

func complain(w io.Writer, err error) {
	// An error that cannot be written cannot be reported either.
	_, _ = fmt.Fprintf(w, "nodecache cleanup: %s\n", strings.Join(strings.Fields(err.Error()), " "))
}

// split returns the errors that were joined.
func split(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var all []error
		for _, e := range joined.Unwrap() {
			all = append(all, split(e)...)
		}
		return all
	}
	return []error{err}
}

// run finds, refuses or removes, and says what was removed. It goes on after an error.
func run(o options, n *node, out io.Writer) error {
	found, problem := n.find(o)
	if !o.force && !o.dryRun {
		if err := n.refuse(o, found); err != nil {
			return err
		}
		release, err := n.claim(found.interfaces)
		if err != nil {
			return err
		}
		defer release()
		// Again, since nobody can arrive any more.
		if err := n.refuse(o, found); err != nil {
			return err
		}
	}
	verb := "removed"
	if o.dryRun {
		verb = "would remove"
	}
	items := found.items(o)
	for _, i := range items {
		if !o.dryRun {
			if err := i.within(o.timeout); err != nil {
				problem = errors.Join(problem, err)
				continue
			}
		}
		if _, err := fmt.Fprintf(out, "%s %s\n", verb, i.what); err != nil {
			return errors.Join(problem, fmt.Errorf("write the result: %w", err))
		}
	}
	if len(items) == 0 && problem == nil {
		if _, err := fmt.Fprintln(out, "nothing to remove"); err != nil {
			return fmt.Errorf("write the result: %w", err)
		}
	}
	return problem
}

// item is one thing to remove.
type item struct {
	what   string
	remove func(context.Context) error
}

// patience is how much longer than its time limit a step is awaited: its programs end with the limit, and
// their errors are worth reporting.
const patience = time.Second

// within removes the item. It returns soon after the limit even if the kernel does not.
func (i item) within(limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- i.remove(ctx) }()
	select {
	case err := <-done:
		return err
	case <-time.After(limit + patience):
		return fmt.Errorf("remove %s: %w", i.what, ctx.Err())
	}
}
