// Package kubernetes answers queries for the names of a cluster: Services, endpoints, pods, the other names of the Kubernetes
// DNS specification, and the ServiceImports of a clusterset (KEP-1645). Input is queries and the index that a source fills;
// output is resource records. It is a drop-in replacement of CoreDNS's plugin of the same name, and imports no other
// plugin.
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

	"github.com/nearside-dns/nearside/plugin/internal/corefile"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source/settings"
)

// Kubernetes is the plugin's handler for one server block.
type Kubernetes struct {
	Next plugin.Handler

	name string // the directive: kubernetes or multicluster

	// Zones are the zones that the plugin answers for, normalized; at least one is not a reverse zone.
	Zones []string
	// clustersets are the Zones with names of ServiceImports instead of Services.
	clustersets []string
	// Fall has the zones whose nonexistent names are passed to the next plugin.
	Fall fall.F

	options

	primaryZone string // first zone with names of Services, which PTR targets are in; empty if there is none
	upstream    upstreamer
	localIPs    []netip.Addr    // addresses that the server listens on, without loopback
	space       *store.Keyspace // of the store of the fast path
	late        bool            // another plugin may change answers before cache stores them: this plugin stores none
	signed      bool            // the serial of a signed SOA record does not change
	resolvConf  string          // file with the search list of the server's machine

	// shared is true if another plugin of the server block may answer names of the zones.
	shared bool
	// serves reports whether the server dispatches a name to this server block; nil if it has only this one.
	serves func(ctx context.Context, name string) bool

	// index and status are those of the source; attach sets them before the server answers.
	index       records
	status      func() []source.Status
	notReady    notReadyFunc // of the source; nil without one
	attached    atomic.Bool
	callers     *callers    // nil without topology
	synced      atomic.Bool // all resources needed by every answer have been synced, not restored
	nodesSynced atomic.Bool // Nodes have been synced
}

// records is the data that answers are made from. An index.Index implements it, and describes the methods. Tests wrap it,
// since the validity of a stored answer depends on the order of the calls.
type records interface {
	locations
	Service(namespace, name string) *index.Entry
	Services() []*index.Entry
	Import(namespace, name string) *index.Entry
	Imports() []*index.Entry
	ClusterID() index.Symbol
	HasNamespace(name string) bool
	HasWaits() bool
	ServicesByIP(a netip.Addr) []*index.Service
	ServicesByExternalIP(a netip.Addr) []*index.Service
	SlicesByIP(a netip.Addr) []*index.Slice
	PodsByIP(a netip.Addr) []*index.Pod
	TenantsOf(a netip.Addr) index.Tenants
	Addresses() iter.Seq[netip.Addr]
	AccessGeneration() *index.Generation
	NameGeneration(namespace, name string) *index.Generation
	NamespaceGeneration(name string) *index.Generation
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
	k.attached.Store(true) // Ready is called during the start, too
}

// options are the settings of the block, besides zones and fallthrough.
type options struct {
	source         source.Options
	from           settings.Settings // where the source reads
	namespaces     set[string]
	pods           podMode
	ttl            uint32 // seconds
	ignoreEmpty    bool
	startupTimeout time.Duration
	snapshot       source.Snapshot
	snapshotAt     corefile.Position // of the option
	staleIsReady   bool              // the plugin is ready while it answers from a snapshot
	topologyKeys   []index.Symbol    // default for headless Services without topology settings
	preferCluster  bool              // prefer the endpoints of headless ServiceImports in this cluster
	clusterID      index.Symbol      // ID of this cluster; zero for that of its ClusterProperty
	trust          []netip.Prefix    // trusted senders of the caller option; nil for privateRanges
	coherent       bool              // sessions are offered to node caches
}

// podMode is the mode of option pods, for names such as 1-2-3-4.ns.pod.zone.
type podMode string

const (
	podsDisabled podMode = "disabled"
	podsInsecure podMode = "insecure"
	podsVerified podMode = "verified"
)

