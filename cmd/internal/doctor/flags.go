//go:build linux

package doctor

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// options are the flags.
type options struct {
	addresses  []netip.Addr // that nodecache should serve; empty: find out
	iface      string       // the node-local interface
	conf       string       // the Corefile; empty: that of the running nodecache
	resolvConf string       // the node's resolvers; empty: what the Corefile forwards to
	service    string       // name of the Service that is cluster DNS
	clusterDNS []netip.AddrPort
	upstreams  []netip.AddrPort // to ask besides those of the configuration
	domain     string           // the cluster's, with a dot at the end
	port       uint16           // of DNS on the node-local addresses
	health     uint16           // of the health endpoint; 0: as the Corefile says
	format     string           // text or json
	timeout    time.Duration    // of each query and each look at the kernel
}

// errHelp says that the flags were asked for and have been printed.
var errHelp = errors.New("help was asked for")

// parse reads the flags. Every error is one line.
func parse(args []string, help func(*flag.FlagSet)) (options, error) {
	o := options{}
	f := flag.NewFlagSet("doctor", flag.ContinueOnError)
	f.SetOutput(io.Discard) // an error is printed once, by the caller
	addresses := f.String("localip", "", "comma list of the addresses that nodecache serves (default: as the running one)")
	f.StringVar(&o.iface, "interfacename", "", "the node-local interface (default: as the running one, else nodelocaldns)")
	f.StringVar(&o.conf, "conf", "", "Corefile to take addresses and upstreams from (default: that of the running nodecache)")
	f.StringVar(&o.resolvConf, "resolvconf", "", "file with the node's resolvers (default: as in the Corefile, else /etc/resolv.conf)")
	f.StringVar(&o.service, "upstreamsvc", "", "name of the Service that is cluster DNS (default: as the running one, else kube-dns-upstream or kube-dns)")
	clusterDNS := f.String("clusterdns", "", "comma list of the addresses of cluster DNS, instead of the Service's")
	upstreams := f.String("upstream", "", "comma list of more upstreams to ask, ADDRESS or ADDRESS:PORT")
	domain := f.String("domain", "cluster.local", "the cluster's domain")
	port := f.Uint("dns.port", 53, "port that nodecache serves DNS on")
	health := f.Uint("health-port", 0, "port of nodecache's health endpoint (default: that of health in the Corefile)")
	f.StringVar(&o.format, "o", "text", "output, text or json")
	f.DurationVar(&o.timeout, "timeout", 2*time.Second, "bound of each query and each look at the kernel")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			help(f)
			return o, errHelp
		}
		return o, fmt.Errorf("%w; see nodecache doctor -help", err)
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q; see nodecache doctor -help", f.Arg(0))
	}
	for _, p := range []struct {
		flag string
		read func() error
	}{
		{"localip", func() (err error) { o.addresses, err = parseAddresses(*addresses); return err }},
		{"clusterdns", func() (err error) { o.clusterDNS, err = parseServers(*clusterDNS); return err }},
		{"upstream", func() (err error) { o.upstreams, err = parseServers(*upstreams); return err }},
		{"domain", func() (err error) { o.domain, err = parseDomain(*domain); return err }},
		{"dns.port", func() (err error) { o.port, err = parsePort(*port); return err }},
		{"health-port", func() (err error) { o.health, err = parseOptionalPort(*health); return err }},
		{"o", o.checkFormat},
		{"timeout", o.checkTimeout},
	} {
		if err := p.read(); err != nil {
			return o, fmt.Errorf("-%s: %w", p.flag, err)
		}
	}
	return o, nil
}

func (o *options) checkFormat() error {
	if o.format != "text" && o.format != "json" {
		return fmt.Errorf("%q is neither text nor json", o.format)
	}
	return nil
}

func (o *options) checkTimeout() error {
	if o.timeout <= 0 {
		return fmt.Errorf("%s is not longer than 0", o.timeout)
	}
	return nil
}

func parseAddresses(list string) ([]netip.Addr, error) {
	var all []netip.Addr
	for _, text := range split(list) {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("%q is not an address", text)
		}
		all = append(all, a.Unmap())
	}
	return all, nil
}

func parseServers(list string) ([]netip.AddrPort, error) {
	var all []netip.AddrPort
	for _, text := range split(list) {
		server, err := parseServer(text)
		if err != nil {
			return nil, err
		}
		all = append(all, server)
	}
	return all, nil
}

// parseServer reads an address with or without a port.
func parseServer(text string) (netip.AddrPort, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return netip.AddrPortFrom(a, dnsPort), nil
	}
	server, err := netip.ParseAddrPort(text)
	if err != nil {
		return server, fmt.Errorf("%q is neither an address nor an address with a port", text)
	}
	return server, nil
}

func parseDomain(text string) (string, error) {
	if _, ok := dns.IsDomainName(text); !ok || strings.Trim(text, ".") == "" {
		return "", fmt.Errorf("%q is not a domain", text)
	}
	return dns.CanonicalName(text), nil
}

func parsePort(n uint) (uint16, error) {
	if n == 0 || n > 65535 {
		return 0, fmt.Errorf("%d is not a port, 1 to 65535", n)
	}
	return uint16(n), nil
}

// parseOptionalPort is parsePort where 0 means none.
func parseOptionalPort(n uint) (uint16, error) {
	if n == 0 {
		return 0, nil
	}
	return parsePort(n)
}

// split returns the parts of a comma list, without empty ones.
func split(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

// dnsPort is the port of an upstream that names none.
const dnsPort = 53
