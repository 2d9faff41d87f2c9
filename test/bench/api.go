package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/nearside-dns/nearside/test/bench/child"
	"github.com/nearside-dns/nearside/test/bench/generated"
	"github.com/nearside-dns/nearside/test/kubeapi"
)

// apiMode is the argument of this program for an API server; the next one is an
// apiJob.
const apiMode = "api"

// apiJob is the API server of a process.
type apiJob struct {
	Folder  string // for its files
	Address string
	Cluster generated.Cluster
	Pods    bool   // the clients of search paths as well
	Writes  string // address at which it accepts objects to write through kube-apiserver
}

// loadAtOnce is how many objects are made before they are loaded.
const loadAtOnce = 1000

// serveAPI runs an API server with a cluster until the process is killed. When
// all objects are there it prints a line that begins with "serving". On SIGUSR1 it
// ends all watches, and forgets their history, so that clients list everything
// again.
func serveAPI(argument string) error {
	var job apiJob
	if err := json.Unmarshal([]byte(argument), &job); err != nil {
		return fmt.Errorf("API server: %w", err)
	}
	relist := make(chan os.Signal, 1)
	signal.Notify(relist, syscall.SIGUSR1)
	api, err := kubeapi.Listen(job.Folder, job.Address)
	if err != nil {
		return fmt.Errorf("API server: %w", err)
	}
	if err := loadCluster(api, job.Cluster, job.Pods); err != nil {
		return fmt.Errorf("API server: %w", err)
	}
	writes, err := net.Listen("tcp", job.Writes)
	if err != nil {
		return fmt.Errorf("API server: %w", err)
	}
	go func() { _ = http.Serve(writes, writer{api}) }() // #nosec G114 -- until the process is killed, for this program
	fmt.Println("serving", api.URL())
	for range relist {
		if err := api.Expire(); err != nil {
			return fmt.Errorf("API server: %w", err)
		}
		api.DropWatches("")
	}
	return nil
}

// writer writes the object in the body of each request.
type writer struct{ api *kubeapi.Server }

func (w writer) ServeHTTP(response http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(request.Body)
	if err == nil {
		var o runtime.Object
		if o, _, err = scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil); err == nil {
			err = w.api.Apply(request.Context(), o)
		}
	}
	if err != nil {
		http.Error(response, err.Error(), http.StatusInternalServerError)
	}
}

// loadCluster writes a cluster, and the clients of search paths if pods is true.
func loadCluster(api *kubeapi.Server, cluster generated.Cluster, pods bool) error {
	var batch []runtime.Object
	err := cluster.Each(func(o runtime.Object) error {
		if batch = append(batch, o); len(batch) < loadAtOnce {
			return nil
		}
		defer func() { batch = nil }()
		return api.Load(batch...)
	})
	if err != nil {
		return err
	}
	for n := range searchPods {
		if pods {
			batch = append(batch, podObject(n))
		}
	}
	return api.Load(batch...)
}

// startAPI starts an API server with a cluster in a process of its own, and
// returns its URL.
func (b *bench) startAPI(ctx context.Context, cluster generated.Cluster, pods bool) (p *child.Process, url string, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, "", err
	}
	port := strconv.Itoa(child.FreePort())
	job := apiJob{Folder: filepath.Join(b.folder, "api-"+port), Address: net.JoinHostPort("127.0.0.1", port), Cluster: cluster, Pods: pods, Writes: addressAt(child.FreePort())}
	if err := os.Mkdir(job.Folder, 0o700); err != nil {
		return nil, "", err
	}
	argument, err := json.Marshal(job)
	if err != nil {
		return nil, "", err
	}
	if p, err = child.Start(ctx, child.LoadCore, b.folder, "api-"+port, self, apiMode, string(argument)); err != nil {
		return nil, "", err
	}
	err = child.Await(ctx, 5*time.Minute, "the API server", func() bool {
		text, err := os.ReadFile(p.Logs)
		return err == nil && strings.Contains(string(text), "serving")
	})
	b.writes = "http://" + job.Writes
	return p, "http://" + job.Address, err
}
