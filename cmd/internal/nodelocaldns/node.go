// Package nodelocaldns is what the command line of node-local-dns means. In go its flags, its template
// of a Corefile, the kube-dns ConfigMap, the node's resolv.conf and the environment; out comes a Corefile
// as CoreDNS takes it, again whenever one of them changes. It makes no interface and no rule: that is
// said to the nodelocal plugin, in a server block that is added to the Corefile. It may not import
// k8s.io.
package nodelocaldns

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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
	variables  func() []string            // all of the environment, NAME=value
	resolvConf string                     // nodeResolvConf, and another in tests
	uplinks    string                     // uplinks, and another in tests
	host       string                     // hostRoot, and another in tests
	mounted    string                     // defaultKubeDNS, and another in tests
	exchange   exchange                   // with cluster DNS
	second     atomic.Pointer[netip.Addr] // of the fallback, in the other family; nil if it is not known
	lookedUp   sync.Once                  // second, before the first rendering
	empty      int                        // lookups of second in a row that were answered without an address
	stop       context.CancelFunc

	// These are used by Source only, which is called once at a time.
	templated bool    // the template was there before
	kubeDNS   kubeDNS // what the ConfigMap said when it was last right
	complaint string  // what was wrong with it the last time
	written   []byte
	unwritten string          // why the rendered text is not written
	last      *rendering      // nil before the first
	remarks   remarks         // of the last rendering that was right
	unserved  map[string]bool // files that had no server to ask then; nil before there was one
	copied    bool            // the copy of the node's resolv.conf was used then

	mu    sync.Mutex
	files []string // what was read the last time
}

// New returns a Node with node-local-dns's defaults.
func New() *Node {
	return &Node{
		options:    defaults(),
		setupError: func(errortype string) { plugin.SetupErrors.WithLabelValues(errortype).Inc() },
		environ:    os.Getenv,
		variables:  os.Environ,
		resolvConf: nodeResolvConf,
		uplinks:    uplinks,
		host:       hostRoot,
		mounted:    defaultKubeDNS,
		exchange:   exchangeUDP,
	}
}

// inPod is a variable that the kubelet sets in every container.
const inPod = "KUBERNETES_SERVICE_HOST"

// rendering is what became of the Corefile.
type rendering struct {
	inputs [sha256.Size]byte
	out    daemon.Corefile
	err    error
}

