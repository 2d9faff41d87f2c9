package external

import (
	"fmt"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/upstream"

	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/corefile"
	"github.com/nearside-dns/nearside/plugin/internal/exposed"
)

const pluginName = "k8s_external"

// Exposer is a plugin that has the exposed Services of a cluster.
type Exposer interface {
	Exposed() (exposed.Services, error)
}

func init() { corefile.Register(pluginName, setup) }

func setup(c *caddy.Controller) error {
	e, err := parse(c)
	if err != nil {
		return plugin.Error(pluginName, err)
	}
	e.upstream = upstream.New()
	b := block.Of(c)
	e.space = b.Keyspace
	config := dnsserver.GetConfig(c)
	c.OnStartup(func() error {
		if e.services, err = servicesOf(config.Handler("kubernetes")); err != nil {
			return plugin.Error(pluginName, err)
		}
		eligibility := b.Eligibility()
		e.late, e.signed = eligibility.Late, eligibility.Signed
		return nil
	})
	config.AddPlugin(func(next plugin.Handler) plugin.Handler {
		e.Next = next
		return e
	})
	return nil
}

// servicesOf returns the Services of the plugin kubernetes of the server block, nil if there is none.
func servicesOf(h plugin.Handler) (exposed.Services, error) {
	if h == nil {
		return nil, fmt.Errorf("no kubernetes in this server block: want one, which has the Services")
	}
	x, ok := h.(Exposer)
	if !ok {
		return nil, fmt.Errorf("the kubernetes of this server block is %T: want that of nearside", h)
	}
	return x.Exposed()
}
