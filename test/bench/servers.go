package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/bench/child"
	"github.com/nearside-dns/nearside/test/bench/dnsperf"
	"github.com/nearside-dns/nearside/test/controlplane"
)

// The names of the servers in the report.
const (
	nameClusterDNS = "clusterdns"
	nameNodeCache  = "nodecache"
	nameCoreDNS    = "CoreDNS"
	nameUnbound    = "Unbound"
	nameDNSdist    = "dnsdist"
	nameEcho       = "echo"
)

// server is a measured server.
type server struct {
	name  string
	port  int
	pprof int // port of the profiles, 0 for none
	// upstream is the port of its own upstream server, 0 for none.
	upstream int
	// rest is its memory without queries, in MiB, if it was measured.
	rest float64
	// procs is its GOMAXPROCS, if it uses all cores; 0 for one core.
	procs int
	*child.Process
}

// bench is a run: an API server, and the servers.
type bench struct {
	settings
	folder  string
	dnsperf dnsperf.Generator

	// The programs' paths. CoreDNS's is empty when it is missing.
	clusterdns, nodecache, coredns string

	plain    world          // without imports
	imported world          // with them
	servers  []*server      // cluster DNS with *kubernetes* alone, clusterdns first
	beside   []*server      // the same programs with kubeadm's Corefile or with imports
	outside  *child.Process // their upstream servers
	topology []*server      // cluster DNS with and without topology
	caches   []*server      // node caches and their peers

	forwarders []*server        // servers of the parts with an upstream server
	dead       *deadServer      // also an upstream server of these, nil for none
	procs      int              // GOMAXPROCS of new servers, which then use all cores; 0 for one core
	upstreams  []*child.Process // upstream servers of these, or of the setups

	writes    string           // URL of the last API server for objects to write
	searchAPI *child.Process   // an API server with the small cluster and its pods
	small     []*server        // cluster DNS servers of the small cluster
	search    []*searchServers // setups of the part search
	pods      []*podServer     // servers of the part kernel

	pprofOptions string // of new servers with a port for profiles

	results  results
	lost     []string // lost queries of measurements
	missing  []string // missing servers, with the reason
	versions []string // of other projects
}

// world is a cluster that servers read from an API server.
type world struct {
	api     *child.Process
	url     string
	imports bool // it has imports, and the servers answer their names
}

// corefile is *kubernetes* with metrics and errors. Arguments: the DNS port, the metrics port, the API server, further
// directives.
const corefile = `.:%d {
    bind 127.0.0.1
    errors
    prometheus 127.0.0.1:%d
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        endpoint %s
        ttl 30
    }%s
}
`

// start builds our programs and starts the API server and cluster DNS.
func (b *bench) start(ctx context.Context) error {
	if err := b.find(); err != nil {
		return err
	}
	if err := b.build(ctx); err != nil || !b.needsCluster() {
		return err
	}
	if err := b.startWorld(ctx, &b.plain); err != nil {
		return err
	}
	if err := b.startCluster(ctx, nameClusterDNS); err != nil {
		return err
	}
	if b.coredns == "" || !b.has(partCluster) && !b.has(partImports) && !b.has(partMemory) {
		return nil
	}
	return b.startCluster(ctx, nameCoreDNS)
}

// find finds the programs of other projects.
func (b *bench) find() (err error) {
	for _, name := range []string{"etcd", "kube-apiserver"} {
		if _, err := controlplane.Binary(name); err != nil && b.needsAPI() {
			return fmt.Errorf("%w; run test/install.sh %s", err, name)
		}
	}
	if b.needsDNSPerf() {
		if b.dnsperf.Path, err = exec.LookPath("dnsperf"); err != nil {
			return fmt.Errorf("%w; run test/install.sh dnsperf", err)
		}
		b.note(child.Version(b.dnsperf.Path, "-h"))
	}
	if b.coredns, err = controlplane.Binary("coredns"); err != nil {
		b.miss(nameCoreDNS, fmt.Errorf("%w; run test/install.sh coredns", err))
		return nil
	}
	b.note(child.Version(b.coredns, "-version"))
	return nil
}

// note records a program's version for the report.
func (b *bench) note(version string) {
	if version != "" && !slices.Contains(b.versions, version) {
		b.versions = append(b.versions, version)
	}
}

// miss records that a server is missing.
func (b *bench) miss(name string, err error) {
	text := fmt.Sprintf("%s is missing: %v", name, err)
	fmt.Fprintln(os.Stderr, text)
	if !slices.Contains(b.missing, text) {
		b.missing = append(b.missing, text)
	}
}

