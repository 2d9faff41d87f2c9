//go:build linux

package doctor

import (
	"net"
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

// setup is how nodecache should be set up on this node: by doctor's own flags, else by the flags and the
// Corefile of the nodecache that runs here.
type setup struct {
	addresses  []netip.Addr
	fromIface  bool // the addresses were read from the interface, and so can't be compared with it
	iface      string
	resolvConf string
	root       string // folder below which resolvConf is
	clusterDNS []netip.AddrPort
	fallback   []netip.Addr // the addresses to which the rules send queries without a lease
	upstreams  []netip.AddrPort
	health     []netip.AddrPort // endpoints, of which one should answer
	zone       string           // of the server block that has the addresses; empty: not known
	noIface    bool             // nodecache makes no interface
	noRules    bool             // nodecache makes no rules
	unmanaged  bool             // nodecache runs without the plugin nodelocal: it sets up nothing, and sends no queries to itself
	running    []proc.Command
	problem    error // why the Corefile could not be read
	corefile   bool  // the Corefile was read
	nodelocal  bool  // the Corefile has the directive nodelocal
	localIP    bool  // the running nodecache has -localip

	coherent       []netip.AddrPort // servers of forward with the option coherent
	metrics        netip.AddrPort   // endpoint of nodecache's metrics; invalid if unknown
	flagMetrics    netip.AddrPort   // endpoint of -metrics-listen-address
	clusterMetrics netip.AddrPort   // endpoint of cluster DNS's metrics; invalid if unknown
	kernel         string           // option kernel of fastpath: "on" or "force", else ""
}

const (
	defaultInterface  = "nodelocaldns"
	defaultResolvConf = "/etc/resolv.conf"
	defaultMetrics    = ":9353" // with -localip
)

// discover completes the options by the configuration of the nodecache that runs here.
func discover(o options, fs proc.FS, environment []string) setup {
	s := setup{addresses: o.addresses, iface: o.iface, resolvConf: o.resolvConf, clusterDNS: o.clusterDNS, upstreams: o.upstreams}
	conf, service := o.conf, o.service
	for _, c := range fs.Commands("nodecache", "node-cache") {
		if len(c.Args) < 2 || c.Args[1] != "doctor" && c.Args[1] != "cleanup" {
			s.running = append(s.running, c)
		}
	}
	if len(s.running) > 0 {
		c := s.running[len(s.running)-1]
		args := flagValues(c.Args[1:])
		s.readFlags(args)
		environment = slices.Concat(environment, c.Environment)
		s.root = c.Root
		if conf == "" {
			conf = corefileOf(c, args)
		}
		if service == "" {
			service = args["upstreamsvc"]
		}
	}
	if conf != "" {
		s.problem = s.readCorefile(conf, o)
	}
	if s.unmanaged = s.corefile && !s.nodelocal && len(s.running) > 0 && !s.localIP && len(o.addresses) == 0; s.unmanaged {
		s.noIface, s.noRules = true, true
		if len(s.addresses) == 0 { // nodecache listens on all addresses
			s.addresses = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}
		}
	}
	if !s.metrics.IsValid() { // nodecache may have refused the present Corefile
		s.metrics = s.flagMetrics
	}
	if len(s.clusterDNS) == 0 {
		s.clusterDNS = serviceAddress(service, environment)
	}
	s.clusterMetrics = serviceMetrics(service, environment)
	if s.iface == "" {
		s.iface = defaultInterface
	}
	if s.resolvConf == "" {
		s.resolvConf = defaultResolvConf
	}
	if o.resolvConf != "" {
		s.root = ""
	}
	return s
}

// corefileOf returns the Corefile of a running nodecache: the one that its flags name, else the first default
// one that exists; "" for none.
func corefileOf(c proc.Command, args map[string]string) string {
	if path := args["conf"]; path == "stdin" {
		return ""
	} else if path != "" {
		return fileOf(c, path)
	}
	for _, path := range []string{args["corefile"], "/etc/Corefile", "Corefile"} {
		if _, err := os.Stat(fileOf(c, path)); path != "" && err == nil {
			return fileOf(c, path)
		}
	}
	return ""
}

// fileOf returns the path under which a file of another process can be read here.
func fileOf(c proc.Command, path string) string {
	if filepath.IsAbs(path) {
		return filepath.Join(c.Root, path)
	}
	return filepath.Join(c.Dir, path)
}

