//go:build linux

package doctor

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/coredns/caddy/caddyfile"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/cmd/internal/doctor/proc"
)

// setup is what nodecache is to do here, as far as it can be told: from doctor's own flags, else
// from the flags and the Corefile of the nodecache that runs here.
type setup struct {
	addresses  []netip.Addr
	fromIface  bool // the addresses are those of the interface, so nothing is known to compare them with
	iface      string
	resolvConf string
	clusterDNS []netip.AddrPort
	upstreams  []netip.AddrPort
	health     []netip.AddrPort // endpoints: one of them answers, if any are known
	zone       string           // of the server block that has the addresses; empty: not known
	noIface    bool             // nodecache is told not to make the interface
	noRules    bool             // nodecache is told not to make rules
	running    []proc.Command
	file       func(string) string // where a file that the configuration names is read
	problem    error               // why the Corefile could not be read
}

const defaultInterface = "nodelocaldns"

// defaultResolvConf is the node's, or its copy in a container.
const defaultResolvConf = "/etc/resolv.conf"

// discover completes the options from what runs here.
func discover(o options, root proc.Root, environment []string) setup {
	s := setup{
		file:      func(path string) string { return path },
		addresses: o.addresses, iface: o.iface, resolvConf: o.resolvConf,
		clusterDNS: o.clusterDNS, upstreams: o.upstreams,
	}
	conf, service := o.conf, o.service
	for _, c := range root.Commands("nodecache", "node-cache") {
		if len(c.Args) > 1 && (c.Args[1] == "doctor" || c.Args[1] == "cleanup") {
			continue
		}
		s.running = append(s.running, c)
	}
	if len(s.running) > 0 {
		c := s.running[len(s.running)-1]
		args := flagValues(c.Args[1:])
		s.takeFlags(args)
		environment = append(slices.Clone(environment), c.Environment...)
		s.file = c.File
		if conf == "" {
			conf = corefileOf(c, args)
		}
		if service == "" {
			service = args["upstreamsvc"]
		}
	}
	if conf != "" {
		s.problem = s.takeCorefile(conf, o)
	}
	if len(s.clusterDNS) == 0 {
		s.clusterDNS = serviceAddress(service, environment)
	}
	if s.iface == "" {
		s.iface = defaultInterface
	}
	if s.resolvConf == "" {
		s.resolvConf = defaultResolvConf
	}
	if o.resolvConf != "" {
		s.file = func(path string) string { return path }
	}
	return s
}

// corefileOf returns the Corefile that a running nodecache has read: the one that its flags name, else
// the first of those that it reads without.
func corefileOf(c proc.Command, args map[string]string) string {
	if path := args["conf"]; path != "" {
		if path == "stdin" {
			return ""
		}
		return c.File(path)
	}
	for _, path := range []string{args["corefile"], "/etc/Corefile", "Corefile"} {
		if _, err := os.Stat(c.File(path)); path != "" && err == nil {
			return c.File(path)
		}
	}
	return ""
}

// takeFlags takes what the flags of the running nodecache say and doctor's own do not.
func (s *setup) takeFlags(args map[string]string) {
	if len(s.addresses) == 0 {
		s.addresses, _ = parseAddresses(args["localip"]) // nodecache has checked them
	}
	if s.iface == "" {
		s.iface = args["interfacename"]
	}
	s.noIface = isFalse(args["setupinterface"])
	s.noRules = isFalse(args["setupiptables"])
}

func isFalse(text string) bool {
	value, err := strconv.ParseBool(text)
	return err == nil && !value
}

// flagValues returns the flags of a command line as package flag reads them: -a v, -a=v, --a v.
func flagValues(args []string) map[string]string {
	values := make(map[string]string)
	for i := 0; i < len(args); i++ {
		name, ok := strings.CutPrefix(args[i], "-")
		if !ok {
			continue
		}
		name, value, found := strings.Cut(strings.TrimPrefix(name, "-"), "=")
		if !found {
			value = "true"
			if i+1 < len(args) && !strings.HasPrefix(args[i+1], "-") {
				i++
				value = args[i]
			}
		}
		values[name] = value
	}
	return values
}

// serviceAddress returns the address of a Service from the variables that Kubernetes gives each
// container.
func serviceAddress(name string, environment []string) []netip.AddrPort {
	names := []string{name}
	if name == "" {
		names = []string{"kube-dns-upstream", "kube-dns"}
	}
	for _, n := range names {
		variable := strings.ToUpper(strings.ReplaceAll(n, "-", "_")) + "_SERVICE_HOST="
		for _, v := range environment {
			host, ok := strings.CutPrefix(v, variable)
			if a, err := netip.ParseAddr(host); ok && err == nil {
				return []netip.AddrPort{netip.AddrPortFrom(a, dnsPort)}
			}
		}
	}
	return nil
}

// takeCorefile takes what the Corefile says and the flags do not: the addresses of nodelocal or bind,
// and where it forwards to. Template variables that are not replaced yet are passed over.
func (s *setup) takeCorefile(path string, o options) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	blocks, err := caddyfile.Parse(path, strings.NewReader(string(text)), nil)
	if err != nil {
		return err
	}
	var bound []netip.Addr
	var upstreams, health []netip.AddrPort
	for _, block := range blocks {
		s.takeNodelocal(block, o)
		health = append(health, healthIn(block.Tokens["health"])...)
		bound = append(bound, addressesIn(block.Tokens["bind"])...)
		upstreams = append(upstreams, s.takeForward(block, o)...)
	}
	if len(s.addresses) == 0 {
		for _, a := range bound {
			if !a.IsLoopback() && !a.IsUnspecified() && !slices.Contains(s.addresses, a) {
				s.addresses = append(s.addresses, a)
			}
		}
	}
	s.takeHealth(health)
	for _, u := range upstreams {
		// Cluster DNS may have other zones than the cluster's, such as that of a clusterset.
		if !slices.Contains(s.upstreams, u) && !slices.Contains(s.clusterDNS, u) {
			s.upstreams = append(s.upstreams, u)
		}
	}
	return nil
}

