package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nearside-dns/nearside/test/bench/child"
)

// fleetDone is the measurement of a server with many sessions.
type fleetDone struct {
	Sessions      int
	Subscriptions float64 // of all, as the server counts them
	Memory, Peak  float64 // of the server, MiB
	CPU           float64 // of the server while only heartbeats are sent, % of a core
	Heartbeats    float64 // a second
	LongestGap    time.Duration
	Quiet, Beside []time.Duration // of queries of another client, without sessions and beside the heartbeats
	Delivered     []time.Duration // of one change to each session, since it was written
}

const (
	fleetSettle  = 5 * time.Second  // before the measurement of the heartbeats
	fleetMeasure = 20 * time.Second // two intervals of Session requests
	fleetAtOnce  = 32               // sessions that are opened at the same time
	fleetInQuery = 50               // queries in flight of such a session
	fleetProbes  = 5000             // queries of another client

	heartbeatInterval = 250 * time.Millisecond
)

// fleet are simulated node caches whose answers stay valid.
type fleet struct {
	*coherenceJob
	queries  [][]byte
	beats    atomic.Int64
	gap      atomic.Int64 // the longest between two heartbeats of a session
	measured atomic.Bool
	moved    chan time.Time
	failures chan error
}

// runFleet opens the sessions, each with all names, and measures heartbeats and one change of the first name.
func (j *coherenceJob) runFleet(ctx context.Context) (done fleetDone, err error) {
	if err := j.createMoving(ctx); err != nil {
		return done, err
	}
	f := &fleet{coherenceJob: j, moved: make(chan time.Time, j.Sessions), failures: make(chan error, j.Sessions)}
	for _, name := range append([]string{j.fqdn(movingName)}, j.Names...) {
		query, err := notifyQuery(name)
		if err != nil {
			return done, err
		}
		f.queries = append(f.queries, query)
	}
	if err := child.Await(ctx, 10*time.Second, movingName, func() bool { return answers(j.Cluster, j.fqdn(movingName)) }); err != nil {
		return done, err
	}
	if done.Quiet, err = f.probe(ctx); err != nil {
		return done, err
	}
	if err := f.open(ctx); err != nil {
		return done, err
	}
	done.Sessions = j.Sessions
	if err := f.measureHeartbeats(ctx, &done); err != nil {
		return done, err
	}
	if done.Beside, err = f.probe(ctx); err != nil {
		return done, err
	}
	if j.Profile != "" {
		if err := fetchProfile(ctx, j.PProf, fmt.Sprintf("profile?seconds=%d", profileSeconds), j.Profile); err != nil {
			return done, err
		}
	}
	requested := time.Now()
	if err := j.move(ctx, 1); err != nil {
		return done, err
	}
	if done.Delivered, err = f.delivered(ctx, requested); err != nil {
		return done, err
	}
	_, done.Peak, err = (&child.Process{PID: f.PID}).Memory()
	return done, err
}

// runFloor opens connections to a server that only sends, and measures it.
func (j *coherenceJob) runFloor(ctx context.Context) (done fleetDone, err error) {
	f := &fleet{coherenceJob: j, failures: make(chan error, j.Sessions)}
	done.Sessions = j.Sessions
	for range j.Sessions {
		conn, err := net.Dial("tcp", addressAt(j.Cluster))
		if err != nil {
			return done, err
		}
		f.follow(newSimulated(conn), nil)
	}
	return done, f.measureHeartbeats(ctx, &done)
}

// probe measures queries of another client.
func (f *fleet) probe(ctx context.Context) ([]time.Duration, error) {
	return probe(ctx, probeJob{Port: f.Cluster, Name: f.fqdn(movingName), Queries: fleetProbes})
}

