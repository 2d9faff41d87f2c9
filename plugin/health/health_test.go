package health

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coredns/caddy"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/explain"
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
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return l.Addr().String()
}

// TestServe serves, ends and serves again on the same address.
func TestServe(t *testing.T) {
	address := freeAddress(t)
	s := &server{settings: settings{address: address}}
	for range 2 {
		if err := s.start(); err != nil {
			t.Fatal(err)
		}
		response, err := http.Get("http://" + address + "/health")
		if err != nil {
			t.Fatal(err)
		}
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

// scripted answers one name with data.
type scripted struct {
	name  string
	asked []explain.Query
}

func (s *scripted) SearchListOf(client netip.Addr, _ string) ([]string, int, string) {
	switch client.String() {
	case "10.244.1.7":
		return []string{"shop.svc.cluster.local.", "svc.cluster.local."}, 5, "pods of namespace shop"
	case "10.244.1.8":
		return []string{"shop.svc.cluster.local.", "svc.cluster.local."}, 1, "pods of namespace shop"
	}
	return nil, 0, "unknown: no_pod"
}

func (s *scripted) Explain(_ context.Context, q explain.Query) ([]explain.Explanation, error) {
	s.asked = append(s.asked, q)
	e := explain.Explanation{Query: q, Server: "dns://:53", Zone: ".", Took: 5 * time.Millisecond, FastPath: "the same bytes"}
	e.Steps = []explain.Step{{At: time.Millisecond, Plugin: "errors", Text: "passes the query on"}, {At: 3 * time.Millisecond, Plugin: "cache", Text: "miss"}}
	m := new(dns.Msg).SetRcode(new(dns.Msg).SetQuestion(q.Name, q.Type), dns.RcodeNameError)
	if q.Name == s.name {
		m.Rcode = dns.RcodeSuccess
		m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: net.IPv4(192, 0, 2, 1)}}
	}
	e.Reply = m
	return []explain.Explanation{e}, nil
}

func explainRequest(query string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/explain?"+query, nil)
	r.Header.Set(explainHeader, "1")
	return r
}

// TestExplain: the candidates of the client's search list are queried until one has data.
func TestExplain(t *testing.T) {
	for _, tc := range []struct {
		query, answers string
		names          []string
		code           int
		text           string // part of the answer
	}{
		{"name=web.shop.svc.cluster.local.", "web.shop.svc.cluster.local.", []string{"web.shop.svc.cluster.local."}, 200, "the name ends with a dot"},
		{"name=web&client=10.244.1.7", "web.shop.svc.cluster.local.", []string{"web.shop.svc.cluster.local."}, 200, "pods of namespace shop"},
		{"name=web.shop&client=10.244.1.7&type=aaaa&transport=tcp", "web.shop.svc.cluster.local.", []string{"web.shop.shop.svc.cluster.local.", "web.shop.svc.cluster.local."}, 200, "AAAA for 10.244.1.7 over tcp"},
		{"name=example.org&client=10.244.1.7", "example.org.", []string{"example.org.shop.svc.cluster.local.", "example.org.svc.cluster.local.", "example.org."}, 200, "  cache: miss\n"},
		{"name=a.b.c.d.e.f&client=10.244.1.7", "a.b.c.d.e.f.", []string{"a.b.c.d.e.f."}, 200, "192.0.2.1"},
		{"name=example.org&client=192.0.2.7", "", []string{"example.org."}, 200, "unknown: no_pod"},
		{"name=web&search=a.test,b.test.", "", []string{"web.a.test.", "web.b.test.", "web."}, 200, "a.test b.test. (of the request), ndots 5"},
		{"name=web.b&client=10.244.1.8", "", []string{"web.b.", "web.b.shop.svc.cluster.local.", "web.b.svc.cluster.local."}, 200, "ndots 1"},
		{"name=web.b&client=10.244.1.8&ndots=5", "web.b.shop.svc.cluster.local.", []string{"web.b.shop.svc.cluster.local."}, 200, "ndots 5"},
		{"name=web.b&search=a.test&ndots=1", "", []string{"web.b.", "web.b.a.test."}, 200, "ndots 1"},
		{"name=web&client=::ffff:10.244.1.7", "web.shop.svc.cluster.local.", []string{"web.shop.svc.cluster.local."}, 200, "A for 10.244.1.7 over udp"},
		{"name=a.&client=fe80::1%25eth0&node=node-a&zone=zone-a", "a.", []string{"a."}, 200, `A for fe80::1 over udp, caller option: node "node-a", zone "zone-a"`},
		{"name=web&search=" + strings.Repeat("a", 63) + strings.Repeat("."+strings.Repeat("a", 63), 2) + "." + strings.Repeat("a", 60), "", []string{"web."}, 200,
			"  not queried: the name is too long"},
		{"name=web&search=" + strings.Repeat("a.test,", maxSuffixes), "web.a.test.", []string{"web.a.test."}, 200, ""},
		{"name=web&search=" + strings.Repeat("a.test,", maxSuffixes+1), "", nil, 400, "invalid search: 33 suffixes, want at most 32"},
		{"name=a&ndots=16", "", nil, 400, `invalid ndots "16"`},
		{"name=a&ndots=some", "", nil, 400, `invalid ndots "some"`},
		{"name=a&zone=zone-a", "", nil, 400, "invalid node"},
		{"name=a&node=Node_A", "", nil, 400, "invalid node"},
		{"", "", nil, 400, "invalid name"},
		{"name=a..b", "", nil, 400, "invalid name"},
		{"name=a&client=pod", "", nil, 400, `invalid client "pod"`},
		{"name=a&type=nope", "", nil, 400, `invalid type "nope"`},
		{"name=a&transport=tls", "", nil, 400, `invalid transport "tls"`},
	} {
		s := &scripted{name: tc.answers}
		before := explain.Registered()
		explain.Register(s)
		w := httptest.NewRecorder()
		serveExplain(w, explainRequest(tc.query))
		explain.Register(before)
		var names []string
		for _, q := range s.asked {
			names = append(names, q.Name)
		}
		if w.Code != tc.code || !slices.Equal(names, tc.names) || !strings.Contains(w.Body.String(), tc.text) {
			t.Errorf("%s: %d, names %q, want %d, %q and %q in\n%s", tc.query, w.Code, names, tc.code, tc.names, tc.text, w.Body)
		}
	}
}

