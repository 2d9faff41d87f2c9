package kubernetes

import (
	"slices"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	clog "github.com/coredns/coredns/plugin/pkg/log"
	"github.com/coredns/coredns/plugin/pkg/upstream"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/corefile"
	"github.com/nearside-dns/nearside/plugin/internal/push"
	"github.com/nearside-dns/nearside/plugin/internal/reload"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source/apiserver"
)

const pluginName = "kubernetes"

var log = clog.NewWithPlugin(pluginName)

func init() { corefile.Register(pluginName, setup) }

func setup(c *caddy.Controller) error { return kubernetesDirective.setup(c) }

// SetupMulticluster is the setup function of directive multicluster, a kubernetes block with zones of a clusterset only.
func SetupMulticluster(c *caddy.Controller) error { return multiclusterDirective.setup(c) }

func (d directive) setup(c *caddy.Controller) error {
	apiserver.RedirectKlog()
	k, err := d.parse(c)
	if err != nil {
		return plugin.Error(d.name, err)
	}
	if err := k.claimSnapshot(c); err != nil {
		return plugin.Error(d.name, err)
	}
	src, err := k.from.Open(k.source)
	if err != nil {
		return plugin.Error(d.name, err)
	}
	b := block.Of(c)
	k.space, k.serves = b.Keyspace, b.Serves
	offers := &offering{k: k, registry: push.Process}
	reload.Follow(c, reload.Owner{Stop: func(reload.End) error { offers.end(); return nil }}) // before the source ends
	k.snapshot.Options = k.source.Identity()
	source.Follow(c, k.sourceIdentity, src, k.snapshot, func(handle *source.Handle) {
		k.localIPs = boundIPs(c)
		k.warnShadowed(dnsserver.GetConfig(c).Handler(pluginName))
		k.shared = block.IsShared(dnsserver.GetConfig(c), k.neutral(d, dnsserver.GetConfig(c).Handler(externalPlugin))...)
		k.notReady = handle.NotReady
		k.attach(handle.Index(), handle.Status)
		k.awaitSync(k.startupTimeout, handle.Restore)
		eligibility := b.Eligibility()
		k.late, k.signed = eligibility.Late, eligibility.Signed
		offers.begin(sessionObstacle(eligibility))
	})
	dnsserver.GetConfig(c).AddPlugin(func(next plugin.Handler) plugin.Handler {
		k.Next = next
		return k
	})
	return nil
}

// snapshotsKey is the key of the blocks with a snapshot, by file, in the storage of a caddy instance.
type snapshotsKey struct{}

// claimSnapshot returns an error if another block has the same file and reads other records: each would refuse the file that
// the other wrote.
func (k *Kubernetes) claimSnapshot(c *caddy.Controller) error {
	if k.snapshot.Path == "" {
		return nil
	}
	blocks, ok := c.Get(snapshotsKey{}).(map[string]*Kubernetes)
	if !ok {
		blocks = map[string]*Kubernetes{}
		c.Set(snapshotsKey{}, blocks)
	}
	if first := blocks[k.snapshot.Path]; first != nil && first.sourceIdentity() != k.sourceIdentity() {
		return k.snapshotAt.Errorf("snapshot: %s is the file of %s:%d, which reads other records: want one for each", k.snapshot.Path, first.snapshotAt.File, first.snapshotAt.Line)
	}
	blocks[k.snapshot.Path] = k
	return nil
}

// warnShadowed logs the zones that are zones of the cluster in another handler: the kubernetes directive of the same server
// block, which answers first.
func (k *Kubernetes) warnShadowed(handler plugin.Handler) {
	first, ok := handler.(*Kubernetes)
	if !ok || first == k {
		return
	}
	for _, zone := range k.Zones {
		if slices.Contains(first.Zones, zone) && !first.isClusterset(zone) {
			log.Warningf("zone %s is in %s and in %s of one server block: its names are those of the cluster, not of the clusterset", zone, first.name, k.name)
		}
	}
}

// externalPlugin is the name of the plugin that answers for Services in other zones.
const externalPlugin = "k8s_external"

// neutral returns plugins of the server block that don't answer names of the cluster in the directive's zones. They include
// multicluster for kubernetes, since it is later in the chain, and k8s_external (external, nil without one) if its zones have
// none of these names.
func (k *Kubernetes) neutral(d directive, external plugin.Handler) []string {
	all := []string{d.name, "transfer"}
	if d.name != multiclusterDirective.name {
		all = append(all, multiclusterDirective.name)
	}
	if owner, ok := external.(block.ZoneOwner); ok && !slices.ContainsFunc(owner.OwnZones(), k.hasNamesIn) {
		all = append(all, externalPlugin)
	}
	return all
}

// hasNamesIn reports whether another zone has names of the cluster.
func (k *Kubernetes) hasNamesIn(other string) bool {
	return slices.ContainsFunc(k.Zones, func(zone string) bool {
		return isForward(zone) && (dns.IsSubDomain(zone, other) || dns.IsSubDomain(other, zone))
	})
}

// newKubernetes returns a handler with every option at its default.
func newKubernetes(zones []string) *Kubernetes {
	return &Kubernetes{
		name:  pluginName,
		Zones: zones,
		options: options{
			source:         source.Options{Endpoints: true},
			pods:           podsDisabled,
			ttl:            defaultTTL,
			startupTimeout: defaultStartupTimeout,
		},
		upstream:   upstream.New(),
		resolvConf: "/etc/resolv.conf",
	}
}

// sourceIdentity is equal for configurations that can share a source.
func (k *Kubernetes) sourceIdentity() string {
	return k.from.Identity() + "|" + k.source.Identity()
}

// nodesWait bounds how long the start waits for Nodes after all else is synced. The server may lack the permission.
const nodesWait = time.Second

// awaitSync waits until all resources are synced, at most for the timeout. From then until they are synced, queries are
// answered from a snapshot, if restore finds one, or with SERVFAIL.
func (k *Kubernetes) awaitSync(timeout time.Duration, restore func() bool) {
	end := time.Now().Add(timeout)
	waiting := time.AfterFunc(500*time.Millisecond, func() {
		log.Infof("waiting up to %s for the first sync of the cluster", timeout)
	})
	defer waiting.Stop()
	switch {
	case !waitFor(timeout, k.hasSynced):
		if restore() {
			return // restore has logged it
		}
		log.Warningf("starting before the first sync of the cluster: names are answered with SERVFAIL until it is complete (%s)", k.unsynced())
	case !waitFor(time.Until(end), k.importsSettled):
		log.Warningf("starting before ServiceImports are synced: their names are answered with SERVFAIL until they are")
	case !waitFor(min(time.Until(end), nodesWait), k.hasNodes):
		log.Warningf("starting before Nodes are synced (list and watch on nodes): until they are, callers may be unknown, and empty topology results return SERVFAIL")
	}
}

// importsSettled reports whether ServiceImports are synced, or will not be for lack of permission.
func (k *Kubernetes) importsSettled() bool {
	return k.hasImports() || slices.ContainsFunc(k.status(), func(s source.Status) bool { return imports(s) && s.Denied })
}

// waitFor polls a condition until it is true, and reports whether it was in time.
func waitFor(timeout time.Duration, condition func() bool) bool {
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for !condition() {
		select {
		case <-poll.C:
		case <-deadline.C:
			return condition()
		}
	}
	return true
}

// unsynced lists the resources that are not synced.
func (k *Kubernetes) unsynced() (text string) {
	text = "not synced:"
	for _, s := range k.status() {
		if !s.Synced {
			text += " " + s.Resource
		}
	}
	return text
}
