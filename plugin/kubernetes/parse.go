package kubernetes

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/plugin"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/nearside-dns/nearside/plugin/internal/corefile"
	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source/apiserver"
	"github.com/nearside-dns/nearside/plugin/kubernetes/topology"
)

const (
	defaultTTL            = 5    // seconds
	maxTTL                = 3600 // seconds
	defaultStartupTimeout = 5 * time.Second
)

// directive is a Corefile directive handled by this package.
type directive struct {
	name    string
	without []string // unsupported options
	example string   // example of a zone
}

var (
	kubernetesDirective = directive{name: "kubernetes", example: "cluster.local"}
	// multiclusterDirective is the directive of CoreDNS's external plugin multicluster: all its zones are of the clusterset.
	multiclusterDirective = directive{name: "multicluster", without: []string{"multicluster", "pods", "zonal"}, example: "clusterset.local"}
)

// parse parses the block of a directive, which a server block may have once.
func (d directive) parse(c *caddy.Controller) (k *Kubernetes, err error) {
	for c.Next() {
		if k != nil {
			return nil, corefile.At(c).Errorf("%v", plugin.ErrOnce)
		}
		if k, err = d.parseBlock(c); err != nil {
			return nil, err
		}
	}
	return k, nil
}

func (d directive) parseBlock(c *caddy.Controller) (*Kubernetes, error) {
	start := corefile.At(c)
	args := c.RemainingArgs()
	k := newKubernetes(plugin.OriginsFromArgsOrServerBlock(args, c.ServerBlockKeys))
	k.name = d.name
	if !slices.ContainsFunc(k.Zones, isForward) {
		if len(args) == 0 {
			args = c.ServerBlockKeys
		}
		return nil, start.Errorf("no zone of the cluster in %q: want at least one that is not a reverse zone, such as %s", args, d.example)
	}
	d.warnZones(args)
	seen, err := parsers.Without(d.without...).Parse(c, k)
	if err != nil {
		return nil, err
	}
	if err := conflicts(seen); err != nil {
		return nil, err
	}
	if here, ok := seen["trust"]; ok && !k.source.Topology {
		return nil, here.Errorf("trust requires topology, the only user of the caller option")
	}
	if d.name == multiclusterDirective.name {
		k.clustersets = slices.DeleteFunc(slices.Clone(k.Zones), isReverse)
	}
	if err := k.completeClustersets(seen); err != nil {
		return nil, err
	}
	k.source.Pods = k.pods == podsVerified
	k.source.SearchPaths = k.source.Pods
	if err := k.completeSource(start, seen); err != nil {
		return nil, err
	}
	return k, nil
}

// warnZones logs zones without names. As in CoreDNS, an invalid zone is not an error.
func (d directive) warnZones(zones []string) {
	for _, zone := range zones {
		switch all := plugin.Host(zone).NormalizeExact(); {
		case len(all) == 0:
			log.Warningf("%s: invalid zone %q ignored", d.name, zone)
		case d.name == multiclusterDirective.name && isReverse(all[0]):
			log.Warningf("%s: %s is a reverse zone, where ServiceImports have no names: all its names are answered with NXDOMAIN", d.name, all[0])
		}
	}
}

// completeSource sets the position of the source's options, and checks those of TLS.
func (k *Kubernetes) completeSource(start corefile.Position, seen map[string]corefile.Position) error {
	k.sourceAt = start
	for _, name := range []string{"endpoint", "kubeconfig", "manifests"} {
		if here, ok := seen[name]; ok {
			k.sourceAt = here
		}
	}
	if here, ok := seen["tls"]; ok {
		if err := k.connection.CheckTLS(); err != nil {
			return here.Errorf("tls: %v; it takes %s", err, parsers["tls"].Form)
		}
	}
	return nil
}

// contradictions are pairs of options that exclude each other, and the reason.
var contradictions = []struct{ one, other, why string }{
	{"namespaces", "namespace_labels", "both select namespaces"},
	{"zonal", "noendpoints", "zonal names are names of endpoints"},
	{"topology", "noendpoints", "topology selects endpoints"},
	{preferLocalCluster, "noendpoints", "it selects endpoints"},
	{"manifests", "endpoint", fromDirectory},
	{"manifests", "kubeconfig", fromDirectory},
	{"manifests", "tls", fromDirectory},
	{"manifests", "apiserver_qps", fromDirectory},
	{"manifests", "apiserver_burst", fromDirectory},
	{"manifests", "apiserver_max_inflight", fromDirectory},
}

