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
	"strings"
	"syscall"
	"time"

	"github.com/miekg/dns"

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

// server is one of those that are measured.
type server struct {
	name  string
	port  int
	pprof int // port of the profiles, if any
	*process
}

// bench is a run: an API server, and the servers.
type bench struct {
	settings
	folder  string
	dnsperf generator

	// The programs' paths. CoreDNS's is empty when it is missing.
	clusterdns, nodecache, coredns string

	api     *process
	url     string
	servers []*server // cluster DNS with *kubernetes* alone, clusterdns first
	stock   []*server // cluster DNS with kubeadm's Corefile
	outside *process  // what those forward to
	caches  []*server // node caches and what they are compared with

	results  results
	lost     []string // what was lost in a measurement
	missing  []string // servers that could not be had, and why
	versions []string // of the programs of others
}

// corefile is *kubernetes* with what is measured and logged of it. Arguments: the DNS port, the metrics
// port, the API server, what else is wanted.
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

// start builds what is to be built and starts the API server and cluster DNS.
func (b *bench) start(ctx context.Context) error {
	if err := b.find(); err != nil {
		return err
	}
	fake, err := b.build(ctx)
	if err != nil {
		return err
	}
	if err := b.startAPI(ctx, fake); err != nil {
		return err
	}
	if err := b.startCluster(ctx, nameClusterDNS, b.clusterdns); err != nil {
		return err
	}
	if b.coredns == "" || !b.has(partCluster) && !b.has(partMemory) {
		return nil
	}
	return b.startCluster(ctx, nameCoreDNS, b.coredns)
}

// find finds the programs of others.
func (b *bench) find() (err error) {
	if b.dnsperf.path, err = exec.LookPath("dnsperf"); err != nil {
		return fmt.Errorf("%w; run test/install.sh dnsperf", err)
	}
	b.note(version(b.dnsperf.path, "-h"))
	if b.coredns, err = controlplane.Binary("coredns"); err != nil {
		b.miss(nameCoreDNS, fmt.Errorf("%w; run test/install.sh coredns", err))
		return nil
	}
	b.note(version(b.coredns, "-version"))
	return nil
}

// note keeps a program's version for the report.
func (b *bench) note(version string) {
	if version != "" {
		b.versions = append(b.versions, version)
	}
}

// miss notes that a server can't be had.
func (b *bench) miss(name string, err error) {
	b.missing = append(b.missing, fmt.Sprintf("%s is missing: %v", name, err))
	fmt.Fprintln(os.Stderr, b.missing[len(b.missing)-1])
}

// build builds our programs, and the API server.
func (b *bench) build(ctx context.Context) (fake string, err error) {
	b.clusterdns, b.nodecache = filepath.Join(b.folder, "clusterdns"), filepath.Join(b.folder, "nodecache")
	fake = filepath.Join(b.folder, "fakeapi")
	for path, pkg := range map[string]string{b.clusterdns: "./cmd/clusterdns", b.nodecache: "./cmd/nodecache", fake: "./test/fakeapi/cmd/fakeapi"} {
		build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, pkg)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return "", fmt.Errorf("build %s: %w\n%s", pkg, err, out)
		}
	}
	return fake, nil
}

func (b *bench) startAPI(ctx context.Context, path string) (err error) {
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(freePort()))
	b.url = "http://" + address
	b.api, err = launch(ctx, loadCore, b.folder, "fakeapi", path, "-listen", address,
		"-services", strconv.Itoa(b.cluster.Services), "-endpoints", strconv.Itoa(b.cluster.Endpoints), "-nodes", strconv.Itoa(b.cluster.Nodes))
	if err != nil {
		return err
	}
	return await(ctx, time.Minute, "the API server", func() bool {
		text, err := os.ReadFile(b.api.logs)
		return err == nil && strings.Contains(string(text), "serving")
	})
}

// startCluster starts a cluster DNS server, and waits until it has read the whole cluster.
func (b *bench) startCluster(ctx context.Context, name, path string) error {
	s := &server{name: name, port: freePort()}
	conf := fmt.Sprintf(corefile, s.port, freePort(), b.url, b.profiled(s))
	if err := b.run(ctx, s, path, conf, "-conf"); err != nil {
		return err
	}
	b.servers = append(b.servers, s)
	return b.synced(ctx, s)
}

// synced waits until a cluster DNS server knows the last Service.
func (b *bench) synced(ctx context.Context, s *server) error {
	last := b.cluster.Service(b.cluster.Services - 1)
	return await(ctx, time.Minute, s.name, func() bool { return answers(s.port, serviceName(last)) })
}

// run starts a server with a configuration, whose file is its last argument.
func (b *bench) run(ctx context.Context, s *server, path, conf string, args ...string) (err error) {
	name := fmt.Sprintf("%s-%d", s.name, s.port)
	file := filepath.Join(b.folder, name+".conf")
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		return err
	}
	s.process, err = launch(ctx, serverCore, b.folder, name, path, append(args, file)...)
	return err
}

func answers(port int, name string) bool {
	c := dns.Client{Timeout: time.Second, UDPSize: 4096}
	r, _, err := c.Exchange(new(dns.Msg).SetQuestion(name, dns.TypeA), net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	return err == nil && len(r.Answer) > 0
}

func (b *bench) stop() {
	for _, s := range slices.Concat(b.servers, b.caches) {
		s.stop()
	}
	b.stopStock()
	if b.api != nil {
		b.api.stop()
	}
}

// relist makes the servers list everything again.
func (b *bench) relist() error {
	if err := b.api.cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		return fmt.Errorf("relist: %w", err)
	}
	return nil
}
