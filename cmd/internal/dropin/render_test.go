package dropin

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coredns/caddy/caddyfile"

	"github.com/nearside-dns/nearside/cmd/internal/daemon"
	"github.com/nearside-dns/nearside/cmd/internal/kubednsconfig"
	"github.com/nearside-dns/nearside/cmd/internal/resolvconf"
	"github.com/nearside-dns/nearside/test/kit"
)

var update = flag.Bool("update", false, "write the golden files")

// example returns the values of a node with two resolvers.
func example(t testing.TB, localIPs string) values {
	t.Helper()
	v := values{
		options:    defaults(),
		port:       "53",
		clusterDNS: "10.96.0.11",
		resolvConf: resolvconf.Path,
		fallbacks:  []string{"10.96.0.11"},
		nameservers: func(file string, _ addresses) ([]string, error) {
			if file != resolvconf.Path {
				return nil, fmt.Errorf("open %s: no such file", file)
			}
			return []string{"10.0.0.2", "fd00::2"}, nil
		},
		reads:  func(string) {},
		report: func(message) {},
	}
	v.upstreamSvc = "kube-dns-upstream"
	kit.Must(t, v.localIPs.Set(localIPs))
	return v
}

// TestRenderGolden renders the templates of testdata. The flag -update writes the golden files.
func TestRenderGolden(t *testing.T) {
	stubs := kubednsconfig.Config{StubDomains: map[string][]string{
		"corp.example": {"10.1.2.3", "10.1.2.4:5353"},
		"b.example":    {"fd00::3"},
	}}
	stubsAtClusterDNS := kubednsconfig.Config{StubDomains: map[string][]string{"corp.example": {"10.96.0.11"}}}
	for _, tc := range []struct {
		name, base string
		values     values
		with       func(*values)
	}{
		{"stock", "stock", example(t, "169.254.20.10"), nil},
		{"stock-two-addresses", "stock", example(t, "169.254.20.10,10.96.0.10"), nil},
		{"stock-both-families", "stock", example(t, "169.254.20.10,fd00::10"), nil},
		{"stock-stub-domains", "stock", example(t, "169.254.20.10"), func(v *values) { v.kubeDNS = stubs }},
		{"stock-custom-upstreams", "stock", example(t, "169.254.20.10"), func(v *values) { v.kubeDNS.Upstreams = []string{"10.1.2.3", "10.1.2.4"} }},
		{"custom", "custom", example(t, "169.254.20.10"), nil},
		{"custom-upstreams", "custom", example(t, "169.254.20.10"), func(v *values) { v.kubeDNS.Upstreams = []string{"10.1.2.3"} }},
		{"custom-setup-none", "custom", example(t, "169.254.20.10"), func(v *values) {
			v.interfaceName, v.healthPort, v.interval = "dns0", "8081", seconds(5*time.Second)
			v.setupInterface, v.setupIptables, v.skipTeardown, v.fallbacks = false, false, true, nil
		}},
		{"ready", "ready", example(t, "169.254.20.10,10.96.0.10"), nil},
		{"cluster", "cluster", example(t, ""), nil},
		{"stock-node", "stock", example(t, "169.254.20.10"), func(v *values) { v.node = "node-a" }},
		{"stock-node-zone-stub-domains", "stock", example(t, "169.254.20.10"), func(v *values) { v.node, v.zone, v.kubeDNS = "node-a", "zone-1", stubsAtClusterDNS }},
		{"cluster-node", "cluster", example(t, ""), func(v *values) { v.node = "node-a" }},
		{"custom-node", "custom", example(t, "169.254.20.10"), func(v *values) { v.node = "node-a" }},
		{"caller", "caller", example(t, ""), func(v *values) { v.node, v.zone = "node-a", "zone-1" }},
		{"pods", "pods", example(t, ""), func(v *values) { v.node = "node-a" }},
		{"pods-no-node", "pods", example(t, ""), nil},
		{"clusterset", "clusterset", example(t, ""), func(v *values) {
			v.node, v.clusterset = "node-a", zoneNames{"clusterset.local", "served.local", "mesh.example"}
		}},
		{"stock-clusterset", "stock", example(t, "169.254.20.10,fd00::10"), func(v *values) {
			v.kubeDNS, v.node, v.zone, v.clusterset = stubs, "node-a", "zone-1", zoneNames{"clusterset.local", "mesh.example"}
		}},
		{"cluster-clusterset", "cluster", example(t, ""), func(v *values) { v.clusterset = zoneNames{"clusterset.local"} }},
		{"custom-clusterset", "custom", example(t, "169.254.20.10"), func(v *values) { v.clusterset = zoneNames{"clusterset.local"} }},
		{"stanzas", "stanzas", example(t, ""), nil},
		{"stanzas-addresses", "stanzas", example(t, "169.254.20.10"), func(v *values) { v.setupInterface = false }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			text := kit.Read(t, filepath.Join("testdata/render", tc.base+".base"))
			if tc.with != nil {
				tc.with(&tc.values)
			}
			got, err := tc.values.render(daemon.Corefile{Name: "Corefile.base", Text: []byte(text)})
			kit.Must(t, err)
			golden(t, filepath.Join("testdata/render", tc.name+".golden"), []byte(shown(got)))
			checkLines(t, text, got)
		})
	}
}