// upstreamer looks up names outside of the cluster, through the server itself.
type upstreamer interface {
	Lookup(ctx context.Context, state request.Request, name string, qtype uint16) (*dns.Msg, error)
}

// Name implements plugin.Handler.
func (k *Kubernetes) Name() string { return k.name }

// OwnZones implements block.ZoneOwner.
func (k *Kubernetes) OwnZones() []string { return k.Zones }

// Ready implements ready.Readiness. The plugin is ready when all resources needed by every answer are synced, until a watch
// freezes. It remains ready without its API server, since all replicas then answer from the last known state, and without
// access to ServiceImports, since it has all other names.
func (k *Kubernetes) Ready() bool {
	if !k.attached.Load() {
		return false
	}
	for _, s := range k.status() {
		if needed(s) && (!s.Synced && !(s.Restored && k.staleIsReady) || s.Frozen) {
			return false
		}
	}
	return true
}

// needed reports whether every answer needs a resource. Without the optional ones, callers are unknown, and names of a clusterset are
// not answered.
func needed(s source.Status) bool { return !source.IsOptional(s.Resource) }

func imports(s source.Status) bool { return s.Resource == source.ServiceImports }

func nodes(s source.Status) bool { return s.Resource == source.Nodes }

// state reports whether all records that answers depend on have been read or restored from a snapshot (complete), and
// whether any of them are restored ones (stale). ServiceImports count for names of a clusterset only.
func (k *Kubernetes) state(clusterset bool) (complete, stale bool) {
	if !clusterset && k.synced.Load() {
		return true, false
	}
	complete = true
	for _, s := range k.status() { // once, so that both results are of one moment
		switch {
		case !needed(s) && !(clusterset && imports(s)):
		case s.Restored:
			stale = true
		case !s.Synced:
			complete = false
		}
	}
	if complete && !stale {
		k.synced.Store(true)
	}
	return complete, complete && stale
}

// hasSynced reports whether the resources needed by every answer have been read once, or are those of a snapshot.
func (k *Kubernetes) hasSynced() bool {
	complete, _ := k.state(false)
	return complete
}

// isSynced reports whether all resources needed by answers in a zone have been read, or are those of a snapshot.
func (k *Kubernetes) isSynced(zone string) bool {
	complete, _ := k.state(k.isClusterset(zone))
	return complete
}

// hasImports reports whether ServiceImports are synced, or not watched. If their CustomResourceDefinition
// was missing, it is false from its creation until they are synced.
func (k *Kubernetes) hasImports() bool { return k.areRead(imports) }

// hasNodes reports whether Nodes have been synced once, or are not watched.
func (k *Kubernetes) hasNodes() bool {
	if !k.nodesSynced.Load() && k.areRead(nodes) {
		k.nodesSynced.Store(!k.areRestored(nodes))
		return true
	}
	return k.nodesSynced.Load()
}

// areRead reports whether the selected resources have been read, or are those of a snapshot.
func (k *Kubernetes) areRead(selects func(source.Status) bool) bool {
	return !slices.ContainsFunc(k.status(), func(s source.Status) bool { return selects(s) && !s.Synced && !s.Restored })
}

// areRestored reports whether one of the selected resources is that of a snapshot.
func (k *Kubernetes) areRestored(selects func(source.Status) bool) bool {
	return slices.ContainsFunc(k.status(), func(s source.Status) bool { return selects(s) && s.Restored })
}

// exposes reports whether a namespace exists and is one of the configured ones.
func (k *Kubernetes) exposes(namespace string) bool {
	return k.selects(namespace) && k.index.HasNamespace(namespace)
}

// selects reports whether a namespace is one of the configured ones.
func (k *Kubernetes) selects(namespace string) bool {
	if len(k.namespaces) == 0 {
		return true
	}
	_, ok := k.namespaces[namespace]
	return ok
}

