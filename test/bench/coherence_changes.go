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
)

// coherenceMode is the argument that makes this program the simulated node caches; the next one is a coherenceJob.
const coherenceMode = "node-caches"

// coherenceJob is a job of simulated node caches.
type coherenceJob struct {
	API       string // URL
	Namespace string
	Cluster   int // port of cluster DNS
	Sessions  int

	// With node, the port of a node cache, changes are measured: the number of changes of an EndpointSlice, and of Services.
	Node, Changes, Creations int

	// Otherwise the sessions depend on some names, and the process is measured.
	Names   []string
	PID     int
	Metrics int // port
}

// changeTimes are times until all node caches had a change.
type changeTimes struct {
	Written []time.Duration // each node cache, since the API server had acknowledged it; 0 if it had the change before
	Request []time.Duration // since the request to the API server
	Node    []time.Duration // the node cache that is a program, like Written
}

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
	if job.Node == 0 {
		done.Fleet, err = job.runFleet(ctx)
	} else {
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
	out, err := exec.CommandContext(ctx, "taskset", "-c", loadCore, self, coherenceMode, string(argument)).Output()
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

// write sends an object to the API server.
func (j *coherenceJob) write(ctx context.Context, method, path, contentType string, object any) error {
	body, err := json.Marshal(object)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, method, j.API+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", contentType)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %s", method, path, response.Status, text)
	}
	return err
}

// object is one in JSON.
type object map[string]any

// createService creates a headless Service, or one with an address of the API server's choice.
func (j *coherenceJob) createService(ctx context.Context, name string, headless bool) error {
	spec := object{"ports": []object{{"name": "http", "port": 80, "protocol": "TCP"}}}
	if headless {
		spec["clusterIP"] = "None"
	}
	return j.write(ctx, http.MethodPost, "/api/v1/namespaces/"+j.Namespace+"/services", "application/json", object{
		"apiVersion": "v1", "kind": "Service", "metadata": object{"name": name}, "spec": spec,
	})
}

func (j *coherenceJob) slicesPath() string {
	return "/apis/discovery.k8s.io/v1/namespaces/" + j.Namespace + "/endpointslices"
}

// createMoving creates the Service whose endpoint moves, with its first address.
func (j *coherenceJob) createMoving(ctx context.Context) error {
	if err := j.createService(ctx, movingName, true); err != nil {
		return err
	}
	return j.write(ctx, http.MethodPost, j.slicesPath(), "application/json", object{
		"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
		"metadata":  object{"name": movingName, "labels": object{"kubernetes.io/service-name": movingName}},
		"ports":     []object{{"name": "http", "port": 80, "protocol": "TCP"}},
		"endpoints": []object{{"addresses": []string{movingAddress(0)}, "conditions": object{"ready": true}}},
	})
}

// move gives the endpoint its n-th address.
func (j *coherenceJob) move(ctx context.Context, n int) error {
	return j.write(ctx, http.MethodPatch, j.slicesPath()+"/"+movingName, "application/merge-patch+json", object{
		"endpoints": []object{{"addresses": []string{movingAddress(n)}, "conditions": object{"ready": true}}},
	})
}

func movingAddress(n int) string { return fmt.Sprintf("10.200.%d.%d", n/250, 1+n%250) }

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
		err := r.measure(ctx, &changes, func() error { return j.move(ctx, n) }, func(result string) bool { return result == "NOERROR "+movingAddress(n) })
		if err != nil {
			return changes, creations, fmt.Errorf("change %d: %w", n, err)
		}
	}
	for n := range j.Creations {
		name := fmt.Sprintf("created-%d", n)
		if err := r.watch(ctx, j.fqdn(name), "NXDOMAIN"); err != nil {
			return changes, creations, fmt.Errorf("%s: %w", name, err)
		}
		err := r.measure(ctx, &creations, func() error { return j.createService(ctx, name, false) },
			func(result string) bool { return strings.HasPrefix(result, "NOERROR 10.") })
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
	written := time.Now()
	at, err := r.await(ctx, has)
	if err != nil {
		return err
	}
	for i, t := range at {
		since := max(t.Sub(written), 0)
		times.Written, times.Request = append(times.Written, since), append(times.Request, t.Sub(requested))
		if i == r.Sessions {
			times.Node = append(times.Node, since)
		}
	}
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
			return nil, fmt.Errorf("%d of %d node caches, the first %d, do not have it after %s", missing, len(at), slices.IndexFunc(at, time.Time.IsZero), changeTimeout)
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
