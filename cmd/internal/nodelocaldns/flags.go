package nodelocaldns

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	clog "github.com/coredns/coredns/plugin/pkg/log"
)

// The defaults of node-local-dns that mean a file or directory which need not be there.
const (
	defaultBase     = "/etc/coredns/Corefile.base"
	defaultCorefile = "/etc/Corefile"
	defaultKubeDNS  = "/etc/kube-dns"
)

// Directives are those of node-local-dns.
var Directives = []string{
	"timeouts", "reload", "bufsize", "bind", "debug", "trace", "health", "pprof", "prometheus", "errors", "log", "dns64",
	"loadbalance", "cache", "rewrite", "template", "hosts", "loop", "forward", "whoami",
}

// options are what the flags say.
type options struct {
	localIPs       addresses
	interfaceName  deviceName
	setupInterface bool
	setupIptables  bool
	skipTeardown   bool
	metrics        endpoint // -metrics-listen-address
	prometheus     endpoint // -prometheus-listen-address
	healthPort     port
	base           string
	corefile       string
	kubeDNS        string
	upstreamSvc    serviceName
	fallback       fallback
	question       question
	interval       seconds
	nodeName       nodeName
	nodeZone       nodeZone
	clusterset     zoneNames
	setupEbtables  bool
	initialDelay   time.Duration
	metricsTLS     metricsTLS
}

func defaults() options {
	return options{
		interfaceName:  "nodelocaldns",
		setupInterface: true,
		setupIptables:  true,
		metrics:        "0.0.0.0:9353",
		prometheus:     ":9253",
		healthPort:     8080,
		base:           defaultBase,
		corefile:       defaultCorefile,
		upstreamSvc:    "kube-dns",
		interval:       seconds(time.Minute),
		metricsTLS:     metricsTLS{certificate: "/etc/ssl/tls.crt", key: "/etc/ssl/tls.key", clientAuth: "NoClientCert", minVersion: "TLS13"},
	}
}

// Flags adds the flags of node-local-dns.
func (n *Node) Flags(f *flag.FlagSet) {
	n.flags = f
	o := &n.options
	if conf := f.Lookup("conf"); conf != nil {
		conf.Usage += "; if there is a template (-basecorefile), the file to write the rendered one to, unless somebody else wrote it"
	}
	f.Var(&o.localIPs, "localip", "comma-separated addresses to answer on, of both families")
	f.BoolVar(&o.setupInterface, "setupinterface", o.setupInterface, "make the interface that has the addresses")
	f.Var(&o.interfaceName, "interfacename", "name of that interface")
	f.BoolVar(&o.setupIptables, "setupiptables", o.setupIptables, "make the rules that keep DNS out of connection tracking, nftables or iptables")
	f.BoolVar(&o.skipTeardown, "skipteardown", o.skipTeardown, "leave interface and rules at the end")
	f.Var(&o.metrics, "metrics-listen-address", "address to serve metrics of the setup on")
	f.Var(&o.prometheus, "prometheus-listen-address", "address that __PROMETHEUS__ENDPOINT__ stands for in the Corefile")
	f.Var(&o.healthPort, "health-port", "port of the health endpoint")
	f.StringVar(&o.base, "basecorefile", o.base, "template of the Corefile")
	f.StringVar(&o.corefile, "corefile", o.corefile, "where the rendered template is written if -conf does not say so, and what is read if there is no template")
	f.StringVar(&o.kubeDNS, "kubednscm", o.kubeDNS, "directory of the kube-dns ConfigMap (default "+defaultKubeDNS+" if it is there)")
	f.Var(&o.fallback, "fallback", "comma-separated addresses of cluster DNS, one per family, that get the queries while nodecache does not answer (default those of -upstreamsvc; that of the other family is looked up in cluster DNS)")
	f.Var(&o.question, "question-from", "comma-separated source addresses of nodecache's queries to itself, one per family, that no interface has, or \"lo\" (default 192.0.0.8,100:0:0:1::8)")
	f.Var(&o.upstreamSvc, "upstreamsvc", "Service of cluster DNS, whose address is in the environment")
	f.Var(&o.nodeName, "node-name", "name of this node, which cluster DNS is told with what it is asked of cluster zones, and whose pods autopath @nodelocal knows; empty is nothing (default $"+nodeNameVariable+")")
	f.Var(&o.nodeZone, "node-zone", "zone of this node, the value of its label topology.kubernetes.io/zone, which is told with its name (default $"+nodeZoneVariable+")")
	f.Var(&o.clusterset, "clusterset-zone", "comma-separated zones whose names are those of ServiceImports, such as clusterset.local; each is forwarded as the zone of the cluster is, unless the Corefile has a server block for it")
	f.Bool("reloadwithsignal", false, "accepted; every change is applied at once")
	f.Var(&o.interval, "syncinterval", "how often to look at rules, interface and files when nothing has told of a change, 1s to 24h, as 60 (seconds) or 60s; less than a millisecond is taken as node-local-dns does, 60ns as 60 seconds")
	f.BoolVar(&o.setupEbtables, "setupebtables", false, "accepted and ignored: nodecache makes no ebtables rules")
	f.DurationVar(&o.initialDelay, "initialdelay", 0, "accepted and ignored: rules are made once nodecache answers")
	f.BoolVar(&o.metricsTLS.enabled, "tls-enabled", false, "serve -metrics-listen-address over TLS")
	f.StringVar(&o.metricsTLS.certificate, "tls-cert-file", o.metricsTLS.certificate, "certificate of -tls-enabled, PEM, read for each connection")
	f.StringVar(&o.metricsTLS.key, "tls-private-key-file", o.metricsTLS.key, "private key of -tls-cert-file, PEM")
	f.StringVar(&o.metricsTLS.clientCAs, "tls-client-ca-file", "", "certificates of the authorities that sign client certificates, PEM")
	f.Var(&o.metricsTLS.clientAuth, "tls-client-auth-type", "policy for client certificates: "+oneOf(clientAuthTypes))
	f.Var(&o.metricsTLS.minVersion, "tls-min-version", "lowest version of TLS: "+oneOf(tlsVersions))
}

