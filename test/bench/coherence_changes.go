package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/bench/child"
)

// coherenceMode is the argument that makes this program the simulated node caches; the next one is a coherenceJob.
const coherenceMode = "node-caches"

// coherenceJob is a job of simulated node caches.
type coherenceJob struct {
	Writes    string // URL for objects to write
	Namespace string
	Cluster   int // port of cluster DNS
	Sessions  int

	// With node, the port of a node cache, changes are measured: the number of changes of an EndpointSlice, and of Services.
	Node, Changes, Creations int

	// Otherwise the sessions depend on some names, and the process is measured. With Floor, it is a server that only sends.
	Names   []string
	Floor   bool
	PID     int
	Metrics int // port
	PProf   int // port
	Profile string
}

// changeTimes are times from the request to write a change until the answers of node caches have it, for each change.
type changeTimes struct {
	All     []time.Duration // until all node caches have it
	Program []time.Duration // until the one has it that is a program
	Written []time.Duration // until kube-apiserver has acknowledged the write
	Slowest slowest
}

// slowest is the change that took the longest time to reach all node caches.
type slowest struct{ Written, First, Last time.Duration }

// coherenceDone is the result of a job.
type coherenceDone struct {
	Changes, Creations changeTimes
	Fleet              fleetDone
}

// serveNodeCaches runs the job and writes its result.
func serveNodeCaches(ctx context.Context, argument string, to io.Writer) error {
	var job coherenceJob
	if err := json.Unmarshal([]byte(argument), &job); err != nil {
		return fmt.Errorf("node caches: %w", err)
	}
	var done coherenceDone
	var err error
	switch {
	case job.Floor:
		done.Fleet, err = job.runFloor(ctx)
	case job.Node == 0:
		done.Fleet, err = job.runFleet(ctx)
	default:
		done.Changes, done.Creations, err = job.runChanges(ctx)
	}
	if err != nil {
		return fmt.Errorf("node caches: %w", err)
	}
	return json.NewEncoder(to).Encode(done)
}

// runNodeCaches runs a job on the core of the load.
func runNodeCaches(ctx context.Context, job coherenceJob) (done coherenceDone, err error) {
	self, err := os.Executable()
	if err != nil {
		return done, err
	}
	argument, err := json.Marshal(job)
	if err != nil {
		return done, err
	}
	out, err := exec.CommandContext(ctx, "taskset", "-c", child.LoadCore, self, coherenceMode, string(argument)).Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return done, errors.New(strings.TrimSpace(string(exit.Stderr)))
	}
	if err != nil {
		return done, err
	}
	return done, json.Unmarshal(out, &done)
}

// movingName is the headless Service whose endpoint changes.
const movingName = "moving"

// object is an object of the API in JSON.
type object map[string]any

// write writes an object.
func (j *coherenceJob) write(ctx context.Context, o object) error {
	body, err := json.Marshal(o)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, j.Writes, bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("write %s: %s: %s", o["kind"], response.Status, text)
	}
	return err
}

// createService creates a Service with an address, "None" for a headless one.
func (j *coherenceJob) createService(ctx context.Context, name, address string) error {
	return j.write(ctx, object{
		"apiVersion": "v1", "kind": "Service", "metadata": object{"namespace": j.Namespace, "name": name}, "spec": object{
			"type": "ClusterIP", "clusterIP": address, "clusterIPs": []any{address}, "ipFamilies": []any{"IPv4"}, "ipFamilyPolicy": "SingleStack",
			"ports": []any{object{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 80}},
		},
	})
}

// createMoving creates the Service whose endpoint moves, with its first address.
func (j *coherenceJob) createMoving(ctx context.Context) error {
	if err := j.createService(ctx, movingName, "None"); err != nil {
		return err
	}
	return j.move(ctx, 0)
}

// move gives the endpoint its n-th address.
func (j *coherenceJob) move(ctx context.Context, n int) error {
	return j.write(ctx, object{
		"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
		"metadata":  object{"namespace": j.Namespace, "name": movingName, "labels": object{"kubernetes.io/service-name": movingName}},
		"ports":     []any{object{"name": "http", "port": 80, "protocol": "TCP"}},
		"endpoints": []any{object{"addresses": []any{movingAddress(n)}, "conditions": object{"ready": true}}},
	})
}

func movingAddress(n int) string { return fmt.Sprintf("10.200.%d.%d", n/250, 1+n%250) }

func createdAddress(n int) string { return fmt.Sprintf("10.96.%d.%d", 200+n/250, 1+n%250) }

func (j *coherenceJob) fqdn(name string) string {
	return name + "." + j.Namespace + ".svc.cluster.local."
}

// changeTimeout bounds the wait for all node caches.
const changeTimeout = 20 * time.Second

// changeRun is the measurement of changes.
type changeRun struct {
	*coherenceJob
	caches   []*watcher
	node     *poller
	found    chan observation
	failures chan error
}

