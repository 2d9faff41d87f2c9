package dropin

import (
	"flag"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/nearside-dns/nearside/cmd/internal/metricsserver"
)

func parseFlags(t *testing.T, args ...string) (*Node, error) {
	t.Helper()
	n := New()
	f := flag.NewFlagSet("nodecache", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	n.Flags(f)
	return n, f.Parse(args)
}

// TestDefaults has the defaults of node-local-dns.
func TestDefaults(t *testing.T) {
	n, err := parseFlags(t)
	kit.Must(t, err)
	want := map[string]string{
		"localip": "", "setupinterface": "true", "interfacename": "nodelocaldns", "setupiptables": "true",
		"skipteardown": "false", "metrics-listen-address": "0.0.0.0:9353", "prometheus-listen-address": ":9253",
		"health-port": "8080", "basecorefile": "/etc/coredns/Corefile.base", "corefile": "/etc/Corefile",
		"kubednscm": "", "upstreamsvc": "kube-dns", "reloadwithsignal": "false", "syncinterval": "1m0s", "fallback": "",
		"node-name": "", "node-zone": "", "clusterset-zone": "", "question-from": "", "setupebtables": "false", "initialdelay": "0s",
		"tls-enabled": "false", "tls-cert-file": "/etc/ssl/tls.crt", "tls-private-key-file": "/etc/ssl/tls.key",
		"tls-client-ca-file": "", "tls-client-auth-type": "NoClientCert", "tls-min-version": "TLS13",
	}
	n.flags.VisitAll(func(f *flag.Flag) {
		if f.DefValue != want[f.Name] {
			t.Errorf("default of -%s is %q, want %q", f.Name, f.DefValue, want[f.Name])
		}
		delete(want, f.Name)
	})
	for name := range want {
		t.Errorf("no flag -%s", name)
	}
}

func TestFlags(t *testing.T) {
	n, err := parseFlags(t, "-localip", "169.254.20.10, 10.96.0.10,fd00::10,::ffff:10.96.0.11", "-setupinterface=false", "-interfacename", "dns0",
		"-setupiptables=false", "-skipteardown", "-metrics-listen-address", "[::1]:9353", "-prometheus-listen-address", "127.0.0.1:9253",
		"-health-port", "8081", "-basecorefile", "b", "-corefile", "c", "-kubednscm", "k", "-upstreamsvc", "kube-dns-upstream",
		"-reloadwithsignal", "-syncinterval", "90", "-clusterset-zone", "ClusterSet.local.,mesh.example")
	kit.Must(t, err)
	o := n.options
	if got, want := o.localIPs.String(), "169.254.20.10,10.96.0.10,fd00::10,10.96.0.11"; got != want {
		t.Errorf("addresses %s, want %s", got, want)
	}
	o.localIPs = nil
	if got, want := o.clusterset.String(), "clusterset.local,mesh.example"; got != want {
		t.Errorf("zones %s, want %s", got, want)
	}
	want := options{interfaceName: "dns0", skipTeardown: true, metrics: &metricsserver.Server{Address: "[::1]:9353"}, prometheus: "127.0.0.1:9253", healthPort: "8081",
		base: "b", corefile: "c", kubeDNS: "k", upstreamSvc: "kube-dns-upstream", interval: seconds(90 * time.Second)}
	if got := o; !slices.Equal(got.localIPs, want.localIPs) || got.interfaceName != want.interfaceName || got.setupInterface || got.setupIptables ||
		!got.skipTeardown || got.metrics.Address != want.metrics.Address || got.prometheus != want.prometheus || got.healthPort != want.healthPort ||
		got.base != want.base || got.corefile != want.corefile || got.kubeDNS != want.kubeDNS || got.upstreamSvc != want.upstreamSvc || got.interval != want.interval {
		t.Errorf("options %+v, want %+v", got, want)
	}
}

// TestInvalidFlags has invalid values of flags and their errors.
func TestInvalidFlags(t *testing.T) {
	for _, tc := range []struct{ flag, value, want string }{
		{"localip", "x", `"x" is not an IP address`},
		{"localip", "169.254.20.10,", `"" is not an IP address`},
		{"localip", "169.254.20.10,169.254.20.10", "duplicate value 169.254.20.10"},
		{"localip", "10.0.0.1,::ffff:10.0.0.1", "duplicate value 10.0.0.1"},
		{"localip", "0.0.0.0", "stands for every address"},
		{"localip", "::", "stands for every address"},
		{"localip", "224.0.0.1", "multicast"},
		{"localip", "ff02::fb", "multicast"},
		{"localip", "127.0.0.53", "loopback"},
		{"localip", "255.255.255.255", "broadcast"},
		{"fallback", "x", `"x" is not an IP address`},
		{"fallback", "10.96.0.11,fd00::1,10.96.0.12", "10.96.0.11 and 10.96.0.12 are of one family"},
		{"question-from", "eth0", `"eth0" is not an IP address`},
		{"question-from", "192.0.2.1,192.0.2.2", "192.0.2.1 and 192.0.2.2 are of one family"},
		{"localip", "::1", "loopback"},
		{"localip", "fe80::1%eth0", "is not an IP address"},
		{"localip", "169.254.20.10/32", "is not an IP address"},
		{"interfacename", "", "1 to 15"},
		{"interfacename", "sixteencharacter", "1 to 15"},
		{"interfacename", "a b", "1 to 15"},
		{"interfacename", "a/b", "1 to 15"},
		{"setupinterface", "perhaps", "invalid"},
		{"setupiptables", "perhaps", "invalid"},
		{"skipteardown", "perhaps", "invalid"},
		{"reloadwithsignal", "perhaps", "invalid"},
		{"metrics-listen-address", "9353", "want an address and a port"},
		{"metrics-listen-address", "0.0.0.0:0", "not a port"},
		{"prometheus-listen-address", ":http", "not a port"},
		{"prometheus-listen-address", "a b:1", "want an address and a port"},
		{"health-port", "0", "not a port"},
		{"health-port", "65536", "not a port"},
		{"health-port", "http", "not a port"},
		{"upstreamsvc", "", "1 to 63"},
		{"upstreamsvc", "Kube_DNS", "1 to 63"},
		{"node-name", "Node-A", `"Node-A" is not the name of a node, which has 1 to 253 characters a-z, 0-9, - and .`},
		{"node-name", "a b", "is not the name of a node"},
		{"node-name", "-a", "is not the name of a node"},
		{"node-name", "a.", "is not the name of a node"},
		{"node-name", "a..b", "is not the name of a node"},
		{"node-name", "a\nb", "is not the name of a node"},
		{"node-name", strings.Repeat("a", 254), "is not the name of a node"},
		{"node-zone", "zone 1", `"zone 1" is not the value of a label, which has 1 to 63 letters, digits`},
		{"node-zone", "_", "is not the value of a label"},
		{"node-zone", strings.Repeat("a", 64), "is not the value of a label"},
		{"clusterset-zone", "clusterset.local,", `"" is not a domain name`},
		{"clusterset-zone", "clusterset.local:53", `"clusterset.local:53" is not a domain name of letters, digits, - and ., such as clusterset.local`},
		{"clusterset-zone", "cluster set.local", "is not a domain name"},
		{"clusterset-zone", "dns://clusterset.local", "is not a domain name"},
		{"clusterset-zone", "clusterset..local", "is not a domain name"},
		{"clusterset-zone", "-clusterset.local", "is not a domain name"},
		{"clusterset-zone", "clusterset.local..", "is not a domain name"},
		{"clusterset-zone", "\u212aube.local", "is not a domain name"}, // a Kelvin sign
		{"clusterset-zone", strings.Repeat("a.", 200) + "a", "is not a domain name"},
		{"clusterset-zone", strings.Repeat("a", 64), "is not a domain name"},
		{"clusterset-zone", "10.0.0.0/8", "is not a domain name"},
		{"clusterset-zone", ".", `"." is the root or a zone of addresses, want the zone of a clusterset`},
		{"clusterset-zone", "10.in-addr.arpa", "is the root or a zone of addresses"},
		{"clusterset-zone", "a.example,IP6.Arpa.", "is the root or a zone of addresses"},
		{"clusterset-zone", "a.example,B.example.,b.example", "duplicate value b.example"},
		{"clusterset-zone", "nodelocal.nearside.invalid", "nodelocal.nearside.invalid is the name of a block that nodecache adds"},
		{"syncinterval", "0", "from 1s to 24h"},
		{"syncinterval", "0ns", "from 1s to 24h"},
		{"syncinterval", "-1ns", "from 1s to 24h"},
		{"syncinterval", "999ms", "from 1s to 24h"},
		{"syncinterval", "25h", "from 1s to 24h"},
		{"setupebtables", "perhaps", "invalid"},
		{"initialdelay", "10", "invalid"},
		{"tls-enabled", "perhaps", "invalid"},
		{"tls-client-auth-type", "Sometimes", `"Sometimes" is not a policy for client certificates: want NoClientCert, RequestClientCert, RequireAndVerifyClientCert, RequireAnyClientCert or VerifyClientCertIfGiven`},
		{"tls-min-version", "1.3", `"1.3" is not a version of TLS: want TLS10, TLS11, TLS12 or TLS13`},
		{"syncinterval", "-1", "from 1s to 24h"},
		{"syncinterval", "1ms", "from 1s to 24h"},
		{"syncinterval", "60x", "from 1s to 24h"},
		{"syncinterval", "999999999999999999999", "from 1s to 24h"},
	} {
		t.Run(tc.flag+"="+tc.value, func(t *testing.T) {
			_, err := parseFlags(t, "-"+tc.flag+"="+tc.value)
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "-"+tc.flag) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

// TestFlagsOfNodeLocalDNS has every flag of node-local-dns, past releases included, and of its CoreDNS, in every form of its
// value.
func TestFlagsOfNodeLocalDNS(t *testing.T) {
	booleans := []string{"1", "0", "t", "f", "T", "F", "true", "false", "TRUE", "FALSE", "True", "False"}
	for name, forms := range map[string][]string{
		"localip":                   {"169.254.20.10", "169.254.20.10,10.96.0.10", "fd00::10", "::ffff:169.254.20.10", "169.254.20.10,fd00::10"},
		"setupinterface":            booleans,
		"interfacename":             {"nodelocaldns", "nodelocaldns0", "n.1"},
		"syncinterval":              {"1ns", "60ns", "1.5ns", "+60ns", "1us", "1µs", "1μs", "999us", "999.999us"},
		"initialdelay":              {"10ns", "1s", "0"},
		"metrics-listen-address":    {"0.0.0.0:9353", ":9353", "[::]:9353", "localhost:9353", "169.254.20.10:9353", "0"},
		"prometheus-listen-address": {":9253", "169.254.20.10:9253", "[fd00::10]:9253"},
		"setupiptables":             booleans,
		"setupebtables":             booleans,
		"basecorefile":              {"/etc/coredns/Corefile.base", "Corefile.base"},
		"corefile":                  {"/etc/Corefile", ""},
		"kubednscm":                 {"/etc/kube-dns", ""},
		"upstreamsvc":               {"kube-dns", "kube-dns-upstream", "node-local-dns-upstream"},
		"health-port":               {"8080", "08080"},
		"skipteardown":              booleans,
		"reloadwithsignal":          booleans,
		"tls-enabled":               booleans,
		"tls-cert-file":             {"/etc/ssl/tls.crt"},
		"tls-private-key-file":      {"/etc/ssl/tls.key"},
		"tls-client-ca-file":        {"/etc/ssl/ca.crt", ""},
		"tls-client-auth-type":      {"", "NoClientCert", "RequestClientCert", "RequireClientCert", "RequireAnyClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"},
		"tls-min-version":           {"TLS10", "TLS11", "TLS12", "TLS13"},
	} {
		for _, value := range forms {
			for _, args := range [][]string{{"-" + name + "=" + value}, {"--" + name + "=" + value}, {"-" + name, value}} {
				if slices.Equal(forms, booleans) && len(args) == 2 {
					continue // the value of a boolean comes after =
				}
				if _, err := parseFlags(t, args...); err != nil {
					t.Errorf("nodecache %s: %v", strings.Join(args, " "), err)
				}
			}
		}
		if slices.Equal(forms, booleans) {
			if _, err := parseFlags(t, "-"+name); err != nil {
				t.Errorf("nodecache -%s: %v", name, err)
			}
		}
	}
}

// TestSyncInterval has the forms of -syncinterval: node-local-dns multiplies a duration by a second.
func TestSyncInterval(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"60": time.Minute, "60s": time.Minute, "1": time.Second, "1m30s": 90 * time.Second, "24h": 24 * time.Hour,
		"1ns": time.Second, "60ns": time.Minute, "1us": 1000 * time.Second, "86400ns": 24 * time.Hour,
		"999us": 24 * time.Hour, // 11 days: more frequent checks do no harm
	} {
		n, err := parseFlags(t, "-syncinterval", text)
		if err != nil || time.Duration(n.options.interval) != want {
			t.Errorf("%s is %s, error %v, want %s", text, &n.options.interval, err, want)
		}
	}
}

func TestServiceVariable(t *testing.T) {
	if got, want := serviceVariable("kube-dns-upstream"), "KUBE_DNS_UPSTREAM_SERVICE_HOST"; got != want {
		t.Errorf("variable %s, want %s", got, want)
	}
}
