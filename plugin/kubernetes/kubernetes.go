// Package kubernetes answers the names of a cluster: Services, headless pods, what the Kubernetes DNS specification
// has besides, and the ServiceImports of a clusterset (KEP-1645). In go questions and the index that a source fills; out
// come resource records. It is a drop-in for CoreDNS's plugin of the same name.
package kubernetes

import (
	"context"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/fall"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/internal/corefile"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source/apiserver"
)

// Kubernetes is the plugin's handler for one server block.
type Kubernetes struct {
	Next plugin.Handler

	name string // of the directive: kubernetes or multicluster

	// Zones are the zones that are answered for, normalized; at least one is not a reverse zone.
	Zones []string
	// clustersets are those of them that have the names of ServiceImports instead of Services.
	clustersets []string
	// Fall says for which zones a name that does not exist is handed to the next plugin.
	Fall fall.F

	options

	primaryZone string // the first zone with names of Services, empty if there is none; PTR names are in it
	upstream    upstreamer
	localIPs    []netip.Addr      // addresses that the server listens on, without loopback
	space       *answers.Keyspace // where answers are kept for the fast path
	resolvConf  string            // file with the search list of the server's machine

	// shared tells that another plugin of the block may answer names of the zones; serves tells which names
	// the server gives to the block, nil if it is all.
	shared bool
	serves func(ctx context.Context, name string) bool

	// index and status are those of the source; set by attach, before the server answers.
	index    records
	status   func() []source.Status
	attached atomic.Bool
	callers  *callers    // nil without topology
	synced   atomic.Bool // set once every resource has been read that answers need
	placed   atomic.Bool // set once Nodes have been read
}

// records are what answers are made from: those of an index.Index, which describes the methods. Tests put
// something between, since an answer that is kept depends on the order in which they are called.
type records interface {
	places
	Service(namespace, name string) *index.Entry
	Services() []*index.Entry
	Import(namespace, name string) *index.Entry
	Imports() []*index.Entry
	ClusterID() index.Symbol
	HasNamespace(name string) bool
	ServicesByIP(a netip.Addr) []*index.Service
	SlicesByIP(a netip.Addr) []*index.Slice
	PodsByIP(a netip.Addr) []*index.Pod
	TenantsOf(a netip.Addr) index.Tenants
	Addresses() iter.Seq[netip.Addr]
	NamespaceGeneration(name string) *index.Generation
	NamespacesGeneration() *index.Generation
	NodesGeneration() *index.Generation
	AddressGeneration(a netip.Addr) *index.Generation
	Modified() int64
}

// attach connects the handler to its source.
func (k *Kubernetes) attach(ix records, status func() []source.Status) {
	k.index, k.status = ix, status
	if k.source.Topology {
		k.callers = &callers{index: ix, trust: k.trust}
		if k.trust == nil {
			k.callers.trust = privateRanges
		}
	}
	k.attached.Store(true) // from here on Ready may look at them: it is asked during the start, too
}

// options are what a kubernetes block can say, besides zones and fallthrough.
type options struct {
	source         source.Options
	connection     apiserver.Connection
	manifests      string            // directory of manifests; empty means the API server
	sourceAt       corefile.Position // the line that says where the records come from
	namespaces     map[string]struct{}
	pods           podMode
	ttl            uint32 // seconds
	ignoreEmpty    bool
	startupTimeout time.Duration
	topologyKeys   []index.Symbol // of headless Services that say nothing of topology
	preferCluster  bool           // of headless ServiceImports the endpoints of this cluster come first
	clusterID      index.Symbol   // of this cluster; zero is that of its ClusterProperty
	trust          []netip.Prefix // whose word is taken for who asks; nil is privateRanges
}

// podMode says how names of pods (1-2-3-4.ns.pod.zone) are answered.
type podMode string

const (
	podsDisabled podMode = "disabled"
	podsInsecure podMode = "insecure"
	podsVerified podMode = "verified"
)

// upstreamer looks up names that are not in the cluster, through the server itself.
type upstreamer interface {
	Lookup(ctx context.Context, state request.Request, name string, qtype uint16) (*dns.Msg, error)
}

// Name implements plugin.Handler.
func (k *Kubernetes) Name() string { return k.name }

// OwnZones implements fastpath.Own.
func (k *Kubernetes) OwnZones() []string { return k.Zones }

// Ready implements ready.Readiness: once every resource has been read that answers need, until a watch is
// frozen. A server that has lost its API server stays ready: it answers from what it knows, like all others.
// One that can't read ServiceImports is ready without them, since it has all other names.
func (k *Kubernetes) Ready() bool {
	if !k.attached.Load() {
		return false
	}
	for _, s := range k.status() {
		if needed(s) && (!s.Synced || s.Frozen) {
			return false
		}
	}
	return true
}

