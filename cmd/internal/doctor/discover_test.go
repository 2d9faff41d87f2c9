//go:build linux

package doctor

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/cmd/internal/doctor/proc"
	"github.com/nearside-dns/nearside/test/kit"
)

// tree writes files and links below a temporary folder and returns it. A value that begins with
// "-> " is the target of a link.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		kit.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		write := func() error { return os.WriteFile(path, []byte(text), 0o644) }
		if target, ok := strings.CutPrefix(text, "-> "); ok {
			write = func() error { return os.Symlink(target, path) }
		}
		kit.Must(t, write())
	}
	return root
}

// open returns a proc file system with these files.
func open(t *testing.T, files map[string]string) proc.FS {
	t.Helper()
	fs, err := proc.Open(tree(t, files))
	kit.Must(t, err)
	return fs
}

// text is the setup for comparison.
func (s setup) text() string {
	return fmt.Sprintf("addresses %v interface %s resolvers %s cluster %v upstreams %v health %v zone %s noInterface %t noRules %t",
		s.addresses, s.iface, s.resolvConf, s.clusterDNS, s.upstreams, s.health, s.zone, s.noIface, s.noRules)
}

const stockCorefile = `cluster.local:53 {
    errors
    cache {
        success 9984 30
        denial 9984 5
    }
    reload
    loop
    bind 169.254.20.10 10.96.0.10
    forward . 10.96.5.5 {
        force_tcp
    }
    prometheus :9253
    health 169.254.20.10:8080
}
in-addr.arpa:53 {
    bind 169.254.20.10 10.96.0.10
    forward . 10.96.5.5 {
        force_tcp
    }
}
example.com:53 {
    bind 169.254.20.10 10.96.0.10
    forward . 192.0.2.7:5353
}
.:53 {
    bind 169.254.20.10 10.96.0.10
    forward . /etc/other.conf
}
`

const ownCorefile = `.:53 {
    nodelocal 169.254.20.10 fd00::a {
        interface dns0
        setup rules
        health 8181
        fallback 10.96.5.5 except fd00::a
    }
    forward . __PILLAR__UPSTREAM__SERVERS__
    health :8181 {
        lameduck 5s
    }
}
`