// open opens the sessions.
func (f *fleet) open(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range fleetAtOnce {
		wg.Go(func() {
			for {
				node := int(next.Add(1)) - 1
				if node >= f.Sessions || ctx.Err() != nil {
					return
				}
				if err := f.openOne(node); err != nil {
					cancel(fmt.Errorf("session %d: %w", node, err))
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// openOne opens the session of a node and sends the queries. All answers have handles.
func (f *fleet) openOne(node int) error {
	s, err := openSession(f.Cluster, node)
	if err != nil {
		return err
	}
	var moving []handle
	answered := 0
	s.reply = func(b []byte, _ time.Time) error {
		a, err := readAnswered(b)
		if err != nil || len(a.handles) == 0 {
			return errors.Join(err, fmt.Errorf("%w: %s without handles", errWrong, a.result))
		}
		if binary.BigEndian.Uint16(b) == sessionID+1 {
			moving = a.handles
		}
		answered++
		return nil
	}
	var out []byte
	for first := 0; first < len(f.queries); first += fleetInQuery {
		out = out[:0]
		for i, query := range f.queries[first:min(first+fleetInQuery, len(f.queries))] {
			from := len(out)
			out = append(out, query...)
			binary.BigEndian.PutUint16(out[from+2:], uint16(sessionID+1+first+i)) // #nosec G115 -- few names
		}
		if _, err := s.conn.Write(out); err != nil {
			return err
		}
		for answered < min(first+fleetInQuery, len(f.queries)) {
			m, err := s.read()
			if err == nil {
				err = s.handle(m, time.Now())
			}
			if err != nil {
				return err
			}
		}
	}
	f.follow(s, moving)
	return nil
}

// follow counts the heartbeats of a session, and waits for the change.
func (f *fleet) follow(s *simulated, moving []handle) {
	var last time.Time
	s.buffer = nil
	s.beat = func(now time.Time) {
		if f.measured.Load() && !last.IsZero() {
			f.beats.Add(1)
			for gap := int64(now.Sub(last)); ; {
				if old := f.gap.Load(); gap <= old || f.gap.CompareAndSwap(old, gap) {
					break
				}
			}
		}
		last = now
	}
	s.ended = func(handles []byte, now time.Time) error {
		if moving != nil && hasHandle(handles, moving) {
			moving = nil
			f.moved <- now
		}
		return nil
	}
	s.reply = nil
	go func() { f.failures <- s.run() }()
}

// measureHeartbeats measures the server while nothing changes.
func (f *fleet) measureHeartbeats(ctx context.Context, done *fleetDone) error {
	server := child.Process{PID: f.PID}
	if err := f.pause(ctx, fleetSettle); err != nil {
		return err
	}
	before, err := server.CPU()
	if err != nil {
		return err
	}
	began := time.Now()
	f.measured.Store(true)
	if err := f.pause(ctx, fleetMeasure); err != nil {
		return err
	}
	f.measured.Store(false)
	after, err := server.CPU()
	if err != nil {
		return err
	}
	elapsed := time.Since(began)
	done.CPU = 100 * float64(after-before) / float64(elapsed)
	done.Heartbeats = float64(f.beats.Load()) / elapsed.Seconds()
	done.LongestGap = time.Duration(f.gap.Load())
	if done.Memory, _, err = server.Memory(); err != nil {
		return err
	}
	if f.Metrics > 0 {
		done.Subscriptions, err = sample(f.Metrics, subscriptionsMetric)
	}
	return err
}

// pause waits, and fails if a session ends.
func (f *fleet) pause(ctx context.Context, d time.Duration) error {
	select {
	case err := <-f.failures:
		return fmt.Errorf("a session has ended: %w", err)
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// delivered returns the time that the change took to each session, the shortest first.
func (f *fleet) delivered(ctx context.Context, requested time.Time) (all []time.Duration, err error) {
	timeout := time.After(changeTimeout)
	for len(all) < f.Sessions {
		select {
		case at := <-f.moved:
			all = append(all, at.Sub(requested))
		case err := <-f.failures:
			return nil, fmt.Errorf("a session has ended: %w", err)
		case <-timeout:
			return nil, fmt.Errorf("%d of %d sessions have the change after %s", len(all), f.Sessions, changeTimeout)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	slices.Sort(all)
	return all, nil
}
