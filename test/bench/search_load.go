package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nearside-dns/nearside/test/bench/child"
	"github.com/nearside-dns/nearside/test/bench/dnsperf"
)

// podsMode is the argument of this program for the pods; the next one is a searchJob.
const podsMode = "pods"

// How pods look names up.
const (
	searchRate   = 300 // each second
	searchAtOnce = 64  // maximum in progress; with a slow server, look-ups start late
)

// searchJob is the job of the pods.
type searchJob struct {
	Port    uint16 // of the server
	Tag     string // of external names
	Seed    uint64
	Lookups int
}

// searchDone is the report of the pods.
type searchDone struct {
	External, Cluster kindDone
	Again             int     // queries that were sent again
	Failed            int     // look-ups without an answer; they are not among the others
	Failure           string  // of the first of them
	Rate              float64 // look-ups started each second
}

func (d *searchDone) lookups() int { return len(d.External.Latencies) + len(d.Cluster.Latencies) }

// kindDone has the results of names outside or inside the cluster.
type kindDone struct {
	Queries   int
	Latencies []time.Duration // one for each look-up, to its final answer; the shortest first
}

// servePods runs the job and writes its result. It fails with the first wrong answer.
func servePods(ctx context.Context, argument string, to io.Writer) error {
	var job searchJob
	if err := json.Unmarshal([]byte(argument), &job); err != nil {
		return fmt.Errorf("pods: %w", err)
	}
	all, err := lookups(job.Seed, job.Tag, job.Lookups)
	if err != nil {
		return fmt.Errorf("pods: %w", err)
	}
	server := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), job.Port)
	l := searchLoad{server: server, timeout: resolverTimeout, interval: time.Second / searchRate}
	done, err := l.run(ctx, all)
	if err != nil {
		return fmt.Errorf("pods: %w", err)
	}
	return json.NewEncoder(to).Encode(done)
}

// searchLoad is a number of look-ups in progress.
type searchLoad struct {
	server   netip.AddrPort
	timeout  time.Duration // of a query
	interval time.Duration // from the start of one look-up to the next

	mu   sync.Mutex
	done searchDone
}

// run starts a look-up at each interval.
func (l *searchLoad) run(ctx context.Context, all []lookup) (searchDone, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	free := make(chan struct{}, searchAtOnce)
	var wg sync.WaitGroup
	began := time.Now()
	for i := range all {
		if err := child.Pause(ctx, time.Until(began.Add(time.Duration(i)*l.interval))); err != nil {
			break
		}
		free <- struct{}{}
		wg.Go(func() {
			if err := l.one(&all[i]); err != nil {
				cancel(err)
			}
			<-free
		})
	}
	l.done.Rate = float64(len(all)) / time.Since(began).Seconds()
	wg.Wait()
	slices.Sort(l.done.External.Latencies)
	slices.Sort(l.done.Cluster.Latencies)
	return l.done, context.Cause(ctx)
}

// one looks up one name, and checks the addresses.
func (l *searchLoad) one(wanted *lookup) error {
	r := resolver{server: l.server, from: wanted.pod.address, search: wanted.pod.searchList(), timeout: l.timeout}
	began := time.Now()
	addresses, err := r.lookup(wanted.name)
	latency := time.Since(began)
	if err == nil && !slices.Equal(addresses, wanted.want) {
		err = fmt.Errorf("%s, from %s: %w: addresses %v, want %v", wanted.name, wanted.pod.namespace, errWrong, addresses, wanted.want)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done.Again += r.again
	if errors.Is(err, errNoAnswer) {
		if l.done.Failed++; l.done.Failed == 1 {
			l.done.Failure = err.Error()
		}
		return nil
	}
	if err != nil {
		return err
	}
	kind := &l.done.Cluster
	if wanted.external {
		kind = &l.done.External
	}
	kind.Queries += r.queries
	kind.Latencies = append(kind.Latencies, latency)
	return nil
}

// runPods has the pods look up names, on the core of the load.
func runPods(ctx context.Context, job searchJob) (done searchDone, err error) {
	self, err := os.Executable()
	if err != nil {
		return done, err
	}
	argument, err := json.Marshal(job)
	if err != nil {
		return done, err
	}
	out, err := exec.CommandContext(ctx, "taskset", "-c", child.LoadCore, self, podsMode, string(argument)).Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return done, errors.New(strings.TrimSpace(string(exit.Stderr)))
	}
	if err != nil {
		return done, err
	}
	return done, json.Unmarshal(out, &done)
}

// judge returns an error if too many look-ups failed for a valid measurement.
func (d *searchDone) judge() error {
	if len(d.External.Latencies) == 0 || len(d.Cluster.Latencies) == 0 || d.Failed*1000 > d.lookups()*dnsperf.PerMille {
		return fmt.Errorf("%d look-ups failed of %d, the first: %s: %w", d.Failed, d.Failed+d.lookups(), d.Failure, dnsperf.ErrLost)
	}
	return nil
}
