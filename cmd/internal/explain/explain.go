// Package explain is the subcommand explain: it requests from the running program an explanation of its answer to a client's question,
// and prints it. Input: the question and the flags; output: text or JSON, and an exit code. It may not import CoreDNS or the plugins.
package explain

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/nearside-dns/nearside/cmd/internal/subcommand"
)

// timeout bounds the time for the explanation.
const timeout = 30 * time.Second

// header marks requests for explanations and their responses. It is endpoint.Header of the plugins, which this package may not import.
const header = "Nearside-Explain"

// options are the name and the flags.
type options struct {
	name, client, qtype, search, output string
	ndots                               string // "" for that of the client
	node, zone                          string // of the caller option
	health                              string // address of the health endpoint
	tcp                                 bool
}

// Command returns the subcommand of a program. It gets the arguments after the word explain, and returns the exit code: 0, 1 without an
// explanation, 2 for invalid arguments.
func Command(program string) func(args []string) int {
	return func(args []string) int { return command(program, args, os.Stdout, os.Stderr) }
}

func command(program string, args []string, out, errs io.Writer) int {
	name := program + " explain"
	o, err := parse(name, args, out)
	if err != nil {
		return subcommand.Exit(errs, name, err)
	}
	if err := request(o, out); err != nil {
		subcommand.Print(errs, name, err)
		return 1
	}
	return 0
}

func parse(name string, args []string, help io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("explain", flag.ContinueOnError)
	f.StringVar(&o.client, "client", "127.0.0.1", "`address` of the client whose query is explained, such as that of a pod")
	f.StringVar(&o.qtype, "type", "A", "`type` of the records")
	f.StringVar(&o.search, "search", "", "search `list` of the client, with commas, if the program does not know it")
	f.StringVar(&o.ndots, "ndots", "", "`number` of dots from which the client queries a name itself first, by default that of the pod if the program knows its search list, otherwise 5")
	f.StringVar(&o.node, "node", "", "`name` of the node whose nodecache sends the query, to cluster DNS")
	f.StringVar(&o.zone, "zone", "", "`zone` of that node, as nodecache sends it")
	f.StringVar(&o.health, "health", ":8080", "`address` and port of the directive health of the running program; without an address, all of this machine are tried")
	f.StringVar(&o.output, "o", "text", "`format` of the output, text or json")
	f.BoolVar(&o.tcp, "tcp", false, "the client queries over TCP")
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		o.name, args = args[0], args[1:]
	}
	description := name + " NAME [flags] has the running program explain how it answers a query. It sends the query through the plugins, as the client's\n" +
		"would be: it is counted, forwarded and cached as any other. A NAME without a dot at the end is completed with the client's search list.\n" +
		"Exit code: 0, 1 without an explanation, 2 for invalid arguments."
	if err := subcommand.Parse(f, args, description, help); err != nil {
		return o, err
	}
	if o.name == "" {
		return o, errors.New("the name is missing: write it before the flags, such as web.shop")
	}
	if _, err := netip.ParseAddr(o.client); err != nil {
		return o, fmt.Errorf("-client: %q is not an address", o.client)
	}
	if _, _, err := net.SplitHostPort(o.health); err != nil {
		return o, fmt.Errorf("-health: %q is not an address with a port, such as 127.0.0.1:8080 or :8080", o.health)
	}
	if o.output != "text" && o.output != "json" {
		return o, fmt.Errorf("invalid -o %q: want text or json", o.output)
	}
	return o, nil
}

// request requests the explanation of the first address that has one, and prints it.
func request(o options, out io.Writer) error {
	values := url.Values{"name": {o.name}, "client": {o.client}, "type": {o.qtype}, "output": {o.output}}
	for parameter, value := range map[string]string{"search": o.search, "node": o.node, "zone": o.zone, "ndots": o.ndots} {
		if value != "" {
			values.Set(parameter, value)
		}
	}
	if o.tcp {
		values.Set("transport", "tcp")
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	addresses, err := addressesOf(o.health)
	if err != nil {
		return err
	}
	for _, address := range addresses {
		var text []byte
		if text, err = get(ctx, "http://"+address+"/explain?"+values.Encode()); err == nil {
			_, err = out.Write(text)
			return err
		}
		if !errors.Is(err, errElsewhere) {
			return err
		}
	}
	return fmt.Errorf("%w: is the program running, with the directive health? set -health to its address", err)
}

// addressesOf returns the addresses to try: without a host, the loopback addresses and then the others of this machine, such as that on
// which nodecache receives queries.
func addressesOf(health string) (all []string, err error) {
	host, port, err := net.SplitHostPort(health)
	if err != nil || host != "" {
		return []string{health}, err
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var others []string
	for _, a := range own {
		prefix, err := netip.ParsePrefix(a.String())
		if err != nil || prefix.Addr().IsLinkLocalUnicast() && prefix.Addr().Is6() {
			continue
		}
		address := net.JoinHostPort(prefix.Addr().String(), port)
		if prefix.Addr().IsLoopback() {
			all = append(all, address)
		} else {
			others = append(others, address)
		}
	}
	return append(all, others...), nil
}

// errElsewhere is the error of an address at which no program explains queries.
var errElsewhere = errors.New("no explanation")

// get returns the text at a URL.
func get(ctx context.Context, at string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set(header, "1")
	response, err := (&http.Client{Transport: &http.Transport{}}).Do(request) // without a proxy
	if err != nil {
		if ctx.Err() != nil {
			return nil, err
		}
		return nil, fmt.Errorf("%w: %w", errElsewhere, err)
	}
	defer func() { _ = response.Body.Close() }() // it was read
	text, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return nil, err
	case response.Header.Get(header) == "":
		return nil, fmt.Errorf("%w: %s is of another program, or of an older version", errElsewhere, request.URL.Host)
	case response.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s: %s", response.Status, strings.TrimSpace(string(text)))
	}
	return text, nil
}
