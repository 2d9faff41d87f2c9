package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/nearside-dns/nearside/test/bench/child"
	"github.com/nearside-dns/nearside/test/bench/dnsperf"
	"github.com/nearside-dns/nearside/test/controlplane"
)

// The names of the servers in the report.
const (
	nameClusterDNS = "clusterdns"
	nameCoreDNS    = "CoreDNS"
)

// bench has the programs that are measured.
type bench struct {
	folder   string
	core     string // of the measured server, "" for all
	programs []program
	// nodecache is its path where it is measured.
	nodecache string
	dnsperf   dnsperf.Generator
	versions  []string // of other projects
}

type program struct{ name, path string }

// server is a measured server.
type server struct {
	name string
	*child.Process
	port, ready int
	client      *client
}

// corefile is that of both programs. Arguments: the ports of DNS, metrics and readiness, a further zone, the API server, the
// certificate, the key and the authority of the client, an option of kubernetes.
const corefile = `.:%d {
    bind 127.0.0.1
    errors
    prometheus 127.0.0.1:%d
    ready 127.0.0.1:%d
    kubernetes cluster.local%s in-addr.arpa ip6.arpa {
        endpoint https://%s
        tls %s %s %s
        ttl 30
        %s
    }
}
`

// start starts a server that reads an API server at an address.
func (b *bench) start(ctx context.Context, p program, plane *controlplane.ControlPlane, address string, with state) (s *server, err error) {
	return b.startWith(ctx, p, func(s *server) string {
		return fmt.Sprintf(corefile, s.port, child.FreePort(), s.ready, with.zone, address, plane.CertFile(), plane.KeyFile(), plane.CAFile(), with.option)
	})
}

// startWith starts a server with a Corefile for its ports.
func (b *bench) startWith(ctx context.Context, p program, corefile func(*server) string) (s *server, err error) {
	s = &server{name: p.name, port: child.FreePort(), ready: child.FreePort()}
	folder, err := os.MkdirTemp(b.folder, p.name+"-")
	if err != nil {
		return nil, err
	}
	conf := filepath.Join(folder, "Corefile")
	if err := os.WriteFile(conf, []byte(corefile(s)), 0o600); err != nil {
		return nil, err
	}
	if s.client, err = dial(net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port))); err != nil {
		return nil, err
	}
	s.Process, err = child.Start(ctx, b.core, folder, p.name, p.path, "-conf", conf)
	return s, err
}

// startTimeout bounds the start of a server with a large cluster.
const startTimeout = 5 * time.Minute

// awaitReady waits until the plugin ready reports that the server has read the cluster, which may be before it responds to
// queries, and until it responds.
func (s *server) awaitReady(ctx context.Context) error {
	url := "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(s.ready)) + "/ready"
	err := child.Await(ctx, startTimeout, s.name+" to be ready", func() bool {
		response, err := http.Get(url) // #nosec G107 -- a server of ours
		if err != nil {
			return false
		}
		return response.Body.Close() == nil && response.StatusCode == http.StatusOK && s.client.responds()
	})
	if err == nil {
		return nil
	}
	logs, failure := os.ReadFile(s.Logs)
	return errors.Join(fmt.Errorf("%w\n%s", err, logs), failure)
}

func (s *server) stop() {
	_ = s.client.Close() // nothing is lost
	if s.Process != nil {
		s.Stop()
	}
}
