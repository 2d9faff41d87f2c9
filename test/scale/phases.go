package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/nearside-dns/nearside/test/bench/child"
	"github.com/nearside-dns/nearside/test/kubeapi"
)

// figures are the results, by name and server.
type figures map[string]map[string]float64

func (f figures) add(what, server string, v float64) {
	if f[what] == nil {
		f[what] = map[string]float64{}
	}
	f[what][server] = v
}

// The phases of a server's measurement.
const (
	phaseStart   = "start"
	phaseRelist  = "relist"
	phaseRestart = "restart of the API server"
	phaseUpdate  = "rolling update"
)

// The figures of each phase, after its name and a colon.
const (
	took     = "time, s"
	spent    = "CPU, s"
	received = "received from the API server, MiB"
	rest     = "memory afterwards, MiB"
	peak     = "maximum memory, MiB"
	growth   = "maximum memory, times that at rest"
)

// The figures of the rolling update alone.
const (
	events     = "EndpointSlices written"
	wrote      = "time of the writes, s"
	late       = "last answer changed after the last write, ms"
	perEvent   = "CPU per event, us"
	eventBytes = "received per event, bytes"
)

func figure(phase, what string) string { return phase + ": " + what }

// measurement is that of a server.
type measurement struct {
	*bench
	*world
	*server
	figures
	begun bool // the first phase has been measured
}

// measure measures all programs on an API server with a cluster. With an error it returns the figures before it.
func (b *bench) measure(ctx context.Context, api *kubeapi.Server, s size) (figures, error) {
	began := time.Now()
	w, err := newWorld(api, s)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(os.Stderr, "%s: objects written in %.1f s\n", s.name, time.Since(began).Seconds())
	all := figures{}
	for _, p := range b.programs {
		if err := b.measureOne(ctx, w, p, all); err != nil {
			return all, fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return all, w.gate.refuse()
}

// measureOne measures a program through all phases.
func (b *bench) measureOne(ctx context.Context, w *world, p program, all figures) error {
	w.gate.received.Store(0)
	s, err := b.start(ctx, p, w.api.Plane(), w.gate.address, state{})
	if err != nil {
		return err
	}
	defer s.stop()
	r := &measurement{bench: b, world: w, server: s, figures: all}
	for _, phase := range []struct {
		name    string
		measure func(context.Context) error
	}{
		{phaseStart, r.awaitReady},
		{phaseRelist, r.relist},
		{phaseRestart, r.restartAPI},
		{phaseUpdate, r.rollingUpdate},
	} {
		if err := r.measurePhase(ctx, phase.name, phase.measure); err != nil {
			return fmt.Errorf("%s: %w", phase.name, err)
		}
	}
	return r.timeChanges(ctx)
}

// usage is the CPU time of a server and the bytes for it since its start.
type usage struct {
	cpu   time.Duration
	bytes int64
}

func (r *measurement) usage() (u usage, err error) {
	u.cpu, err = r.CPU()
	u.bytes = r.gate.received.Load()
	return u, err
}

// measurePhase measures a phase, with the answers after it.
func (r *measurement) measurePhase(ctx context.Context, name string, measure func(context.Context) error) error {
	var before usage
	if r.begun {
		var err error
		if before, err = r.usage(); err != nil {
			return err
		}
		if err := r.ResetPeak(); err != nil {
			return err
		}
	}
	r.begun = true
	began := time.Now()
	if err := measure(ctx); err != nil {
		return err
	}
	elapsed := time.Since(began)
	after, err := r.usage()
	if err != nil {
		return err
	}
	if err := r.check(r.client); err != nil {
		return err
	}
	if err := child.Pause(ctx, r.settle); err != nil {
		return err
	}
	now, highest, err := r.Memory()
	if err != nil {
		return err
	}
	for what, v := range map[string]float64{
		took: elapsed.Seconds(), spent: (after.cpu - before.cpu).Seconds(), received: float64(after.bytes-before.bytes) / (1 << 20), rest: now, peak: highest,
	} {
		if r.figures[figure(name, what)][r.name] == 0 { // the phase itself may have a better one
			r.add(figure(name, what), r.name, v)
		}
	}
	if start := r.figures[figure(phaseStart, rest)][r.name]; start > 0 {
		r.add(figure(name, growth), r.name, highest/start)
	}
	fmt.Fprintf(os.Stderr, "%s, %s: %.1f s, CPU %.2f s, %.0f MiB, at most %.0f MiB\n", r.name, name, elapsed.Seconds(), (after.cpu - before.cpu).Seconds(), now, highest)
	return nil
}

// relist has the server's watches expire without an outage: while the server sees an idle connection, the API server is
// restarted, and a change of that time is not in its history. Then the server connects again.
func (r *measurement) relist(ctx context.Context) error {
	r.gate.hold()
	if err := r.change(ctx); err != nil {
		return err
	}
	if err := r.restart(ctx, func() error { return nil }); err != nil {
		return err
	}
	before := r.gate.received.Load()
	began := time.Now()
	r.gate.cut()
	if err := r.awaitChange(ctx); err != nil {
		return err
	}
	// Each resource is listed after a delay of its own. Compressed lists differ a little in size.
	all := r.figures[figure(phaseStart, received)][r.name] * (1 << 20)
	err := child.Await(ctx, startTimeout, "lists of all resources", func() bool { return float64(r.gate.received.Load()-before) > 0.8*all })
	r.add(figure(phaseRelist, took), r.name, time.Since(began).Seconds())
	return err
}

// awaitChange waits until the answer has the last change.
func (r *measurement) awaitChange(ctx context.Context) error {
	want := r.timedAddress()
	return child.Await(ctx, startTimeout, "the answer "+want, func() bool { return r.client.query(r.timedName(), aType) == want })
}

// restartAPI restarts the API server. Connections are refused until it accepts them. The time is that from its readiness
// until the answer has a change that was made then.
func (r *measurement) restartAPI(ctx context.Context) error {
	if err := r.gate.refuse(); err != nil {
		return err
	}
	if err := r.restart(ctx, r.gate.open); err != nil {
		return err
	}
	began := time.Now()
	if err := r.change(ctx); err != nil {
		return err
	}
	if err := r.awaitChange(ctx); err != nil {
		return err
	}
	r.add(figure(phaseRestart, took), r.name, time.Since(began).Seconds())
	return nil
}

// rollingUpdate changes all endpoints, until the answers have the last ones.
func (r *measurement) rollingUpdate(ctx context.Context) error {
	before, err := r.usage()
	if err != nil {
		return err
	}
	began := time.Now()
	n, err := r.update(ctx)
	if err != nil {
		return err
	}
	written := time.Now()
	if err := child.Await(ctx, startTimeout, "the last endpoints", func() bool { return r.updated(r.client) }); err != nil {
		return err
	}
	changed := time.Now()
	after, err := r.usage()
	if err != nil {
		return err
	}
	for what, v := range map[string]float64{
		events: float64(n), wrote: written.Sub(began).Seconds(), late: changed.Sub(written).Seconds() * 1000,
		perEvent: float64((after.cpu - before.cpu).Microseconds()) / float64(n), eventBytes: float64(after.bytes-before.bytes) / float64(n),
	} {
		r.add(figure(phaseUpdate, what), r.name, v)
	}
	return nil
}
