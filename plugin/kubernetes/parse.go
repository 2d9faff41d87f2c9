package kubernetes

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/dnsutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

const (
	defaultTTL            = 5    // seconds
	maxTTL                = 3600 // seconds
	defaultStartupTimeout = 5 * time.Second
)

// parse reads the kubernetes block of a server block; there may be one.
func parse(c *caddy.Controller) (k *Kubernetes, err error) {
	for c.Next() {
		if k != nil {
			return nil, at(c).errorf("%v", plugin.ErrOnce)
		}
		if k, err = parseBlock(c); err != nil {
			return nil, err
		}
	}
	return k, nil
}

func parseBlock(c *caddy.Controller) (*Kubernetes, error) {
	start := at(c)
	args := c.RemainingArgs()
	k := newKubernetes(plugin.OriginsFromArgsOrServerBlock(args, c.ServerBlockKeys))
	for _, z := range k.Zones {
		if !isReverse(z) {
			k.primaryZone = z
			break
		}
	}
	if k.primaryZone == "" {
		if len(args) == 0 {
			args = c.ServerBlockKeys
		}
		return nil, start.errorf("no zone of the cluster in %q: name one that is not a reverse zone, such as cluster.local", args)
	}
	seen := map[string]position{}
	for c.NextBlock() {
		name, here := c.Val(), at(c)
		option, ok := parsers[name]
		if !ok {
			return nil, here.errorf("unknown option %q, known are %s", name, knownOptions())
		}
		args := c.RemainingArgs()
		if len(args) < option.min || option.max >= 0 && len(args) > option.max {
			return nil, here.errorf("%s takes %s, got %q", name, option.form, args)
		}
		if err := option.parse(k, args); err != nil {
			return nil, here.errorf("%s: %v; it takes %s", name, err, option.form)
		}
		seen[name] = here
	}
	if err := conflicts(seen); err != nil {
		return nil, err
	}
	k.source.Pods = k.pods == podsVerified
	k.sourceAt = start
	for _, name := range []string{"endpoint", "kubeconfig", "manifests"} {
		if here, ok := seen[name]; ok {
			k.sourceAt = here
		}
	}
	if here, ok := seen["tls"]; ok && k.connection.Endpoint != "" && k.connection.Kubeconfig == "" {
		if _, err := k.connection.RESTConfig(); err != nil {
			return nil, here.errorf("tls: %v; it takes %s", err, parsers["tls"].form)
		}
	}
	return k, nil
}

// position is a line of a Corefile.
type position struct {
	file string
	line int
}

func at(c *caddy.Controller) position { return position{c.File(), c.Line()} }

// errorf returns an error in the form that those of the Corefile's parser have.
func (p position) errorf(format string, args ...any) error {
	return fmt.Errorf("%s:%d - Error during parsing: %s", p.file, p.line, fmt.Sprintf(format, args...))
}

// contradictions are the options that cannot both be set, and why.
var contradictions = []struct{ one, other, why string }{
	{"namespaces", "namespace_labels", "both say which namespaces are answered for"},
	{"zonal", "noendpoints", "zonal names are those of endpoints"},
	{"manifests", "endpoint", fromDirectory},
	{"manifests", "kubeconfig", fromDirectory},
	{"manifests", "tls", fromDirectory},
	{"manifests", "apiserver_qps", fromDirectory},
	{"manifests", "apiserver_burst", fromDirectory},
	{"manifests", "apiserver_max_inflight", fromDirectory},
}

const fromDirectory = "the records come from a directory or from an API server"

// conflicts returns an error, at the later line, where options contradict each other.
func conflicts(seen map[string]position) error {
	for _, c := range contradictions {
		one, ok := seen[c.one]
		other, both := seen[c.other]
		if ok && both {
			if other.line > one.line {
				one = other
			}
			return one.errorf("%s and %s cannot both be set: %s", c.one, c.other, c.why)
		}
	}
	return nil
}

// isReverse reports whether a zone is one of addresses. The zones above all of them count as well.
func isReverse(zone string) bool {
	zone = strings.ToLower(zone)
	return zone == "in-addr.arpa." || zone == "ip6.arpa." || dnsutil.IsReverse(zone) > 0
}

