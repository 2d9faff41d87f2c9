package main

import (
	"strings"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kubeapi"
)

// TestSLO measures all setups for a short time: lookups get the addresses of Services, and changes are answered.
func TestSLO(t *testing.T) {
	api := kubeapi.New(t)
	b := smallBench(t)
	b.nodecache = daemon.ProgramWithoutRace(t, nameNodeCache)
	all, err := b.slo(t.Context(), api, sizes[0], sloTimes{
		warmUp: time.Second, steady: time.Second, changes: 3 * time.Second, restarts: 1, ttl: 2, followed: 10,
	})
	if err != nil {
		t.Fatal(err)
	}
	report := sloReport(all)
	for _, setup := range sloSetups {
		for _, r := range sloRows() {
			v, measured := all[r.what][setup.name]
			switch {
			case strings.HasSuffix(r.what, lookupErrors):
				if v > 0 {
					t.Errorf("%s of %s: %v", r.what, setup.name, v)
				}
			case r.what == changed99: // of more changes
			case !measured || v <= 0:
				t.Errorf("%s of %s: %v, measured: %v", r.what, setup.name, v, measured)
			}
			if !strings.Contains(report, "| "+r.what+" |") {
				t.Errorf("the report lacks %s", r.what)
			}
		}
	}
	if t.Failed() {
		t.Log(report)
	}
}

// TestLookUp has a lookup fail: with another address, without a name, and without a server.
func TestLookUp(t *testing.T) {
	api := kubeapi.New(t)
	b := smallBench(t)
	w, err := newWorld(api, sizes[0])
	if err != nil {
		t.Fatal(err)
	}
	servers, err := b.startSetup(t.Context(), w, sloSetups[0], 5)
	if err != nil {
		t.Fatal(err)
	}
	defer servers.stop()
	name, address := newLookups(w.cluster, 1, servers.address).name()
	for _, tc := range []struct {
		name, want string
		ok         bool
	}{{name, address, true}, {name, "192.0.2.1", false}, {"no-such-service.default", address, false}} {
		if got := lookUp(servers.address, tc.name, tc.want); got != tc.ok {
			t.Errorf("%s with %s: %v, want %v", tc.name, tc.want, got, tc.ok)
		}
	}
	if lookUp("127.0.0.1:1", name, address) {
		t.Error("a lookup without a server succeeded")
	}
}

func TestMet(t *testing.T) {
	all := figures{"a": {"x": 1}}
	for limit, want := range map[float64]string{1: "yes", 0.5: "**no**"} {
		if got := all.met("a", "x", limit); got != want {
			t.Errorf("limit %v: %q, want %q", limit, got, want)
		}
	}
	if got := all.met("a", "y", 1); got != "" {
		t.Errorf("without a figure: %q", got)
	}
	what := figure(phaseSteady, lookups99)
	for _, tc := range []struct {
		setup   string
		latency float64
		missed  bool
	}{{nameClusterDNS, maxLookup99, false}, {nameClusterDNS, maxLookup99 + 1, true}, {nameCoreDNS, maxLookup99 + 1, false}} {
		if err := (figures{what: {tc.setup: tc.latency}}).missed(); (err != nil) != tc.missed {
			t.Errorf("%+v: error %v", tc, err)
		}
	}
}
