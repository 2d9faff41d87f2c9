// Package dropin makes the configuration of nodecache from the command line of node-local-dns. Input: its flags,
// its template of a Corefile, the kube-dns ConfigMap, the node's resolv.conf and the environment; output: a Corefile
// and the facts from which plugins set defaults, again whenever an input changes. Plugin nodelocal creates the interface and the
// rules of the packet filter, from a server block that dropin adds to the Corefile. The package may not import k8s.io.
package dropin

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coredns/coredns/core/dnsserver"

	"github.com/nearside-dns/nearside/cmd/internal/daemon"
	"github.com/nearside-dns/nearside/cmd/internal/dualstack"
	"github.com/nearside-dns/nearside/cmd/internal/filewatch"
	"github.com/nearside-dns/nearside/cmd/internal/kubednsconfig"
	"github.com/nearside-dns/nearside/cmd/internal/resolvconf"
	plugin "github.com/nearside-dns/nearside/plugin/nodelocal"
)

// Node makes the configuration of one node's cache. Its methods are the hooks of a daemon.Daemon.
type Node struct {
	options     options
	setupError  func(errortype string) // counts an error that does not end the process
	flags       *flag.FlagSet
	environ     func() []string   // NAME=value
	resolvConf  string            // resolvconf.Path except in tests
	host        string            // resolvconf.HostRoot except in tests
	kubeDNSPath string            // defaultKubeDNS except in tests
	dial        dualstack.Dial    // connects to cluster DNS
	second      *dualstack.Lookup // of the second fallback; nil if there is none
	firstLookup sync.Once         // of second, before the first rendering
	stop        context.CancelFunc

	// Only Source uses these; its calls do not overlap.
	templated     bool                 // the template existed before
	kubeDNS       kubednsconfig.Config // the last valid ConfigMap
	kubeDNSReason string               // why the ConfigMap is not used, as logged
	written       string               // the rendered file
	unwritten     string               // why the rendered file is not written, as logged
	last          *rendering           // nil before the first
	logged        messages             // of the last valid rendering
	serverless    map[string]bool      // files without a usable server in the last valid rendering; nil before it
	usedCopy      bool                 // the last valid rendering used the copy of the node's resolv.conf

	mu    sync.Mutex
	files []string // inputs of the last rendering
}

// New returns a Node with the defaults of node-local-dns.
func New() *Node {
	return &Node{
		options:     defaults(),
		setupError:  func(errortype string) { plugin.SetupErrors.WithLabelValues(errortype).Inc() },
		environ:     os.Environ,
		resolvConf:  resolvconf.Path,
		host:        resolvconf.HostRoot,
		kubeDNSPath: defaultKubeDNS,
		dial:        new(net.Dialer).DialContext,
	}
}

// inPod is a variable that the kubelet sets in every container.
const inPod = "KUBERNETES_SERVICE_HOST"

// rendering is the result for some inputs.
type rendering struct {
	inputs [sha256.Size]byte
	out    daemon.Corefile
	err    error
}

// Source reads the Corefile, and renders it only if an input has changed, so that messages are logged once.
func (n *Node) Source(conf string, read daemon.Reader) (daemon.Corefile, error) {
	n.firstLookup.Do(func() {
		if n.second = n.newLookup(); n.second != nil {
			_, _ = n.second.Look(context.Background()) // Follow retries
		}
	})
	inputs := n.inputs()
	source, target, err := n.choose(conf, read)
	if err != nil {
		n.last = nil
		n.setFiles([]string{source.Name})
		return source, err
	}
	if n.last == nil || n.last.inputs != inputs {
		source.Text = bytes.TrimPrefix(source.Text, byteOrderMark)
		files := []string{source.Name}
		out, err := n.render(source, func(file string) { files = append(files, file) })
		n.last = &rendering{inputs, out, err}
		n.setFiles(files)
	}
	if n.last.err == nil {
		n.write(target, n.last.out)
	}
	return n.last.out, n.last.err
}

// byteOrderMark begins a text file that some editors wrote.
var byteOrderMark = []byte("\ufeff")

// inputs returns a digest of the contents of the watched files, the names in watched directories, the targets of
// symbolic links, and the addresses of the fallback. The target of a link counts besides the contents: an absolute link
// of the node is resolved below the folder with the node's files, and opening the link itself fails in the container
// whatever its target is. The environment and the flags of a process do not change.
func (n *Node) inputs() (sum [sha256.Size]byte) {
	h := sha256.New()
	for _, path := range n.watched() {
		text, err := os.ReadFile(path)
		entries, notDirectory := os.ReadDir(path)
		if notDirectory == nil {
			err = nil
		}
		target, _ := os.Readlink(path) // "" except for a link
		fmt.Fprintf(h, "%s %d %s %s %v %s\n", path, len(text), text, entries, err, target)
	}
	fmt.Fprintf(h, "%v", n.defaultFallback())
	h.Sum(sum[:0])
	return sum
}

// render renders with the first of these that is valid together with the Corefile: the ConfigMap, its last valid content,
// an empty one.
func (n *Node) render(source daemon.Corefile, reads func(file string)) (daemon.Corefile, error) {
	candidates := []kubednsconfig.Config{n.kubeDNS, {}}
	wanted, reason := n.configMap()
	if reason == nil {
		candidates = slices.Insert(candidates, 0, wanted)
	}
	candidates = slices.CompactFunc(candidates, func(a, b kubednsconfig.Config) bool { return reflect.DeepEqual(a, b) })
	var first, last error
	for _, c := range candidates {
		var out daemon.Corefile
		if out, last = n.renderWith(c, source, reads); last == nil {
			n.reportConfigMap(cmp.Or(reason, first))
			return out, nil
		}
		first = cmp.Or(first, last)
	}
	if last.Error() != first.Error() { // otherwise the Corefile is invalid with any ConfigMap
		reason = cmp.Or(reason, first)
	}
	n.reportConfigMap(reason)
	return source, last
}