// readFlags sets from nodecache's flags the values that doctor's own flags leave unset.
func (s *setup) readFlags(args map[string]string) {
	if len(s.addresses) == 0 {
		s.addresses, _ = parseAddresses(args["localip"]) // nodecache has checked them
	}
	s.localIP = args["localip"] != ""
	if s.iface == "" {
		s.iface = args["interfacename"]
	}
	listen := args["metrics-listen-address"]
	if listen == "" && args["localip"] != "" {
		listen = defaultMetrics
	}
	s.flagMetrics = reachable(listen)
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

// serviceAddress returns the address of a Service from the variables that Kubernetes sets in each
// container.
func serviceAddress(name string, environment []string) []netip.AddrPort {
	names := []string{name}
	if name == "" {
		names = []string{"kube-dns-upstream", "kube-dns"}
	}
	for _, n := range names {
		if a, err := netip.ParseAddr(serviceVariable(n, "HOST", environment)); err == nil {
			return []netip.AddrPort{netip.AddrPortFrom(a, dnsPort)}
		}
	}
	return nil
}

// serviceMetrics returns the endpoint of the first Service of cluster DNS with a port "metrics": often kube-dns has one,
// and the Service that nodecache queries does not.
func serviceMetrics(name string, environment []string) netip.AddrPort {
	for _, n := range []string{name, "kube-dns-upstream", "kube-dns"} {
		a, err := netip.ParseAddr(serviceVariable(n, "HOST", environment))
		port, err2 := strconv.ParseUint(serviceVariable(n, "PORT_METRICS", environment), 10, 16)
		if err == nil && err2 == nil {
			return netip.AddrPortFrom(a, uint16(port))
		}
	}
	return netip.AddrPort{}
}

// serviceVariable returns a variable that Kubernetes sets for a Service, "" if there is none.
func serviceVariable(service, name string, environment []string) string {
	variable := strings.ToUpper(strings.ReplaceAll(service, "-", "_")) + "_SERVICE_" + name + "="
	for _, v := range environment {
		if value, ok := strings.CutPrefix(v, variable); ok {
			return value
		}
	}
	return ""
}

// readCorefile sets the values that the flags leave unset: the addresses of nodelocal or bind, the targets of
// forward, and the health endpoints. Template variables that are not replaced yet are skipped.
func (s *setup) readCorefile(path string, o options) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	blocks, err := caddyfile.Parse(path, strings.NewReader(string(text)), nil)
	if err != nil {
		return err
	}
	var bound []netip.Addr
	var upstreams []netip.AddrPort
	for _, block := range blocks {
		s.readNodelocal(block, o)
		for _, d := range directives(block, "bind") {
			bound = append(bound, addressesIn(d.args)...)
		}
		upstreams = append(upstreams, s.readForward(block, o)...)
		s.readCoherent(block)
		s.readKernel(block)
	}
	s.corefile = true
	if len(s.addresses) == 0 {
		for _, a := range bound {
			if !a.IsLoopback() && !a.IsUnspecified() && !slices.Contains(s.addresses, a) {
				s.addresses = append(s.addresses, a)
			}
		}
	}
	for _, block := range blocks {
		for _, d := range directives(block, "health") {
			s.readHealth(d.args)
		}
	}
	for _, u := range upstreams {
		// Cluster DNS may have other zones than the cluster's, such as that of a clusterset.
		if !slices.Contains(s.upstreams, u) && !slices.Contains(s.clusterDNS, u) {
			s.upstreams = append(s.upstreams, u)
		}
	}
	return nil
}

// directive is one occurrence of a directive in a server block.
type directive struct {
	args    []string
	options [][]string // each with its arguments
}

func directives(block caddyfile.ServerBlock, name string) (all []directive) {
	d := caddyfile.NewDispenserTokens("", block.Tokens[name])
	for d.Next() {
		next := directive{args: d.RemainingArgs()}
		for d.NextBlock() {
			next.options = append(next.options, append([]string{d.Val()}, d.RemainingArgs()...))
		}
		all = append(all, next)
	}
	return all
}

