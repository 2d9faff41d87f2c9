package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kubeapi"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == instancesMode {
		if err := serveInstances(context.Background(), os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	}
	kubeapi.Main(m)
}

// smallBench has the programs for the small size. It queries beside changes only where dnsperf is installed.
func smallBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{folder: t.TempDir(), programs: []program{
		{nameClusterDNS, daemon.ProgramWithoutRace(t, "clusterdns")},
		{nameCoreDNS, controlplane.RequireBinary(t, "coredns")},
	}}
	b.dnsperf.Path, _ = exec.LookPath("dnsperf")
	return b
}

// checkFigures checks that a measurement has every figure of both programs, and that the report has them.
func checkFigures(t *testing.T, all figures, rows []row, optional map[string]bool) {
	t.Helper()
	var text strings.Builder
	if err := report(&text, sizes[0], rows, all); err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		for _, name := range []string{nameClusterDNS, nameCoreDNS} {
			if v, measured := all[r.what][name]; !optional[r.what] && (!measured || v <= 0) {
				t.Errorf("%s of %s: %v, measured: %v", r.what, name, v, measured)
			}
		}
		if !strings.Contains(text.String(), "| "+r.what+" |") {
			t.Errorf("the report lacks %s", r.what)
		}
	}
	if t.Failed() {
		t.Log(text.String())
	}
}

// TestPhases: the measurement checks the answers after each phase.
func TestPhases(t *testing.T) {
	api := kubeapi.New(t)
	b := smallBench(t)
	all, err := b.measure(t.Context(), api, sizes[0])
	if err != nil {
		t.Fatal(err)
	}
	checkFigures(t, all, phaseRows(), map[string]bool{
		fromWrite50: true, fromWrite99: true, // 0 if the answer is changed before the API server has responded
		otherLost: true, otherRate: b.dnsperf.Path == "",
	})
	if want := sizes[0].steps * sliceCount(sizes[0]); int(all[figure(phaseUpdate, events)][nameClusterDNS]) != want {
		t.Errorf("%v events of the rolling update, want %d", all[figure(phaseUpdate, events)], want)
	}
}

func TestStates(t *testing.T) {
	api := kubeapi.New(t)
	all, err := smallBench(t).measureStates(t.Context(), api, sizes[0])
	if err != nil {
		t.Fatal(err)
	}
	optional := map[string]bool{}
	for _, r := range stateRows() {
		optional[r.what] = strings.HasPrefix(r.what, "topology")
	}
	checkFigures(t, all, stateRows(), optional)
	if all[figure("topology", rest)][nameClusterDNS] == 0 {
		t.Error("no figures with topology")
	}
}

// TestStorm: all instances have a Service that is created after the API server has returned, and the API server's metrics have
// their requests.
func TestStorm(t *testing.T) {
	const instances = instancesPerProcess + 5
	all, err := (&bench{folder: t.TempDir()}).storms(t.Context(), kubeapi.New(t), sizes[0], instances, []time.Duration{0})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 2 {
		t.Fatalf("%d storms, want 2", len(all))
	}
	for _, s := range all {
		t.Run(s.what, func(t *testing.T) {
			if len(s.after) != instances || s.after[instances-1] <= 0 {
				t.Errorf("times of instances %v, want %d", s.after, instances)
			}
			if last := s.flows.all[len(s.flows.all)-1]; last.dispatched < instances {
				t.Errorf("%v requests dispatched, want at least the watch of Services by %d", last.dispatched, instances)
			}
			if s.codes["200"] < instances {
				t.Errorf("responses %v, want at least that to the watch of Services by %d", s.codes, instances)
			}
		})
	}
}

// TestWatches: the API server's cost has a figure for each number of watches, and each watch has its goroutines.
func TestWatches(t *testing.T) {
	const nodes = 8
	all, err := (&bench{folder: t.TempDir()}).watches(t.Context(), kubeapi.New(t), watchCluster(nodes), []int{0, nodes / 2, nodes}, time.Second, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 3 {
		t.Fatalf("%d costs, want 3", len(all))
	}
	for i, c := range all {
		// The cost of a change is a small difference of measurements, which may be negative in such a short one. Without changes it is
		// not a number.
		if c.watches != i*nodes/2 || math.IsNaN(c.change) || math.IsInf(c.change, 0) || c.cpu <= 0 || c.memory <= 0 || c.opening < 0 {
			t.Errorf("cost %d is %+v", i, c)
		}
	}
	if more := all[2].goroutines - all[0].goroutines; more < nodes {
		t.Errorf("%v more goroutines with %d watches", more, nodes)
	}
}

// TestNodes: nodecache has a figure without its pods and with them.
func TestNodes(t *testing.T) {
	all, err := (&bench{folder: t.TempDir()}).nodes(t.Context(), kubeapi.New(t), 10, 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 2 || all[0].memory <= 0 || all[1].memory <= 0 || all[0].peak < all[0].memory || all[1].peak < all[1].memory {
		t.Errorf("figures %+v, want two", all)
	}
}

// TestWrongAnswers: a server that lacks the last changes of the cluster fails the check.
func TestWrongAnswers(t *testing.T) {
	api := kubeapi.New(t)
	b := smallBench(t)
	w, err := newWorld(api, sizes[0])
	if err != nil {
		t.Fatal(err)
	}
	s, err := b.start(t.Context(), b.programs[0], api.Plane(), w.gate.address, state{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.stop()
	if err := s.awaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.check(s.client); err != nil {
		t.Fatalf("the first answers: %v", err)
	}
	for name, change := range map[string]func(w *world){
		"endpoints":        func(w *world) { w.generation++ },
		"change":           func(w *world) { w.changes++ },
		"Service":          func(w *world) { w.cluster.Services++ },
		"more endpoints":   func(w *world) { w.cluster.Endpoints += 100 },
		"other namespaces": func(w *world) { w.cluster.Namespaces-- },
	} {
		t.Run(name, func(t *testing.T) {
			other := *w
			change(&other)
			if err := other.check(s.client); err == nil {
				t.Error("no error")
			}
		})
	}
	if err := w.gate.refuse(); err != nil {
		t.Error(err)
	}
}

// sliceCount returns the number of EndpointSlices of a size.
func sliceCount(s size) (n int) {
	for service := range s.cluster.Services {
		n += len(s.cluster.SliceObjects(service))
	}
	return n
}