// renderWith renders with this content of the ConfigMap. A valid rendering replaces the last one.
func (n *Node) renderWith(c kubednsconfig.Config, source daemon.Corefile, reads func(file string)) (daemon.Corefile, error) {
	var log messages
	files := resolvConfFiles{Node: n, reads: reads, report: log.add, serverless: map[string]bool{}}
	v := n.values()
	v.kubeDNS, v.reads, v.report, v.nameservers = c, reads, log.add, files.nameservers
	var invalid error
	if v.node, v.zone, invalid = n.nodeNameAndZone(); invalid != nil {
		log.add(message{failure, invalid.Error()})
	}
	out, err := v.render(source)
	if err == nil {
		log.log(n.logged)
		n.kubeDNS, n.logged, n.serverless, n.usedCopy = c, log, files.serverless, files.usedCopy
	}
	return out, err
}

// resolvConfFiles reads the resolv.conf files of one rendering.
type resolvConfFiles struct {
	*Node
	reads      func(file string)
	report     func(message)
	serverless map[string]bool // files without a usable server
	usedCopy   bool
}

// nameservers returns the usable nameservers of a file. A file without one is an error only if it had one before: at the
// start the file must not prevent the cache from answering for other zones.
func (f *resolvConfFiles) nameservers(file string, own addresses) ([]string, error) {
	first := f.Node.serverless == nil
	found, err := resolvconf.Reader{
		Own: own, Path: f.resolvConf, Uplinks: resolvconf.Uplinks, Host: f.host,
		AllowCopy: first || f.Node.usedCopy, // else the servers in use are newer than the copy
		Compare:   first,                    // later, the node's file may have changed
	}.Nameservers(file)
	for _, path := range found.Files {
		f.reads(path)
	}
	for _, text := range found.Warnings {
		f.report(message{warning, text})
	}
	f.usedCopy = f.usedCopy || found.Copy
	if file == f.resolvConf && f.getenv(inPod) != "" && !resolvconf.Mounted(f.host) {
		f.report(message{info, fmt.Sprintf("%s is a copy from the start of the pod, changes on the node are not followed: mount the node's /etc at %s/etc, as the nodecache manifest does", file, f.host)})
	}
	if errors.As(err, new(resolvconf.UselessError)) && (first || f.Node.serverless[file]) {
		f.report(message{failure, err.Error() + "; until it changes, queries for these servers get SERVFAIL"})
		f.serverless[file] = true
		return nil, nil
	}
	return found.Servers, err
}

func (n *Node) values() values {
	v := values{options: n.options, port: dnsserver.Port, resolvConf: n.resolvConf, fallbacks: n.options.fallback.texts()}
	if ip, err := netip.ParseAddr(n.getenv(serviceVariable(n.options.upstreamSvc))); err == nil {
		v.clusterDNS = ip.String()
	}
	if len(v.fallbacks) == 0 {
		v.fallbacks = n.defaultFallback()
	}
	if services := n.serviceAddresses(); len(v.fallbacks) > 0 && len(services) > 0 {
		v.fallbacks = slices.Concat(v.fallbacks, []string{"except"}, services)
	}
	return v
}

// getenv returns the value of an environment variable, "" if it is not set.
func (n *Node) getenv(name string) string {
	for _, variable := range n.environ() {
		if value, found := strings.CutPrefix(variable, name+"="); found {
			return value
		}
	}
	return ""
}

// serviceAddresses returns the node-local addresses that Services of the namespace have, such as that of kube-dns: for
// these kube-proxy has rules.
func (n *Node) serviceAddresses() (all []string) {
	for _, variable := range n.environ() {
		name, text, _ := strings.Cut(variable, "=")
		ip, err := netip.ParseAddr(text)
		if err == nil && strings.HasSuffix(name, serviceHost) && n.isLocal(ip.Unmap()) {
			all = append(all, ip.Unmap().String())
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (n *Node) isLocal(a netip.Addr) bool { return slices.Contains(n.options.localIPs, a) }

func (n *Node) setFiles(files []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.files = files
}

// watched returns the files and directories whose change may change the configuration.
func (n *Node) watched() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	directory := n.kubeDNSDirectory()
	keys := []string{filepath.Join(directory, kubednsconfig.StubDomains), filepath.Join(directory, kubednsconfig.UpstreamNameservers)}
	return slices.Concat([]string{n.options.base, directory}, keys, n.files)
}

// Started serves metrics and watches the inputs.
func (n *Node) Started(refresh func()) {
	ctx, stop := context.WithCancel(context.Background())
	n.stop = stop
	n.logIgnored()
	every := time.Duration(n.options.interval)
	if len(n.options.localIPs) > 0 || n.set("metrics-listen-address") {
		go n.options.metrics.Serve(ctx, every)
	}
	w := &filewatch.Watcher{Paths: n.watched, Every: every, Settle: filewatch.Settle, Changed: refresh}
	go w.Run(ctx)
	if n.second != nil {
		go n.second.Follow(ctx, refresh)
	}
}

// Stopped ends the goroutines of Started, and removes interface and rules.
func (n *Node) Stopped() {
	if n.stop != nil {
		n.stop()
	}
	plugin.Stopped()
}
