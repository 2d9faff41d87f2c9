package endpoint

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/explain"
)

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
	r.Header.Set(Header, "1")
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
		Serve(w, explainRequest(tc.query))
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
		Serve(w, r)
		if w.Header().Get(Header) == "" {
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

// TestJSON: the JSON has the fields of the text.
func TestJSON(t *testing.T) {
	before := explain.Registered()
	defer explain.Register(before)
	explain.Register(&scripted{name: "web."})
	w := httptest.NewRecorder()
	Serve(w, explainRequest("name=web.&output=json"))
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
