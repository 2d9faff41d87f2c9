package kubernetes

import (
	"errors"
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
	"github.com/nearside-dns/nearside/plugin/kubernetes/source/settings"
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

func (d directive) parse(c *caddy.Controller) (*Kubernetes, error) {
	return corefile.Once(c, d.parseBlock)
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
		if d.name == kubernetesDirective.name && slices.ContainsFunc(k.Zones, isReverseTree) {
			log.Warningf("%s: no zone of the cluster in %q: only reverse names are answered, and their targets do not exist; add a zone such as %s", d.name, args, d.example)
		} else {
			return nil, start.Errorf("no zone of the cluster in %q: want at least one that is not a reverse zone, such as %s", args, d.example)
		}
	}
	d.warnZones(args)
	seen, err := parsers.Without(d.without...).Parse(c, k)
	if err != nil {
		return nil, err
	}
	for _, c := range contradictions {
		if err := corefile.Conflict(seen, c.one, c.other, c.reason); err != nil {
			return nil, err
		}
	}
	if here, ok := seen["trust"]; ok && !k.source.Topology {
		return nil, here.Errorf("trust requires topology, the only user of the caller option")
	}
	if here, ok := seen["snapshot_ready"]; ok && k.snapshot.Path == "" {
		return nil, here.Errorf("snapshot_ready requires snapshot")
	}
	k.snapshotAt = seen["snapshot"]
	if d.name == multiclusterDirective.name {
		k.clustersets = slices.DeleteFunc(slices.Clone(k.Zones), isReverse)
	}
	if err := k.completeClustersets(seen); err != nil {
		return nil, err
	}
	k.source.Pods = k.pods == podsVerified
	k.source.SearchPaths = k.source.Pods
	return k, k.from.Check(start, seen)
}

// warnZones logs zones in which no name exists: invalid ones, which as in CoreDNS are not an error, and reverse zones of
// multicluster.
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

// contradictions are pairs of options that exclude each other.
var contradictions = []struct{ one, other, reason string }{
	{"namespaces", "namespace_labels", "both select namespaces"},
	{"zonal", "noendpoints", "zonal names are names of endpoints"},
	{"topology", "noendpoints", "topology selects endpoints"},
	{preferLocalCluster, "noendpoints", "it selects endpoints"},
	{"snapshot", "manifests", "a snapshot replaces an API server that does not respond"},
}

// completeClustersets validates the zones of a clusterset and sets the fields that depend on them.
func (k *Kubernetes) completeClustersets(seen map[string]corefile.Position) error {
	for _, z := range k.clustersets {
		if !slices.Contains(k.Zones, z) {
			return seen["multicluster"].Errorf("invalid multicluster %q: not a zone of this block: want one of %s", z, strings.Join(k.Zones, ", "))
		}
		if isReverse(z) {
			return seen["multicluster"].Errorf("invalid multicluster %q: reverse zone, where ServiceImports have no names", z)
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
	if !slices.ContainsFunc(k.Zones, isForward) {
		k.primaryZone = k.Zones[slices.IndexFunc(k.Zones, isReverseTree)] // as in CoreDNS
	}
	k.source.ImportsOnly = k.primaryZone == "" && k.pods != podsVerified
	return nil
}

var parsers = corefile.Options[*Kubernetes]{
	"namespaces":         {Min: 1, Max: -1, Form: "names of namespaces", Parse: parseNamespaces},
	"namespace_labels":   {Min: 1, Max: -1, Form: "a label selector", Parse: parseNamespaceLabels},
	"labels":             {Min: 1, Max: -1, Form: "a label selector", Parse: parseLabels},
	"pods":               {Min: 1, Max: 1, Form: "one of disabled, insecure, verified", Parse: parsePods},
	"endpoint_pod_names": {Form: "no argument", Parse: func(k *Kubernetes, _ []string) error { k.source.EndpointPodNames = true; return nil }},
	"ttl":                {Min: 1, Max: 1, Form: "seconds, 0 to 3600", Parse: parseTTL},
	"noendpoints":        {Form: "no argument", Parse: func(k *Kubernetes, _ []string) error { k.source.Endpoints = false; return nil }},
	"zonal":              {Form: "no argument", Parse: func(k *Kubernetes, _ []string) error { k.source.Zones = true; return nil }},
	"ignore":             {Min: 1, Max: -1, Form: "empty_service", Parse: parseIgnore},
	"fallthrough":        {Max: -1, Form: "zones, or none for all", Parse: func(k *Kubernetes, args []string) error { k.Fall.SetZonesFromArgs(args); return nil }},
	"topology":           {Max: -1, Once: true, Form: "nothing, or the default of headless Services: keys KEY...", Parse: parseTopology},
	"trust":              {Min: 1, Max: -1, Form: "ranges of addresses such as 10.0.0.0/8", Parse: parseTrust},
	"multicluster":       {Max: -1, Form: "zones of a clusterset, such as clusterset.local", Parse: parseMulticluster},
	"coherent":           {Once: true, Form: "no argument", Parse: func(k *Kubernetes, _ []string) error { k.coherent = true; return nil }},
	preferLocalCluster:   {Max: 1, Form: "nothing, or the ID of this cluster: labels of letters, digits and dashes", Parse: parsePreferLocalCluster},
	"startup_timeout":    {Min: 1, Max: 1, Form: "a duration such as 5s, 0s or more", Parse: parseStartupTimeout},
	"snapshot":           {Min: 1, Max: 3, Once: true, Form: "a file, and optionally the interval of writes, 1s or more, and the maximum age: FILE [INTERVAL] [MAX_AGE]", Parse: parseSnapshot},
	"snapshot_ready":     {Once: true, Form: "no argument", Parse: func(k *Kubernetes, _ []string) error { k.staleIsReady = true; return nil }},
}.With(corefile.Of(settings.Options, func(k *Kubernetes) *settings.Settings { return &k.from }))

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
	text := strings.Join(args, " ")
	parsed, err := metav1.ParseToLabelSelector(text)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", text, err)
	}
	return metav1.LabelSelectorAsSelector(parsed)
}

