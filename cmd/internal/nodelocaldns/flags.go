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
)

// The defaults of node-local-dns that mean a file or directory which need not be there.
const (
	defaultBase     = "/etc/coredns/Corefile.base"
	defaultCorefile = "/etc/Corefile"
	defaultKubeDNS  = "/etc/kube-dns"
)

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
	interval       seconds
	nodeName       nodeName
	nodeZone       nodeZone
	clusterset     zoneNames
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
	f.Var(&o.fallback, "fallback", "comma-separated addresses of cluster DNS, one per family, that get the queries while nodecache does not answer (default that of -upstreamsvc)")
	f.Var(&o.upstreamSvc, "upstreamsvc", "Service of cluster DNS, whose address is in the environment")
	f.Var(&o.nodeName, "node-name", "name of this node, which cluster DNS is told with what it is asked of cluster zones, and whose pods autopath @nodelocal knows; empty is nothing (default $"+nodeNameVariable+")")
	f.Var(&o.nodeZone, "node-zone", "zone of this node, the value of its label topology.kubernetes.io/zone, which is told with its name (default $"+nodeZoneVariable+")")
	f.Var(&o.clusterset, "clusterset-zone", "comma-separated zones whose names are those of ServiceImports, such as clusterset.local; each is forwarded as the zone of the cluster is, unless the Corefile has a server block for it")
	f.Bool("reloadwithsignal", false, "accepted; every change is applied at once")
	f.Var(&o.interval, "syncinterval", "how often to look at rules, interface and files when nothing has told of a change, 1s to 24h, as 60 (seconds) or 60s")
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

// seconds is a time that is written as a number of seconds or with a unit. node-local-dns takes a
// duration and multiplies it with a second, so it wants 60 and makes 1,900 years of 60s.
type seconds time.Duration

func (s *seconds) String() string { return time.Duration(*s).String() }

func (s *seconds) Set(text string) error {
	d, err := time.ParseDuration(text)
	if number, numErr := strconv.ParseUint(text, 10, 31); numErr == nil {
		d, err = time.Duration(number)*time.Second, nil
	}
	if err != nil || d < time.Second || d > 24*time.Hour {
		return errors.New("want a time from 1s to 24h, as 60 (seconds) or 60s")
	}
	*s = seconds(d)
	return nil
}