// needed reports whether all answers need a resource. They do without Nodes and the cluster's own ID, which the
// server may not be allowed to read: callers are not known then. ServiceImports are needed in zones of a clusterset
// alone.
func needed(s source.Status) bool {
	switch s.Resource {
	case source.ServiceImports, source.Nodes, source.ClusterProperties:
		return false
	}
	return true
}

func imports(s source.Status) bool { return s.Resource == source.ServiceImports }

func nodes(s source.Status) bool { return s.Resource == source.Nodes }

// hasSynced reports whether every resource has been read once that all answers need.
func (k *Kubernetes) hasSynced() bool { return k.hasRead(&k.synced, needed) }

// syncedIn reports whether every resource has been read once that answers in a zone need.
func (k *Kubernetes) syncedIn(zone string) bool {
	return k.hasSynced() && (!k.isClusterset(zone) || k.hasImports())
}

// hasImports reports whether ServiceImports have been read, if they are read at all. That is no longer so when the
// resource comes back after it was missing.
func (k *Kubernetes) hasImports() bool { return k.areRead(imports) }

// hasNodes reports whether Nodes have been read once, if they are read at all.
func (k *Kubernetes) hasNodes() bool { return k.hasRead(&k.placed, nodes) }

// hasRead reports whether some resources have been read once, and remembers it.
func (k *Kubernetes) hasRead(done *atomic.Bool, which func(source.Status) bool) bool {
	if done.Load() {
		return true
	}
	if !k.areRead(which) {
		return false
	}
	done.Store(true)
	return true
}

func (k *Kubernetes) areRead(which func(source.Status) bool) bool {
	return !slices.ContainsFunc(k.status(), func(s source.Status) bool { return which(s) && !s.Synced })
}

// exposes reports whether the namespace exists and is one of those that are answered for.
func (k *Kubernetes) exposes(namespace string) bool {
	if len(k.namespaces) > 0 {
		if _, ok := k.namespaces[namespace]; !ok {
			return false
		}
	}
	return k.index.HasNamespace(namespace)
}

// ServeDNS implements plugin.Handler.
func (k *Kubernetes) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	if len(r.Question) == 0 {
		return dns.RcodeFormatError, nil
	}
	inFront := answers.PropertiesOf(ctx, r)
	state := request.Request{W: w, Req: r}
	qname := r.Question[0].Name // as unpacked it is in the form that state.QName takes time to make
	name := strings.ToLower(qname)
	zone := plugin.Zones(k.Zones).Matches(qname)
	if zone == "" {
		return plugin.NextOrFailure(k.Name(), k.Next, ctx, w, r)
	}
	zone = qname[len(qname)-len(zone):] // as it was asked
	state.Zone = zone
	if t := state.QType(); t == dns.TypeAXFR || t == dns.TypeIXFR {
		return dns.RcodeRefused, nil // the transfer plugin comes first, where there is one
	}

	synced := k.syncedIn(zone) // before the look, which may find a part of the cluster until then
	keeps := synced && k.keeps(r, name, inFront) && !isPassed(ctx)
	q := query{ctx: ctx, state: state, zone: zone, owner: qname, qtype: state.QType()}
	if synced {
		if s := k.search(q, name, keeps); s != nil {
			return k.give(&s.query, &s.made, inFront)
		}
	}
	a := made{m: newReply(r)}
	if keeps {
		q.dependencies = newDependencies(k.index)
	}
	f := k.find(name, zone, q.dependencies)
	if f.kind == nothing && k.Fall.Through(name) {
		return plugin.NextOrFailure(k.Name(), k.Next, passOn(ctx), w, r)
	}
	k.expectAsker(&q, &f)
	switch {
	case !f.known(q.qtype) && !synced:
		a.m.Rcode = dns.RcodeServerFailure
	case f.kind == nothing:
		a.m.Rcode = dns.RcodeNameError
	default:
		k.answer(&q, f, a.m)
	}
	if q.asker.early() {
		a.m.Rcode = dns.RcodeServerFailure
	}
	if len(a.m.Answer) == 0 {
		a.m.Ns = []dns.RR{k.soa(zone)}
	}
	return k.give(&q, &a, inFront)
}

// made is a reply, and the search list candidate that it answers.
type made struct {
	m *dns.Msg
	// search is the data of the option that says which candidate of a search list it is the answer of (see
	// package search); nil if the query is answered as one without such a list.
	search []byte
}

func newReply(r *dns.Msg) *dns.Msg {
	m := new(dns.Msg).SetReply(r)
	m.Authoritative = true
	return m
}

// give has a reply kept, and writes it.
func (k *Kubernetes) give(q *query, a *made, inFront *answers.Properties) (int, error) {
	q.asker.count()
	k.keep(q, a, inFront) // before others on the way to the client change it
	m := a.m
	if a.search != nil {
		m = searchlist.WithOption(m, a.search)
	}
	if err := q.state.W.WriteMsg(m); err != nil {
		return dns.RcodeServerFailure, err
	}
	return dns.RcodeSuccess, nil
}