// TestRefused: explanations need the header, and a place.
func TestRefused(t *testing.T) {
	before := explain.Registered()
	defer explain.Register(before)
	get := func(r *http.Request) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		serveExplain(w, r)
		if w.Header().Get(explainHeader) == "" {
			t.Errorf("%d without the header", w.Code)
		}
		return w
	}
	explain.Register(nil)
	if w := get(explainRequest("name=web.")); w.Code != http.StatusNotImplemented {
		t.Errorf("without a server: %d", w.Code)
	}
	explain.Register(&scripted{name: "web."})
	if w := get(httptest.NewRequest(http.MethodGet, "/explain?name=web.", nil)); w.Code != http.StatusForbidden {
		t.Errorf("without the header: %d", w.Code)
	}
	for range cap(explaining) {
		explaining <- struct{}{}
	}
	if w := get(explainRequest("name=web.")); w.Code != http.StatusTooManyRequests {
		t.Errorf("without a place: %d", w.Code)
	}
	for range cap(explaining) {
		<-explaining
	}
	if w := get(explainRequest("name=web.")); w.Code != http.StatusOK {
		t.Errorf("with places: %d", w.Code)
	}
}

// endless explains a query until its context ends.
type endless struct {
	scripted
	started chan struct{}
}

func (e *endless) Explain(ctx context.Context, q explain.Query) ([]explain.Explanation, error) {
	close(e.started)
	<-ctx.Done()
	return e.scripted.Explain(ctx, q)
}

// TestEndOfConfiguration: the end cancels an explanation, whose other candidates are left out.
func TestEndOfConfiguration(t *testing.T) {
	before := explain.Registered()
	defer explain.Register(before)
	running := &endless{started: make(chan struct{})}
	explain.Register(running)
	s := &server{settings: settings{address: freeAddress(t)}}
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequest(http.MethodGet, "http://"+s.address+"/explain?name=web&search=a.test,b.test", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set(explainHeader, "1")
	ended := make(chan error)
	go func() {
		<-running.started
		ended <- s.end()
	}()
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close(), <-ended); err != nil {
		t.Fatal(err)
	}
	if want := "2 candidates are not explained: the program ends or reloads"; response.StatusCode != http.StatusOK || !strings.Contains(string(text), want) {
		t.Errorf("%s, want %q in\n%s", response.Status, want, text)
	}
}

// TestJSON: the JSON has the fields of the text.
func TestJSON(t *testing.T) {
	before := explain.Registered()
	defer explain.Register(before)
	explain.Register(&scripted{name: "web."})
	w := httptest.NewRecorder()
	serveExplain(w, explainRequest("name=web.&output=json"))
	var r report
	if err := json.Unmarshal(w.Body.Bytes(), &r); err != nil {
		t.Fatalf("%v\n%s", err, w.Body)
	}
	if want := (step{Offset: 1000, Duration: 2000, Plugin: "errors", Text: "passes the query on"}); len(r.Candidates) != 1 || r.Candidates[0].Steps[0] != want {
		t.Errorf("%+v, want the step %+v", r, want)
	}
	if r.Candidates[0].Took != 5000 || r.Candidates[0].Steps[1].Text != "miss" || !strings.Contains(r.Candidates[0].Reply, "192.0.2.1") || r.Candidates[0].FastPath != "the same bytes" {
		t.Errorf("%+v", r)
	}
}