// remarkIgnored logs the flags that are set and change nothing.
func (n *Node) remarkIgnored() {
	if n.options.setupEbtables {
		clog.Info("-setupebtables ignored: nodecache makes no ebtables rules")
	}
	if n.set("initialdelay") {
		clog.Info("-initialdelay ignored: nodecache makes its rules as soon as it answers")
	}
}

// set tells if the flag stands on the command line.
func (n *Node) set(name string) (found bool) {
	n.flags.Visit(func(f *flag.Flag) { found = found || f.Name == name })
	return found
}

// addresses are those of -localip, in their order.
type addresses []netip.Addr

func (a *addresses) String() string { return strings.Join(a.texts(), ",") }

func (a addresses) texts() (all []string) {
	for _, ip := range a {
		all = append(all, ip.String())
	}
	return all
}

// Set replaces the addresses. Empty is none, as it is by default.
func (a *addresses) Set(list string) error {
	*a = nil
	if list == "" {
		return nil
	}
	for text := range strings.SplitSeq(list, ",") {
		ip, err := localAddress(strings.TrimSpace(text))
		if err != nil {
			return err
		}
		if slices.Contains(*a, ip) {
			return fmt.Errorf("%s stands there twice", ip)
		}
		*a = append(*a, ip)
	}
	return nil
}

// fallback is the address of cluster DNS, at most one of each family.
type fallback struct{ addresses }

// Set replaces the addresses. Empty is none, as it is by default.
func (f *fallback) Set(list string) error {
	if err := f.addresses.Set(list); err != nil {
		return err
	}
	for i, a := range f.addresses {
		for _, b := range f.addresses[:i] {
			if a.Is4() == b.Is4() {
				return fmt.Errorf("%s and %s are of one family, want one address of each", b, a)
			}
		}
	}
	return nil
}

// question is where nodecache's queries to itself come from: addresses as of fallback, or lo.
type question struct {
	fallback
	lo bool
}

// questionLo is the value for queries over lo.
const questionLo = "lo"

func (q *question) String() string {
	if q.lo {
		return questionLo
	}
	return q.fallback.String()
}

func (q *question) Set(text string) error {
	if q.lo = text == questionLo; q.lo {
		text = ""
	}
	return q.fallback.Set(text)
}

