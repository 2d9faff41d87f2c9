package kubernetes

import (
	"cmp"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

var (
	waiting = promauto.NewGauge(prometheus.GaugeOpts{
		Namespace: metricNamespace, Subsystem: pluginName, Name: "waiting_queries",
		Help: "Queries that wait for a name of a headless Service with the annotation nearside.dev/wait-for-names.",
	})
	waited = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: metricNamespace, Subsystem: pluginName, Name: "waited_queries_total",
		Help: "Queries that have waited for a name: until the name existed, or its Service changed or was deleted (answered), until the time of the annotation (timeout); or not at all because of a limit (refused).",
	}, []string{"result"})
	waitCounters = block.WaitCounters{
		Waiting:  waiting,
		Answered: waited.WithLabelValues("answered"),
		TimedOut: waited.WithLabelValues("timeout"),
		Refused:  waited.WithLabelValues("refused"),
	}
)

// WaitCounters implements block.NameAwaiter.
func (k *Kubernetes) WaitCounters() block.WaitCounters { return waitCounters }

// AwaitName implements block.NameAwaiter. A query waits for the name of a headless Service with Wait, of one of its endpoints or
// of one of its ports, until a ready endpoint has that name. A query with a search list waits for the first candidate of this
// kind, unless an earlier candidate has records: a client that tries the candidates itself would wait for it, too.
func (k *Kubernetes) AwaitName(name, suffixes []byte) (block.NameWait, bool) {
	if !k.attached.Load() || !k.index.HasWaits() || !k.hasSynced() {
		return block.NameWait{}, false
	}
	text, _, err := dns.UnpackDomainName(name, 0)
	if err != nil {
		return block.NameWait{}, false
	}
	candidates := k.waitCandidates(text, suffixes)
	if candidates == nil {
		return k.await(text)
	}
	for _, c := range candidates {
		if w, ok := k.await(c); ok {
			return w, true
		}
		if k.mayHaveRecords(c) {
			break
		}
	}
	return block.NameWait{}, false
}

// waitCandidates returns the candidates of a name, all in zones of the plugin; nil without a valid search list, as
// candidates does.
func (k *Kubernetes) waitCandidates(name string, suffixes []byte) []string {
	if len(suffixes) == 0 || k.shared {
		return nil
	}
	list, ok := searchlist.ParseSuffixes(suffixes)
	if !ok || len(list) == 0 {
		return nil
	}
	base := searchlist.Base(name, list[0])
	if base == "" {
		return nil
	}
	all := searchlist.Candidates(base, list)
	for i, c := range all {
		zone := plugin.Zones(k.Zones).Matches(cmp.Or(c, list[i]))
		if zone == "" || len(zone) > len(list[i]) || isReverse(zone) || k.Fall.Through(cmp.Or(c, list[i])) {
			return nil
		}
	}
	return all
}

// mayHaveRecords reports whether a candidate may have records of some type, and so may end the search. A candidate that is
// too long for a name is empty.
func (k *Kubernetes) mayHaveRecords(name string) bool {
	if name == "" {
		return false
	}
	switch k.find(name, plugin.Zones(k.Zones).Matches(name), nil).kind {
	case notFound, fixedName, emptyName:
		return false
	}
	return true
}

// await reports whether queries wait for a name. They do not if option fallthrough applies: another plugin may have the name.
func (k *Kubernetes) await(name string) (w block.NameWait, ok bool) {
	zone := plugin.Zones(k.Zones).Matches(name)
	if name == "" || zone == "" || isReverse(zone) || k.isClusterset(zone) || k.Fall.Through(name) {
		return w, false
	}
	n, err := parseName(name, zone, k.grammar(false))
	if err != nil || n.kind != labelService || n.object == "" || n.zone != "" || !k.exposes(n.namespace) {
		return w, false
	}
	first := n.in(k.index)
	if first == nil {
		return w, false
	}
	w.Generation, w.Number = first.Generation(), first.Generation().Load()
	e := n.in(k.index) // see index.Generation
	if e == nil || e.Generation() != first.Generation() || !n.mayAppear(e.Service) {
		return w, false
	}
	f := result{kind: endpoints, entry: e, name: n}
	for range f.endpoints() {
		return w, false
	}
	w.Timeout = time.Duration(e.Service.Wait) * time.Millisecond
	return w, true
}

// mayAppear reports whether queries wait for the name, given its Service, while no endpoint has it.
func (n *objectName) mayAppear(s *index.Service) bool {
	return s.Wait > 0 && s.Kind == index.Headless && !n.imported && n.zone == "" &&
		(n.port == "" && n.protocol == "" || n.hasPort(s.Ports))
}