// option is how one line of the block is read. form says what it takes, for error messages.
type option struct {
	min, max int // number of arguments; max -1 is any number
	form     string
	parse    func(k *Kubernetes, args []string) error
}

var parsers = map[string]option{
	"endpoint":               {1, -1, "the URL of an API server, such as https://10.0.0.1:6443", parseEndpoint},
	"tls":                    {3, 3, "three files: CERT KEY CACERT", parseTLS},
	"kubeconfig":             {1, 2, "a file and optionally a context: FILE [CONTEXT]", parseKubeconfig},
	"manifests":              {1, 1, "a directory", parseManifests},
	"apiserver_qps":          {1, 1, "a number of requests a second, 0 or more", parseQPS},
	"apiserver_burst":        {1, 1, "a number of requests, 0 or more", parseBurst},
	"apiserver_max_inflight": {1, 1, "a number of requests, 0 or more", parseMaxInflight},
	"namespaces":             {1, -1, "names of namespaces", parseNamespaces},
	"namespace_labels":       {1, -1, "a label selector", parseNamespaceLabels},
	"labels":                 {1, -1, "a label selector", parseLabels},
	"pods":                   {1, 1, "one of disabled, insecure, verified", parsePods},
	"endpoint_pod_names":     {0, 0, "no argument", func(k *Kubernetes, _ []string) error { k.source.EndpointPodNames = true; return nil }},
	"ttl":                    {1, 1, "seconds, 0 to 3600", parseTTL},
	"noendpoints":            {0, 0, "no argument", func(k *Kubernetes, _ []string) error { k.source.Endpoints = false; return nil }},
	"zonal":                  {0, 0, "no argument", func(k *Kubernetes, _ []string) error { k.source.Zones = true; return nil }},
	"ignore":                 {1, 1, "empty_service", parseIgnore},
	"fallthrough":            {0, -1, "zones, or none for all", func(k *Kubernetes, args []string) error { k.Fall.SetZonesFromArgs(args); return nil }},
	"startup_timeout":        {1, 1, "a duration such as 5s, 0s or more", parseStartupTimeout},
}

func knownOptions() string {
	return strings.Join(slices.Sorted(maps.Keys(parsers)), ", ")
}

func parseEndpoint(k *Kubernetes, args []string) error {
	u, _, err := rest.DefaultServerURL(args[0], "", schema.GroupVersion{}, false)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("%q is no such URL", args[0])
	}
	if len(args) > 1 {
		log.Warningf("endpoint: only the first of %q is used", args)
	}
	k.connection.Endpoint = args[0]
	return nil
}

func parseTLS(k *Kubernetes, args []string) error {
	k.connection.Cert, k.connection.Key, k.connection.CA = args[0], args[1], args[2]
	return nil // checked with the endpoint; without one they are not used
}

func parseKubeconfig(k *Kubernetes, args []string) error {
	k.connection.Kubeconfig = args[0]
	if len(args) == 2 {
		k.connection.Context = args[1]
	}
	_, err := k.connection.RESTConfig()
	return err
}

func parseManifests(k *Kubernetes, args []string) error {
	k.manifests = args[0]
	return nil
}

func parseQPS(k *Kubernetes, args []string) error {
	qps, err := strconv.ParseFloat(args[0], 32)
	if err != nil || !(qps >= 0) {
		return fmt.Errorf("%q is not such a number", args[0])
	}
	k.connection.QPS = float32(qps)
	return nil
}

func parseBurst(k *Kubernetes, args []string) (err error) {
	k.connection.Burst, err = count(args[0])
	return err
}

func parseMaxInflight(k *Kubernetes, args []string) (err error) {
	k.connection.MaxInflight, err = count(args[0])
	return err
}

func count(arg string) (int, error) {
	n, err := strconv.Atoi(arg)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q is not such a number", arg)
	}
	return n, nil
}

func parseNamespaces(k *Kubernetes, args []string) error {
	if k.namespaces == nil {
		k.namespaces = map[string]struct{}{}
	}
	for _, ns := range args {
		k.namespaces[ns] = struct{}{}
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
	return fmt.Errorf("%q is no mode", args[0])
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
		return fmt.Errorf("%q is no such duration", args[0])
	}
	k.startupTimeout = d
	return nil
}