// takeNodelocal takes the addresses and the options of the directive nodelocal.
func (s *setup) takeNodelocal(block caddyfile.ServerBlock, o options) {
	d := caddyfile.NewDispenserTokens("", block.Tokens["nodelocal"])
	for d.Next() {
		s.zone = zoneOf(block.Keys[0])
		if named := addressesOf(d.RemainingArgs()); len(o.addresses) == 0 && len(named) > 0 {
			s.addresses = named
		}
		for d.NextBlock() {
			option, args := d.Val(), d.RemainingArgs()
			switch {
			case option == "interface" && len(args) == 1 && o.iface == "":
				s.iface = args[0]
			case option == "setup" && len(args) > 0:
				s.noIface = !slices.Contains(args, "interface")
				s.noRules = !slices.Contains(args, "rules")
			case option == "backend" && len(args) == 1 && args[0] == "none":
				s.noRules = true
			case option == "fallback" && len(s.clusterDNS) == 0:
				if i := slices.Index(args, "except"); i >= 0 {
					args = args[:i]
				}
				s.clusterDNS, _ = targetsIn(args)
			}
		}
	}
}

// healthIn returns the endpoints that the directive health makes; without an address it is every one.
func healthIn(tokens []caddyfile.Token) (all []netip.AddrPort) {
	d := caddyfile.NewDispenserTokens("", tokens)
	for d.Next() {
		endpoint := ":8080" // without an argument
		if args := d.RemainingArgs(); len(args) > 0 {
			endpoint = args[0]
		}
		if strings.HasPrefix(endpoint, ":") {
			endpoint = "0.0.0.0" + endpoint
		}
		if a, err := netip.ParseAddrPort(endpoint); err == nil {
			all = append(all, a)
		}
		for d.NextBlock() {
			d.RemainingArgs() // such as lameduck
		}
	}
	return all
}

// takeHealth takes endpoints, and for one on every address those on nodecache's.
func (s *setup) takeHealth(endpoints []netip.AddrPort) {
	for _, e := range endpoints {
		if !e.Addr().IsUnspecified() {
			s.health = append(s.health, e)
			continue
		}
		for _, a := range s.addresses {
			s.health = append(s.health, netip.AddrPortFrom(a, e.Port()))
		}
	}
}

// takeForward takes the targets of forward in a server block: cluster DNS for the cluster's domain,
// a file of resolvers or addresses for another zone. It returns those addresses.
func (s *setup) takeForward(block caddyfile.ServerBlock, o options) (upstreams []netip.AddrPort) {
	d := caddyfile.NewDispenserTokens("", block.Tokens["forward"])
	for d.Next() {
		args := d.RemainingArgs()
		if len(args) < 2 {
			continue
		}
		targets, files := targetsIn(args[1:])
		keys := block.Keys
		if args[0] != "." {
			keys = args[:1] // a part of the block's zones
		}
		switch {
		case serves(keys, o.domain):
			if len(o.clusterDNS) == 0 {
				s.clusterDNS = targets
			}
		case serves(keys, "in-addr.arpa.") || serves(keys, "ip6.arpa."): // cluster DNS again
		default:
			upstreams = append(upstreams, targets...)
			if len(files) > 0 && o.resolvConf == "" {
				s.resolvConf = files[0]
			}
		}
		for d.NextBlock() {
			d.RemainingArgs() // options of forward change nothing here
		}
	}
	return upstreams
}

// serves says whether one of a server block's keys is the zone.
func serves(keys []string, zone string) bool {
	return slices.ContainsFunc(keys, func(key string) bool {
		return zoneOf(key) == zone
	})
}

// zoneOf returns the zone of a server block's key, such as dns://cluster.local:53.
func zoneOf(key string) string {
	host, _, _ := strings.Cut(strings.TrimPrefix(key, "dns://"), ":")
	return dns.CanonicalName(host)
}

// addressesIn returns the addresses that a directive names in its arguments.
func addressesIn(tokens []caddyfile.Token) []netip.Addr {
	d := caddyfile.NewDispenserTokens("", tokens)
	var all []netip.Addr
	for d.Next() {
		all = append(all, addressesOf(d.RemainingArgs())...)
		for d.NextBlock() {
			d.RemainingArgs() // such as "except eth0"
		}
	}
	return all
}

// targetsIn returns the servers among words, and the words that are absolute paths.
func targetsIn(words []string) (servers []netip.AddrPort, files []string) {
	for _, w := range words {
		if server, err := parseServer(strings.TrimPrefix(w, "dns://")); err == nil {
			servers = append(servers, server)
		} else if filepath.IsAbs(w) {
			files = append(files, w)
		}
	}
	return servers, files
}

// addressesOf returns the addresses among words.
func addressesOf(words []string) (all []netip.Addr) {
	servers, _ := targetsIn(words)
	for _, server := range servers {
		all = append(all, server.Addr().Unmap())
	}
	return all
}