// option returns the words after the option question of the directive, none for its default.
func (q question) option() []string {
	switch {
	case q.lo:
		return []string{questionLo}
	case len(q.addresses) > 0:
		return append([]string{"from"}, q.texts()...)
	}
	return nil
}

// localAddress parses an address that an interface of the node may get for pods to send to.
func localAddress(text string) (netip.Addr, error) {
	ip, err := netip.ParseAddr(text)
	if err != nil || ip.Zone() != "" {
		return ip, fmt.Errorf("%q is not an IP address", text)
	}
	ip = ip.Unmap()
	for _, no := range []struct {
		is   bool
		what string
	}{
		{ip.IsUnspecified(), "stands for every address"},
		{ip.IsMulticast(), "is a multicast address"},
		{ip == netip.AddrFrom4([4]byte{255, 255, 255, 255}), "is the broadcast address"},
		{ip.IsLoopback(), "is a loopback address, which pods cannot reach"},
	} {
		if no.is {
			return ip, fmt.Errorf("%s %s", ip, no.what)
		}
	}
	return ip, nil
}

// deviceName is the name of a network interface, which the kernel limits to 15 bytes.
type deviceName string

func (d *deviceName) String() string { return string(*d) }

func (d *deviceName) Set(text string) error {
	bad := func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`/:"{}#\`, r) }
	if text == "" || len(text) > 15 || text == "." || text == ".." || strings.ContainsFunc(text, bad) {
		return errors.New("an interface name has 1 to 15 visible characters, no slash, colon, quote or brace")
	}
	*d = deviceName(text)
	return nil
}

// endpoint is a host, or none, and a port. Empty is none.
type endpoint string

func (e *endpoint) String() string { return string(*e) }

func (e *endpoint) Set(text string) error {
	if text != "" {
		host, number, err := net.SplitHostPort(text)
		if err != nil || strings.ContainsFunc(host, func(r rune) bool { return r <= ' ' }) {
			return errors.New("want an address and a port, such as 0.0.0.0:9353 or [::]:9353")
		}
		if err := new(port).Set(number); err != nil {
			return err
		}
	}
	*e = endpoint(text)
	return nil
}

// port is that of TCP or UDP.
type port uint16

func (p *port) String() string { return strconv.Itoa(int(*p)) }

func (p *port) Set(text string) error {
	number, err := strconv.ParseUint(text, 10, 16)
	if err != nil || number == 0 {
		return fmt.Errorf("%q is not a port, 1 to 65535", text)
	}
	*p = port(number)
	return nil
}

// serviceName is that of a Service, a label of RFC 1035.
type serviceName string

func (s *serviceName) String() string { return string(*s) }

func (s *serviceName) Set(text string) error {
	bad := func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' }
	if text == "" || len(text) > 63 || strings.ContainsFunc(text, bad) {
		return errors.New("the name of a Service has 1 to 63 characters a-z, 0-9 and -")
	}
	*s = serviceName(text)
	return nil
}

// variable is where the kubelet tells a container the address of the Service.
func (s serviceName) variable() string {
	return strings.ToUpper(strings.ReplaceAll(string(s), "-", "_")) + "_SERVICE_HOST"
}

// The range of -syncinterval.
const (
	minInterval = time.Second
	maxInterval = 24 * time.Hour
)

// seconds is a time, written as a number of seconds, with a unit, or as node-local-dns takes it: as a
// duration which is multiplied by a second, so that 60ns is a minute there and 60s is 147 years. No time
// under a millisecond makes sense otherwise, and none over it makes sense in node-local-dns.
type seconds time.Duration

func (s *seconds) String() string { return time.Duration(*s).String() }

func (s *seconds) Set(text string) error {
	d, err := time.ParseDuration(text)
	if number, numErr := strconv.ParseUint(text, 10, 31); numErr == nil {
		d, err = time.Duration(number)*time.Second, nil
	}
	if d > 0 && d < time.Millisecond {
		d = min(d*time.Second, maxInterval)
	}
	if err != nil || d < minInterval || d > maxInterval {
		return errors.New("want a time from 1s to 24h, as 60 (seconds) or 60s, or 60ns as in node-local-dns")
	}
	*s = seconds(d)
	return nil
}
