// Package nodelocaldns is what the command line of node-local-dns means. In go its flags, its template
// of a Corefile, the kube-dns ConfigMap, the node's resolv.conf and the environment; out comes a Corefile
// as CoreDNS takes it, again whenever one of them changes. It makes no interface and no rule: that is
// said to the nodelocal plugin, in a server block that is added to the Corefile. It may not import
// k8s.io.
package nodelocaldns

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coredns/coredns/core/dnsserver"
	clog "github.com/coredns/coredns/plugin/pkg/log"

	"github.com/nearside-dns/nearside/cmd/internal/daemon"
	plugin "github.com/nearside-dns/nearside/plugin/nodelocal"
)

// Node is one node's cache, from its flags to its Corefile. Make one with New; its methods are the hooks
// of a daemon.Daemon.
type Node struct {
	options    options
	setupError func(errortype string) // counts an error that does not end the process
	flags      *flag.FlagSet
	environ    func(string) string
	variables  func() []string // all of the environment, NAME=value
	resolvConf string          // nodeResolvConf, and another in tests
	uplinks    string          // uplinks, and another in tests
	prober     *prober
	refresh    func()
	stop       context.CancelFunc

	// These are used by Source only, which is called once at a time.
	templated bool    // the template was there before
	kubeDNS   kubeDNS // what the ConfigMap said when it was last right
	complaint string  // what was wrong with it the last time
	written   []byte
	unwritten string // why the rendered text is not written

	mu    sync.Mutex
	files []string // what was read the last time
}

// New returns a Node with node-local-dns's defaults.
func New() *Node {
	n := &Node{
		options:    defaults(),
		setupError: func(errortype string) { plugin.SetupErrors.WithLabelValues(errortype).Inc() },
		environ:    os.Getenv,
		variables:  os.Environ,
		resolvConf: nodeResolvConf,
		uplinks:    uplinks,
	}
	n.prober = newProber(func() { n.refresh() })
	return n
}

// Source reads and renders the Corefile.
func (n *Node) Source(conf string, read daemon.Reader) (daemon.Corefile, error) {
	if len(n.options.localIPs) > 0 {
		if err := new(port).Set(dnsserver.Port); err != nil {
			return daemon.Corefile{}, fmt.Errorf("-dns.port: %w", err)
		}
	}
	source, target, err := n.choose(conf, read)
	files := []string{source.Name}
	defer func() { n.setFiles(files) }()
	if err != nil {
		return source, err
	}
	rendered, err := n.render(source, func(file string) { files = append(files, file) })
	if err != nil {
		return rendered, err
	}
	n.write(target, rendered)
	return rendered, nil
}

// render uses the ConfigMap if it is right, else what it said before, and nothing if even that does not
// go with the Corefile.
func (n *Node) render(source daemon.Corefile, reads func(file string)) (out daemon.Corefile, err error) {
	var used []string
	v := n.values()
	v.nameservers = func(file string, own addresses) ([]string, error) {
		return resolvConf{uplinks: n.uplinks, own: own, read: reads}.nameservers(file)
	}
	v.transport = func(servers []string) string {
		used = append(used, servers...)
		return n.prober.transport(servers)
	}
	var wrong error
	candidates := []kubeDNS{n.kubeDNS, {}}
	if wanted, err := n.configMap(); err != nil {
		wrong = err
	} else {
		candidates = slices.Insert(candidates, 0, wanted)
	}
	for _, v.kubeDNS = range candidates {
		out, err = v.render(source)
		if conflict := (configMapError{}); !errors.As(err, &conflict) {
			break
		}
		if wrong == nil {
			wrong = err
		}
	}
	n.complain(wrong)
	if err == nil {
		n.kubeDNS = v.kubeDNS
		n.prober.keep(used)
	}
	return out, err
}

func (n *Node) values() values {
	o := &n.options
	v := values{
		local:      o.localIPs,
		port:       dnsserver.Port,
		service:    o.upstreamSvc,
		prometheus: o.prometheus.String(),
		resolvConf: n.resolvConf,
		directive: nodelocal{
			interfaceName: o.interfaceName.String(),
			device:        o.setupInterface,
			rules:         o.setupIptables,
			keep:          o.skipTeardown,
			healthPort:    o.healthPort.String(),
			interval:      o.interval.String(),
		},
	}
	v.directive.fallback = o.fallback.texts()
	v.directive.services = n.services()
	if ip, err := netip.ParseAddr(n.environ(o.upstreamSvc.variable())); err == nil {
		v.clusterDNS = ip.String()
		if len(o.fallback) == 0 && !slices.Contains(o.localIPs, ip.Unmap()) {
			v.directive.fallback = []string{v.clusterDNS}
		}
	}
	return v
}

// services returns those of the node-local addresses that a Service of the namespace has, such as that of
// kube-dns: kube-proxy knows them.
func (n *Node) services() (known []string) {
	for _, variable := range n.variables() {
		name, text, _ := strings.Cut(variable, "=")
		ip, err := netip.ParseAddr(text)
		if err == nil && strings.HasSuffix(name, serviceHost) && slices.Contains(n.options.localIPs, ip.Unmap()) {
			known = append(known, ip.Unmap().String())
		}
	}
	slices.Sort(known)
	return slices.Compact(known)
}

// serviceHost ends the names of the variables that have the address of a Service.
const serviceHost = "_SERVICE_HOST"

// configMap reads the ConfigMap of kube-dns. Without the flag it need not be there.
func (n *Node) configMap() (kubeDNS, error) {
	directory := n.kubeDNSDirectory()
	if n.options.kubeDNS == "" {
		if _, err := os.Stat(directory); errors.Is(err, os.ErrNotExist) {
			return kubeDNS{}, nil
		}
	}
	return readKubeDNS(directory)
}

func (n *Node) kubeDNSDirectory() string {
	if n.options.kubeDNS != "" {
		return n.options.kubeDNS
	}
	return defaultKubeDNS
}

// complain says and counts once what is wrong with the ConfigMap.
func (n *Node) complain(wrong error) {
	if wrong == nil {
		n.complaint = ""
		return
	}
	if reason := wrong.Error(); reason != n.complaint {
		n.complaint = reason
		n.setupError("configmap")
		clog.Errorf("ConfigMap of kube-dns not used, what it said before holds: %s", reason)
	}
}

func (n *Node) setFiles(files []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.files = files
}

// watched are the files and directories whose change may change the Corefile.
func (n *Node) watched() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]string{n.options.base, n.kubeDNSDirectory()}, n.files...)
}

// Started serves metrics and watches files and upstreams.
func (n *Node) Started(refresh func()) {
	ctx, stop := context.WithCancel(context.Background())
	n.refresh, n.stop = refresh, stop
	every := time.Duration(n.options.interval)
	if len(n.options.localIPs) > 0 || n.set("metrics-listen-address") {
		go n.serveMetrics(ctx, every)
	}
	go n.prober.run(ctx)
	go watcher{paths: n.watched, every: every, settle: settle, changed: refresh}.run(ctx)
}

// Stopped ends what Started began, and has the plugin take away interface and rules.
func (n *Node) Stopped() {
	if n.stop != nil {
		n.stop()
	}
	plugin.Stopped()
}
