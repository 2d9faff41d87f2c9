package dropin

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	clog "github.com/coredns/coredns/plugin/pkg/log"

	"github.com/nearside-dns/nearside/cmd/internal/flagvalue"
	"github.com/nearside-dns/nearside/cmd/internal/metricsserver"
)

// Defaults of node-local-dns. The files and the directory need not exist.
const (
	defaultBase     = "/etc/coredns/Corefile.base"
	defaultCorefile = "/etc/Corefile"
	defaultKubeDNS  = "/etc/kube-dns"
)

// options are the values of the flags.
type options struct {
	localIPs       addresses
	interfaceName  string
	setupInterface bool
	setupIptables  bool
	skipTeardown   bool
	metrics        *metricsserver.Server // -metrics-listen-address
	prometheus     string                // -prometheus-listen-address
	healthPort     string
	base           string
	corefile       string
	kubeDNS        string
	upstreamSvc    string
	fallback       onePerFamily
	question       question
	interval       seconds
	nodeName       string
	nodeZone       string
	clusterset     zoneNames
	setupEbtables  bool
	initialDelay   time.Duration
}

func defaults() options {
	return options{
		interfaceName:  "nodelocaldns",
		setupInterface: true,
		setupIptables:  true,
		metrics:        &metricsserver.Server{Address: "0.0.0.0:9353"},
		prometheus:     ":9253",
		healthPort:     "8080",
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
		conf.Usage += "; if there is a template (-basecorefile), the file to write the rendered one to, unless another program wrote it"
	}
	f.Var(&o.localIPs, "localip", "comma-separated addresses to answer on, of both families")
	f.BoolVar(&o.setupInterface, "setupinterface", o.setupInterface, "make the interface that has the addresses")
	f.Var(flagvalue.Text{Value: &o.interfaceName, Check: checkInterface}, "interfacename", "name of that interface")
	f.BoolVar(&o.setupIptables, "setupiptables", o.setupIptables, "make the rules that keep DNS out of connection tracking, nftables or iptables")
	f.BoolVar(&o.skipTeardown, "skipteardown", o.skipTeardown, "leave interface and rules at the end")
	o.metrics.Flags(f)
	f.Var(flagvalue.Text{Value: &o.prometheus, Check: flagvalue.CheckEndpoint}, "prometheus-listen-address", "address that __PROMETHEUS__ENDPOINT__ stands for in the Corefile")
	f.Var(flagvalue.Text{Value: &o.healthPort, Check: flagvalue.CheckPort}, "health-port", "port of the health endpoint")
	f.StringVar(&o.base, "basecorefile", o.base, "template of the Corefile")
	f.StringVar(&o.corefile, "corefile", o.corefile, "where the rendered template is written without -conf, and the Corefile that is read without a template")
	f.StringVar(&o.kubeDNS, "kubednscm", o.kubeDNS, "directory of the kube-dns ConfigMap (default "+defaultKubeDNS+" if it exists)")
	f.Var(&o.fallback, "fallback", "comma-separated addresses of cluster DNS, one per family, that get the queries while nodecache does not answer (default those of -upstreamsvc; that of the other family is looked up in cluster DNS)")
	f.Var(&o.question, "question-from", "comma-separated source addresses of nodecache's queries to itself, one per family, that no interface has, or \"lo\" (default 192.0.0.8,100:0:0:1::8)")
	f.Var(flagvalue.Text{Value: &o.upstreamSvc, Check: checkService}, "upstreamsvc", "Service of cluster DNS, whose address is in the environment")
	f.Var(flagvalue.Text{Value: &o.nodeName, Check: checkNodeName}, "node-name", "name of this node, sent to cluster DNS with queries for cluster zones, and the node whose pods autopath @nodelocal watches; empty is none (default $"+nodeNameVariable+")")
	f.Var(flagvalue.Text{Value: &o.nodeZone, Check: checkNodeZone}, "node-zone", "zone of this node, the value of its label topology.kubernetes.io/zone, sent with its name (default $"+nodeZoneVariable+")")
	f.Var(&o.clusterset, "clusterset-zone", "comma-separated zones whose names are those of ServiceImports, such as clusterset.local; each is forwarded as the zone of the cluster is, unless the Corefile has a server block for it")
	f.Bool("reloadwithsignal", false, "accepted; every change is applied at once")
	f.Var(&o.interval, "syncinterval", "how often to check rules, interface and files without a notification, 1s to 24h, as 60 (seconds) or 60s; less than a millisecond is read as in node-local-dns, 60ns as 60 seconds")
	f.BoolVar(&o.setupEbtables, "setupebtables", false, "accepted and ignored: nodecache makes no ebtables rules")
	f.DurationVar(&o.initialDelay, "initialdelay", 0, "accepted and ignored: rules are made once nodecache answers")
}

