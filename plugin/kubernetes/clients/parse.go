package clients

import (
	"fmt"

	"github.com/coredns/caddy"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nearside-dns/nearside/internal/nodefacts"
	"github.com/nearside-dns/nearside/plugin/internal/corefile"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source/settings"
)

// defaultResolvConf is the kubelet's default for --resolv-conf. In a container with dnsPolicy Default it has the contents
// of the file that the kubelet reads.
const defaultResolvConf = "/etc/resolv.conf"

// options are the settings of the block.
type options struct {
	node       string
	from       settings.Settings // where pods are read
	resolvConf string

	resolvConfAt corefile.Position // for errors
}

var known = corefile.Options[*options]{
	"node":        {Min: 1, Max: 1, Once: true, Form: "the name of this node: 1 to 253 characters a-z, 0-9, - and ., with a letter or digit at both ends", Parse: parseNode},
	"resolv_conf": {Min: 1, Max: 1, Once: true, Form: "the file from which the kubelet makes the resolv.conf of pods", Parse: func(o *options, args []string) error { o.resolvConf = args[0]; return nil }},
}.With(corefile.Of(sourceOptions(), func(o *options) *settings.Settings { return &o.from }))

// sourceOptions are the options that select the source of pods, each at most once.
func sourceOptions() corefile.Options[*settings.Settings] {
	all := settings.Options.Without("apiserver_qps", "apiserver_burst", "apiserver_max_inflight")
	for name, o := range all {
		o.Once = true
		all[name] = o
	}
	return all
}

// parseNodePods parses the block of a directive whose arguments have been read, if it has one:
//
//	node NAME
//	endpoint URL
//	tls CERT KEY CACERT
//	kubeconfig FILE [CONTEXT]
//	manifests DIRECTORY
//	resolv_conf FILE
func parseNodePods(c *caddy.Controller) (*nodePods, error) {
	start := corefile.At(c)
	o := options{node: nodefacts.For(start.File).Node, resolvConf: defaultResolvConf, resolvConfAt: start}
	seen, err := known.Parse(c, &o)
	if err != nil {
		return nil, err
	}
	if o.node == "" {
		return nil, start.Errorf("missing node: want node NAME, -node-name or the environment variable NODE_NAME")
	}
	if err := o.from.Check(start, seen); err != nil {
		return nil, err
	}
	if here, ok := seen["resolv_conf"]; ok {
		o.resolvConfAt = here
	}
	return o.open()
}

func parseNode(o *options, args []string) error {
	if len(validation.IsDNS1123Subdomain(args[0])) > 0 {
		return fmt.Errorf("%q", args[0])
	}
	o.node = args[0]
	return nil
}
