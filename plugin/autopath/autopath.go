// Package autopath answers the first name that a client's resolver makes of a search list with what the whole list
// leads to, so that the client need not ask for the rest. In go queries, and the search lists of clients, which
// another part knows; out come replies with a CNAME to the name that was found. It is a drop-in for CoreDNS's
// plugin of the same name.
package autopath

import (
	"context"
	"net/netip"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/metrics"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist/expand"
)

// Autopath is the plugin's handler for one server block.
type Autopath struct {
	expand.Expander

	// Zones are those in which the first names of search lists are, normalized.
	Zones []string
	// Clients knows the search lists.
	Clients searchlist.Finder
}

// Name implements plugin.Handler.
func (a *Autopath) Name() string { return pluginName }

// ServeDNS implements plugin.Handler.
func (a *Autopath) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	if expand.Nested(ctx) || !expand.Expandable(r) || !plugin.Zones(a.Zones).Contains(r.Question[0].Name) {
		return a.pass(ctx, w, r)
	}
	p, why := a.Clients.Find(addressOf(w))
	if p == nil {
		unknown[why].WithLabelValues(metrics.WithServer(ctx)).Inc()
		return a.pass(ctx, w, r)
	}
	p.Namespace.Inc()
	base := p.Base(r.Question[0].Name)
	if base == "" {
		return a.pass(ctx, w, r)
	}
	return a.Expander.ServeDNS(ctx, w, r, &expand.Question{Base: base, Suffixes: p.Suffixes, Path: p.ID})
}

// pass has a query answered as it is. What the plugins ask for on the way, such as where an alias leads, is no name
// that the client's resolver has made: it is not expanded, and what comes of it is everybody's.
func (a *Autopath) pass(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	return plugin.NextOrFailure(pluginName, a.Next, expand.Nest(ctx), w, r)
}

// addressOf returns the address of the client, the zero Addr if it has none.
func addressOf(w dns.ResponseWriter) netip.Addr {
	state := request.Request{W: w}
	a, _ := netip.ParseAddr(state.IP())
	return a.WithZone("").Unmap()
}

// SearchZones implements fastpath.Searcher.
func (a *Autopath) SearchZones() []string { return a.Zones }

// SearchesOn implements fastpath.Searcher.
func (a *Autopath) SearchesOn(server string) block.Searches {
	s := &searches{clients: a.Clients, first: a.Results.First(server)}
	for why := range s.unknown[1:] {
		why++ // no reason is none
		s.unknown[why] = unknown[why].WithLabelValues(server)
	}
	return s
}

// searches implements fastpath.Searches.
type searches struct {
	clients searchlist.Finder
	first   answers.Counter
	unknown [searchlist.Reasons]prometheus.Counter
}

// Search implements fastpath.Searches.
func (s *searches) Search(from netip.Addr, name []byte) block.Search {
	p, why := s.clients.Find(from)
	switch {
	case p == nil:
		return block.Search{Count: s.unknown[why]}
	case !p.Expands(name):
		return block.Search{Client: p.Namespace}
	}
	return block.Search{List: p.ID, Count: s.first, Client: p.Namespace}
}

// results counts expansions, under CoreDNS's name too.
var results = func() *expand.Results {
	r := expand.NewResults(pluginName)
	r.Also = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: plugin.Namespace, Subsystem: pluginName, Name: "success_total",
		Help: "Counter of requests that did autopath.",
	}, []string{"server"})
	return r
}()

// unknown counts queries in the zones from clients without a known search list.
var unknown = func() (counters [searchlist.Reasons]*prometheus.CounterVec) {
	vec := promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: "nearside", Subsystem: pluginName, Name: "unknown_clients_total",
		Help: "Queries in the zones of autopath that were answered as they are since the client's search list is not known, by reason (no_pod, host_network, ambiguous, ending, no_search_list, outdated).",
	}, []string{"server", "reason"})
	for why := range counters[1:] {
		why++ // no reason is none
		counters[why] = vec.MustCurryWith(prometheus.Labels{"reason": searchlist.Unknown(why).String()})
	}
	return counters
}()

// byNamespace is the metric of the queries that a namespace's pods have asked.
type byNamespace struct{ desc *prometheus.Desc }

func init() {
	prometheus.MustRegister(byNamespace{prometheus.NewDesc(
		prometheus.BuildFQName("nearside", pluginName, "namespace_queries_total"),
		"Queries in the zones of autopath from pods whose search list is known, by the namespace of the pod.",
		[]string{"namespace"}, nil)})
}

// Describe implements prometheus.Collector.
func (m byNamespace) Describe(ch chan<- *prometheus.Desc) { ch <- m.desc }

// Collect implements prometheus.Collector.
func (m byNamespace) Collect(ch chan<- prometheus.Metric) {
	for _, n := range searchlist.Namespaces() {
		ch <- prometheus.MustNewConstMetric(m.desc, prometheus.CounterValue, float64(n.Queries()), n.Name)
	}
}

// everyone is the Finder of a list that is everybody's.
type everyone struct{ path *searchlist.List }

// Find implements path.Finder.
func (e everyone) Find(netip.Addr) (*searchlist.List, searchlist.Unknown) {
	if e.path == nil {
		return nil, searchlist.NoList
	}
	return e.path, searchlist.Known
}

// Zone implements path.Finder.
func (everyone) Zone() string { return "" }
