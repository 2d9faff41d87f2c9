package main

import (
	"slices"
	"testing"

	"github.com/nearside-dns/nearside/test/bench/child"
)

func TestSearchSetups(t *testing.T) {
	var seen []string
	for _, s := range searchSetups {
		if slices.Contains(seen, s.name) {
			t.Errorf("two setups are called %q", s.name)
		}
		seen = append(seen, s.name)
		if s.clusterExpands() && s.node != "" || s.own() && (s.node == nameCoreDNS || s.cluster == nameCoreDNS) {
			t.Errorf("%+v", s)
		}
	}
	for _, one := range budgets {
		if one.part != partSearch {
			continue
		}
		for _, name := range []string{one.own, one.peer} {
			if name != "" && !slices.Contains(seen, name) {
				t.Errorf("%s: there is no setup %q", one.title, name)
			}
		}
	}
}

// TestSearchServers has setups without a node cache, or with one that does not run yet.
func TestSearchServers(t *testing.T) {
	running, planned := &server{Process: &child.Process{}}, &server{}
	for _, c := range []struct {
		name       string
		cache, dns *server
		want       []*server
		asked      *server
	}{
		{"both", running, running, []*server{running, running}, running},
		{"the node cache does not run yet", planned, running, []*server{running}, planned},
		{"no node cache", nil, running, []*server{running}, running},
		{"nothing yet", nil, nil, []*server{}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := searchServers{cache: c.cache, dns: c.dns}
			if got := s.servers(); !slices.Equal(got, c.want) {
				t.Errorf("%d servers, want %d", len(got), len(c.want))
			}
			if s.asked() != c.asked {
				t.Error("the pods query another server")
			}
		})
	}
}