func TestDiscover(t *testing.T) {
	running := map[string]string{
		"self": "-> 1", "1/ns/net": "-> net:[1]", "7/ns/net": "-> net:[1]",
		"7/cmdline":           "/nodecache\x00-localip\x00169.254.20.10,10.96.0.10\x00-conf\x00/etc/Corefile\x00-upstreamsvc=upstream-dns\x00-health-port\x008088\x00",
		"7/environ":           "UPSTREAM_DNS_SERVICE_HOST=10.96.9.9\x00KUBE_DNS_SERVICE_HOST=10.96.0.10\x00",
		"7/comm":              "nodecache\n",
		"7/root/etc/Corefile": ".:53 {\n forward . /etc/node.conf\n}\n",
		"8/ns/net":            "-> net:[1]",
		"8/cmdline":           "/nodecache\x00doctor\x00-localip\x00169.254.99.99\x00",
	}
	none := map[string]string{"self": "-> 1", "1/ns/net": "-> net:[1]"}
	for _, c := range []struct {
		name        string
		options     options
		corefile    string
		proc        map[string]string
		environment []string
		want        string
	}{
		{
			name: "nothing is known", proc: none,
			want: "addresses [] interface nodelocaldns resolvers /etc/resolv.conf cluster [] upstreams [] health [] zone  noInterface false noRules false",
		},
		{
			name: "the pod's environment", proc: none, environment: []string{"KUBE_DNS_SERVICE_HOST=10.96.0.10", "KUBE_DNS_UPSTREAM_SERVICE_HOST=10.96.0.11"},
			want: "addresses [] interface nodelocaldns resolvers /etc/resolv.conf cluster [10.96.0.11:53] upstreams [] health [] zone  noInterface false noRules false",
		},
		{
			name: "Corefile of node-local-dns", proc: none, corefile: stockCorefile,
			want: "addresses [169.254.20.10 10.96.0.10] interface nodelocaldns resolvers /etc/other.conf cluster [10.96.5.5:53] upstreams [192.0.2.7:5353] health [169.254.20.10:8080] zone  noInterface false noRules false",
		},
		{
			name: "Corefile with nodelocal", proc: none, corefile: ownCorefile,
			want: "addresses [169.254.20.10 fd00::a] interface dns0 resolvers /etc/resolv.conf cluster [10.96.5.5:53] upstreams [] health [169.254.20.10:8181 [fd00::a]:8181] zone . noInterface true noRules false",
		},
		{
			name: "one block for all zones", proc: none, corefile: ".:53 {\n forward cluster.local 10.96.5.5\n forward in-addr.arpa 10.96.5.5\n forward clusterset.local 10.96.5.5\n forward . dns://192.0.2.7 tls://192.0.2.8 /etc/r.conf\n health\n}\n",
			want: "addresses [] interface nodelocaldns resolvers /etc/r.conf cluster [10.96.5.5:53] upstreams [192.0.2.7:53] health [] zone  noInterface false noRules false",
		},
		{
			name: "flags win over the Corefile", proc: none, corefile: stockCorefile,
			options: options{
				addresses: []netip.Addr{netip.MustParseAddr("169.254.1.1")}, iface: "x", resolvConf: "/r",
				clusterDNS: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:53")},
			},
			want: "addresses [169.254.1.1] interface x resolvers /r cluster [10.0.0.1:53] upstreams [192.0.2.7:5353] health [169.254.20.10:8080] zone  noInterface false noRules false",
		},
		{
			name: "the running nodecache", proc: running,
			want: "addresses [169.254.20.10 10.96.0.10] interface nodelocaldns resolvers /etc/node.conf cluster [10.96.9.9:53] upstreams [] health [] zone  noInterface false noRules false",
		},
		{
			name: "flags win over the running nodecache", proc: running, options: options{service: "kube-dns", iface: "y"},
			want: "addresses [169.254.20.10 10.96.0.10] interface y resolvers /etc/node.conf cluster [10.96.0.10:53] upstreams [] health [] zone  noInterface false noRules false",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.options.domain = "cluster.local."
			if c.corefile != "" {
				c.options.conf = filepath.Join(tree(t, map[string]string{"Corefile": c.corefile}), "Corefile")
			}
			got := discover(c.options, open(t, c.proc), c.environment)
			if got.text() != c.want || got.problem != nil {
				t.Errorf("got  %s, problem %v\nwant %s", got.text(), got.problem, c.want)
			}
		})
	}
}

func TestDiscoverCoherence(t *testing.T) {
	environment := []string{
		"KUBE_DNS_SERVICE_HOST=10.96.0.10", "KUBE_DNS_SERVICE_PORT_METRICS=9153",
		"KUBE_DNS_UPSTREAM_SERVICE_HOST=10.96.0.11", "KUBE_DNS_UPSTREAM_SERVICE_PORT=53",
	}
	const coherent = " forward . 10.96.5.5 [fd00::5]:5353 {\n  force_tcp\n  coherent\n }\n"
	for _, c := range []struct {
		name, corefile string
		environment    []string
		want           string // targets, metrics of nodecache, and of cluster DNS
	}{
		{"node-local-dns", stockCorefile, nil, "[] 127.0.0.1:9253 invalid AddrPort"},
		{"two blocks", "cluster.local:53 {\n" + coherent + " prometheus 169.254.20.10:9253\n}\nin-addr.arpa:53 {\n" + coherent + " prometheus :9999\n}\n", environment,
			"[10.96.5.5:53 [fd00::5]:5353] 169.254.20.10:9253 10.96.0.10:9153"},
		{"an option of another directive", ".:53 {\n forward . 10.96.5.5 {\n  caller coherent\n }\n prometheus\n}\n", environment[2:], "[] 127.0.0.1:9153 invalid AddrPort"},
		{"no metrics", "cluster.local:53 {\n" + coherent + "}\n", nil, "[10.96.5.5:53 [fd00::5]:5353] invalid AddrPort invalid AddrPort"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(tree(t, map[string]string{"Corefile": c.corefile}), "Corefile")
			s := discover(options{conf: path, domain: "cluster.local."}, open(t, nil), c.environment)
			if got := fmt.Sprint(s.coherent, s.metrics, s.clusterMetrics); got != c.want || !s.corefile {
				t.Errorf("got %s, read %t; want %s", got, s.corefile, c.want)
			}
		})
	}
}

