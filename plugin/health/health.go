// Package health is the directive that serves /health while the process runs, and /explain for processes of the same machine. It
// handles no queries. It replaces CoreDNS's plugin of the same name.
package health

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"time"

	clog "github.com/coredns/coredns/plugin/pkg/log"
	"github.com/coredns/coredns/plugin/pkg/reuseport"

	"github.com/nearside-dns/nearside/plugin/internal/explain/endpoint"
)

const pluginName = "health"

var log = clog.NewWithPlugin(pluginName)

const (
	// probeInterval is the time between two requests of the process to itself.
	probeInterval = time.Second
	// slowProbe is the duration of such a request from which it is logged.
	slowProbe = time.Second
	// ioTimeout bounds the time of a request or a reply.
	ioTimeout = 5 * time.Second
)

// server serves one directive.
type server struct {
	settings
	http *http.Server // nil while it does not serve
	stop context.CancelFunc
}

// start serves until the end of the configuration.
func (s *server) start() error {
	listener, err := reuseport.Listen("tcp", s.address)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/health", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, http.StatusText(http.StatusOK)) })
	mux.HandleFunc("GET /explain", endpoint.Serve)
	var ctx context.Context
	ctx, s.stop = context.WithCancel(context.Background())
	server := &http.Server{
		Handler: localOnly(mux), ReadTimeout: ioTimeout, WriteTimeout: ioTimeout, IdleTimeout: ioTimeout,
		BaseContext: func(net.Listener) context.Context { return ctx }, // the end of the configuration cancels explanations
	}
	s.http = server
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			log.Errorf("%s is not served any more: %v", s.address, err)
		}
	}()
	go s.probe(ctx)
	return nil
}

// end ends the service before the next configuration starts.
func (s *server) end() error {
	if s.http == nil {
		return nil
	}
	s.stop()
	ctx, cancel := context.WithTimeout(context.Background(), ioTimeout)
	defer cancel()
	if err := s.http.Shutdown(ctx); err != nil {
		log.Infof("Requests to %s were cut off: %v", s.address, err)
		_ = s.http.Close() // its listener is closed already
	}
	s.http = nil
	return nil
}

// exit ends the service at the exit of the process, after the lameduck period.
func (s *server) exit() error {
	if s.http != nil && s.lameduck > 0 {
		log.Infof("Going into lameduck mode for %s", s.lameduck)
		time.Sleep(s.lameduck)
	}
	return s.end()
}

// probe requests /health again and again, and measures the time.
func (s *server) probe(ctx context.Context) {
	host, port, _ := net.SplitHostPort(s.address) // parse has checked it
	if host == "" {
		host = "localhost"
	}
	url := "http://" + net.JoinHostPort(host, port) + "/health"
	client := &http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{}} // without a proxy
	ticker := time.NewTicker(probeInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		began := time.Now()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return
		}
		response, err := client.Do(request)
		if ctx.Err() != nil {
			return
		}
		took := time.Since(began)
		duration.Observe(took.Seconds())
		switch {
		case err != nil:
			failures.Inc()
			log.Warningf("Local health request to %q failed: %v", url, err)
			continue
		case took > slowProbe:
			log.Warningf("Local health request to %q took more than 1s: %s", url, took)
		}
		_ = response.Body.Close() // it is empty or short
	}
}

// localOnly serves all paths but /health only to processes of this machine.
func localOnly(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if refusal := refusalOf(r); r.URL.Path != "/health" && refusal != "" {
			w.Header().Set(endpoint.Header, "1")
			http.Error(w, "only for processes of this machine: "+refusal, http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// refusalOf returns the reason why a request may be from another machine, such as a header that only proxies add; "" without a reason.
func refusalOf(r *http.Request) string {
	if !isLocal(r) {
		return "the request is from " + r.RemoteAddr
	}
	for _, name := range []string{"Forwarded", "Via", "X-Forwarded-For"} {
		if r.Header.Values(name) != nil {
			return "the request has the header " + name + " of a proxy"
		}
	}
	return ""
}

// isLocal reports whether a request is from the loopback address, or from the address that it is sent to: one of this machine.
func isLocal(r *http.Request) bool {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	client := from.Addr().WithZone("").Unmap()
	if client.IsLoopback() {
		return true
	}
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if local == nil {
		return false
	}
	own, err := netip.ParseAddrPort(local.String())
	return err == nil && own.Addr().WithZone("").Unmap() == client
}