// logIgnored logs the flags that are set and have no effect.
func (n *Node) logIgnored() {
	if n.options.setupEbtables {
		clog.Info("-setupebtables ignored: nodecache makes no ebtables rules")
	}
	if n.set("initialdelay") {
		clog.Info("-initialdelay ignored: nodecache makes its rules as soon as it answers")
	}
}

// set reports whether the flag is on the command line.
func (n *Node) set(name string) (found bool) {
	n.flags.Visit(func(f *flag.Flag) { found = found || f.Name == name })
	return found
}

// addresses are the value of -localip.
type addresses []netip.Addr

func (a *addresses) String() string { return strings.Join(a.texts(), ",") }

func (a addresses) texts() (all []string) {
	for _, ip := range a {
		all = append(all, ip.String())
	}
	return all
}

// Set replaces the addresses.
func (a *addresses) Set(list string) (err error) {
	*a, err = parseList(list, localAddress)
	return err
}

// parseList parses a comma-separated list, which may be empty.
func parseList[T comparable](list string, parse func(string) (T, error)) (all []T, err error) {
	if list == "" {
		return nil, nil
	}
	for text := range strings.SplitSeq(list, ",") {
		v, err := parse(strings.TrimSpace(text))
		if err != nil {
			return nil, err
		}
		if slices.Contains(all, v) {
			return nil, fmt.Errorf("duplicate value %v", v)
		}
		all = append(all, v)
	}
	return all, nil
}

// onePerFamily are addresses, at most one of each family.
type onePerFamily struct{ addresses }

func (o *onePerFamily) Set(list string) error {
	if err := o.addresses.Set(list); err != nil {
		return err
	}
	for i, a := range o.addresses {
		for _, b := range o.addresses[:i] {
			if a.Is4() == b.Is4() {
				return fmt.Errorf("%s and %s are of one family, want one address of each", b, a)
			}
		}
	}
	return nil
}

// question is the value of -question-from: addresses or lo.
type question struct {
	onePerFamily
	lo bool
}

func (q *question) String() string {
	if q.lo {
		return "lo"
	}
	return q.onePerFamily.String()
}

func (q *question) Set(text string) error {
	if q.lo = text == "lo"; q.lo {
		text = ""
	}
	return q.onePerFamily.Set(text)
}

// option returns the arguments of the option question of the nodelocal directive, none for its default.
func (q question) option() []string {
	switch {
	case q.lo:
		return []string{"lo"}
	case len(q.addresses) > 0:
		return append([]string{"from"}, q.texts()...)
	}
	return nil
}

// localAddress parses an address that an interface of the node may have and that pods can reach.
func localAddress(text string) (netip.Addr, error) {
	ip, err := netip.ParseAddr(text)
	if err != nil || ip.Zone() != "" {
		return ip, fmt.Errorf("%q is not an IP address", text)
	}
	ip = ip.Unmap()
	switch {
	case ip.IsUnspecified():
		return ip, fmt.Errorf("%s stands for every address", ip)
	case ip.IsMulticast():
		return ip, fmt.Errorf("%s is a multicast address", ip)
	case ip == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return ip, fmt.Errorf("%s is the broadcast address", ip)
	case ip.IsLoopback():
		return ip, fmt.Errorf("%s is a loopback address, which pods cannot reach", ip)
	}
	return ip, nil
}

// checkInterface checks the name of a network interface, which the kernel limits to 15 bytes.
func checkInterface(text string) error {
	bad := func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`/:"{}#\`, r) }
	if text == "" || len(text) > 15 || text == "." || text == ".." || strings.ContainsFunc(text, bad) {
		return errors.New("an interface name has 1 to 15 visible characters, no slash, colon, quote or brace")
	}
	return nil
}

// checkService checks the name of a Service, a label of RFC 1035.
func checkService(text string) error {
	bad := func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' }
	if text == "" || len(text) > 63 || strings.ContainsFunc(text, bad) {
		return errors.New("the name of a Service has 1 to 63 characters a-z, 0-9 and -")
	}
	return nil
}

// serviceVariable returns the environment variable in which the kubelet sets the address of a Service.
func serviceVariable(service string) string {
	return strings.ToUpper(strings.ReplaceAll(service, "-", "_")) + serviceHost
}

// serviceHost ends the names of environment variables with the address of a Service.
const serviceHost = "_SERVICE_HOST"

// The range of -syncinterval.
const (
	minInterval = time.Second
	maxInterval = 24 * time.Hour
)

// seconds is the value of -syncinterval: a number of seconds, a duration, or the form of node-local-dns, which multiplies
// a duration by a second: there 60ns is a minute, and 60s is 147 years. So a duration below a millisecond is read in the
// form of node-local-dns, and a longer one as a duration.
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
