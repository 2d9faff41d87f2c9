package kubernetes

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	clog "github.com/coredns/coredns/plugin/pkg/log"
	"github.com/coredns/coredns/plugin/pkg/upstream"

	"github.com/nearside-dns/nearside/plugin/fastpath"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source/apiserver"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source/manifests"
)

const pluginName = "kubernetes"

var log = clog.NewWithPlugin(pluginName)

func init() { plugin.Register(pluginName, setup) }

func setup(c *caddy.Controller) error {
	redirectKlog()
	k, err := parse(c)
	if err != nil {
		return plugin.Error(pluginName, err)
	}
	src, err := k.newSource()
	if err != nil {
		return plugin.Error(pluginName, k.sourceAt.errorf("%v", err))
	}
	k.space = fastpath.BlockOf(c).Space
	use := &use{}
	c.OnStartup(func() error {
		k.localIPs = boundIPs(c)
		lease := source.Acquire(k.sourceIdentity(), src)
		use.lease.Store(lease)
		k.attach(lease.Index(), lease.Status)
		k.awaitSync(k.startupTimeout)
		return nil
	})
	c.OnRestart(use.reloadBegins)
	c.OnRestartFailed(use.reloadFailed)
	c.OnShutdown(use.shutdown)
	c.OnFinalShutdown(use.end)
	dnsserver.GetConfig(c).AddPlugin(func(next plugin.Handler) plugin.Handler {
		k.Next = next
		return k
	})
	return nil
}

// use is the use of a source from the start of a configuration to its end. At the end of a reload
// that is its shutdown; at the end of the process it is the final shutdown, after the lameduck time of
// the health plugin, in which answers are to be right as well.
type use struct {
	lease     atomic.Pointer[source.Lease] // a signal may end the server while it starts
	reloading atomic.Bool
}

func (u *use) reloadBegins() error {
	u.reloading.Store(true)
	source.ReloadBegins()
	return nil
}

func (u *use) reloadFailed() error {
	u.reloading.Store(false)
	source.ReloadFailed()
	return nil
}

func (u *use) shutdown() error {
	if u.reloading.Load() {
		return u.end()
	}
	return nil
}

func (u *use) end() error {
	if lease := u.lease.Load(); lease != nil {
		lease.Release()
	}
	return nil
}

// newKubernetes returns a handler with every option at its default.
func newKubernetes(zones []string) *Kubernetes {
	return &Kubernetes{
		Zones: zones,
		options: options{
			source:         source.Options{Endpoints: true},
			pods:           podsDisabled,
			ttl:            defaultTTL,
			startupTimeout: defaultStartupTimeout,
		},
		upstream: upstream.New(),
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

// awaitSync waits until everything has been read, but not for longer than the timeout: the server
// answers SERVFAIL then, until it has.
func (k *Kubernetes) awaitSync(timeout time.Duration) {
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	said := time.NewTimer(500 * time.Millisecond)
	defer said.Stop()
	for !k.hasSynced() {
		select {
		case <-look.C:
		case <-said.C:
			log.Infof("waiting up to %s for the first reading of the cluster", timeout)
		case <-deadline.C:
			log.Warningf("starting before the first reading of the cluster: names are answered with SERVFAIL until it is done (%s)", k.unsynced())
			return
		}
	}
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
