// Package metricsserver serves /metrics with the flags of node-local-dns. Input: an address and the files of TLS;
// output: an HTTP server that runs until a context ends. A port that is in use does not end the process.
package metricsserver

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"log"
	"net"
	"net/http"
	"time"

	clog "github.com/coredns/coredns/plugin/pkg/log"
	"github.com/coredns/coredns/plugin/pkg/reuseport"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/nearside-dns/nearside/cmd/internal/flagvalue"
)

// Server serves the metrics of the process.
type Server struct {
	Address string // host:port, the host may be empty; "" and "0" serve nothing
	tls     tlsFiles
}

// Flags adds the flags of the address and of TLS. The present Address is the default of its flag.
func (s *Server) Flags(f *flag.FlagSet) {
	f.Var(flagvalue.Text{Value: &s.Address, Check: checkAddress}, "metrics-listen-address", "address to serve all metrics on, besides those of prometheus in the Corefile")
	s.tls.flags(f)
}

// TLS reports whether the metrics are served over TLS.
func (s *Server) TLS() bool { return s.tls.enabled && s.enabled() }

func (s *Server) enabled() bool { return s.Address != "" && s.Address != "0" }

// checkAddress accepts 0, with which installations of node-local-dns disable these metrics.
func checkAddress(text string) error {
	if text == "0" {
		return nil
	}
	return flagvalue.CheckEndpoint(text)
}

// Serve serves /metrics until the context ends. While another process has the port, such as the process that this one
// replaces, it retries at the interval every. Two nodecaches share the port. The files of TLS are checked at this
// interval too.
func (s *Server) Serve(ctx context.Context, every time.Duration) {
	if !s.enabled() {
		if s.tls.enabled {
			clog.Warning("-tls-enabled ignored: -metrics-listen-address is not set")
		}
		return
	}
	if s.tls.enabled {
		go s.tls.watch(ctx, every)
	}
	for logged := false; ; {
		listener, err := reuseport.Listen("tcp", s.Address)
		if err == nil {
			s.serve(ctx, listener)
			return
		}
		if !logged {
			clog.Errorf("Metrics are not served on -metrics-listen-address, tried again every %s: %s", every, err)
			logged = true
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(every):
		}
	}
}

// Limits of clients: those of plugin prometheus, and more time for a reply over a slow network.
const (
	timeout      = 5 * time.Second
	writeTimeout = 30 * time.Second
	maxScrapes   = 8
)

func (s *Server) serve(ctx context.Context, listener net.Listener) {
	if s.tls.enabled {
		listener = s.tls.wrap(listener)
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.InstrumentMetricHandler(prometheus.DefaultRegisterer,
		promhttp.HandlerFor(prometheus.DefaultGatherer, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes})))
	// ReadTimeout includes the TLS handshake.
	server := &http.Server{Handler: mux, ReadTimeout: timeout, WriteTimeout: writeTimeout, IdleTimeout: timeout, ErrorLog: log.New(warnings{}, "", 0)}
	context.AfterFunc(ctx, func() {
		if err := server.Close(); err != nil {
			clog.Warningf("Metrics: %s", err)
		}
	})
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		clog.Errorf("Metrics: %s", err)
	}
}

// warnings logs the messages of the HTTP server, such as a failed TLS handshake, as warnings.
type warnings struct{}

func (warnings) Write(line []byte) (int, error) {
	clog.Warningf("Metrics: %s", bytes.TrimSpace(line))
	return len(line), nil
}
