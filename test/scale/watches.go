package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nearside-dns/nearside/test/bench/child"
	"github.com/nearside-dns/nearside/test/bench/generated"
	"github.com/nearside-dns/nearside/test/kubeapi"
)

// podsPerNode and podChanges are the pods of each node, and the changes of pods a second in the whole cluster.
const (
	podsPerNode = 20
	podChanges  = 200
)

// changeTime is the time for which pods change, watchSettle that before the API server's memory is read, and delivery that for the last
// events.
const (
	changeTime  = 20 * time.Second
	watchSettle = 10 * time.Second
	delivery    = time.Second
)

// apiCost is what the API server has used at a time.
type apiCost struct {
	at                      time.Time
	cpu, memory, goroutines float64
}

// watchCost is the cost of the pods' changes with a number of watches.
type watchCost struct {
	watches int
	opening float64 // CPU seconds for the requests that open the watches, with their lists
	change  float64 // CPU seconds for a pod's change
	apiCost         // before the changes
}

// watchCluster has a number of nodes, and pods on them.
func watchCluster(nodes int) size {
	c := cluster(nodes, 10, 100, 0.1)
	c.Pods = podsPerNode * nodes
	return size{name: "watches", cluster: c}
}

// measureWatches prints what the API server uses for the watches of node caches, one for the pods of each node.
func (b *bench) measureWatches(ctx context.Context, api *kubeapi.Server, nodes int) error {
	all, err := b.watches(ctx, api, watchCluster(nodes), []int{0, nodes / 4, nodes / 2, nodes}, changeTime, watchSettle)
	if err != nil {
		return err
	}
	fmt.Printf("\n| watches for the pods of a node | memory of the API server, MiB | goroutines | CPU for opening one, ms | CPU for a pod's change, us |\n|---|---|---|---|---|\n")
	opened := 0
	for _, c := range all {
		one := "" // no watch was opened
		if c.watches > opened {
			one = fmt.Sprintf("%.1f", 1e3*c.opening/float64(c.watches-opened))
		}
		fmt.Printf("| %d | %.0f | %.0f | %s | %.0f |\n", c.watches, c.memory/(1<<20), c.goroutines, one, 1e6*c.change)
		opened = c.watches
	}
	first, last := all[0], all[len(all)-1]
	fmt.Printf("\nMemory of a watch: %.0f KiB.\n", (last.memory-first.memory)/float64(last.watches)/1024)
	return nil
}

// watches measures with each number of watches, which ascend. Pods change once before, so that the API server has its history of events.
func (b *bench) watches(ctx context.Context, api *kubeapi.Server, s size, counts []int, changing, settle time.Duration) (all []watchCost, err error) {
	w, err := newWorld(api, s)
	if err != nil {
		return nil, err
	}
	f := &fleet{bench: b, world: w}
	defer f.stop()
	if err := f.permit(ctx, permission("", "pods")); err != nil {
		return nil, err
	}
	if _, err := w.changePods(ctx, changing); err != nil {
		return nil, err
	}
	open := 0
	for _, n := range counts {
		before, err := costOf(ctx, api)
		if err != nil {
			return nil, err
		}
		if err := f.watchPods(ctx, s.cluster, open, n); err != nil {
			return nil, err
		}
		opened, err := costOf(ctx, api)
		if err != nil {
			return nil, err
		}
		open = n
		if err := child.Pause(ctx, settle); err != nil {
			return nil, err
		}
		rest, err := costOf(ctx, api)
		if err != nil {
			return nil, err
		}
		changes, err := w.changePods(ctx, changing)
		if err != nil {
			return nil, err
		}
		if err := child.Pause(ctx, delivery); err != nil {
			return nil, err
		}
		after, err := costOf(ctx, api)
		if err != nil {
			return nil, err
		}
		idle := (rest.cpu - opened.cpu) / rest.at.Sub(opened.at).Seconds() * after.at.Sub(rest.at).Seconds()
		all = append(all, watchCost{watches: n, opening: opened.cpu - before.cpu, change: (after.cpu - rest.cpu - idle) / float64(changes), apiCost: rest})
	}
	return all, w.gate.refuse()
}

// watchPods starts clients for the pods of more nodes, and waits until they have them.
func (f *fleet) watchPods(ctx context.Context, c generated.Cluster, from, to int) error {
	if from == to {
		return nil
	}
	var nodes []string
	for n := from; n < to; n++ {
		name, _ := c.Node(n)
		nodes = append(nodes, name)
	}
	if err := f.start(ctx, len(nodes), nodes); err != nil {
		return err
	}
	var failures []error
	for _, a := range f.addresses {
		failures = append(failures, ask(ctx, a, "synced", func(io.Reader) error { return nil }))
	}
	return errors.Join(failures...)
}

// changePods changes pods one after the other for a time, as the kubelet does when a container is restarted. It returns the number of changes.
func (w *world) changePods(ctx context.Context, during time.Duration) (n int, err error) {
	const perBatch = podChanges / 10
	for began := time.Now(); time.Since(began) < during; n += perBatch {
		var objects []runtime.Object
		for i := range perBatch {
			pod := w.cluster.PodObject((n + i) % w.cluster.Pods)
			w.changes++
			pod.Status.ContainerStatuses[0].RestartCount = int32(w.changes) // #nosec G115 -- some thousands
			objects = append(objects, pod)
		}
		if err := w.api.Put(objects...); err != nil {
			return n, err
		}
		if err := child.Pause(ctx, time.Until(began.Add(time.Duration(n+perBatch)*time.Second/podChanges))); err != nil {
			return n, err
		}
	}
	return n, nil
}

// costOf reads what the API server has used.
func costOf(ctx context.Context, api *kubeapi.Server) (c apiCost, err error) {
	families, err := metricsOf(ctx, api)
	if err != nil {
		return c, err
	}
	c.at = time.Now()
	for name, into := range map[string]*float64{"process_cpu_seconds_total": &c.cpu, "process_resident_memory_bytes": &c.memory, "go_goroutines": &c.goroutines} {
		all := families[name].GetMetric()
		if len(all) != 1 {
			return c, fmt.Errorf("the API server has %d metrics %s, want 1", len(all), name)
		}
		*into = all[0].GetGauge().GetValue() + all[0].GetCounter().GetValue()
	}
	return c, nil
}
