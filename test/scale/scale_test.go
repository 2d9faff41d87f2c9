package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kubeapi"
)

func TestMain(m *testing.M) {
	os.Exit(kubeapi.Main(func() int { return daemon.Main(m) }))
}

// TestSmall: the measurement of a small cluster has every figure of both programs, and their answers are correct. It queries
// beside the changes only where dnsperf is installed.
func TestSmall(t *testing.T) {
	api := kubeapi.New(t)
	b := &bench{folder: t.TempDir(), programs: []program{
		{nameClusterDNS, daemon.ProgramWithoutRace(t, "clusterdns")},
		{nameCoreDNS, controlplane.RequireBinary(t, "coredns")},
	}}
	b.dnsperf.Path, _ = exec.LookPath("dnsperf")
	all, err := b.measure(t.Context(), api, sizes[0])
	if err != nil {
		t.Fatal(err)
	}
	mayBeZero := map[string]bool{fromWrite50: true, fromWrite99: true, otherLost: true, otherRate: b.dnsperf.Path == ""}
	var text strings.Builder
	if err := report(&text, sizes[0], all); err != nil {
		t.Fatal(err)
	}
	t.Log(text.String())
	for _, r := range rows() {
		for _, p := range b.programs {
			if v, measured := all[r.what][p.name]; !measured || v < 0 || v == 0 && !mayBeZero[r.what] {
				t.Errorf("%s of %s: %v, measured: %v", r.what, p.name, v, measured)
			}
		}
		if !strings.Contains(text.String(), "| "+r.what+" |") {
			t.Errorf("the report lacks %s", r.what)
		}
	}
	if want := sizes[0].steps * sliceCount(sizes[0]); int(all[figure(phaseUpdate, events)][nameClusterDNS]) != want {
		t.Errorf("%v events of the rolling update, want %d", all[figure(phaseUpdate, events)], want)
	}
}

// sliceCount returns the number of EndpointSlices of a size.
func sliceCount(s size) (n int) {
	for service := range s.cluster.Services {
		n += len(s.cluster.SliceObjects(service))
	}
	return n
}
