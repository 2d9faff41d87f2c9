// Command scale measures cluster DNS servers on large clusters: clusterdns and CoreDNS, one after the other, on the same
// kube-apiserver and etcd, in one run. It prints a table in Markdown for each size: time, CPU time, memory and bytes from
// the API server for the start, a relist, a restart of the API server and a rolling update of all endpoints, and the time
// from the write of an object to the changed answer while other queries are answered.
//
// The server has one core, everything else the other. The server connects through a TCP proxy that counts bytes, so that
// TLS and HTTP/2 are those of a cluster. Endpoints are written into etcd (see kubeapi), objects whose changes are timed
// through the API server. Figures without correct answers are an error. It needs Linux, two cores and dnsperf.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nearside-dns/nearside/test/bench/child"
	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/kubeapi"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

// pinned is the first argument of this program on the core of the load.
const pinned = "pinned"

func run(ctx context.Context, args []string) error {
	if len(args) == 2 && args[0] == instancesMode {
		return serveInstances(ctx, args[1])
	}
	if len(args) == 0 || args[0] != pinned {
		if _, err := parse(args); err != nil {
			return err
		}
		fmt.Printf("%s.\n", child.Machine()) // of all cores
		return pin(args)
	}
	wanted, err := parse(args[1:])
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "nearside-scale")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	b := &bench{folder: folder, core: child.ServerCore}
	if err := b.find(ctx); err != nil {
		return err
	}
	fmt.Printf("%s.\n", strings.Join(b.versions, "; "))
	if wanted.storm > 0 {
		return b.inWorld(func(api *kubeapi.Server) error { return b.measureStorm(ctx, api, wanted.storm) })
	}
	if wanted.slo {
		b.nodecache = filepath.Join(b.folder, nameNodeCache)
		if err := child.Build(ctx, b.nodecache, "github.com/nearside-dns/nearside/cmd/nodecache"); err != nil {
			return err
		}
		times := sloTimes{
			warmUp: 20 * time.Second, steady: 40 * time.Second, changes: 75 * time.Second,
			restarts: 3, afterRestart: 5 * time.Second, ttl: 30, followed: 80,
		}
		return b.inWorld(func(api *kubeapi.Server) error { return b.measureSLO(ctx, api, wanted.sizes[0], times) })
	}
	if wanted.watches > 0 {
		return errors.Join(
			b.inWorld(func(api *kubeapi.Server) error { return b.measureNode(ctx, api) }),
			b.inWorld(func(api *kubeapi.Server) error { return b.measureWatches(ctx, api, wanted.watches) }),
		)
	}
	for _, s := range wanted.sizes {
		if err := b.inWorld(func(api *kubeapi.Server) error { return b.measureSize(ctx, api, s, wanted.states) }); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

// pin runs this program again on the core of the load, with all processes that it starts. It returns only an error.
func pin(args []string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	taskset, err := exec.LookPath("taskset")
	if err != nil {
		return err
	}
	command := append([]string{"taskset", "-c", child.LoadCore, self, pinned}, args...)
	return syscall.Exec(taskset, command, os.Environ()) // #nosec G204
}

// settings are those of a run.
type settings struct {
	sizes   []size
	states  bool // instead of phases
	storm   int  // instances, instead of sizes
	watches int  // of pods, instead of sizes
	slo     bool // of the first size
}

func parse(args []string) (wanted settings, err error) {
	names := "medium,headless"
	flags := flag.NewFlagSet("scale", flag.ContinueOnError)
	flags.StringVar(&names, "size", names, "the `sizes` to measure, of "+strings.Join(sizeNames(), ",")+", with commas between them")
	flags.BoolVar(&wanted.states, "states", false, "measure only the start and memory, each with another option: topology, ServiceImports, pods")
	flags.IntVar(&wanted.storm, "storm", 0, "measure this `number` of clients of clusterdns when the API server returns, and nothing else")
	flags.IntVar(&wanted.watches, "watches", 0, "measure nodecache with the pods of its node, and the API server with this `number` of such watches, and nothing else")
	flags.BoolVar(&wanted.slo, "slo", false, "measure lookups and changes as ClusterLoader2 does, beside node caches, and nothing else")
	if err := flags.Parse(args); err != nil {
		return wanted, err
	}
	if flags.NArg() > 0 {
		return wanted, fmt.Errorf("unknown argument %q", flags.Arg(0))
	}
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(sizes, func(s size) bool { return s.name == name })
		if i < 0 {
			return wanted, fmt.Errorf("invalid size %q: want %s", name, strings.Join(sizeNames(), ", "))
		}
		wanted.sizes = append(wanted.sizes, sizes[i])
	}
	return wanted, nil
}

// find builds clusterdns and finds the programs of other projects.
func (b *bench) find(ctx context.Context) (err error) {
	b.programs = []program{{name: nameClusterDNS, path: filepath.Join(b.folder, "clusterdns")}, {name: nameCoreDNS}}
	if b.programs[1].path, err = controlplane.Binary("coredns"); err != nil {
		return fmt.Errorf("%w; run test/install.sh coredns", err)
	}
	if b.dnsperf.Path, err = exec.LookPath("dnsperf"); err != nil {
		return fmt.Errorf("%w; run test/install.sh dnsperf", err)
	}
	for _, path := range []string{b.programs[1].path, b.dnsperf.Path} {
		option := "-version"
		if path == b.dnsperf.Path {
			option = "-h"
		}
		b.versions = append(b.versions, child.Version(path, option))
	}
	return child.Build(ctx, b.programs[0].path, "github.com/nearside-dns/nearside/cmd/clusterdns")
}

// inWorld calls a function with an API server of its own.
func (b *bench) inWorld(measure func(api *kubeapi.Server) error) error {
	folder, err := os.MkdirTemp(b.folder, "api-")
	if err != nil {
		return err
	}
	api, err := kubeapi.Listen(folder, "127.0.0.1:0")
	if err != nil {
		return err
	}
	return errors.Join(measure(api), api.Plane().Close())
}

// measureSize measures all programs with a cluster, and prints the table.
func (b *bench) measureSize(ctx context.Context, api *kubeapi.Server, s size, states bool) error {
	measure, rows := b.measure, phaseRows()
	if states {
		measure, rows = b.measureStates, stateRows()
	}
	figures, err := measure(ctx, api, s)
	return errors.Join(err, report(os.Stdout, s, rows, figures))
}