const fromDirectory = "records are read from a directory or from an API server"

// conflicts returns an error, at the later line, if two options exclude each other.
func conflicts(seen map[string]corefile.Position) error {
	for _, c := range contradictions {
		one, ok := seen[c.one]
		other, both := seen[c.other]
		if ok && both {
			if other.Line > one.Line {
				one = other
			}
			return one.Errorf("%s and %s cannot both be set: %s", c.one, c.other, c.why)
		}
	}
	return nil
}

// completeClustersets validates the zones of a clusterset and sets the fields that depend on them.
func (k *Kubernetes) completeClustersets(seen map[string]corefile.Position) error {
	for _, z := range k.clustersets {
		if !slices.Contains(k.Zones, z) {
			return seen["multicluster"].Errorf("multicluster: %s is not a zone of this block: want one of %s", z, strings.Join(k.Zones, ", "))
		}
		if isReverse(z) {
			return seen["multicluster"].Errorf("multicluster: %s is a reverse zone, where ServiceImports have no names", z)
		}
	}
	k.source.Imports = len(k.clustersets) > 0
	if here, ok := seen[preferLocalCluster]; ok && !k.source.Imports {
		return here.Errorf("%s requires a zone of multicluster: it selects endpoints of ServiceImports", preferLocalCluster)
	}
	k.source.ClusterID = k.source.Imports && (k.preferCluster || k.source.Topology) && k.clusterID == index.Symbol{}
	for _, z := range k.Zones {
		if isForward(z) && !k.isClusterset(z) {
			k.primaryZone = z
			break
		}
	}
	k.source.ImportsOnly = k.primaryZone == "" && k.pods != podsVerified
	return nil
}

var parsers = corefile.Options[*Kubernetes]{
	"endpoint":               connection("endpoint"),
	"tls":                    connection("tls"),
	"kubeconfig":             connection("kubeconfig"),
	"manifests":              {Min: 1, Max: 1, Form: "a directory", Parse: func(k *Kubernetes, args []string) error { k.manifests = args[0]; return nil }},
	"apiserver_qps":          connection("apiserver_qps"),
	"apiserver_burst":        connection("apiserver_burst"),
	"apiserver_max_inflight": connection("apiserver_max_inflight"),
	"namespaces":             {Min: 1, Max: -1, Form: "names of namespaces", Parse: parseNamespaces},
	"namespace_labels":       {Min: 1, Max: -1, Form: "a label selector", Parse: parseNamespaceLabels},
	"labels":                 {Min: 1, Max: -1, Form: "a label selector", Parse: parseLabels},
	"pods":                   {Min: 1, Max: 1, Form: "one of disabled, insecure, verified", Parse: parsePods},
	"endpoint_pod_names":     {Form: "no argument", Parse: func(k *Kubernetes, _ []string) error { k.source.EndpointPodNames = true; return nil }},
	"ttl":                    {Min: 1, Max: 1, Form: "seconds, 0 to 3600", Parse: parseTTL},
	"noendpoints":            {Form: "no argument", Parse: func(k *Kubernetes, _ []string) error { k.source.Endpoints = false; return nil }},
	"zonal":                  {Form: "no argument", Parse: func(k *Kubernetes, _ []string) error { k.source.Zones = true; return nil }},
	"ignore":                 {Min: 1, Max: 1, Form: "empty_service", Parse: parseIgnore},
	"fallthrough":            {Max: -1, Form: "zones, or none for all", Parse: func(k *Kubernetes, args []string) error { k.Fall.SetZonesFromArgs(args); return nil }},
	"topology":               {Max: -1, Once: true, Form: "nothing, or the default of headless Services: keys KEY...", Parse: parseTopology},
	"trust":                  {Min: 1, Max: -1, Form: "ranges of addresses such as 10.0.0.0/8", Parse: parseTrust},
	"multicluster":           {Max: -1, Form: "zones of a clusterset, such as clusterset.local", Parse: parseMulticluster},
	preferLocalCluster:       {Max: 1, Form: "nothing, or the ID of this cluster: labels of letters, digits and dashes", Parse: parsePreferLocalCluster},
	"startup_timeout":        {Min: 1, Max: 1, Form: "a duration such as 5s, 0s or more", Parse: parseStartupTimeout},
}

