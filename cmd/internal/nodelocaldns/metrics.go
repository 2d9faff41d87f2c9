package nodelocaldns

import (
	"bytes"
	"context"
	"errors"
	"log"
	"net"
	"net/http"
	"time"

	clog "github.com/coredns/coredns/plugin/pkg/log"
	"github.com/coredns/coredns/plugin/pkg/reuseport"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// serveMetrics serves /metrics on -metrics-listen-address until the context ends. A port that is taken
// does not stop the cache, as it does not stop node-local-dns: it is tried again after a while, since
// the process that has it may be the one that this one replaces. Two nodecaches share it.
func (n *Node) serveMetrics(ctx context.Context, again time.Duration) {
	address, said := n.options.metrics.String(), false
	if address == "" {
		return
	}
	for {
		listener, err := reuseport.Listen("tcp", address)
		if err == nil {
			if n.options.metricsTLS.enabled {
				listener = n.options.metricsTLS.over(listener)
			}
			serveUntil(ctx, listener)
			return
		}
		if !said {
			clog.Errorf("Metrics are not served on -metrics-listen-address, tried again every %s: %s", again, err)
			said = true
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(again):
		}
	}
}

func serveUntil(ctx context.Context, listener net.Listener) {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.Handler())
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ErrorLog: log.New(warnings{}, "", 0)}
	context.AfterFunc(ctx, func() {
		if err := server.Close(); err != nil {
			clog.Warningf("Metrics: %s", err)
		}
	})
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		clog.Errorf("Metrics: %s", err)
	}
}

// warnings logs the messages of the HTTP server, such as a failed TLS handshake, with a level.
type warnings struct{}

func (warnings) Write(line []byte) (int, error) {
	clog.Warningf("Metrics: %s", bytes.TrimSpace(line))
	return len(line), nil
}
