//go:build linux

package doctor

import (
	"flag"
	"fmt"
	"io"
	"math"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/cmd/internal/subcommand"
)

// options are the flags.
type options struct {
	addresses  []netip.Addr // that nodecache should serve; empty: find out
	iface      string       // the node-local interface
	conf       string       // the Corefile; empty: that of the running nodecache
	resolvConf string       // the node's resolvers; empty: the file that the Corefile forwards to
	service    string       // name of the Service that is cluster DNS
	clusterDNS []netip.AddrPort
	upstreams  []netip.AddrPort // to query besides those of the configuration
	domain     string           // of the cluster, with a dot at the end
	port       uint16           // of DNS on the node-local addresses
	health     uint16           // of the health endpoint; 0: that of the Corefile
	format     string           // text or json
	timeout    time.Duration    // of each query and each read of the kernel's state
}

// parse reads the flags.
func parse(args []string, help io.Writer) (options, error) {
	o := options{domain: "cluster.local."}
	f := flag.NewFlagSet("doctor", flag.ContinueOnError)
	f.Func("localip", "comma list of the `addresses` that nodecache serves (default: as the running one)",
		func(text string) (err error) { o.addresses, err = parseAddresses(text); return err })
	f.StringVar(&o.iface, "interfacename", "", "the node-local interface (default: as the running one, else nodelocaldns)")
	f.StringVar(&o.conf, "conf", "", "Corefile to read addresses and upstreams from (default: that of the running nodecache)")
	f.StringVar(&o.resolvConf, "resolvconf", "", "file with the node's resolvers (default: as in the Corefile, else /etc/resolv.conf)")
	f.StringVar(&o.service, "upstreamsvc", "", "name of the Service that is cluster DNS (default: as the running one, else kube-dns-upstream or kube-dns)")
	f.Func("clusterdns", "comma list of the `addresses` of cluster DNS, instead of the Service's",
		func(text string) (err error) { o.clusterDNS, err = parseServers(text); return err })
	f.Func("upstream", "comma list of more `upstreams` to query, ADDRESS or ADDRESS:PORT",
		func(text string) (err error) { o.upstreams, err = parseServers(text); return err })
	f.Func("domain", "the cluster's `domain` (default cluster.local)",
		func(text string) (err error) { o.domain, err = parseDomain(text); return err })
	port := f.Uint("dns.port", dnsPort, "port that nodecache serves DNS on")
	health := f.Uint("health-port", 0, "port of nodecache's health endpoint (default: that of health in the Corefile)")
	f.StringVar(&o.format, "o", "text", "output, text or json")
	f.DurationVar(&o.timeout, "timeout", 2*time.Second, "limit of each query and each read of the kernel's state")
	if err := subcommand.Parse(f, args, description, help); err != nil {
		return o, err
	}
	o.port, o.health = uint16(*port), uint16(*health)
	return o, o.check(*port, *health)
}

// check returns an error for a value that is out of range.
func (o *options) check(port, health uint) error {
	switch {
	case port == 0 || port > math.MaxUint16:
		return fmt.Errorf("invalid -dns.port %d: want 1-65535", port)
	case health > math.MaxUint16:
		return fmt.Errorf("invalid -health-port %d: want 1-65535", health)
	case o.format != "text" && o.format != "json":
		return fmt.Errorf("invalid -o %q: want text or json", o.format)
	case o.timeout <= 0:
		return fmt.Errorf("invalid -timeout %s: want more than 0", o.timeout)
	}
	return nil
}

func parseAddresses(list string) ([]netip.Addr, error) {
	var all []netip.Addr
	for _, text := range split(list) {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("invalid address %q", text)
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

// parseServer parses an address with or without a port.
func parseServer(text string) (netip.AddrPort, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return netip.AddrPortFrom(a, dnsPort), nil
	}
	server, err := netip.ParseAddrPort(text)
	if err != nil {
		return server, fmt.Errorf("invalid server %q: want an address, or an address with a port", text)
	}
	return server, nil
}

func parseDomain(text string) (string, error) {
	if _, ok := dns.IsDomainName(text); !ok || strings.Trim(text, ".") == "" {
		return "", fmt.Errorf("invalid domain %q", text)
	}
	return dns.CanonicalName(text), nil
}

// split returns the parts of a comma list, without empty ones.
func split(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

// dnsPort is the default port of DNS servers.
const dnsPort = 53