// connection returns an option of the connection to the API server.
func connection(name string) corefile.Option[*Kubernetes] {
	o := apiserver.Options[name]
	return corefile.Option[*Kubernetes]{
		Min: o.Min, Max: o.Max, Form: o.Form, Parse: func(k *Kubernetes, args []string) error { return o.Parse(&k.connection, args) },
	}
}

const preferLocalCluster = "prefer-local-cluster"

func parseNamespaces(k *Kubernetes, args []string) error {
	if k.namespaces == nil {
		k.namespaces = set[string]{}
	}
	for _, ns := range args {
		k.namespaces.add(ns)
	}
	return nil
}

func parseNamespaceLabels(k *Kubernetes, args []string) (err error) {
	k.source.NamespaceLabels, err = selector(args)
	return err
}

func parseLabels(k *Kubernetes, args []string) (err error) {
	k.source.Labels, err = selector(args)
	return err
}

func selector(args []string) (labels.Selector, error) {
	parsed, err := metav1.ParseToLabelSelector(strings.Join(args, " "))
	if err != nil {
		return nil, err
	}
	return metav1.LabelSelectorAsSelector(parsed)
}

func parsePods(k *Kubernetes, args []string) error {
	switch m := podMode(args[0]); m {
	case podsDisabled, podsInsecure, podsVerified:
		k.pods = m
		return nil
	}
	return fmt.Errorf("invalid mode %q", args[0])
}

func parseTTL(k *Kubernetes, args []string) error {
	t, err := strconv.Atoi(args[0])
	if err != nil || t < 0 || t > maxTTL {
		return fmt.Errorf("%q is out of range", args[0])
	}
	k.ttl = uint32(t) // #nosec G115 -- at most 3600
	return nil
}

func parseIgnore(k *Kubernetes, args []string) error {
	if args[0] != "empty_service" {
		return fmt.Errorf("%q cannot be ignored", args[0])
	}
	k.ignoreEmpty = true
	return nil
}

func parseStartupTimeout(k *Kubernetes, args []string) error {
	d, err := time.ParseDuration(args[0])
	if err != nil || d < 0 {
		return fmt.Errorf("invalid duration %q", args[0])
	}
	k.startupTimeout = d
	return nil
}

func parseTopology(k *Kubernetes, args []string) (err error) {
	k.source.Topology = true
	if len(args) == 0 {
		return nil
	}
	if args[0] != "keys" || len(args) == 1 {
		return fmt.Errorf("invalid arguments %q", args)
	}
	k.topologyKeys, err = topology.Keys(args[1:])
	return err
}

func parseTrust(k *Kubernetes, args []string) error {
	for _, arg := range args {
		p, err := netip.ParsePrefix(arg)
		if a, aerr := netip.ParseAddr(arg); aerr == nil && a.Zone() == "" {
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		if err != nil || p.Addr().Is4In6() {
			return fmt.Errorf("invalid range %q", arg)
		}
		k.trust = append(k.trust, p.Masked())
	}
	return nil
}

func parseMulticluster(k *Kubernetes, args []string) error {
	for _, zone := range args {
		if len(plugin.Host(zone).NormalizeExact()) == 0 {
			return fmt.Errorf("invalid zone %q", zone)
		}
	}
	k.clustersets = append(k.clustersets, plugin.OriginsFromArgsOrServerBlock(args, nil)...)
	if len(args) == 0 { // as in CoreDNS
		log.Warning("multicluster without zones has no effect")
	}
	return nil
}

func parsePreferLocalCluster(k *Kubernetes, args []string) error {
	k.preferCluster = true
	if len(args) == 0 {
		return nil
	}
	if !source.IsClusterID(args[0]) {
		return fmt.Errorf("invalid cluster ID %q", args[0])
	}
	k.clusterID = index.NewSymbol(strings.ToLower(args[0]))
	return nil
}