// build builds our programs.
func (b *bench) build(ctx context.Context) error {
	b.clusterdns, b.nodecache = filepath.Join(b.folder, "clusterdns"), filepath.Join(b.folder, "nodecache")
	packages := map[string]string{b.nodecache: "./cmd/nodecache"}
	if b.needsAPI() {
		packages[b.clusterdns] = "./cmd/clusterdns"
	}
	for path, pkg := range packages {
		var flags []string
		if b.profile != "" {
			flags = []string{"-ldflags", ""} // with symbols, for perf
		}
		if err := child.Build(ctx, path, pkg, flags...); err != nil {
			return err
		}
	}
	return nil
}

// startWorld starts an API server that has the whole cluster.
func (b *bench) startWorld(ctx context.Context, w *world) (err error) {
	cluster := b.cluster
	if !w.imports {
		cluster.Imports = 0
	}
	w.api, w.url, err = b.startAPI(ctx, cluster, false)
	return err
}

func (w *world) stop() {
	if w.api != nil {
		w.api.Stop()
		w.api = nil
	}
}

// startCluster starts one of the first cluster DNS servers.
func (b *bench) startCluster(ctx context.Context, name string) error {
	s := &server{name: name, port: child.FreePort()}
	return b.startOne(ctx, b.plain, s, b.alone(s, b.plain), &b.servers)
}

// startBeside starts both programs again, with the Corefile of conf.
func (b *bench) startBeside(ctx context.Context, w world, conf func(s *server) string) error {
	for _, first := range b.servers {
		s := &server{name: first.name, port: child.FreePort()}
		if err := b.startOne(ctx, w, s, conf(s), &b.beside); err != nil {
			return err
		}
	}
	return nil
}

// startOne starts a cluster DNS server, adds it to all, and waits until it has read the whole cluster.
func (b *bench) startOne(ctx context.Context, w world, s *server, conf string, all *[]*server) error {
	if err := b.run(ctx, s, b.binary(s.name), conf, "-conf"); err != nil {
		return err
	}
	*all = append(*all, s)
	return b.synced(ctx, s, w)
}

func (b *bench) stopBeside() {
	for _, s := range b.beside {
		s.Stop()
	}
	b.beside = nil
	if b.outside != nil {
		b.outside.Stop()
		b.outside = nil
	}
}

// alone is the Corefile with *kubernetes* alone.
func (b *bench) alone(s *server, w world) string {
	return w.corefile(fmt.Sprintf(corefile, s.port, child.FreePort(), w.url, b.profiled(s)))
}

// synced waits until a cluster DNS server has the last Service, and the last import if it reads them.
func (b *bench) synced(ctx context.Context, s *server, w world) error {
	last := []string{serviceName(b.cluster.Service(b.cluster.Services - 1))}
	if w.imports {
		last = append(last, importName(b.cluster.Import(b.cluster.Imports-1)))
	}
	for _, name := range last {
		if err := child.Await(ctx, time.Minute, s.name, func() bool { return answers(s.port, name) }); err != nil {
			return err
		}
	}
	return nil
}

// run starts a server with a configuration, whose file is its last argument.
func (b *bench) run(ctx context.Context, s *server, path, conf string, args ...string) (err error) {
	name := fmt.Sprintf("%s-%d", s.name, s.port)
	// In a folder of its own: nodecache watches the folder of its Corefile, and dnsperf writes to the other.
	file := filepath.Join(b.folder, name+".conf", "Corefile")
	if err := os.Mkdir(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		return err
	}
	cores := child.ServerCore
	if s.procs = b.procs; s.procs > 0 {
		cores = allCores
		args = append([]string{fmt.Sprintf("GOMAXPROCS=%d", s.procs), path}, args...)
		path = "env"
	}
	s.Process, err = child.Start(ctx, cores, b.folder, name, path, append(args, file)...)
	return err
}

func answers(port int, name string) bool {
	c := dns.Client{Timeout: time.Second, UDPSize: 4096}
	r, _, err := c.Exchange(new(dns.Msg).SetQuestion(name, dns.TypeA), net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	return err == nil && len(r.Answer) > 0
}

func (b *bench) stop() {
	for _, s := range slices.Concat(b.servers, b.caches) {
		s.Stop()
	}
	b.stopBeside()
	b.stopTopology()
	b.stopForwarders()
	b.stopSearch()
	b.plain.stop()
	b.imported.stop()
}

// relist makes the servers list everything again.
func (b *bench) relist() error {
	if err := b.plain.api.Cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		return fmt.Errorf("relist: %w", err)
	}
	return nil
}

// atRest records the memory of a server without queries, from which growth is counted.
func (s *server) atRest() (err error) {
	if s.rest, _, err = s.Memory(); err != nil {
		return err
	}
	return s.ResetPeak()
}

// growth returns the maximum of memory above that at rest, in MiB.
func (s *server) growth() (float64, error) {
	_, peak, err := s.Memory()
	return peak - s.rest, err
}
