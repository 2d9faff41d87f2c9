package external

import (
	"errors"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"

	"github.com/nearside-dns/nearside/plugin/internal/exposed"
)

// fakeKubernetes is a plugin of that name which has exposed Services.
type fakeKubernetes struct {
	plugin.Handler
	services exposed.Services
	err      error
}

func (fakeKubernetes) Name() string { return "kubernetes" }

func (k fakeKubernetes) Exposed() (exposed.Services, error) { return k.services, k.err }

// stockKubernetes is a plugin of that name without them.
type stockKubernetes struct{ plugin.Handler }

func (stockKubernetes) Name() string { return "kubernetes" }

var (
	nextKubernetes func(plugin.Handler) plugin.Handler // of the next start
	started        *External                           // by the last start
)

func init() {
	dnsserver.Directives = append(dnsserver.Directives, "kubernetes")
	plugin.Register("kubernetes", func(c *caddy.Controller) error {
		config := dnsserver.GetConfig(c)
		config.AddPlugin(nextKubernetes)
		c.OnStartup(func() error { started, _ = config.Handler(pluginName).(*External); return nil })
		return nil
	})
}

// TestStart starts a server with the plugin.
func TestStart(t *testing.T) {
	services := newCluster()
	adding := func(k plugin.Handler) func(plugin.Handler) plugin.Handler {
		return func(plugin.Handler) plugin.Handler { return k }
	}
	for _, tc := range []struct {
		name, corefile string
		kubernetes     plugin.Handler
		err            string // a part of the error
	}{
		{name: "kubernetes", corefile: ".:0 {\nk8s_external example.org\nkubernetes\n}", kubernetes: fakeKubernetes{services: services}},
		{name: "no kubernetes", corefile: ".:0 {\nk8s_external example.org\n}", err: "plugin/k8s_external: no kubernetes in this server block: want one, which has the Services"},
		{name: "kubernetes in another block", corefile: ".:0 {\nk8s_external example.org\n}\nexample.net:0 {\nkubernetes\n}",
			kubernetes: fakeKubernetes{services: services}, err: "no kubernetes in this server block"},
		{name: "another kubernetes", corefile: ".:0 {\nk8s_external example.org\nkubernetes\n}", kubernetes: stockKubernetes{}, err: "the kubernetes of this server block is external.stockKubernetes: want that of nearside"},
		{name: "kubernetes without Services", corefile: ".:0 {\nk8s_external example.org\nkubernetes\n}", kubernetes: fakeKubernetes{err: errors.New("no Services")}, err: "plugin/k8s_external: no Services"},
		{name: "an invalid block", corefile: ".:0 {\nk8s_external example.org {\nttl x\n}\nkubernetes\n}", kubernetes: fakeKubernetes{services: services}, err: `plugin/k8s_external: Corefile:3 - Error during parsing: invalid ttl "x"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			nextKubernetes, started = adding(tc.kubernetes), nil
			instance, err := caddy.Start(caddy.CaddyfileInput{Filepath: "Corefile", Contents: []byte(tc.corefile), ServerTypeName: "dns"})
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("error %v, want one with %q", err, tc.err)
				}
				return
			}
			kit.Must(t, err)
			defer func() {
				instance.ShutdownCallbacks()
				if err := instance.Stop(); err != nil {
					t.Error(err)
				}
			}()
			if started == nil || started.services != exposed.Services(services) || started.space == nil || started.upstream == nil {
				t.Errorf("handler %+v", started)
			}
		})
	}
}
