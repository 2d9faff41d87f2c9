package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/cilium/ebpf/asm"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/bench/child"
)

// kernelCorefile is that of a node cache on a node, with a cache for an hour, so that names remain in it for a whole run.
// Arguments: addresses, the port of the upstream server, the port of the metrics, further directives.
const kernelCorefile = `.:53 {
    bind %[1]s
    errors
    cache 3600
    reload
    loop
    forward . 127.0.0.1:%[2]d {
        force_tcp
    }
    prometheus 127.0.0.1:%[3]d%[4]s
}
`

// kernelLocal are the directives of nodecache. Arguments: addresses, the option of fastpath.
const kernelLocal = `
    nodelocal %s
    fastpath {
        kernel %s
    }`

// unboundPods and dnsdistPods have these servers answer pods at the node-local address as well.
const (
	unboundPods = `    interface: 169.254.20.10
    access-control: 10.244.0.0/16 allow
`
	dnsdistPods = `addLocal("169.254.20.10:53")
addACL("10.244.0.0/16")
`
)

// kernelMetricsPort is the port of metrics, in the namespace of a node.
const kernelMetricsPort = 9253

// The metrics of answers in the kernel.
const (
	answeredMetric = "nearside_kernel_answered_total"
	leaseMetric    = "nearside_nodelocal_lease{"
)

// podServer is a server with a node of its own.
type podServer struct {
	*server
	network *network
	program *attached // that answers instead of a process, nil for none
	// lines are the lines of the tables: nodecache answers over both families.
	lines  []podLine
	local  bool         // it makes the node-local addresses
	reader *http.Client // in the node
}

// podLine is a line of the tables.
type podLine struct {
	name    string
	address netip.AddrPort
	answers string
}

// podSetup is a server of the part.
type podSetup struct {
	name  string
	start func(b *bench, ctx context.Context, s *server) error // nil for a program in the kernel
	code  func() asm.Instructions
	lines []podLine
	own   bool // nothing can be measured without it
	local bool // it makes the node-local addresses
}

// podSetups are the setups. A program in the kernel is the first, whose figures the others need.
func podSetups() []podSetup {
	one := func(name, answers string) []podLine { return []podLine{{name, localAddress, answers}} }
	return []podSetup{
		{name: nameDropped, code: dropProgram, own: true, lines: []podLine{
			{nameDropped, localAddress, answersNone}, {nameDropped6, localAddress6, answersNone}}},
		{name: nameTurned, code: turnProgram, own: true, lines: one(nameTurned, answersEcho)},
		{name: nameInKernel, start: (*bench).startKernelOn, own: true, local: true, lines: []podLine{
			{nameInKernel, localAddress, answersRecords}, {nameInKernel6, localAddress6, answersRecords}}},
		{name: nameFastPath, start: (*bench).startKernelOff, own: true, local: true, lines: one(nameFastPath, answersRecords)},
		{name: nameCoreDNS, start: (*bench).startPodCoreDNS, lines: one(nameCoreDNS, answersRecords)},
		{name: nameUnbound, start: (*bench).startPodUnbound, lines: one(nameUnbound, answersRecords)},
		{name: nameDNSdist, start: (*bench).startPodDNSdist, lines: one(nameDNSdist, answersRecords)},
		{name: nameEcho, start: (*bench).startPodEcho, own: true, lines: one(nameEcho, answersEcho)},
	}
}

func (b *bench) startKernelOn(ctx context.Context, s *server) error {
	return b.startLocal(ctx, s, "on")
}

func (b *bench) startKernelOff(ctx context.Context, s *server) error {
	return b.startLocal(ctx, s, "off")
}

func (b *bench) startLocal(ctx context.Context, s *server, option string) error {
	both := fmt.Sprintf("%v %v", localAddress.Addr(), localAddress6.Addr())
	conf := fmt.Sprintf(kernelCorefile, both, s.upstream, kernelMetricsPort, fmt.Sprintf(kernelLocal, both, option))
	return b.run(ctx, s, b.nodecache, conf, "-conf")
}

func (b *bench) startPodCoreDNS(ctx context.Context, s *server) error {
	conf := fmt.Sprintf(kernelCorefile, localAddress.Addr(), s.upstream, kernelMetricsPort, "")
	return b.run(ctx, s, b.coredns, conf, "-conf")
}

func (b *bench) startPodUnbound(ctx context.Context, s *server) error {
	path, err := b.unbound()
	if err != nil {
		return err
	}
	return b.run(ctx, s, path, fmt.Sprintf(unboundConf, 53, unboundHot+unboundPods, b.folder, s.upstream), "-d", "-c")
}