func golden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		kit.Must(t, os.WriteFile(path, got, 0o644))
	}
	if want := kit.Read(t, path); string(got) != want {
		t.Errorf("%s has\n%s\ngot\n%s", path, want, got)
	}
}

// checkLines checks that the lines of the file have their numbers, except those with variables.
func checkLines(t *testing.T, template string, got daemon.Corefile) {
	t.Helper()
	from, lines := strings.Split(strings.TrimSuffix(template, "\n"), "\n"), strings.Split(string(got.Text), "\n")
	if got.Lines != 0 && got.Lines != len(from) || len(lines) < len(from) {
		t.Fatalf("%d lines, of which %d are the file's, want %d", len(lines), got.Lines, len(from))
	}
	for i, line := range from {
		if !strings.Contains(line, "__") && !strings.Contains(line, optionTCP) && line != lines[i] {
			t.Errorf("line %d is %q, want %q", i+1, lines[i], line)
		}
	}
}

// TestRenderErrors has errors of one line, with the place in the file if they have one.
func TestRenderErrors(t *testing.T) {
	for _, tc := range []struct {
		name   string
		text   string
		values values
		with   func(*values)
		want   string
	}{
		{"variable of the installer", "a:53 {\n  log\n}\n__PILLAR__DNS__DOMAIN__ {\n}\n", example(t, ""), nil, "f:4 - __PILLAR__DNS__DOMAIN__ is not a variable of nodecache"},
		{"variable unknown", ". {\n  forward . __PILLAR__NOTHING__\n}\n", example(t, ""), nil, "f:2 - __PILLAR__NOTHING__ is not a variable of nodecache"},
		{"address of cluster DNS", ". {\n  errors\n  forward . __PILLAR__CLUSTER__DNS__\n}\n", example(t, ""), func(v *values) { v.clusterDNS = "" }, `f:3 - __PILLAR__CLUSTER__DNS__ is the address of cluster DNS, which the variable KUBE_DNS_UPSTREAM_SERVICE_HOST of the environment has if there is a Service "kube-dns-upstream"`},
		{"cluster DNS here", ". {\n  forward . __PILLAR__CLUSTER__DNS__\n}\n", example(t, "10.96.0.11"), nil, `f:2 - __PILLAR__CLUSTER__DNS__ would be 10.96.0.11, the address of Service "kube-dns-upstream", on which nodecache answers itself`},
		{"cluster DNS bound here", ". {\n  bind 10.96.0.11\n  forward . __PILLAR__CLUSTER__DNS__\n}\n", example(t, ""), nil, `f:3 - __PILLAR__CLUSTER__DNS__ would be 10.96.0.11`},
		{"cluster DNS of the directive", ". {\n  nodelocal 10.96.0.11\n  forward . __PILLAR__CLUSTER__DNS__\n}\n", example(t, ""), nil, `f:3 - __PILLAR__CLUSTER__DNS__ would be 10.96.0.11`},
		{"no address", ". {\n  bind __PILLAR__LOCAL__DNS__\n}\n", example(t, ""), nil, "f:2 - __PILLAR__LOCAL__DNS__ is the value of -localip"},
		{"no endpoint", ". {\n  prometheus __PROMETHEUS__ENDPOINT__\n}\n", example(t, ""), func(v *values) { v.prometheus = "" }, "f:2 - __PROMETHEUS__ENDPOINT__ is the value of -prometheus-listen-address"},
		{"brace missing", ". {\n  log\n", example(t, ""), nil, "f:2 - Syntax error: Unexpected token 'log', expecting '}'"},
		{"directive and flag", ". {\n  log\n  nodelocal 169.254.20.10\n}\n", example(t, "169.254.20.10"), nil, "f:3 - the nodelocal directive and the flag -localip"},
		{"address that nothing is bound to", ". {\n  bind 169.254.20.10\n}\n", example(t, "169.254.20.10,10.96.0.10"), nil, "f: no server block on port 53 is bound to 10.96.0.10 of -localip"},
		{"address that only an open block has", "a {\n  bind 169.254.20.10\n}\n. {\n  log\n}\n", example(t, "169.254.20.10,10.96.0.10"), nil, "f: block . has no bind and others have, none of them 10.96.0.10"},
		{"bound to everything and not bound", "a {\n  bind 0.0.0.0\n}\n. {\n}\n", example(t, "169.254.20.10"), nil, "f: block . has no bind and another has bind 0.0.0.0"},
		{"link-local IPv6 address", ". {\n  bind fe80::53\n}\n", example(t, "fe80::53"), nil, "f: CoreDNS can't bind to fe80::53 of -localip, a link-local IPv6 address: leave bind out"},
		{"no block on the port", ".:5353 {\n  log\n}\n", example(t, "169.254.20.10"), nil, "f has no server block on port 53"},
		{"closing brace first", "}\n.:53 {\n    forward . 192.0.2.1\n}\n", example(t, ""), nil, "f:1 - Error during parsing: unexpected '}'"},
		{"one closing brace too many", ".:53 {\n    forward . 192.0.2.1\n}\n}\n", example(t, ""), nil, "f:4 - Error during parsing: unexpected '}'"},
		{"no braces", ".:53\nlog\n", example(t, "169.254.20.10"), nil, "f:1 - a server block without braces"},
		{"resolv.conf", ". {\n  forward . /none\n}\n", example(t, ""), nil, "f:2 - open /none: no such file"},
		{"stub domain served", "corp.example {\n  log\n}\n", example(t, ""), func(v *values) {
			v.kubeDNS.StubDomains = map[string][]string{"corp.example": {"10.1.2.3"}}
		}, "stub domain corp.example is a zone of f:2 already"},
		{"stub domain of the clusterset", "cluster.local {\n  forward . 10.96.0.11\n}\n", example(t, ""), func(v *values) {
			v.clusterset = zoneNames{"mesh.example", "clusterset.local"}
			v.kubeDNS.StubDomains = map[string][]string{"clusterset.local": {"10.1.2.3"}}
		}, "stub domain clusterset.local is a zone of -clusterset-zone already"},
		{"clusterset, no address", ". {\n}\n", example(t, ""), func(v *values) { v.clusterDNS, v.clusterset = "", zoneNames{"clusterset.local"} }, `-clusterset-zone clusterset.local: __PILLAR__CLUSTER__DNS__ is the address of cluster DNS, which the variable KUBE_DNS_UPSTREAM_SERVICE_HOST`},
		{"clusterset, cluster DNS here", ". {\n}\n", example(t, "10.96.0.11"), func(v *values) { v.clusterset = zoneNames{"clusterset.local"} }, "-clusterset-zone clusterset.local: __PILLAR__CLUSTER__DNS__ would be 10.96.0.11"},
		{"clusterset, nothing forwards", ". {\n  forward cluster.local 10.96.0.11\n  forward . 192.0.2.1\n}\n", example(t, ""), func(v *values) { v.clusterset = zoneNames{"clusterset.local", "mesh.example"} }, "f: no server block on port 53 forwards a zone of the cluster to cluster DNS, 10.96.0.11, alone, so -clusterset-zone has no model for clusterset.local,mesh.example: write such a block, or one for each of these zones"},
		{"clusterset, addresses only", "10.in-addr.arpa . {\n  forward . 10.96.0.11\n}\n", example(t, ""), func(v *values) { v.clusterset = zoneNames{"clusterset.local"} }, "f: no server block on port 53 forwards a zone of the cluster"},
		{"clusterset, another server as well", "cluster.local {\n  forward . 10.96.0.11 192.0.2.1\n}\n", example(t, ""), func(v *values) { v.clusterset = zoneNames{"clusterset.local"} }, "f: no server block on port 53 forwards a zone of the cluster"},
		{"clusterset, another server first", "cluster.local {\n  forward . 192.0.2.1\n  forward . 10.96.0.11\n}\n", example(t, ""), func(v *values) { v.clusterset = zoneNames{"clusterset.local"} }, "f: no server block on port 53 forwards a zone of the cluster"},
		{"clusterset, without a server", "cluster.local {\n  forward .\n  {\n  }\n}\n", example(t, ""), func(v *values) { v.node, v.clusterset = "node-a", zoneNames{"clusterset.local"} }, "f: no server block on port 53 forwards a zone of the cluster"},
		{"clusterset, a part of the zone", "cluster.local {\n  forward a.cluster.local 10.96.0.11\n}\n", example(t, ""), func(v *values) { v.clusterset = zoneNames{"clusterset.local"} }, "f: no server block on port 53 forwards a zone of the cluster"},
		{"clusterset, another port", "cluster.local:5353 {\n  forward . 10.96.0.11\n}\n", example(t, ""), func(v *values) { v.clusterset = zoneNames{"clusterset.local"} }, "f: no server block on port 53 forwards a zone of the cluster"},
		{"clusterset, over TLS", "tls://cluster.local:53 {\n  forward . 10.96.0.11\n}\n", example(t, ""), func(v *values) { v.clusterset = zoneNames{"clusterset.local"} }, "f: no server block on port 53 forwards a zone of the cluster"},
		{"clusterset, no braces", "cluster.local\nforward . 10.96.0.11\n", example(t, ""), func(v *values) { v.clusterset = zoneNames{"clusterset.local"} }, "f:1 - a server block without braces"},
		{"stub domain of this program", ". {\n}\n", example(t, "169.254.20.10"), func(v *values) {
			v.kubeDNS.StubDomains = map[string][]string{"nodelocal.nearside.invalid": {"10.1.2.3"}}
		}, "stub domain nodelocal.nearside.invalid is the name of a block that nodecache adds"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.with != nil {
				tc.with(&tc.values)
			}
			_, err := tc.values.render(daemon.Corefile{Name: "f", Text: []byte(tc.text)})
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "<nil>") {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

// TestBind has the addresses to which added blocks are bound, and the name of the interface after bind.
func TestBind(t *testing.T) {
	for _, tc := range []struct {
		name, text, localIPs string
		with                 func(*values)
		want                 string // in the text
	}{
		{"addresses", "a {\n  bind 169.254.20.10\n}\n", "169.254.20.10", nil, ".invalid.:53 {\n    bind 169.254.20.10\n"},
		{"nothing", "a {\n}\n", "169.254.20.10", nil, ".invalid.:53 {\n    nodelocal"},
		{"all of IPv4", "a {\n  bind 0.0.0.0\n}\n", "169.254.20.10,fd00::10", nil, ".invalid.:53 {\n    bind 0.0.0.0\n"},
		{"all of IPv6", "a {\n  bind ::\n}\n", "169.254.20.10", nil, ".invalid.:53 {\n    bind ::\n"},
		{"one and all", "a {\n  bind 169.254.20.10\n}\nb {\n  bind ::\n}\n", "169.254.20.10,fd00::10", nil, ".invalid.:53 {\n    bind 169.254.20.10 ::\n"},
		{"interface", "a {\n  bind nodelocaldns # here\n}\n", "169.254.20.10,fd00::10", nil, "  bind 169.254.20.10 fd00::10 # here\n"},
		{"interface and the block", "a {\n  bind nodelocaldns\n}\n", "169.254.20.10,fd00::10", nil, ".invalid.:53 {\n    bind 169.254.20.10 fd00::10\n"},
		{"interface in quotes", "a {\n  bind \"nodelocaldns\"\n}\n", "169.254.20.10", nil, "a {\n  bind 169.254.20.10\n}"},
		{"interface in a snippet", "(s) {\n  bind nodelocaldns\n}\na {\n  import s\n}\nb {\n  import s\n}\n", "169.254.20.10", nil, "(s) {\n  bind 169.254.20.10\n}"},
		{"interface of another", "a {\n  bind nodelocaldns\n}\n", "169.254.20.10", func(v *values) { v.setupInterface = false }, "a {\n  bind nodelocaldns\n}"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := example(t, tc.localIPs)
			if tc.with != nil {
				tc.with(&v)
			}
			got, err := v.render(daemon.Corefile{Name: "f", Text: []byte(tc.text)})
			if err != nil || !strings.Contains(string(got.Text), tc.want) {
				t.Errorf("error %v, %q is not in\n%s", err, tc.want, got.Text)
			}
		})
	}
}

// TestVariables has the variables in the forms of node-local-dns's manuals, and those of its proposals.
func TestVariables(t *testing.T) {
	for _, tc := range []struct{ name, text, localIPs, want string }{
		{"address and port", "health __PILLAR__LOCAL__DNS__:8080", "169.254.20.10,10.96.0.10", "health 169.254.20.10:8080"},
		{"address and port, IPv6", "health __PILLAR__LOCAL__DNS__:8080", "fd00::10,fd00::a", "health [fd00::10]:8080"},
		{"address in brackets and port", "health [__PILLAR__LOCAL__DNS__]:8080", "fd00::10,fd00::a", "health [fd00::10]:8080"},
		{"address in brackets and port, IPv4 first", "health [__PILLAR__LOCAL__DNS__]:8080", "169.254.20.10,fd00::10", "health 169.254.20.10:8080"},
		{"both families", "bind __PILLAR__LOCAL__DNS__ __PILLAR__DNS__SERVER__", "169.254.20.10,fd00::10", "bind 169.254.20.10 fd00::10 \n"},
		{"prometheus", "prometheus __PROMETHEUS__ENDPOINT__", "169.254.20.10", "prometheus :9253"},
		{"prometheus, as proposed", "prometheus __PILLAR__PROMETHEUS__ENDPOINT__", "169.254.20.10", "prometheus :9253"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := example(t, tc.localIPs).render(daemon.Corefile{Name: "f", Text: []byte(". {\n    " + tc.text + "\n}\n")})
			if err != nil || !strings.Contains(string(got.Text), "    "+tc.want) {
				t.Errorf("error %v, %q is not in\n%s", err, tc.want, got.Text)
			}
		})
	}
}

// TestRenderUnchanged has Corefiles without anything to replace.
func TestRenderUnchanged(t *testing.T) {
	for name, text := range map[string]string{
		"plain":            ". {\n    forward . 192.0.2.1 192.0.2.2:5353\n    cache\n}\n",
		"no braces":        ".:53\nforward . 192.0.2.1\n",
		"no last newline":  ". {\n    log\n}",
		"windows newlines": ". {\r\n    log\r\n}\r\n",
		"comment":          "# __PILLAR__CLUSTER__DNS__x __PILLAR__WHATEVER__\n. {\n}\n",
		"directive":        ". {\n    nodelocal 169.254.20.10 {\n        setup none\n    }\n}\n",
		"names":            ". {\n    forward . dns.example tls://192.0.2.1\n}\n",
		"fallback":         ". {\n    nodelocal 169.254.20.10 {\n        fallback 10.96.0.11\n    }\n    forward . 10.96.0.11\n}\n",
	} {
		t.Run(name, func(t *testing.T) {
			v := example(t, "")
			v.clusterDNS = ""
			got, err := v.render(daemon.Corefile{Name: "f", Text: []byte(text)})
			if err != nil || string(got.Text) != text {
				t.Errorf("%q became %q, error %v", text, got.Text, err)
			}
		})
	}
}

// FuzzRender renders any text: it is invalid, or the result parses.
func FuzzRender(f *testing.F) {
	for _, name := range []string{"stock", "custom", "stanzas", "caller"} {
		text := kit.Read(f, filepath.Join("testdata/render", name+".base"))
		f.Add(text, "169.254.20.10", true)
		f.Add(text, "", false)
	}
	f.Add(". {\n forward . /etc/resolv.conf {\n force_tcp }\n}", "fd00::1", true)
	f.Add("a b, {\n forward \"x\ny\" /etc/resolv.conf\n}", "", true)
	f.Fuzz(func(t *testing.T, text, localIPs string, stubs bool) {
		if strings.Contains(text, "import") || strings.Contains(text, "{$") || strings.Contains(text, "{%") {
			t.Skip("files and the environment of this machine")
		}
		var local addresses
		if local.Set(localIPs) != nil {
			t.Skip("not addresses")
		}
		v := example(t, "")
		v.localIPs = local
		if stubs {
			v.kubeDNS = kubednsconfig.Config{StubDomains: map[string][]string{"corp.example": {"10.1.2.3"}}, Upstreams: []string{"10.1.2.3"}}
			v.node, v.zone = "node-a", "zone-1"
		}
		got, err := v.render(daemon.Corefile{Name: "f", Text: []byte(text)})
		if err != nil {
			return
		}
		if _, err := caddyfile.Parse("f", bytes.NewReader(got.Text), nil); err != nil {
			t.Errorf("%q became %q, which does not parse: %v", text, got.Text, err)
		}
		if lines := bytes.Count(got.Text, []byte("\n")) + 1; got.Lines > lines {
			t.Errorf("%d lines, of which %d are the file's", lines, got.Lines)
		}
	})
}
