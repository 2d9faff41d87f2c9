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

// TestServe serves, ends and serves again on the same address.
func TestServe(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
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

// scripted answers one name with data.
type scripted struct {
	name  string
	asked []explain.Query
}

func (s *scripted) SearchListOf(client netip.Addr) ([]string, string) {
	if client.String() == "10.244.1.7" {
		return []string{"shop.svc.cluster.local.", "svc.cluster.local."}, "pods of namespace shop"
	}
	return nil, "unknown: no_pod"
}

func (s *scripted) Explain(_ context.Context, q explain.Query) ([]explain.Explanation, error) {
	s.asked = append(s.asked, q)
	e := explain.Explanation{Query: q, Server: "dns://:53", Zone: ".", Steps: []explain.Step{{Plugin: "cache", Text: "miss"}}, FastPath: "the same bytes"}
	m := new(dns.Msg).SetRcode(new(dns.Msg).SetQuestion(q.Name, q.Type), dns.RcodeNameError)
	if q.Name == s.name {
		m.Rcode = dns.RcodeSuccess
		m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: net.IPv4(192, 0, 2, 1)}}
	}
	e.Reply = m
	return []explain.Explanation{e}, nil
}

// TestExplain: the candidates of the client's search list are queried until one has data.
func TestExplain(t *testing.T) {
	for _, tc := range []struct {
		query, answers string
		names          []string
		code           int
		text           string // part of the answer
	}{
		{"name=web.shop.svc.cluster.local.", "web.shop.svc.cluster.local.", []string{"web.shop.svc.cluster.local."}, 200, "none: the name ends with a dot"},
		{"name=web&client=10.244.1.7", "web.shop.svc.cluster.local.", []string{"web.shop.svc.cluster.local."}, 200, "pods of namespace shop"},
		{"name=web.shop&client=10.244.1.7&type=aaaa&transport=tcp", "web.shop.svc.cluster.local.", []string{"web.shop.shop.svc.cluster.local.", "web.shop.svc.cluster.local."}, 200, "AAAA for 10.244.1.7 over tcp"},
		{"name=example.org&client=10.244.1.7", "example.org.", []string{"example.org.shop.svc.cluster.local.", "example.org.svc.cluster.local.", "example.org."}, 200, "  cache: miss\n"},
		{"name=a.b.c.d.e.f&client=10.244.1.7", "a.b.c.d.e.f.", []string{"a.b.c.d.e.f."}, 200, "192.0.2.1"},
		{"name=example.org&client=192.0.2.7", "", []string{"example.org."}, 200, "unknown: no_pod"},
		{"name=web&search=a.test,b.test.", "", []string{"web.a.test.", "web.b.test.", "web."}, 200, "a.test b.test. (of the request)"},
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
		serveExplain(w, httptest.NewRequest(http.MethodGet, "/explain?"+tc.query, nil))
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

// TestJSON: the JSON has the fields of the text.
func TestJSON(t *testing.T) {
	before := explain.Registered()
	defer explain.Register(before)
	explain.Register(&scripted{name: "web."})
	w := httptest.NewRecorder()
	serveExplain(w, httptest.NewRequest(http.MethodGet, "/explain?name=web.&output=json", nil))
	var r report
	if err := json.Unmarshal(w.Body.Bytes(), &r); err != nil {
		t.Fatalf("%v\n%s", err, w.Body)
	}
	if len(r.Candidates) != 1 || r.Candidates[0].Steps[0].Text != "miss" || !strings.Contains(r.Candidates[0].Reply, "192.0.2.1") || r.Candidates[0].FastPath != "the same bytes" {
		t.Errorf("%+v", r)
	}
}