func parsePods(k *Kubernetes, args []string) error {
	switch m := podMode(args[0]); m {
	case podsDisabled, podsInsecure, podsVerified:
		k.pods = m
		return nil
	}
	return fmt.Errorf("%q", args[0])
}

func parseTTL(k *Kubernetes, args []string) error {
	t, err := strconv.Atoi(args[0])
	if err != nil || t < 0 || t > maxTTL {
		return fmt.Errorf("%q", args[0])
	}
	k.ttl = uint32(t) // #nosec G115 -- at most 3600
	return nil
}

// parseIgnore parses ignore empty_service. As in CoreDNS, further arguments have no meaning.
func parseIgnore(k *Kubernetes, args []string) error {
	if args[0] != "empty_service" {
		return fmt.Errorf("%q", args[0])
	}
	k.ignoreEmpty = true
	return nil
}

func parseStartupTimeout(k *Kubernetes, args []string) error {
	d, err := time.ParseDuration(args[0])
	if err != nil || d < 0 {
		return fmt.Errorf("%q", args[0])
	}
	k.startupTimeout = d
	return nil
}

// The defaults of option snapshot.
const (
	defaultSnapshotInterval = time.Minute
	defaultSnapshotMaxAge   = 24 * time.Hour
)

func parseSnapshot(k *Kubernetes, args []string) error {
	k.snapshot = source.Snapshot{Path: args[0], Interval: defaultSnapshotInterval, MaxAge: defaultSnapshotMaxAge}
	for i, to := range []*time.Duration{&k.snapshot.Interval, &k.snapshot.MaxAge} {
		if len(args) <= i+1 {
			break
		}
		d, err := time.ParseDuration(args[i+1])
		if err != nil || d < time.Second {
			return errors.New(corefile.Quote(args))
		}
		*to = d
	}
	if args[0] == "" || k.snapshot.MaxAge < k.snapshot.Interval {
		return fmt.Errorf("%s: the maximum age is below the interval", corefile.Quote(args))
	}
	return nil
}

func parseTopology(k *Kubernetes, args []string) (err error) {
	k.source.Topology = true
	if len(args) == 0 {
		return nil
	}
	if args[0] != "keys" || len(args) == 1 {
		return errors.New(corefile.Quote(args))
	}
	if k.topologyKeys, err = topology.Keys(args[1:]); err != nil {
		return fmt.Errorf("%s: %w", corefile.Quote(args), err)
	}
	return nil
}

func parseTrust(k *Kubernetes, args []string) error {
	for _, arg := range args {
		p, err := netip.ParsePrefix(arg)
		if a, aerr := netip.ParseAddr(arg); aerr == nil && a.Zone() == "" {
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		if err != nil || p.Addr().Is4In6() {
			return fmt.Errorf("%q", arg)
		}
		k.trust = append(k.trust, p.Masked())
	}
	return nil
}

func parseMulticluster(k *Kubernetes, args []string) error {
	for _, zone := range args {
		if len(plugin.Host(zone).NormalizeExact()) == 0 {
			return fmt.Errorf("%q", zone)
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
		return fmt.Errorf("%q", args[0])
	}
	k.clusterID = index.NewSymbol(strings.ToLower(args[0]))
	return nil
}