// Source reads and renders the Corefile, if anything that it depends on has changed: what is wrong with
// it is then said once.
func (n *Node) Source(conf string, read daemon.Reader) (daemon.Corefile, error) {
	n.lookedUp.Do(func() { _, _ = n.lookUpSecond(context.Background()) }) // without an answer, followSecond goes on
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

// inputs returns a digest of the contents of the watched files, the names in watched directories, the targets of
// symbolic links, and the addresses of the fallback. The target of a link counts besides the contents: onHost resolves
// an absolute link below the folder with the node's files, and opening the link itself fails in the container whatever
// its target is. The environment and the flags of a process do not change.
func (n *Node) inputs() (sum [sha256.Size]byte) {
	h := sha256.New()
	for _, path := range n.watched() {
		text, err := os.ReadFile(path)
		entries, notDirectory := os.ReadDir(path)
		if notDirectory == nil {
			err = nil
		}
		target, _ := os.Readlink(path) // "" for all else than a link
		fmt.Fprintf(h, "%s %d %s %s %v %s\n", path, len(text), text, entries, err, target)
	}
	fmt.Fprintf(h, "%v", n.defaultFallback())
	h.Sum(sum[:0])
	return sum
}

// render uses the ConfigMap if that is possible, else what it said before, and nothing if even that does
// not go with the Corefile.
func (n *Node) render(source daemon.Corefile, reads func(file string)) (daemon.Corefile, error) {
	candidates := []kubeDNS{n.kubeDNS, {}}
	wanted, wrong := n.configMap()
	if wrong == nil {
		candidates = slices.Insert(candidates, 0, wanted)
	}
	candidates = slices.CompactFunc(candidates, func(a, b kubeDNS) bool { return reflect.DeepEqual(a, b) })
	var first error
	for i, c := range candidates {
		out, err := n.renderWith(c, source, reads)
		switch last := i == len(candidates)-1; {
		case err == nil:
			n.complain(cmp.Or(wrong, first))
			return out, nil
		case i == 0:
			first = err
		case last && err.Error() != first.Error():
			n.complain(cmp.Or(wrong, first))
			return out, err
		}
	}
	n.complain(wrong)
	return source, first
}

// renderWith renders with this in the ConfigMap, and remembers it if it goes.
func (n *Node) renderWith(c kubeDNS, source daemon.Corefile, reads func(file string)) (daemon.Corefile, error) {
	var said remarks
	unserved, copied := map[string]bool{}, false
	v := n.values()
	v.kubeDNS, v.reads, v.remark = c, reads, said.add
	name, zone, err := n.itself()
	if err != nil {
		said.add(remark{failure, err.Error()})
	}
	v.node, v.caller = name, callerOption(name, zone)
	var differ func(node, copied []string)
	if n.unserved == nil { // later, the node's file may have changed while this runs
		differ = func(node, copied []string) { said.add(remark{warning, n.differ(node, copied)}) }
	}
	v.nameservers = func(file string, own addresses) ([]string, error) {
		servers, err := resolvConf{
			differ: differ,
			copy:   n.resolvConf, uplinks: n.uplinks, host: n.host, own: own, read: reads, remark: said.add,
			copied: n.unserved == nil || n.copied, // else what was read before is newer than the copy
			useCopy: func(reason error) {
				copied = true
				said.add(remark{warning, fmt.Sprintf("resolv.conf of the node not used, its copy from the start of the pod is, and changes are not followed: %s; see the mounts of the nodecache manifest", reason)})
			},
		}.nameservers(file)
		if file == n.resolvConf && n.environ(inPod) != "" && !mounted(n.host) {
			said.add(remark{info, fmt.Sprintf("%s is a copy from the start of the pod, changes on the node are not followed: mount the node's /etc at %s/etc, as the nodecache manifest does", file, n.host)})
		}
		if useless := (uselessError{}); errors.As(err, &useless) && (n.unserved == nil || n.unserved[file]) {
			said.add(remark{failure, err.Error() + "; until it changes, what would be asked there only gets SERVFAIL"})
			unserved[file] = true
			return nil, nil
		}
		return servers, err
	}
	out, err := v.render(source)
	if err == nil {
		said.tell(v.caller, string(out.Text))
		said.log(n.remarks)
		n.kubeDNS, n.remarks, n.unserved, n.copied = c, said, unserved, copied
	}
	return out, err
}

// differ returns the log line about a copy of resolv.conf whose servers are not used. The copy may differ for either of
// two reasons, which look the same here.
func (n *Node) differ(node, copied []string) string {
	return fmt.Sprintf("servers of the node's %s (%s) are used, not those of the copy that the kubelet made for the pod (%s). "+
		"If the node's file has changed since the pod was created, nothing is to be done. If --resolv-conf of the kubelet names another file, whose servers are to be used, "+
		"remove the mount %s/etc (followResolvConf: false in the chart), or name that file below %[4]s after forward in the Corefile",
		nodeResolvConf, strings.Join(node, " "), strings.Join(copied, " "), n.host)
}

func (n *Node) values() values {
	o := &n.options
	v := values{
		local:      o.localIPs,
		port:       dnsserver.Port,
		service:    o.upstreamSvc,
		prometheus: o.prometheus.String(),
		resolvConf: n.resolvConf,
		clusterset: o.clusterset,
		directive: nodelocal{
			interfaceName: o.interfaceName.String(),
			device:        o.setupInterface,
			rules:         o.setupIptables,
			keep:          o.skipTeardown,
			healthPort:    o.healthPort.String(),
			interval:      o.interval.String(),
			question:      o.question.option(),
		},
	}
	v.directive.fallback = o.fallback.texts()
	v.directive.services = n.services()
	if ip, err := netip.ParseAddr(n.environ(o.upstreamSvc.variable())); err == nil {
		v.clusterDNS = ip.String()
	}
	if len(v.directive.fallback) == 0 {
		v.directive.fallback = n.defaultFallback()
	}
	return v
}

// services returns those of the node-local addresses that a Service of the namespace has, such as that of
// kube-dns: kube-proxy knows them.
func (n *Node) services() (known []string) {
	for _, variable := range n.variables() {
		name, text, _ := strings.Cut(variable, "=")
		ip, err := netip.ParseAddr(text)
		if err == nil && strings.HasSuffix(name, serviceHost) && n.local(ip.Unmap()) {
			known = append(known, ip.Unmap().String())
		}
	}
	slices.Sort(known)
	return slices.Compact(known)
}

// serviceHost ends the names of the variables that have the address of a Service.
const serviceHost = "_SERVICE_HOST"

// configMap reads the ConfigMap of kube-dns. Without the flag it need not be there, unless it said
// something before.
func (n *Node) configMap() (kubeDNS, error) {
	directory := n.kubeDNSDirectory()
	if n.options.kubeDNS == "" && len(n.kubeDNS.stubDomains)+len(n.kubeDNS.upstreams) == 0 {
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
	return n.mounted
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
	directory := n.kubeDNSDirectory()
	return append([]string{n.options.base, directory, filepath.Join(directory, stubDomains), filepath.Join(directory, upstreamNameservers)}, n.files...)
}

// Started serves metrics and watches files.
func (n *Node) Started(refresh func()) {
	ctx, stop := context.WithCancel(context.Background())
	n.stop = stop
	n.remarkIgnored()
	every := time.Duration(n.options.interval)
	if len(n.options.localIPs) > 0 || n.set("metrics-listen-address") {
		go n.serveMetrics(ctx, every)
	}
	w := &watcher{paths: n.watched, every: every, settle: settle, changed: refresh}
	go w.run(ctx)
	go n.followSecond(ctx, refresh)
}

// Stopped ends what Started began, and has the plugin take away interface and rules.
func (n *Node) Stopped() {
	if n.stop != nil {
		n.stop()
	}
	plugin.Stopped()
}