// ServeDNS implements plugin.Handler.
func (k *Kubernetes) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	if len(r.Question) == 0 {
		return dns.RcodeFormatError, nil
	}
	inFront := store.PropertiesOf(ctx, r)
	state := request.Request{W: w, Req: r}
	qname := r.Question[0].Name // unpacked, so already in the form to which state.QName normalizes
	name := strings.ToLower(qname)
	zone := plugin.Zones(k.Zones).Matches(qname)
	explained := k.explanationOf(ctx)
	if zone == "" {
		explained.elsewhere()
		return plugin.NextOrFailure(k.Name(), k.Next, ctx, w, r)
	}
	zone = qname[len(qname)-len(zone):] // in the letter case of the query
	state.Zone = zone
	if t := state.QType(); t == dns.TypeAXFR || t == dns.TypeIXFR {
		return dns.RcodeRefused, nil // plugin transfer precedes this one
	}

	synced, stale := k.state(k.isClusterset(zone)) // before the lookup: one before the sync may find only a part of the records
	if synced && len(k.clustersets) > 0 && searchlist.HasOption(r) {
		stale = stale || k.areRestored(imports) // a candidate may be the name of a ServiceImport
	}
	storable := synced && !stale && k.isStorable(r, name, inFront != nil) && !isFallthrough(ctx)
	q := query{ctx: ctx, state: state, zone: zone, owner: qname, qtype: state.QType(), stale: stale, explained: explained}
	if explained != nil {
		explained.begin(&q, synced)
		defer explained.inspect(ctx)
	}
	a := k.reply(&q, name, synced, storable)
	if a.m == nil {
		explained.passedOn()
		return plugin.NextOrFailure(k.Name(), k.Next, withFallthrough(ctx), w, r)
	}
	if q.caller.isUsed() {
		q.caller.count()
		store.MarkPrivate(ctx)
		q.stale = q.stale || !k.nodesSynced.Load() && k.areRestored(nodes)
	}
	p := k.properties(&q, &a) // before plugins closer to the client modify the reply
	switch {
	case inFront != nil:
		*inFront = p
	case q.dependencies != nil && !p.Ended():
		k.space.PutReply(r, a.m, &p)
	}
	return q.write(&a)
}

// reply is a reply with its search list option. The zero reply is that of the next plugin.
type reply struct {
	m *dns.Msg
	// suffix is the data of the option in the reply: the suffix of the candidate that it answers, empty if no candidate has
	// data. It is nil, and the reply has no option, if the query was answered as one without a search list.
	suffix []byte
}

// reply returns the reply to a query for a name, in lower case. It is the zero reply if option fallthrough applies.
func (k *Kubernetes) reply(q *query, name string, synced, storable bool) reply {
	if synced {
		if a, ok := k.expand(q, name, storable); ok {
			return a
		}
	}
	if storable {
		q.dependencies = newDependencies(k.index)
	}
	f := k.find(name, q.zone, q.dependencies)
	q.explained.found(q, &f, name, q.zone)
	if f.kind == notFound && k.Fall.Through(name) {
		return reply{}
	}
	k.mayUseCaller(q, &f)
	q.waits = f.waits
	m := newReply(q.state.Req)
	switch {
	case !f.isFixed(q.qtype) && !synced:
		m.Rcode = dns.RcodeServerFailure
	case f.kind == notFound:
		m.Rcode = dns.RcodeNameError
	default:
		k.answer(q, f, m)
	}
	if q.caller.needsNodes() {
		m.Rcode = dns.RcodeServerFailure
	}
	q.explained.replied(q, name, m)
	k.deny(m, q.zone, q.waits)
	return reply{m: m}
}

func newReply(r *dns.Msg) *dns.Msg {
	m := new(dns.Msg).SetReply(r)
	m.Authoritative = true
	return m
}

// write writes a reply.
func (q *query) write(a *reply) (int, error) {
	m := a.m
	if a.suffix != nil {
		m = searchlist.WithOption(m, a.suffix)
	}
	if q.stale {
		m = asStale(q.state.Req, m)
	}
	if err := q.state.W.WriteMsg(m); err != nil {
		return dns.RcodeServerFailure, err
	}
	return dns.RcodeSuccess, nil
}
