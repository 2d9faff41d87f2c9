package clients

import (
	"errors"

	"github.com/coredns/caddy"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nearside-dns/nearside/internal/nodefacts"
	"github.com/nearside-dns/nearside/plugin/internal/corefile"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source/apiserver"
)

// defaultResolvConf is the kubelet's default for --resolv-conf. In a container with dnsPolicy Default it has the contents
// of the file that the kubelet reads.
const defaultResolvConf = "/etc/resolv.conf"

// options are the settings of the block.
type options struct {
	node       string
	connection apiserver.Connection
	manifests  string
	resolvConf string

	sourceAt, resolvConfAt corefile.Position // for errors about them
}

var known = corefile.Options[*options]{
	"node":        {Min: 1, Max: 1, Once: true, Form: "the name of this node", Parse: parseNode},
	"endpoint":    connection("endpoint"),
	"tls":         connection("tls"),
	"kubeconfig":  connection("kubeconfig"),
	"manifests":   {Min: 1, Max: 1, Once: true, Form: "a directory", Parse: func(o *options, args []string) error { o.manifests = args[0]; return nil }},
	"resolv_conf": {Min: 1, Max: 1, Once: true, Form: "the file that the kubelet makes the resolv.conf of pods of", Parse: func(o *options, args []string) error { o.resolvConf = args[0]; return nil }},
}

// connection returns an option of the connection to the API server.
func connection(name string) corefile.Option[*options] {
	a := apiserver.Options[name]
	return corefile.Option[*options]{
		Min: a.Min, Max: a.Max, Once: true, Form: a.Form,
		Parse: func(o *options, args []string) error { return a.Parse(&o.connection, args) },
	}
}

// ParseNode parses the block of a directive whose arguments have been read, if it has one:
//
//	node NAME
//	endpoint URL
//	tls CERT KEY CACERT
//	kubeconfig FILE [CONTEXT]
//	manifests DIRECTORY
//	resolv_conf FILE
func ParseNode(c *caddy.Controller) (*NodePods, error) {
	start := corefile.At(c)
	o := options{node: nodefacts.For(start.File).Node, resolvConf: defaultResolvConf, sourceAt: start, resolvConfAt: start}
	seen, err := known.Parse(c, &o)
	if err != nil {
		return nil, err
	}
	if err := conflicts(seen); err != nil {
		return nil, err
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

// conflicts returns an error, at the later line, if the options name two sources of pods.
func conflicts(seen map[string]corefile.Position) error {
	manifests, ok := seen["manifests"]
	if !ok {
		return nil
	}
	for _, other := range []string{"endpoint", "tls", "kubeconfig"} {
		if here, both := seen[other]; both {
			if manifests.Line > here.Line {
				here = manifests
			}
			return here.Errorf("manifests and %s cannot both be set: pods are read from a directory or from an API server", other)
		}
	}
	return nil
}

func parseNode(o *options, args []string) error {
	if len(validation.IsDNS1123Subdomain(args[0])) > 0 {
		return errors.New("a node's name has 1 to 253 characters a-z, 0-9, - and ., and a letter or digit at both ends")
	}
	o.node = args[0]
	return nil
}
