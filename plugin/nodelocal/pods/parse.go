package pods

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/coredns/caddy"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nearside-dns/nearside/internal/nodefacts"
	"github.com/nearside-dns/nearside/plugin/internal/corefile"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source/apiserver"
)

// defaultResolvConf is the file that the kubelet reads, unless it is told another one. In a container with the
// dnsPolicy Default it has what the kubelet has read.
const defaultResolvConf = "/etc/resolv.conf"

// options are what the block says.
type options struct {
	node       string
	connection apiserver.Connection
	manifests  string
	resolvConf string

	sourceAt, resolvConfAt corefile.Position // where an error of them stands
}

// option is how one line of the block is read.
type option struct {
	Min, Max int // number of arguments; Max -1 is any number
	Form     string
	Parse    func(o *options, args []string) error
}

var known = map[string]option{
	"node":        {1, 1, "the name of this node", parseNode},
	"endpoint":    connection("endpoint"),
	"tls":         connection("tls"),
	"kubeconfig":  connection("kubeconfig"),
	"manifests":   {1, 1, "a directory", func(o *options, args []string) error { o.manifests = args[0]; return nil }},
	"resolv_conf": {1, 1, "the file that the kubelet makes the resolv.conf of pods of", func(o *options, args []string) error { o.resolvConf = args[0]; return nil }},
}

// connection returns one of the options that say how to read the API server.
func connection(name string) option {
	a := apiserver.Options[name]
	return option{a.Min, a.Max, a.Form, func(o *options, args []string) error { return a.Parse(&o.connection, args) }}
}

// Parse reads the block of a directive whose arguments have been read, if it has one:
//
//	node NAME
//	endpoint URL
//	tls CERT KEY CACERT
//	kubeconfig FILE [CONTEXT]
//	manifests DIRECTORY
//	resolv_conf FILE
func Parse(c *caddy.Controller) (*Source, error) {
	start := corefile.At(c)
	o := options{node: nodefacts.For(start.File).Node, resolvConf: defaultResolvConf, sourceAt: start, resolvConfAt: start}
	seen := map[string]corefile.Position{}
	for c.NextBlock() {
		name, here := c.Val(), corefile.At(c)
		if err := o.parse(name, c.RemainingArgs(), seen); err != nil {
			return nil, here.Errorf("%w", err)
		}
		seen[name] = here
	}
	if o.node == "" {
		return nil, start.Errorf("whose pods? node NAME says it, and so does -node-name or the variable NODE_NAME of the environment")
	}
	if here, ok := seen["tls"]; ok {
		if err := o.connection.CheckTLS(); err != nil {
			return nil, here.Errorf("tls: %v; it takes %s", err, known["tls"].Form)
		}
	}
	for _, name := range []string{"endpoint", "kubeconfig", "manifests"} {
		if here, ok := seen[name]; ok {
			o.sourceAt = here
		}
	}
	if here, ok := seen["resolv_conf"]; ok {
		o.resolvConfAt = here
	}
	return o.open()
}

// parse reads one line of the block.
func (o *options) parse(name string, args []string, seen map[string]corefile.Position) error {
	option, ok := known[name]
	if !ok {
		return fmt.Errorf("unknown option %q, known are %s", name, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
	}
	if _, twice := seen[name]; twice {
		return fmt.Errorf("%s is there twice", name)
	}
	if len(args) < option.Min || option.Max >= 0 && len(args) > option.Max {
		return fmt.Errorf("%s takes %s, got %q", name, option.Form, args)
	}
	if err := option.Parse(o, args); err != nil {
		return fmt.Errorf("%s: %w; it takes %s", name, err, option.Form)
	}
	for _, other := range []string{"endpoint", "tls", "kubeconfig"} {
		_, both := seen[other]
		if name == "manifests" && both {
			return fromDirectory(other)
		}
		if _, both = seen["manifests"]; name == other && both {
			return fromDirectory(other)
		}
	}
	return nil
}

func fromDirectory(other string) error {
	return fmt.Errorf("manifests and %s cannot both be set: pods are read from a directory or from an API server", other)
}

func parseNode(o *options, args []string) error {
	if len(validation.IsDNS1123Subdomain(args[0])) > 0 {
		return errors.New("a node's name has 1 to 253 characters a-z, 0-9, - and ., and a letter or digit at both ends")
	}
	o.node = args[0]
	return nil
}