func (b *bench) startPodDNSdist(ctx context.Context, s *server) error {
	path, err := program("dnsdist")
	if err != nil {
		return err
	}
	b.note(child.Version(path, "--version"))
	conf := fmt.Sprintf(dnsdistConf, 53, s.upstream, "started.example.com.") + dnsdistPods
	return b.run(ctx, s, path, conf, "--supervised", "--disable-syslog", "-C")
}

func (b *bench) startPodEcho(ctx context.Context, s *server) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	s.Process, err = child.Start(ctx, child.ServerCore, b.folder, nameEcho+"-pods", self, echoMode, localAddress.String())
	return err
}

// startKernel starts the servers, each on a node of its own.
func (b *bench) startKernel(ctx context.Context) error {
	for _, setup := range podSetups() {
		if setup.name == nameCoreDNS && b.coredns == "" {
			continue // which find has noted
		}
		s := &podServer{server: &server{name: setup.name}, lines: setup.lines, local: setup.local}
		err := b.startPods(ctx, s, setup)
		if err == nil {
			b.pods = append(b.pods, s)
			continue
		}
		if !setup.own {
			b.drop(s.server, err)
		}
		if err = errors.Join(err, s.stop()); setup.own || s.network == nil {
			return fmt.Errorf("%s: %w", setup.name, err)
		}
	}
	return nil
}

func (b *bench) stopKernel() {
	for _, s := range b.pods {
		if err := s.stop(); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", s.name, err)
		}
	}
	b.pods = nil
	b.stopUpstreams()
}

func (s *podServer) stop() (err error) {
	if s.Process != nil {
		s.Process.Stop()
	}
	if s.program != nil {
		err = s.program.close()
	}
	if s.network != nil {
		err = errors.Join(err, s.network.close())
	}
	return err
}

// The limits of the wait for a server, and for its leases.
const (
	startWait = 20 * time.Second
	leaseWait = time.Minute
)

// startPods makes the node, and starts the server there.
func (b *bench) startPods(ctx context.Context, s *podServer, setup podSetup) (err error) {
	if s.network, err = newNetwork(!setup.local); err != nil {
		return err
	}
	if setup.start == nil {
		s.program, err = s.network.attach("bench", setup.code())
		return err
	}
	s.reader = s.network.node.client()
	err = s.network.node.do(func() (err error) {
		if s.port = child.FreePort(); setup.name != nameEcho { // of the names of files
			if s.upstream, err = b.startUpstream(ctx); err != nil {
				return err
			}
		}
		return setup.start(b, ctx, s.server)
	})
	if err != nil {
		return err
	}
	for _, l := range s.lines {
		what := "an answer from " + l.address.String()
		if err := child.Await(ctx, startWait, what, func() bool { return s.answers(l) }); err != nil {
			return err
		}
	}
	return s.awaitLeases(ctx)
}

// awaitLeases waits until the server has the leases of its addresses: without them the kernel answers no query. A busy machine
// may delay the server so long that they expire.
func (s *podServer) awaitLeases(ctx context.Context) error {
	if !s.local {
		return nil
	}
	return child.Await(ctx, leaseWait, "the leases", func() bool {
		held, err := s.sample(leaseMetric)
		return err == nil && held == 2
	})
}

// answers reports whether the server answers the pod.
func (s *podServer) answers(l podLine) bool {
	err := s.network.pod.do(func() error {
		c := dns.Client{Timeout: time.Second}
		_, _, err := c.Exchange(new(dns.Msg).SetQuestion("started.example.com.", dns.TypeA), l.address.String())
		return err
	})
	return err == nil
}

// sample returns the sum of the samples of a metric of the server.
func (s *podServer) sample(metric string) (float64, error) {
	return sampleBy(s.reader, kernelMetricsPort, metric)
}

// askFromPod has a client in the pod do a job.
func (b *bench) askFromPod(ctx context.Context, s *podServer, job podJob) (done podDone, err error) {
	self, err := os.Executable()
	if err != nil {
		return done, err
	}
	if s.Process != nil {
		job.PIDs = []int{s.PID}
	}
	job.Folder = b.folder
	argument, err := json.Marshal(job)
	if err != nil {
		return done, err
	}
	var out, complaints bytes.Buffer
	args := prior(ctx, "taskset", "-c", child.LoadCore, self, podMode, string(argument))
	cmd := exec.CommandContext(ctx, args[0], args[1:]...) // #nosec G204
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := s.network.pod.do(cmd.Start); err != nil {
		return done, err
	}
	if err := cmd.Wait(); err != nil {
		return done, fmt.Errorf("%w: %s", err, strings.TrimSpace(complaints.String()))
	}
	return done, json.Unmarshal(out.Bytes(), &done)
}