// TestDiscoverMetricsOfRefusedCorefile: the metrics of the running nodecache report that it has refused its Corefile, which need not
// have them.
func TestDiscoverMetricsOfRefusedCorefile(t *testing.T) {
	for _, c := range []struct{ name, args, corefile, want string }{
		{"broken", "-localip\x00169.254.20.10", ".:53 {\n", "127.0.0.1:9353"},
		{"without prometheus", "-localip\x00169.254.20.10\x00-metrics-listen-address\x00169.254.20.10:9354", ".:53 {\n nonsense\n}\n", "169.254.20.10:9354"},
		{"with prometheus", "-localip\x00169.254.20.10", ".:53 {\n prometheus :9253\n nonsense\n}\n", "127.0.0.1:9253"},
		{"switched off", "-localip\x00169.254.20.10\x00-metrics-listen-address\x000", ".:53 {\n", "invalid AddrPort"},
		{"no such endpoint without -localip", "-quiet", ".:53 {\n", "invalid AddrPort"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := discover(options{domain: "cluster.local."}, open(t, map[string]string{
				"self": "-> 1", "1/ns/net": "-> net:[1]", "7/ns/net": "-> net:[1]", "7/comm": "nodecache\n",
				"7/cmdline":           "/nodecache\x00-conf\x00/etc/Corefile\x00" + c.args + "\x00",
				"7/root/etc/Corefile": c.corefile,
			}), nil)
			if s.metrics.String() != c.want {
				t.Errorf("metrics at %s, want %s", s.metrics, c.want)
			}
		})
	}
}

func TestDiscoverKernel(t *testing.T) {
	for _, c := range []struct{ name, corefile, want string }{
		{"no directive", stockCorefile, ""},
		{"no option", ".:53 {\n fastpath {\n  max_concurrent 9\n }\n}\n", ""},
		{"off", ".:53 {\n fastpath {\n  kernel off\n }\n}\n", ""},
		{"on in one block", "a:53 {\n fastpath\n}\nb:53 {\n fastpath on {\n  kernel on\n }\n}\nc:53 {\n fastpath {\n  kernel off\n }\n}\n", "on"},
		{"forced in one block", "a:53 {\n fastpath {\n  kernel force\n }\n}\nb:53 {\n fastpath {\n  kernel on\n }\n}\n", "force"},
		{"an option of another directive", ".:53 {\n other {\n  kernel on\n }\n}\n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(tree(t, map[string]string{"Corefile": c.corefile}), "Corefile")
			if s := discover(options{conf: path, domain: "cluster.local."}, open(t, nil), nil); s.kernel != c.want || !s.corefile {
				t.Errorf("got %q, read %t; want %q", s.kernel, s.corefile, c.want)
			}
		})
	}
}

func TestDiscoverUnreadable(t *testing.T) {
	for name, corefile := range map[string]string{"missing": "", "broken": ".:53 {\n nodelocal {\n"} {
		t.Run(name, func(t *testing.T) {
			o := options{conf: filepath.Join(t.TempDir(), "Corefile")}
			if corefile != "" {
				kit.Write(t, o.conf, corefile)
			}
			if s := discover(o, open(t, nil), nil); s.problem == nil {
				t.Error("want a problem")
			}
		})
	}
}

func TestFlagValues(t *testing.T) {
	got := flagValues(strings.Fields("-a 1 --b=2 -c -d x y -e= -f"))
	want := map[string]string{"a": "1", "b": "2", "c": "true", "d": "x", "e": "", "f": "true"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
