package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/bench/child"
	"github.com/nearside-dns/nearside/test/bench/dnsperf"
)

const aType = dns.TypeA

// The figures of the changes that are timed beside other queries.
const (
	changesMade    = "changes through the API server"
	fromWrite50    = "change: from the API server's response to the answer, p50, ms"
	fromWrite99    = "change: from the API server's response to the answer, p99, ms"
	fromRequest50  = "change: from the request to the answer, p50, ms"
	fromRequest99  = "change: from the request to the answer, p99, ms"
	otherRate      = "other queries, per second"
	otherLost      = "other queries lost, of a million"
	otherPerAnswer = "CPU per query, us"
)

// questions is the number of different questions of the load.
const questions = 4096

// load writes the questions for addresses of Services, or of endpoints if all Services are headless.
func (r *measurement) load() (dnsperf.Load, error) {
	var text strings.Builder
	for i := range questions {
		s := r.cluster.Service(i % r.cluster.Services)
		name := serviceName(s)
		if s.Headless {
			name = s.Hostname(i%s.Endpoints) + "." + name
		}
		fmt.Fprintf(&text, "%s A\n", name)
	}
	file := filepath.Join(r.folder, r.size.name+".questions")
	return dnsperf.Load{File: file, Questions: questions, RCode: "NOERROR", Rate: r.rate}, os.WriteFile(file, []byte(text.String()), 0o600)
}

// timeChanges changes an endpoint again and again while dnsperf queries the server.
func (r *measurement) timeChanges(ctx context.Context) error {
	l, err := r.load()
	if err != nil {
		return err
	}
	type answered struct {
		dnsperf.Statistics
		err error
	}
	before, err := r.usage()
	if err != nil {
		return err
	}
	ended := make(chan answered, 1)
	go func() {
		if r.dnsperf.Path == "" {
			ended <- answered{err: child.Pause(ctx, time.Duration(r.seconds)*time.Second)}
			return
		}
		s, err := r.dnsperf.AskAtRateFor(ctx, r.port, l, r.seconds)
		ended <- answered{s, err}
	}()
	var responded, requested []time.Duration
	for {
		select {
		case load := <-ended:
			if load.err != nil {
				return load.err
			}
			return r.addChanges(before, responded, requested, load.Statistics)
		case <-time.After(changePause):
		}
		fromResponse, fromRequest, err := r.timeChange(ctx)
		if err != nil {
			return err
		}
		responded, requested = append(responded, fromResponse), append(requested, fromRequest)
	}
}

// changePause is the time between two changes.
const changePause = 20 * time.Millisecond

// timeChange changes an endpoint, and queries its name until the answer has the change. The answer may have it before the API
// server has responded: then the first time is 0.
func (r *measurement) timeChange(ctx context.Context) (fromResponse, fromRequest time.Duration, err error) {
	type response struct {
		at  time.Time
		err error
	}
	r.changes++
	name, want := r.timedName(), r.timedAddress()
	written := make(chan response, 1)
	requested := time.Now()
	go func() {
		at, err := r.write(ctx)
		written <- response{at, err}
	}()
	for got := ""; got != want; got = r.client.query(name, aType) {
		if time.Since(requested) > startTimeout {
			return 0, 0, fmt.Errorf("%s: %s after %s, want %s", name, got, startTimeout, want)
		}
		time.Sleep(pollPause)
	}
	answered := time.Now()
	w := <-written
	if w.err != nil {
		return 0, 0, w.err
	}
	return max(0, answered.Sub(w.at)), answered.Sub(requested), nil
}

// pollPause is the time between two queries for a change.
const pollPause = 200 * time.Microsecond

func (r *measurement) addChanges(before usage, responded, requested []time.Duration, load dnsperf.Statistics) error {
	after, err := r.usage()
	if err != nil {
		return err
	}
	if len(responded) == 0 {
		return fmt.Errorf("no change in %d seconds", r.seconds)
	}
	if load.RCodes["NOERROR"] != load.Completed {
		return fmt.Errorf("response codes %v, want NOERROR alone: %w", load.RCodes, dnsperf.ErrCode)
	}
	slices.Sort(responded)
	slices.Sort(requested)
	for what, v := range map[string]float64{
		changesMade: float64(len(responded)),
		fromWrite50: dnsperf.Percentile(responded, 50), fromWrite99: dnsperf.Percentile(responded, 99),
		fromRequest50: dnsperf.Percentile(requested, 50), fromRequest99: dnsperf.Percentile(requested, 99),
		otherRate: load.Rate, otherLost: 1e6 * float64(load.Lost) / float64(max(1, load.Sent)),
		otherPerAnswer: float64((after.cpu - before.cpu).Microseconds()) / float64(max(1, load.Completed)),
	} {
		r.add(what, r.name, v)
	}
	return nil
}
