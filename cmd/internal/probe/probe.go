// Package probe is "clusterdns probe": it asks a DNS server a real question over UDP and over TCP, for
// the exec probes of a kubelet. In go the flags; out comes an exit code, and a line that says what was
// answered. It may not import what the servers are made of: it is started every few seconds.
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
	"time"

	"github.com/miekg/dns"
)

// attempt is how long one query waits for its answer. A datagram may be lost where a server has more to
// do than it can; one of several is answered even then, while a server that hangs answers none.
const attempt = time.Second

// options are the flags.
type options struct {
	server  string        // address and port
	name    string        // what has to exist, fully qualified; empty: any answer will do
	timeout time.Duration // of all attempts together
}

// Command runs "PROGRAM probe" with the arguments after the word probe, and returns the exit code: 0 if
// the server answered over UDP and over TCP; 1 if not; 2 for wrong flags.
func Command(program string) func(args []string) int {
	return func(args []string) int { return command(program, args, os.Stdout, os.Stderr) }
}

func command(program string, args []string, out, complaints io.Writer) int {
	o, err := parse(program, args, out)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		say(complaints, "%s probe: %v; see %[1]s probe -help\n", program, err)
		return 2
	}
	answers, err := ask(o)
	if err != nil {
		say(complaints, "%s probe: %s\n", program, strings.ReplaceAll(err.Error(), "\n", "; "))
		return 1
	}
	say(out, "%s\n", strings.Join(answers, ", "))
	return 0
}

// say prints. What can't be printed can't be reported either; the exit code says it.
func say(w io.Writer, format string, values ...any) { _, _ = fmt.Fprintf(w, format, values...) }

func parse(program string, args []string, help io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("probe", flag.ContinueOnError)
	f.SetOutput(io.Discard) // an error is printed once, by the caller
	f.StringVar(&o.server, "server", "127.0.0.1:53", "`address` and port of the server")
	f.StringVar(&o.name, "name", "", "`name` that has to exist; without it, any answer will do")
	f.DurationVar(&o.timeout, "timeout", 4*time.Second, "how long to go on asking; less than the kubelet waits for the probe")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			say(help, "%s probe asks a DNS server over UDP and over TCP. Exit code: 0, 1 if one of the two is\nnot answered as it should be, 2 for wrong flags.\n\n", program)
			f.SetOutput(help)
			f.PrintDefaults()
		}
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if host, port, err := net.SplitHostPort(o.server); err != nil || net.ParseIP(host) == nil || port == "" {
		return o, fmt.Errorf("-server: %q is not an address with a port, such as 127.0.0.1:53 or [::1]:53", o.server)
	}
	if o.name != "" {
		if _, ok := dns.IsDomainName(o.name); !ok {
			return o, fmt.Errorf("-name: %q is not a name", o.name)
		}
		o.name = dns.Fqdn(o.name)
	}
	if o.timeout <= 0 {
		return o, fmt.Errorf("-timeout: %s is not longer than 0", o.timeout)
	}
	return o, nil
}

// ask asks over both, at the same time, and returns what was answered.
func ask(o options) ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), o.timeout)
	defer cancel()
	networks := []string{"udp", "tcp"}
	answers, errs := make([]string, len(networks)), make([]error, len(networks))
	done := make(chan struct{})
	for i, network := range networks {
		go func() {
			answers[i], errs[i] = o.over(ctx, network)
			done <- struct{}{}
		}()
	}
	for range networks {
		<-done
	}
	return answers, errors.Join(errs...)
}

// over asks over one network until the answer is right or the time is over, when it returns the last
// error.
func (o options) over(ctx context.Context, network string) (string, error) {
	var last error
	for {
		started := time.Now()
		answer, err := o.once(ctx, network)
		if err == nil {
			return network + ": " + answer, nil
		}
		if last == nil || ctx.Err() == nil {
			last = fmt.Errorf("%s: %w", network, err)
		}
		select {
		case <-ctx.Done():
			return "", last
		case <-time.After(attempt - time.Since(started)):
		}
	}
}

// once sends one query and says what was answered.
func (o options) once(ctx context.Context, network string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	m := new(dns.Msg)
	if o.name != "" {
		m.SetQuestion(o.name, dns.TypeA)
	} else {
		// A version of EDNS that is not there (RFC 6891 section 6.1.3) is refused before any plugin and any
		// upstream has a say: that an upstream is dead is no reason to start again.
		m.SetQuestion(".", dns.TypeNS)
		m.SetEdns0(dns.DefaultMsgSize, false)
		m.IsEdns0().SetVersion(1)
	}
	client := dns.Client{Net: network, Timeout: attempt}
	r, took, err := client.ExchangeContext(ctx, m, o.server)
	if err != nil {
		return "", err
	}
	if o.name != "" && r.Rcode != dns.RcodeSuccess {
		return "", fmt.Errorf("%s is %s at %s", o.name, dns.RcodeToString[r.Rcode], o.server)
	}
	return fmt.Sprintf("%s in %.1f ms", rcodeOf(r), float64(took.Microseconds())/1000), nil
}

// rcodeOf returns the name of the code of a reply.
func rcodeOf(r *dns.Msg) string {
	if r.Rcode == dns.RcodeBadVers { // which the table has as the code of a signature, with the same number
		return "BADVERS"
	}
	return dns.RcodeToString[r.Rcode]
}
