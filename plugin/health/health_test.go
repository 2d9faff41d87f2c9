package health

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/coredns/caddy"

	"github.com/nearside-dns/nearside/plugin/internal/explain"
	"github.com/nearside-dns/nearside/plugin/internal/explain/endpoint"
)

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		text string
		want settings
		err  string // part of it
	}{
		{"health", settings{":8080", 0}, ""},
		{"health localhost:1234", settings{"localhost:1234", 0}, ""},
		{"health [::1]:8080 {\nlameduck 4s\n}", settings{"[::1]:8080", 4 * time.Second}, ""},
		{"health {\nlameduck 1m\n}", settings{":8080", time.Minute}, ""},
		{"health\nhealth :8081", settings{":8081", 0}, ""},
		{"health 127.0.0.1", settings{}, `invalid address "127.0.0.1"`},
		{"health :8080 :8081", settings{}, "Wrong argument count"},
		{"health {\nlameduck\n}", settings{}, "lameduck"},
		{"health {\nlameduck 5\n}", settings{}, "lameduck"},
		{"health {\nnope\n}", settings{}, "nope"},
	} {
		got, err := parse(caddy.NewTestController("dns", tc.text))
		if tc.err == "" && (err != nil || got != tc.want) || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
			t.Errorf("%q: %v, error %v; want %v, error %q", tc.text, got, err, tc.want, tc.err)
		}
	}
}

func freeAddress(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	kit.Must(t, err)
	kit.Must(t, l.Close())
	return l.Addr().String()
}

// TestServe serves, ends and serves again on the same address.
func TestServe(t *testing.T) {
	address := freeAddress(t)
	s := &server{settings: settings{address: address}}
	for range 2 {
		kit.Must(t, s.start())
		response, err := http.Get("http://" + address + "/health")
		kit.Must(t, err)
		text, err := io.ReadAll(response.Body)
		if err := errors.Join(err, response.Body.Close()); err != nil || response.StatusCode != http.StatusOK || string(text) != "OK" {
			t.Errorf("%s %q, error %v", response.Status, text, err)
		}
		if err := s.end(); err != nil {
			t.Error(err)
		}
		if c, err := net.Dial("tcp", address); err == nil {
			t.Errorf("%s accepts connections after the end", c.RemoteAddr())
		}
	}
	if err := s.exit(); err != nil { // it does not serve any more
		t.Error(err)
	}
}

func TestLocal(t *testing.T) {
	for _, tc := range []struct {
		from, to string
		local    bool
	}{
		{"127.0.0.1:1000", "127.0.0.1:8080", true},
		{"[::1]:1000", "[::1]:8080", true},
		{"169.254.20.10:1000", "169.254.20.10:8080", true},
		{"[::ffff:169.254.20.10]:1000", "169.254.20.10:8080", true},
		{"10.244.1.7:1000", "169.254.20.10:8080", false},
		{"10.244.1.7:1000", "127.0.0.1:8080", false},
		{"", "127.0.0.1:8080", false},
	} {
		r := httptest.NewRequest(http.MethodGet, "/explain", nil)
		r.RemoteAddr = tc.from
		r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, net.TCPAddrFromAddrPort(netip.MustParseAddrPort(tc.to))))
		if got := isLocal(r); got != tc.local {
			t.Errorf("from %q to %s: %v, want %v", tc.from, tc.to, got, tc.local)
		}
		for path, want := range map[string]int{"/health": http.StatusOK, "/explain": map[bool]int{true: http.StatusOK, false: http.StatusForbidden}[tc.local]} {
			r.URL.Path = path
			w := httptest.NewRecorder()
			localOnly(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(w, r)
			if w.Code != want {
				t.Errorf("%s from %q: %d, want %d", path, tc.from, w.Code, want)
			}
		}
	}
}

// TestForwarded: a request that a proxy of this machine has received from another one is refused.
func TestForwarded(t *testing.T) {
	for _, name := range []string{"", "Forwarded", "Via", "X-Forwarded-For", "x-forwarded-for"} {
		for _, path := range []string{"/health", "/explain"} {
			r := httptest.NewRequest(http.MethodGet, path, nil)
			r.RemoteAddr = "127.0.0.1:1000"
			if name != "" {
				r.Header.Set(name, "192.0.2.7")
			}
			want := http.StatusOK
			if name != "" && path == "/explain" {
				want = http.StatusForbidden
			}
			w := httptest.NewRecorder()
			localOnly(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(w, r)
			if w.Code != want {
				t.Errorf("%s with %q: %d, want %d", path, name, w.Code, want)
			}
		}
	}
}

// endless explains a query until its context ends.
type endless struct{ started chan struct{} }

func (e *endless) SearchListOf(netip.Addr, string) ([]string, int, string) { return nil, 0, "unknown" }

func (e *endless) Explain(ctx context.Context, q explain.Query) ([]explain.Explanation, error) {
	close(e.started)
	<-ctx.Done()
	return []explain.Explanation{{Query: q}}, nil
}

// TestEndOfConfiguration: the end cancels an explanation, whose other candidates are left out.
func TestEndOfConfiguration(t *testing.T) {
	before := explain.Registered()
	defer explain.Register(before)
	running := &endless{started: make(chan struct{})}
	explain.Register(running)
	s := &server{settings: settings{address: freeAddress(t)}}
	kit.Must(t, s.start())
	request, err := http.NewRequest(http.MethodGet, "http://"+s.address+"/explain?name=web&search=a.test,b.test", nil)
	kit.Must(t, err)
	request.Header.Set(endpoint.Header, "1")
	ended := make(chan error)
	go func() {
		<-running.started
		ended <- s.end()
	}()
	response, err := http.DefaultClient.Do(request)
	kit.Must(t, err)
	text, err := io.ReadAll(response.Body)
	kit.Must(t, errors.Join(err, response.Body.Close(), <-ended))
	if want := "2 candidates are not explained: the program ends or reloads"; response.StatusCode != http.StatusOK || !strings.Contains(string(text), want) {
		t.Errorf("%s, want %q in\n%s", response.Status, want, text)
	}
}