func (j *coherenceJob) runChanges(ctx context.Context) (changes, creations changeTimes, err error) {
	if err := j.createMoving(ctx); err != nil {
		return changes, creations, err
	}
	r := &changeRun{coherenceJob: j, found: make(chan observation, 16*j.Sessions), failures: make(chan error, j.Sessions+1)}
	defer r.close()
	if err := r.open(); err != nil {
		return changes, creations, err
	}
	if err := r.watch(ctx, j.fqdn(movingName), "NOERROR "+movingAddress(0)); err != nil {
		return changes, creations, err
	}
	for n := 1; n <= j.Changes; n++ {
		err := r.measure(ctx, &changes, func() error { return j.move(ctx, n) },
			func(result string) bool { return result == "NOERROR "+movingAddress(n) })
		if err != nil {
			return changes, creations, fmt.Errorf("change %d: %w", n, err)
		}
	}
	for n := range j.Creations {
		name := fmt.Sprintf("created-%d", n)
		if err := r.watch(ctx, j.fqdn(name), "NXDOMAIN"); err != nil {
			return changes, creations, fmt.Errorf("%s: %w", name, err)
		}
		err := r.measure(ctx, &creations, func() error { return j.createService(ctx, name, createdAddress(n)) },
			func(result string) bool { return result == "NOERROR "+createdAddress(n) })
		if err != nil {
			return changes, creations, fmt.Errorf("%s: %w", name, err)
		}
	}
	return changes, creations, nil
}

// open opens the sessions, and the socket to the node cache, which has the last number.
func (r *changeRun) open() (err error) {
	for i := range r.Sessions {
		w, err := newWatcher(r.Cluster, i, r.found)
		if err != nil {
			return err
		}
		r.caches = append(r.caches, w)
		go func() { r.failures <- w.run() }()
	}
	conn, err := net.Dial("udp", addressAt(r.Node))
	if err != nil {
		return err
	}
	r.node = &poller{conn: conn, number: r.Sessions, found: r.found, names: make(chan string)}
	go func() { r.failures <- r.node.run() }()
	return nil
}

func (r *changeRun) close() {
	for _, w := range r.caches {
		_ = w.conn.Close()
	}
	if r.node != nil {
		close(r.node.names)
	}
}

// watch has all node caches answer a name.
func (r *changeRun) watch(ctx context.Context, name, result string) error {
	query, err := notifyQuery(name)
	if err != nil {
		return err
	}
	for _, w := range r.caches {
		if err := w.watch(query); err != nil {
			return err
		}
	}
	select {
	case r.node.names <- name:
	case err := <-r.failures:
		return err
	}
	_, err = r.await(ctx, func(got string) bool { return got == result })
	return err
}

// measure makes a change and waits until all node caches have it.
func (r *changeRun) measure(ctx context.Context, times *changeTimes, change func() error, has func(result string) bool) error {
	requested := time.Now()
	if err := change(); err != nil {
		return err
	}
	one := slowest{Written: time.Since(requested)}
	at, err := r.await(ctx, has)
	if err != nil {
		return err
	}
	one.First, one.Last = slices.MinFunc(at, time.Time.Compare).Sub(requested), slices.MaxFunc(at, time.Time.Compare).Sub(requested)
	if times.Written = append(times.Written, one.Written); one.Last > times.Slowest.Last {
		times.Slowest = one
	}
	times.All = append(times.All, one.Last)
	times.Program = append(times.Program, at[r.Sessions].Sub(requested))
	return nil
}

// await returns the time of each node cache's first answer with a result.
func (r *changeRun) await(ctx context.Context, has func(result string) bool) ([]time.Time, error) {
	timeout := time.NewTimer(changeTimeout)
	defer timeout.Stop()
	at := make([]time.Time, r.Sessions+1)
	for missing := len(at); missing > 0; {
		select {
		case o := <-r.found:
			if at[o.cache].IsZero() && has(o.result) {
				at[o.cache] = o.at
				missing--
			}
		case err := <-r.failures:
			return nil, err
		case <-timeout.C:
			first := slices.IndexFunc(at, time.Time.IsZero)
			return nil, fmt.Errorf("%d of %d node caches, the first %d, do not have it after %s", missing, len(at), first, changeTimeout)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return at, nil
}

// poller queries a node cache as pods do, again and again.
type poller struct {
	conn   net.Conn
	number int
	found  chan<- observation
	names  chan string // closed at the end
}

// pollInterval is the time between two queries.
const pollInterval = time.Millisecond

func (p *poller) run() error {
	defer func() { _ = p.conn.Close() }()
	var name, last string
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		select {
		case next, open := <-p.names:
			if !open {
				return nil
			}
			name, last = next, ""
		case <-tick.C:
		}
		if name == "" {
			continue
		}
		client := dns.Client{Timeout: time.Second}
		r, _, err := client.ExchangeWithConn(new(dns.Msg).SetQuestion(name, dns.TypeA), &dns.Conn{Conn: p.conn})
		if err != nil {
			return fmt.Errorf("node cache: %w", err)
		}
		packed, err := r.Pack()
		if err != nil {
			return err
		}
		a, err := readAnswered(packed)
		if err != nil {
			return err
		}
		if a.result != last {
			last = a.result
			p.found <- observation{p.number, a.result, time.Now()}
		}
	}
}
