//go:build linux

// Package cleanup is the subcommand nodecache cleanup: it removes interfaces, addresses and rules that an earlier run
// of nodecache or node-local-dns left on a node. Input: the flags and the machine; output: a line for each removed
// item. It finds everything first and removes rules before the interface: rules that divert packets meant for cluster DNS
// must not outlive their destination address. It refuses while nodecache or node-local-dns runs.
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
	"github.com/nearside-dns/nearside/cmd/internal/subcommand"
)

// options are the flags.
type options struct {
	iface     string       // the interface
	named     bool         // -interfacename is set: other interfaces of nodecache stay
	addresses []netip.Addr // addresses that nodecache answered on, to find them on lo
	only      string       // "iptables" for its rules only, else empty
	dryRun    bool
	force     bool
	timeout   time.Duration // of each step
}

const defaultInterface = "nodelocaldns"

// Command runs nodecache cleanup with the arguments after the word cleanup, and returns the exit code: 0, also without
// anything to remove; 1 if an item could not be removed or is in use; 2 for invalid flags.
func Command(args []string) int {
	fs, err := proc.Open("/proc")
	if err != nil {
		subcommand.Print(os.Stderr, name, err)
		return 1
	}
	return command(args, newNode(fs), os.Stdout, os.Stderr)
}

func command(args []string, n *node, out, errs io.Writer) int {
	o, err := parse(args, out)
	if err != nil {
		return subcommand.Exit(errs, name, err)
	}
	if err := run(o, n, out); err != nil {
		for _, e := range split(err) {
			if errors.Is(e, fs.ErrPermission) {
				e = fmt.Errorf("%w: run it as root, or in the nodecache container", e)
			}
			subcommand.Print(errs, name, e)
		}
		return 1
	}
	return 0
}

const (
	name        = "nodecache cleanup"
	description = `nodecache cleanup removes from this node the tables of nftables, rules of iptables, interface and
addresses on lo that an earlier run of nodecache or node-local-dns left. Exit code: 0, 1 if an item
could not be removed or is in use, 2 for invalid flags.`
)

// parse reads the flags.
func parse(args []string, help io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("cleanup", flag.ContinueOnError)
	f.StringVar(&o.iface, "interfacename", defaultInterface, "the node-local interface; if set, no other interface is removed")
	addresses := f.String("localip", "", "comma-separated addresses on which nodecache answered: those on lo are removed")
	f.StringVar(&o.only, "only", "", `"iptables": remove only the rules of iptables, also while a nodecache runs that uses nftables`)
	f.BoolVar(&o.dryRun, "dry-run", false, "print the items that would be removed, or why the removal is refused, and remove none")
	f.BoolVar(&o.force, "force", false, "remove items that are in use; a running nodecache makes them again")
	f.DurationVar(&o.timeout, "timeout", 10*time.Second, "timeout of each step")
	if err := subcommand.Parse(f, args, description, help); err != nil {
		return o, err
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
	case o.only != "" && o.only != "iptables":
		return o, fmt.Errorf("-only: %q is not iptables", o.only)
	case o.iface == "" || o.iface == "lo":
		return o, fmt.Errorf("invalid -interfacename %q", o.iface)
	case o.timeout <= 0:
		return o, fmt.Errorf("invalid -timeout %s: want more than 0", o.timeout)
	}
	return o, nil
}

// split returns the single errors of joined ones.
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

// run removes the leftovers and prints them, unless they are in use. After an error it continues with the others.
func run(o options, n *node, out io.Writer) error {
	found, problem := n.find(o)
	if !o.force {
		if err := n.refuse(o, found); err != nil {
			return err
		}
	}
	if !o.force && !o.dryRun {
		release, err := n.claim(found.interfaces)
		if err != nil {
			return err
		}
		defer release()
		// Check again: instances that start wait for the claim now.
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
			if err := i.removeWithin(o.timeout); err != nil {
				problem = errors.Join(problem, err)
				continue
			}
		}
		if _, err := fmt.Fprintf(out, "%s %s\n", verb, i.name); err != nil {
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
	name   string
	remove func(context.Context) error
}

// patience is the additional wait for a step after its time limit: the programs that it runs end at the limit, and their
// errors are reported.
const patience = time.Second

// removeWithin removes the item. It returns soon after the limit even if the kernel does not.
func (i item) removeWithin(limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- i.remove(ctx) }()
	select {
	case err := <-done:
		return err
	case <-time.After(limit + patience):
		return fmt.Errorf("remove %s: %w", i.name, ctx.Err())
	}
}
