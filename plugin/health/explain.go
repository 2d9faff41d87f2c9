package health

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/explain"
)

// explainTimeout bounds the time of an explanation, with the queries of all candidates.
const explainTimeout = 20 * time.Second

// ndots is the number of dots from which resolvers query a name itself first, as the kubelet sets it.
const ndots = 5

// serveExplain answers a request with the explanations of a question: those of the name itself, or those of the candidates that the
// client's resolver would query until one has data.
func serveExplain(w http.ResponseWriter, r *http.Request) {
	server := explain.Registered()
	if server == nil {
		http.Error(w, "this program explains no queries", http.StatusNotImplemented)
		return
	}
	q, err := questionOf(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), explainTimeout)
	defer cancel()
	report, err := explained(ctx, server, q, r.URL.Query().Get("search"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	if r.URL.Query().Get("output") == "json" {
		w.Header().Set("Content-Type", "application/json")
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		_ = encoder.Encode(report) // the client is gone
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = fmt.Fprint(w, report) // the client is gone
}

// questionOf returns the query of a request: name, client, type (A) and transport (udp).
func questionOf(values url.Values) (q explain.Query, err error) {
	q.Name = values.Get("name")
	if _, ok := dns.IsDomainName(q.Name); !ok || q.Name == "" {
		return q, fmt.Errorf("invalid name %q", q.Name)
	}
	q.Client = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if client := values.Get("client"); client != "" {
		if q.Client, err = netip.ParseAddr(client); err != nil {
			return q, fmt.Errorf("invalid client %q: want an address", client)
		}
	}
	q.Type = dns.TypeA
	if text := values.Get("type"); text != "" {
		known := false
		if q.Type, known = dns.StringToType[strings.ToUpper(text)]; !known {
			return q, fmt.Errorf("invalid type %q: want a type of records, such as A, AAAA or SRV", text)
		}
	}
	switch transport := values.Get("transport"); transport {
	case "", "udp":
	case "tcp":
		q.TCP = true
	default:
		return q, fmt.Errorf("invalid transport %q: want udp or tcp", transport)
	}
	return q, nil
}

// report is the answer to a request.
type report struct {
	Name       string      `json:"name"`
	Type       string      `json:"type"`
	Client     string      `json:"client"`
	Transport  string      `json:"transport"`
	SearchList []string    `json:"searchList"`
	Origin     string      `json:"searchListOrigin"`
	Candidates []candidate `json:"candidates"`
}

// candidate is a name that the client queries, as a listener answers it.
type candidate struct {
	Name     string `json:"name"`
	Listener string `json:"listener"`
	Zone     string `json:"zone"`
	Steps    []step `json:"steps"`
	Took     string `json:"took"`
	Reply    string `json:"reply"`
	FastPath string `json:"fastPath"`
	rcode    int
	data     bool
}

type step struct {
	At     string `json:"at"`
	Plugin string `json:"plugin"`
	Text   string `json:"text"`
}

var errNoAnswer = errors.New("no listener explains the query")

// explained explains the candidates of a question in turn, until one has data. The search list of the request, with commas or spaces, precedes that of the client.
func explained(ctx context.Context, server explain.Server, q explain.Query, search string) (*report, error) {
	transport := "udp"
	if q.TCP {
		transport = "tcp"
	}
	r := &report{Name: q.Name, Type: dns.TypeToString[q.Type], Client: q.Client.String(), Transport: transport}
	switch {
	case dns.IsFqdn(q.Name):
		r.Origin = "none: the name ends with a dot"
	case search != "":
		r.SearchList, r.Origin = strings.FieldsFunc(search, func(c rune) bool { return c == ',' || c == ' ' }), "of the request"
	default:
		r.SearchList, r.Origin = server.SearchListOf(q.Client)
	}
	for _, name := range candidatesOf(q.Name, r.SearchList) {
		q.Name = name
		all, err := server.Explain(ctx, q)
		if err != nil {
			return nil, err
		}
		found := false
		for _, e := range all {
			c := candidateOf(e)
			r.Candidates = append(r.Candidates, c)
			found = found || c.data
		}
		if found {
			break
		}
	}
	if len(r.Candidates) == 0 {
		return nil, errNoAnswer
	}
	return r, nil
}

// candidatesOf returns the names that a resolver queries for a name, in order (resolv.conf(5)).
func candidatesOf(name string, suffixes []string) (names []string) {
	if dns.IsFqdn(name) {
		return []string{name}
	}
	itself := dns.Fqdn(name)
	if strings.Count(name, ".") >= ndots {
		names = append(names, itself)
	}
	for _, suffix := range suffixes {
		names = append(names, name+"."+dns.Fqdn(strings.TrimPrefix(suffix, ".")))
	}
	if strings.Count(name, ".") < ndots {
		names = append(names, itself)
	}
	return names
}

func candidateOf(e explain.Explanation) candidate {
	c := candidate{Name: e.Query.Name, Listener: e.Server, Zone: e.Zone, Took: e.Took.Round(time.Microsecond).String(), FastPath: e.FastPath, Reply: "no reply"}
	if e.Reply != nil {
		c.Reply, c.rcode, c.data = e.Reply.String(), e.Reply.Rcode, len(e.Reply.Answer) > 0
	}
	for _, s := range e.Steps {
		c.Steps = append(c.Steps, step{At: s.At.Round(time.Microsecond).String(), Plugin: s.Plugin, Text: s.Text})
	}
	return c
}

// String returns the report as text.
func (r *report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s for %s over %s\n", r.Name, r.Type, r.Client, r.Transport)
	list := strings.Join(r.SearchList, " ")
	if list == "" {
		list = "none"
	}
	fmt.Fprintf(&b, "search list: %s (%s)\n", list, r.Origin)
	for _, c := range r.Candidates {
		fmt.Fprintf(&b, "\n%s on %s\n", c.Name, c.Listener)
		for _, s := range c.Steps {
			fmt.Fprintf(&b, "  %10s  %s: %s\n", s.At, s.Plugin, s.Text)
		}
		fmt.Fprintf(&b, "  %10s  answered; fast path: %s\n", c.Took, c.FastPath)
		for line := range strings.Lines(c.Reply) {
			fmt.Fprintf(&b, "    %s\n", strings.TrimRight(line, "\n"))
		}
	}
	return b.String()
}
