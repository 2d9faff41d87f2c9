package kubernetes

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"

	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/test/kit"
)

// notInACluster unsets the environment variables with the address of the API server.
func notInACluster(t *testing.T) {
	t.Helper()
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	t.Setenv("KUBERNETES_SERVICE_PORT", "")
}

func TestSetup_NotInACluster(t *testing.T) {
	notInACluster(t)
	const want = "plugin/kubernetes: Testfile:1 - Error during parsing: no API server to read: not in a cluster (KUBERNETES_SERVICE_HOST is not set) and none of endpoint, kubeconfig and manifests is given"
	if err := setup(caddy.NewTestController("dns", "kubernetes cluster.local")); err == nil || err.Error() != want {
		t.Errorf("error is\n\t%v\nwant\n\t%s", err, want)
	}
}

// Errors have the file, the line and the option.
func TestSetup_Rejected(t *testing.T) {
	notInACluster(t)
	noPEM := kit.File(t, "cert", "this is no PEM")
	for _, c := range []struct{ name, block, option string }{
		{"unknown option", "nonsense", `unknown option "nonsense"`},
		{"endpoint of colons", "endpoint ::::", "invalid endpoint"},
		{"endpoint with half an IPv6 address", "endpoint http://[::1", "invalid endpoint"},
		{"endpoint that is no HTTP", "endpoint ftp://10.0.0.1", "invalid endpoint"},
		{"endpoint that is empty", `endpoint ""`, "invalid endpoint"},
		{"tls files without PEM", "endpoint https://127.0.0.1:1\ntls " + noPEM + " " + noPEM + " " + noPEM, "invalid tls"},
		{"manifests that are missing", "manifests /none", "manifests"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := setup(caddy.NewTestController("dns", "kubernetes cluster.local {\n"+c.block+"\n}"))
			if err == nil || !strings.HasPrefix(err.Error(), "plugin/kubernetes: Testfile:") || !strings.Contains(err.Error(), ": "+c.option) {
				t.Errorf("the error does not name the file, the line and %s: %v", c.option, err)
			}
		})
	}
}

func TestSetup_Endpoint(t *testing.T) {
	for _, block := range []string{"endpoint http://127.0.0.1:1", "endpoint https://[::1]:6443 http://b"} {
		controller := caddy.NewTestController("dns", "kubernetes cluster.local {\n"+block+"\n}")
		if err := setup(controller); err != nil {
			t.Errorf("%s: %v", block, err)
			continue
		}
		plugins := dnsserver.GetConfig(controller).Plugin
		if len(plugins) != 1 {
			t.Fatalf("%d plugins", len(plugins))
		}
		next := plugin.HandlerFunc(nil)
		if k, ok := plugins[0](next).(*Kubernetes); !ok || k.Next == nil {
			t.Errorf("%s: the handler is not in the chain", block)
		}
	}
}

// Answers are stored in the keyspace of the server block.
func TestSetup_Space(t *testing.T) {
	controller := caddy.NewTestController("dns", "kubernetes cluster.local {\nendpoint http://127.0.0.1:1\n}")
	kit.Must(t, setup(controller))
	k, ok := dnsserver.GetConfig(controller).Plugin[0](nil).(*Kubernetes)
	if !ok || k.space == nil || k.space != block.Of(controller).Keyspace {
		t.Errorf("the handler is %+v, want one with the space of the block", k)
	}
}

// run starts a server with a random port.
func run(t *testing.T, corefile string) (*caddy.Instance, error) {
	t.Helper()
	caddy.Quiet = true
	dnsserver.Quiet = true
	return caddy.Start(caddy.CaddyfileInput{Filepath: "Corefile", Contents: []byte(corefile), ServerTypeName: "dns"})
}

func TestStartupTimeout(t *testing.T) {
	for _, c := range []struct {
		timeout          string
		minimum, maximum time.Duration
	}{{"0s", 0, 400 * time.Millisecond}, {"600ms", 600 * time.Millisecond, 2 * time.Second}} {
		t.Run(c.timeout, func(t *testing.T) {
			begin := time.Now()
			inst, err := run(t, ".:0 {\nkubernetes cluster.local {\nendpoint http://127.0.0.1:1\nstartup_timeout "+c.timeout+"\n}\n}")
			kit.Must(t, err)
			if took := time.Since(begin); took < c.minimum || took > c.maximum {
				t.Errorf("the start took %s, want %s to %s", took, c.minimum, c.maximum)
			}
			if errs := inst.ShutdownCallbacks(); len(errs) > 0 {
				t.Error(errs)
			}
			if err := inst.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Manifests are read before the start, which does not wait.
func TestStart_Manifests(t *testing.T) {
	dir := t.TempDir()
	kit.Write(t, dir+"/ns.yaml", "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n")
	begin := time.Now()
	inst, err := run(t, ".:0 {\nkubernetes cluster.local {\nmanifests "+dir+"\n}\n}")
	kit.Must(t, err)
	if took := time.Since(begin); took > 2*time.Second {
		t.Errorf("the start took %s", took)
	}
	if errs := inst.ShutdownCallbacks(); len(errs) > 0 {
		t.Error(errs)
	}
	if err := inst.Stop(); err != nil {
		t.Error(err)
	}
}

// errStart is the error of a plugin that fails to start.
var errStart = errors.New("another plugin fails to start")

// registerFailing registers that plugin, once in the process, with a name in the tests' list of directives.
var registerFailing = sync.OnceFunc(func() {
	plugin.Register("chaos", func(c *caddy.Controller) error {
		c.OnStartup(func() error { return errStart })
		return nil
	})
})

// A signal during the start also stops server blocks that have not started: while another one waits for its first
// sync, or after another plugin's start failed.
func TestShutdownBeforeStart(t *testing.T) {
	registerFailing()
	inst, err := run(t, ".:0 {\nchaos\nkubernetes cluster.local {\nendpoint http://127.0.0.1:1\n}\n}")
	if !errors.Is(err, errStart) || inst == nil {
		t.Fatalf("error is %v, want %v", err, errStart)
	}
	defer func() {
		if p := recover(); p != nil {
			t.Errorf("shutdown before the start panics: %v", p)
		}
	}()
	if errs := inst.ShutdownCallbacks(); len(errs) > 0 {
		t.Error(errs)
	}
}

func TestSourceIdentity(t *testing.T) {
	config := kit.File(t, "kubeconfig", kubeconfig)
	identity := func(block string) string {
		k := parsed(t, kubernetesDirective, "kubernetes cluster.local {\n"+block+"\n}")
		return k.sourceIdentity()
	}
	// Each configuration reads other data, or from another source.
	seen := map[string]string{}
	for _, block := range []string{"", "endpoint http://a", "endpoint http://b", "kubeconfig " + config, "kubeconfig " + config + " there", "manifests a", "manifests b",
		"apiserver_qps 1", "apiserver_burst 1", "apiserver_max_inflight 1", "pods verified", "noendpoints", "endpoint_pod_names", "zonal",
		"labels a=b", "namespace_labels a=b", "labels a=b\nnamespace_labels a=b", "labels a=c"} {
		id := identity(block)
		if other, ok := seen[id]; ok {
			t.Errorf("%q and %q have the same source", block, other)
		}
		seen[id] = block
	}
	for _, block := range []string{"ttl 30", "pods insecure", "namespaces a", "ignore empty_service", "fallthrough", "startup_timeout 1s", "coherent"} {
		if seen[identity(block)] != "" {
			t.Errorf("%q is not read from the same source as without it", block)
		}
	}
}
