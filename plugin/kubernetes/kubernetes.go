// Package kubernetes answers the names of a cluster: Services, headless pods, and what the
// Kubernetes DNS specification has besides. In go questions and the index that a source fills; out
// come resource records. It is a drop-in for CoreDNS's plugin of the same name.
package kubernetes

import (
	"context"
	"iter"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/fall"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/fastpath/store"
	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source/apiserver"
)

// Kubernetes is the plugin's handler for one server block.
type Kubernetes struct {
	Next plugin.Handler

	// Zones are the zones that are answered for, normalized; at least one is not a reverse zone.
	Zones []string
	// Fall says for which zones a name that does not exist is handed to the next plugin.
	Fall fall.F

	options

	primaryZone string // the first zone that is not a reverse zone; PTR names are in it
	upstream    upstreamer
	localIPs    []netip.Addr // addresses that the server listens on, without loopback
	space       *store.Space // where answers are kept for the fast path

	// index and status are those of the source; set by attach, before the server answers.
	index    records
	status   func() []source.Status
	attached atomic.Bool
	synced   atomic.Bool // set once every resource has been read
}

// records are what answers are made from: those of an index.Index, which describes the methods. Tests put
// something between, since an answer that is kept depends on the order in which they are called.
type records interface {
	Service(namespace, name string) *index.Entry
	Services() []*index.Entry
	HasNamespace(name string) bool
	ServicesByIP(a netip.Addr) []*index.Service
	SlicesByIP(a netip.Addr) []*index.Slice
	PodsByIP(a netip.Addr) []*index.Pod
	Addresses() iter.Seq[netip.Addr]
	NamespaceGeneration(name string) *index.Generation
	NamespacesGeneration() *index.Generation
	AddressGeneration(a netip.Addr) *index.Generation
	Modified() int64
}

// attach connects the handler to its source.
func (k *Kubernetes) attach(ix records, status func() []source.Status) {
	k.index, k.status = ix, status
	k.attached.Store(true) // from here on Ready may look at them: it is asked during the start, too
}

// options are what a kubernetes block can say, besides zones and fallthrough.
type options struct {
	source         source.Options
	connection     apiserver.Connection
	manifests      string   // directory of manifests; empty means the API server
	sourceAt       position // the line that says where the records come from
	namespaces     map[string]struct{}
	pods           podMode
	ttl            uint32 // seconds
	ignoreEmpty    bool
	startupTimeout time.Duration
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
func (k *Kubernetes) Name() string { return pluginName }

// OwnZones implements fastpath.Own.
func (k *Kubernetes) OwnZones() []string { return k.Zones }

// Ready implements ready.Readiness: once every resource has been read, until a watch is frozen. A
// server that has lost its API server stays ready: it answers from what it knows, like all others.
func (k *Kubernetes) Ready() bool {
	if !k.attached.Load() {
		return false
	}
	for _, s := range k.status() {
		if !s.Synced || s.Frozen {
			return false
		}
	}
	return true
}

// hasSynced reports whether every resource has been read once.
func (k *Kubernetes) hasSynced() bool {
	if k.synced.Load() {
		return true
	}
	for _, s := range k.status() {
		if !s.Synced {
			return false
		}
	}
	k.synced.Store(true)
	return true
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
	inFront := store.ConditionsFrom(ctx, r)
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

	synced := k.hasSynced() // before the look, which may find a part of the cluster until then
	var b *basis
	if synced && k.keeps(r, name, inFront) {
		b = newBasis(k.index)
	}
	f := k.find(name, zone, b)
	m := new(dns.Msg)
	m.SetReply(r)
	m.Authoritative = true
	switch {
	case f.kind == nothing && k.Fall.Through(name):
		return plugin.NextOrFailure(k.Name(), k.Next, ctx, w, r)
	case !f.known(state.QType()) && !synced:
		m.Rcode = dns.RcodeServerFailure
	case f.kind == nothing:
		m.Rcode = dns.RcodeNameError
	default:
		k.answer(&query{ctx: ctx, state: state, zone: zone, owner: qname, qtype: state.QType()}, f, m)
	}
	if len(m.Answer) == 0 {
		m.Ns = []dns.RR{k.soa(zone)}
	}
	k.keep(r, m, &f, b, inFront) // before others on the way to the client change it
	if err := w.WriteMsg(m); err != nil {
		return dns.RcodeServerFailure, err
	}
	return dns.RcodeSuccess, nil
}