// readNodelocal reads the addresses and the options of the directive nodelocal.
func (s *setup) readNodelocal(block caddyfile.ServerBlock, o options) {
	for _, d := range directives(block, "nodelocal") {
		s.nodelocal = true
		s.zone = zoneOf(block.Keys[0])
		if named := addressesIn(d.args); len(o.addresses) == 0 && len(named) > 0 {
			s.addresses = named
		}
		for _, words := range d.options {
			option, args := words[0], words[1:]
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

// readHealth reads the arguments of the directive health, ":8080" by default.
func (s *setup) readHealth(args []string) {
	endpoint := ":8080"
	if len(args) > 0 {
		endpoint = args[0]
	}
	if strings.HasPrefix(endpoint, ":") {
		endpoint = "0.0.0.0" + endpoint
	}
	if a, err := netip.ParseAddrPort(endpoint); err == nil {
		s.addHealth(a)
	}
}

// addHealth adds an endpoint; an unspecified address stands for all of nodecache's.
func (s *setup) addHealth(endpoint netip.AddrPort) {
	if !endpoint.Addr().IsUnspecified() {
		s.health = append(s.health, endpoint)
		return
	}
	for _, a := range s.addresses {
		s.health = append(s.health, netip.AddrPortFrom(a, endpoint.Port()))
	}
}

// readForward reads the targets of forward in a server block: cluster DNS for the cluster's domain, a file of
// resolvers or addresses for another zone. It returns the addresses for other zones.
func (s *setup) readForward(block caddyfile.ServerBlock, o options) (upstreams []netip.AddrPort) {
	for _, d := range directives(block, "forward") {
		if len(d.args) < 2 {
			continue
		}
		targets, files := targetsIn(d.args[1:])
		keys := block.Keys
		if d.args[0] != "." {
			keys = d.args[:1] // a part of the block's zones
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
	}
	return upstreams
}

// readCoherent reads the servers of forward directives with the option coherent, and the endpoint of the first prometheus
// directive.
func (s *setup) readCoherent(block caddyfile.ServerBlock) {
	for _, d := range directives(block, "forward") {
		if len(d.args) < 2 || !slices.ContainsFunc(d.options, func(words []string) bool { return words[0] == "coherent" }) {
			continue
		}
		targets, _ := targetsIn(d.args[1:])
		for _, t := range targets {
			if !slices.Contains(s.coherent, t) {
				s.coherent = append(s.coherent, t)
			}
		}
	}
	for _, d := range directives(block, "prometheus") {
		if !s.metrics.IsValid() {
			s.metrics = reachable(append(d.args, "localhost:9153")[0])
		}
	}
}

// reachable returns the address and port at which a program of this node reaches a server that listens on listen: 127.0.0.1 if
// the host is a name or stands for all addresses. It returns the zero value if listen is invalid.
func reachable(listen string) (a netip.AddrPort) {
	host, port, err := net.SplitHostPort(listen)
	number, err2 := strconv.ParseUint(port, 10, 16)
	if err != nil || err2 != nil {
		return a
	}
	address, err := netip.ParseAddr(host)
	if err != nil || address.IsUnspecified() {
		address = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.AddrPortFrom(address, uint16(number))
}

// readKernel reads the option kernel of the directive fastpath. One server block with "on" is enough for answers in the kernel, and
// one with "force" for answers in spite of policy engines.
func (s *setup) readKernel(block caddyfile.ServerBlock) {
	for _, d := range directives(block, "fastpath") {
		for _, words := range d.options {
			if len(words) == 2 && words[0] == "kernel" && (words[1] == "force" || words[1] == "on" && s.kernel == "") {
				s.kernel = words[1]
			}
		}
	}
}

// serves returns whether one of a server block's keys is the zone.
func serves(keys []string, zone string) bool {
	return slices.ContainsFunc(keys, func(key string) bool { return zoneOf(key) == zone })
}

// zoneOf returns the zone of a server block's key, such as dns://cluster.local:53.
func zoneOf(key string) string {
	host, _, _ := strings.Cut(strings.TrimPrefix(key, "dns://"), ":")
	return dns.CanonicalName(host)
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

// addressesIn returns the addresses among words.
func addressesIn(words []string) (all []netip.Addr) {
	servers, _ := targetsIn(words)
	for _, server := range servers {
		all = append(all, server.Addr().Unmap())
	}
	return all
}
