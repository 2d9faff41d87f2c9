// Package endpoint is the HTTP handler of /explain: input is the question of a request, output the explanations of the candidates that
// the client's resolver would query. It limits explanations in time and number, and restricts no clients.
package endpoint

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	clog "github.com/coredns/coredns/plugin/pkg/log"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/caller"
	"github.com/nearside-dns/nearside/plugin/internal/explain"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
)

const (
	// timeout bounds the time of an explanation, with the queries of all candidates, and writeTimeout that of the response.
	timeout      = 20 * time.Second
	writeTimeout = 5 * time.Second
	// maxSuffixes limits the search list of a request, as glibc and Kubernetes do.
	maxSuffixes = 32
	// unknownNdots stands for the option ndots of the client's resolver.
	unknownNdots = -1
	// Header is the header that requests must have, which a web page cannot set for another site; the responses have it, too.
	// The subcommand explain has the same constant.
	Header = "Nearside-Explain"
)

var log = clog.NewWithPlugin("health") // the directive that serves it

// explaining limits the number of explanations at a time.
var explaining = make(chan struct{}, 2)

// Serve answers a request with the explanations of a question: those of the name itself, or those of the candidates that the
// client's resolver would query until one has data.
func Serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set(Header, "1")
	server := explain.Registered()
	if server == nil {
		http.Error(w, "this program explains no queries", http.StatusNotImplemented)
		return
	}
	if r.Header.Get(Header) == "" {
		http.Error(w, "the request lacks the header "+Header+": 1", http.StatusForbidden)
		return
	}
	q, err := parseQuestion(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	select {
	case explaining <- struct{}{}:
		defer func() { <-explaining }()
	default:
		http.Error(w, fmt.Sprintf("%d explanations are running: try again", cap(explaining)), http.StatusTooManyRequests)
		return
	}
	// The server's own deadlines are shorter, and the one for reading would cancel the request.
	deadline, control := time.Now().Add(timeout+writeTimeout), http.NewResponseController(w)
	if err := errors.Join(control.SetReadDeadline(deadline), control.SetWriteDeadline(deadline)); err != nil {
		log.Debugf("The deadlines of an explanation are those of the server: %v", err)
	}
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	report, err := q.explain(ctx, server)
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

// question is a name that a client's resolver looks up, with the parameters of the request.
type question struct {
	explain.Query
	search []string // of the request; empty for the list of the client
	ndots  int      // of the request, or unknownNdots
}

// parseQuestion returns the question of a request: name, client, type (A), transport (udp), node and zone of the caller option, search
// list with commas or spaces, and ndots.
func parseQuestion(values url.Values) (q question, err error) {
	q.Name = values.Get("name")
	if _, ok := dns.IsDomainName(q.Name); !ok || q.Name == "" {
		return q, fmt.Errorf("invalid name %q", q.Name)
	}
	q.Client = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if client := values.Get("client"); client != "" {
		address, err := netip.ParseAddr(client)
		if err != nil {
			return q, fmt.Errorf("invalid client %q: want an address", client)
		}
		q.Client = address.WithZone("").Unmap()
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
	return q, q.parseFurther(values)
}

// parseFurther parses caller, search list and ndots.
func (q *question) parseFurther(values url.Values) (err error) {
	q.Node, q.Zone = values.Get("node"), values.Get("zone")
	if _, ok := caller.Append(nil, cmp.Or(q.Node, "node"), q.Zone); !ok || q.Node == "" && q.Zone != "" {
		return fmt.Errorf("invalid node %q with zone %q: want the name of a node, and optionally its zone", q.Node, q.Zone)
	}
	q.search = strings.FieldsFunc(values.Get("search"), func(c rune) bool { return c == ',' || c == ' ' })
	if len(q.search) > maxSuffixes {
		return fmt.Errorf("invalid search: %d suffixes, want at most %d", len(q.search), maxSuffixes)
	}
	q.ndots = unknownNdots
	if text := values.Get("ndots"); text != "" {
		if q.ndots, err = strconv.Atoi(text); err != nil || q.ndots < 0 || q.ndots > 15 {
			return fmt.Errorf("invalid ndots %q: want 0-15", text)
		}
	}
	return nil
}

// report is the answer to a request.
type report struct {
	Name       string      `json:"name"`
	Type       string      `json:"type"`
	Client     string      `json:"client"`
	Node       string      `json:"node,omitempty"`
	Zone       string      `json:"zone,omitempty"`
	Transport  string      `json:"transport"`
	Ndots      int         `json:"ndots"`
	SearchList []string    `json:"searchList"`
	Origin     string      `json:"searchListOrigin"`
	Candidates []candidate `json:"candidates"`
	Cut        string      `json:"cut,omitempty"` // why further candidates are not explained
}

// candidate is a name that the client queries, as a listener answers it.
type candidate struct {
	Name     string `json:"name"`
	Skipped  string `json:"skipped,omitempty"` // why it is not queried; the other fields are empty then
	Listener string `json:"listener"`
	Zone     string `json:"zone"`
	Steps    []step `json:"steps"`
	Took     int64  `json:"tookMicroseconds"`
	Reply    string `json:"reply"`
	FastPath string `json:"fastPath"`
	data     bool
}

// step is a step of a candidate. Its duration is the time until the next step, or until the end.
type step struct {
	Offset   int64  `json:"offsetMicroseconds"`
	Duration int64  `json:"durationMicroseconds"`
	Plugin   string `json:"plugin"`
	Text     string `json:"text"`
}

var errNoAnswer = errors.New("no listener explains the query")

// explain explains the candidates of a question in turn, until one has data or the time is over.
func (q question) explain(ctx context.Context, server explain.Server) (*report, error) {
	ndots := searchlist.DefaultNdots
	r := &report{
		Name: q.Name, Type: dns.TypeToString[q.Type], Client: q.Client.String(), Node: q.Node, Zone: q.Zone, Transport: "udp",
	}
	if q.TCP {
		r.Transport = "tcp"
	}
	switch {
	case dns.IsFqdn(q.Name):
		r.Origin = "the name ends with a dot"
	case len(q.search) > 0:
		r.SearchList, r.Origin = q.search, "of the request"
	default:
		if r.SearchList, r.Ndots, r.Origin = server.SearchListOf(q.Client, dns.Fqdn(q.Name)); r.SearchList != nil {
			ndots = r.Ndots
		}
	}
	if r.Ndots = q.ndots; r.Ndots == unknownNdots {
		r.Ndots = ndots
	}
	if r.SearchList == nil {
		r.SearchList = []string{} // an array in JSON
	}
	names := candidatesOf(q.Name, r.SearchList, r.Ndots)
	for i, name := range names {
		if ctx.Err() != nil {
			r.Cut = fmt.Sprintf("%d candidates are not explained: %s", len(names)-i, whyCut(ctx.Err()))
			break
		}
		if _, ok := dns.IsDomainName(name); !ok {
			r.Candidates = append(r.Candidates, candidate{Name: name, Steps: []step{}, Skipped: "not queried: the name is too long, or has an empty label"})
			continue
		}
		q.Name = name
		all, err := server.Explain(ctx, q.Query)
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
	if len(r.Candidates) == 0 && r.Cut == "" {
		return nil, errNoAnswer
	}
	return r, nil
}

// whyCut describes the end of the context of an explanation.
func whyCut(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Sprintf("an explanation takes at most %s", timeout)
	}
	return "the program ends or reloads its configuration"
}

// candidatesOf returns the names that a resolver queries for a name, in order (resolv.conf(5)).
func candidatesOf(name string, suffixes []string, ndots int) (names []string) {
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
	c := candidate{Name: e.Query.Name, Listener: e.Server, Zone: e.Zone, Took: e.Took.Microseconds(), FastPath: e.FastPath, Reply: "no reply"}
	if e.Reply != nil {
		c.Reply, c.data = e.Reply.String(), len(e.Reply.Answer) > 0
	}
	for i, s := range e.Steps {
		end := c.Took
		if i+1 < len(e.Steps) {
			end = e.Steps[i+1].At.Microseconds()
		}
		c.Steps = append(c.Steps, step{Offset: s.At.Microseconds(), Duration: end - s.At.Microseconds(), Plugin: s.Plugin, Text: s.Text})
	}
	return c
}

// String returns the report as text.
func (r *report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s for %s over %s", r.Name, r.Type, r.Client, r.Transport)
	if r.Node != "" {
		fmt.Fprintf(&b, ", caller option: node %q, zone %q", r.Node, r.Zone)
	}
	fmt.Fprintf(&b, "\nsearch list: %s (%s), ndots %d\n", cmp.Or(strings.Join(r.SearchList, " "), "none"), r.Origin, r.Ndots)
	for _, c := range r.Candidates {
		if c.Skipped != "" {
			fmt.Fprintf(&b, "\n%s\n  %s\n", c.Name, c.Skipped)
			continue
		}
		fmt.Fprintf(&b, "\n%s on %s\n", c.Name, c.Listener)
		for _, s := range c.Steps {
			fmt.Fprintf(&b, "  %10s %10s  %s: %s\n", microseconds(s.Offset), "+"+microseconds(s.Duration).String(), s.Plugin, s.Text)
		}
		fmt.Fprintf(&b, "  %10s %10s  answered; fast path: %s\n", microseconds(c.Took), "", c.FastPath)
		for line := range strings.Lines(c.Reply) {
			fmt.Fprintf(&b, "    %s\n", strings.TrimRight(line, "\n"))
		}
	}
	if r.Cut != "" {
		fmt.Fprintf(&b, "\n%s\n", r.Cut)
	}
	return b.String()
}

func microseconds(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
