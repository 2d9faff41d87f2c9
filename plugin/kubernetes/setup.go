package kubernetes

import (
	"fmt"
	"slices"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	clog "github.com/coredns/coredns/plugin/pkg/log"
	"github.com/coredns/coredns/plugin/pkg/upstream"

	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source/apiserver"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source/manifests"
)

const pluginName = "kubernetes"

var log = clog.NewWithPlugin(pluginName)

func init() { plugin.Register(pluginName, setup) }

func setup(c *caddy.Controller) error { return kubernetesDirective.setup(c) }

// SetupMulticluster is the setup function of the directive multicluster, which is a kubernetes block with zones of a
// clusterset alone.
func SetupMulticluster(c *caddy.Controller) error { return multiclusterDirective.setup(c) }

func (d directive) setup(c *caddy.Controller) error {
	apiserver.RedirectKlog()
	k, err := d.parse(c)
	if err != nil {
		return plugin.Error(d.name, err)
	}
	src, err := k.newSource()
	if err != nil {
		return plugin.Error(d.name, k.sourceAt.Errorf("%v", err))
	}
	b := block.Of(c)
	k.space, k.serves = b.Keyspace, b.Serves
	new(source.Use).Follow(c, k.sourceIdentity, src, func(lease *source.Lease) {
		k.localIPs = boundIPs(c)
		k.warnShadowed(dnsserver.GetConfig(c).Handler(pluginName))
		k.shared = block.IsShared(dnsserver.GetConfig(c), d.besides()...)
		k.attach(lease.Index(), lease.Status)
		k.awaitSync(k.startupTimeout)
	})
	dnsserver.GetConfig(c).AddPlugin(func(next plugin.Handler) plugin.Handler {
		k.Next = next
		return k
	})
	return nil
}

// warnShadowed warns of zones that a kubernetes block of the same server block has for names of the cluster: it answers
// them.
func (k *Kubernetes) warnShadowed(by plugin.Handler) {
	first, ok := by.(*Kubernetes)
	if !ok || first == k {
		return
	}
	for _, zone := range k.Zones {
		if slices.Contains(first.Zones, zone) && !first.isClusterset(zone) {
			log.Warningf("%s is a zone of %s and of %s in one server block: it has the names of the cluster, and not of the clusterset", zone, first.name, k.name)
		}
	}
}

// besides returns the plugins that don't answer names of the directive's zones. Its own come before those of
// multicluster.
func (d directive) besides() []string {
	if d.name == multiclusterDirective.name {
		return []string{d.name, "transfer"}
	}
	return []string{d.name, multiclusterDirective.name, "transfer"}
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

// newSource checks what the configured source needs, and returns it. A directory of manifests is read
// here, so that a broken file is an error of the configuration.
func (k *Kubernetes) newSource() (source.Source, error) {
	skipped := new(source.Skipped)
	if k.manifests != "" {
		s, err := manifests.New(k.manifests, k.source, skipped)
		if err != nil {
			return nil, fmt.Errorf("manifests: %w", err)
		}
		return s, nil
	}
	s, err := apiserver.New(k.connection, k.source, skipped)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// sourceIdentity is equal for configurations that one source serves.
func (k *Kubernetes) sourceIdentity() string {
	selectors := ""
	for _, s := range []fmt.Stringer{k.source.Labels, k.source.NamespaceLabels} {
		if s != nil {
			selectors += s.String()
		}
		selectors += "|"
	}
	o := k.source
	o.Labels, o.NamespaceLabels = nil, nil
	return fmt.Sprintf("%s|%s|%s|%+v", k.manifests, k.connection.Identity(), selectors, o)
}

// nodesWait is how long the start waits for Nodes when all else has been read. The server may not be allowed to
// read them.
const nodesWait = time.Second

// awaitSync waits until everything has been read, but not for longer than the timeout: the server
// answers SERVFAIL then, until it has.
func (k *Kubernetes) awaitSync(timeout time.Duration) {
	end := time.Now().Add(timeout)
	said := time.AfterFunc(500*time.Millisecond, func() {
		log.Infof("waiting up to %s for the first reading of the cluster", timeout)
	})
	defer said.Stop()
	switch {
	case !soon(timeout, k.hasSynced):
		log.Warningf("starting before the first reading of the cluster: names are answered with SERVFAIL until it is done (%s)", k.unsynced())
	case !soon(time.Until(end), k.importsSettled):
		log.Warningf("starting before ServiceImports have been read: their names are answered with SERVFAIL until it is done")
	case !soon(min(time.Until(end), nodesWait), k.hasNodes):
		log.Warningf("starting before Nodes have been read (list and watch on nodes): until then callers are known by little, and where nothing is left to see the answer is SERVFAIL")
	}
}

// importsSettled reports whether ServiceImports have been read, or will not be: the server may not be allowed to.
func (k *Kubernetes) importsSettled() bool {
	return k.hasImports() || slices.ContainsFunc(k.status(), func(s source.Status) bool { return imports(s) && s.Denied })
}

// soon waits until something is so, and reports whether it came in time.
func soon(within time.Duration, so func() bool) bool {
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for !so() {
		select {
		case <-look.C:
		case <-deadline.C:
			return so()
		}
	}
	return true
}

// unsynced names the resources that have not been read yet.
func (k *Kubernetes) unsynced() (text string) {
	text = "not read yet:"
	for _, s := range k.status() {
		if !s.Synced {
			text += " " + s.Resource
		}
	}
	return text
}
