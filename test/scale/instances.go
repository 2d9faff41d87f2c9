package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source/apiserver"
)

// instancesMode is the argument that makes this program many clients of an API server; the next one is the path of an
// instancesJob.
const instancesMode = "instances"

// instancesJob are clients as clusterdns or nodecache has, each with credentials and so with a connection of its own.
type instancesJob struct {
	Address     string // for HTTP
	Kubeconfigs []string
	// Nodes are those whose pods each client reads, as nodecache does; nil for clients that read what clusterdns does.
	Nodes []string
}

func (j *instancesJob) options(i int) source.Options {
	if j.Nodes == nil {
		return source.Options{Endpoints: true}
	}
	return source.Options{Pods: true, PodsOnly: true, SearchPaths: true, Node: j.Nodes[i]}
}

// instancesDone are the times at which each instance had a Service, and the responses of the API server by code until then.
type instancesDone struct {
	At    []time.Time
	Codes map[string]float64
}

// serveInstances runs the instances. A request for the path /NAMESPACE/NAME waits until all have that Service, one for /synced until all have
// listed.
func serveInstances(ctx context.Context, path string) error {
	var job instancesJob
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &job)
	}
	if err != nil {
		return fmt.Errorf("instances: %w", err)
	}
	mux := http.NewServeMux()
	var all []*index.Index
	var sources []*apiserver.Source
	for i, kubeconfig := range job.Kubeconfigs {
		s, err := apiserver.New(apiserver.Connection{Kubeconfig: kubeconfig}, job.options(i))
		if err != nil {
			return fmt.Errorf("instances: %w", err)
		}
		ix := index.New()
		all, sources = append(all, ix), append(sources, s)
		go s.Run(ctx, ix)
	}
	mux.HandleFunc("/synced", func(_ http.ResponseWriter, r *http.Request) {
		for _, s := range sources {
			for r.Context().Err() == nil && !synced(s) {
				time.Sleep(instancePause)
			}
		}
	})
	mux.HandleFunc("/{namespace}/{name}", func(w http.ResponseWriter, r *http.Request) {
		done := awaitService(r.Context(), all, r.PathValue("namespace"), r.PathValue("name"))
		if err := json.NewEncoder(w).Encode(done); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	l, err := net.Listen("tcp", job.Address)
	if err != nil {
		return fmt.Errorf("instances: %w", err)
	}
	return http.Serve(l, mux) // #nosec G114 -- for this program, until the process is killed
}

func synced(s *apiserver.Source) bool {
	return !slices.ContainsFunc(s.Status(), func(st source.Status) bool { return !st.Synced })
}

// instancePause is the time between two checks of all instances.
const instancePause = 10 * time.Millisecond

// awaitService waits until all indexes have a Service.
func awaitService(ctx context.Context, all []*index.Index, namespace, name string) instancesDone {
	done := instancesDone{At: make([]time.Time, len(all)), Codes: map[string]float64{}}
	for missing := len(all); missing > 0 && ctx.Err() == nil; time.Sleep(instancePause) {
		for i, ix := range all {
			if done.At[i].IsZero() && ix.ServiceRecord(namespace, name) != nil {
				done.At[i] = time.Now()
				missing--
			}
		}
	}
	families, err := prometheus.DefaultGatherer.Gather()
	if err != nil {
		done.Codes[err.Error()] = 1
	}
	for _, f := range families {
		if f.GetName() == "coredns_kubernetes_rest_client_requests_total" {
			for _, m := range f.GetMetric() {
				done.Codes[labelOf(m, "code")] += m.GetCounter().GetValue()
			}
		}
	}
	return done
}
