// Package probe is the subcommand probe: it queries a DNS server over UDP and over TCP, for the exec probes of a
// kubelet. Input: the flags; output: an exit code and a line with the replies. It may not import CoreDNS or the
// plugins, since the kubelet starts it every few seconds.
package probe

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/cmd/internal/subcommand"
)

// queryTimeout bounds one query. An overloaded server loses datagrams, and answers one of several; a server that hangs
// answers none.
const queryTimeout = time.Second

// options are the flags.
type options struct {
	server  string        // address and port
	name    string        // a name that must exist, fully qualified; empty: any reply is right
	timeout time.Duration // of all queries together
}

// Command returns the subcommand of a program. It gets the arguments after the word probe, and returns the exit code: 0 if
// the server answered over UDP and over TCP; 1 if not; 2 for invalid flags.
func Command(program string) func(args []string) int {
	return func(args []string) int { return command(program, args, os.Stdout, os.Stderr) }
}

func command(program string, args []string, out, errs io.Writer) int {
	name := program + " probe"
	o, err := parse(name, args, out)
	if err != nil {
		return subcommand.Exit(errs, name, err)
	}
	replies, err := query(o)
	if err != nil {
		subcommand.Print(errs, name, errors.New(strings.ReplaceAll(err.Error(), "\n", "; ")))
		return 1
	}
	_, _ = fmt.Fprintln(out, strings.Join(replies, ", ")) // the kubelet reads the exit code only
	return 0
}

func parse(name string, args []string, help io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("probe", flag.ContinueOnError)
	f.StringVar(&o.server, "server", "127.0.0.1:53", "`address` and port of the server")
	f.StringVar(&o.name, "name", "", "`name` that must exist; without it, any reply is right")
	f.DurationVar(&o.timeout, "timeout", 4*time.Second, "how long to retry; less than the kubelet's timeout of the probe")
	description := name + " queries a DNS server over UDP and over TCP. Exit code: 0, 1 without the expected\nreply to one of the two, 2 for invalid flags."
	if err := subcommand.Parse(f, args, description, help); err != nil {
		return o, err
	}
	if host, port, err := net.SplitHostPort(o.server); err != nil || net.ParseIP(host) == nil || port == "" {
		return o, fmt.Errorf("-server: %q is not an address with a port, such as 127.0.0.1:53 or [::1]:53", o.server)
	}
	if o.name != "" {
		if _, ok := dns.IsDomainName(o.name); !ok {
			return o, fmt.Errorf("-name: %q is not a domain name", o.name)
		}
		o.name = dns.Fqdn(o.name)
	}
	if o.timeout <= 0 {
		return o, fmt.Errorf("invalid -timeout %s: want more than 0", o.timeout)
	}
	return o, nil
}

// query queries over UDP and TCP at the same time, and returns the replies.
func query(o options) ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), o.timeout)
	defer cancel()
	networks := []string{"udp", "tcp"}
	replies, errs := make([]string, len(networks)), make([]error, len(networks))
	var wait sync.WaitGroup
	for i, network := range networks {
		wait.Go(func() { replies[i], errs[i] = o.over(ctx, network) })
	}
	wait.Wait()
	return replies, errors.Join(errs...)
}

// over queries over one network until the reply is right. It returns the last error at the end of the timeout.
func (o options) over(ctx context.Context, network string) (string, error) {
	var last error
	for {
		started := time.Now()
		reply, err := o.once(ctx, network)
		if err == nil {
			return network + ": " + reply, nil
		}
		if last == nil || ctx.Err() == nil {
			last = fmt.Errorf("%s: %w", network, err)
		}
		select {
		case <-ctx.Done():
			return "", last
		case <-time.After(queryTimeout - time.Since(started)):
		}
	}
}

// once sends one query and returns a description of the reply.
func (o options) once(ctx context.Context, network string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	m := new(dns.Msg)
	if o.name != "" {
		m.SetQuestion(o.name, dns.TypeA)
	} else {
		// The server refuses an unknown version of EDNS (RFC 6891 section 6.1.3) before any plugin: that an upstream does
		// not answer is no reason to restart the server.
		m.SetQuestion(".", dns.TypeNS)
		m.SetEdns0(dns.DefaultMsgSize, false)
		m.IsEdns0().SetVersion(1)
	}
	client := dns.Client{Net: network, Timeout: queryTimeout}
	r, took, err := client.ExchangeContext(ctx, m, o.server)
	if err != nil {
		return "", err
	}
	if o.name != "" && r.Rcode != dns.RcodeSuccess {
		return "", fmt.Errorf("%s is %s at %s", o.name, dns.RcodeToString[r.Rcode], o.server)
	}
	return fmt.Sprintf("%s in %.1f ms", rcodeOf(r), float64(took.Microseconds())/1000), nil
}

func rcodeOf(r *dns.Msg) string {
	if r.Rcode == dns.RcodeBadVers { // the table has BADSIG for the same number
		return "BADVERS"
	}
	return dns.RcodeToString[r.Rcode]
}
