package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/nearside-dns/nearside/test/kubeapi"
)

// state is what a server reads beside Services and EndpointSlices.
type state struct {
	name         string
	zone, option string
	// only is the program that has the option, "" for both.
	only string
	// answer returns a name and its address, both of objects that only this option needs; nil for none
	answer func(w *world) (name, address string)
}

// states are those of a server, by the option that needs them.
var states = []state{
	{name: "Services and EndpointSlices"},
	{name: "topology", option: "topology", only: nameClusterDNS},
	{name: "ServiceImports", zone: " clusterset.local", option: "multicluster clusterset.local", answer: func(w *world) (name, address string) {
		i := w.cluster.Import(w.cluster.Imports - 2) // the last one is headless
		return i.Name + "." + i.Namespace + ".svc.clusterset.local.", i.IP
	}},
	{name: "pods verified", option: "pods verified", answer: func(w *world) (name, address string) {
		n := w.cluster.Pods - 1
		address = w.cluster.PodIP(n)
		return strings.ReplaceAll(address, ".", "-") + "." + w.cluster.Namespace(n%w.cluster.Namespaces) + ".pod.cluster.local.", address
	}},
}

// measureStates measures the start of all programs with each state.
func (b *bench) measureStates(ctx context.Context, api *kubeapi.Server, s size) (figures, error) {
	s.cluster.Imports, s.cluster.Pods = s.imports, s.pods
	w, err := newWorld(api, s)
	if err != nil {
		return nil, err
	}
	all := figures{}
	for _, with := range states {
		for _, p := range b.programs {
			if with.only != "" && with.only != p.name {
				continue
			}
			if err := b.measureState(ctx, w, p, with, all); err != nil {
				return nil, fmt.Errorf("%s, %s: %w", p.name, with.name, err)
			}
		}
	}
	return all, w.gate.refuse()
}

func (b *bench) measureState(ctx context.Context, w *world, p program, with state, all figures) error {
	w.gate.received.Store(0)
	s, err := b.start(ctx, p, w.api.Plane(), w.gate.address, with)
	if err != nil {
		return err
	}
	defer s.stop()
	r := &measurement{bench: b, world: w, server: s, figures: all}
	return r.measurePhase(ctx, with.name, func(ctx context.Context) error {
		if err := r.awaitReady(ctx); err != nil || with.answer == nil {
			return err
		}
		name, want := with.answer(w)
		if got := r.client.query(name, aType); got != want {
			return fmt.Errorf("%s: %s, want %s", name, got, want)
		}
		return nil
	})
}

// stateRows returns the figures of measureStates in the order of the report.
func stateRows() (all []row) {
	for _, s := range states {
		for _, r := range []row{{took, "%.2f"}, {spent, "%.2f"}, {received, "%.1f"}, {rest, "%.0f"}, {peak, "%.0f"}} {
			all = append(all, row{figure(s.name, r.what), r.format})
		}
	}
	return all
}
