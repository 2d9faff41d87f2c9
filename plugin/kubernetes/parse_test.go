package kubernetes

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coredns/caddy"

	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source/apiserver"
	"github.com/nearside-dns/nearside/test/kit"
)

const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
contexts: [{name: there, context: {cluster: c}}]
current-context: there
`

func TestParse_Defaults(t *testing.T) {
	k := parsed(t, kubernetesDirective, "kubernetes cluster.local")
	if k.ttl != 5 || k.pods != podsDisabled || k.startupTimeout != 5*time.Second || !k.source.Endpoints || k.source.Pods || k.source.Zones ||
		k.source.EndpointPodNames || k.ignoreEmpty || k.from.Manifests != "" || len(k.namespaces) != 0 || len(k.Fall.Zones) != 0 ||
		k.from.Connection != (apiserver.Connection{}) || k.source.Labels != nil || k.source.NamespaceLabels != nil || k.upstream == nil || k.coherent {
		t.Errorf("%+v", k.options)
	}
}

func TestParse_Zones(t *testing.T) {
	for _, c := range []struct{ name, line, keys, zones, primary string }{
		{"one", "kubernetes Cluster.Local", "", "cluster.local.", "cluster.local."},
		{"of the server block", "kubernetes", "cluster.local. 10.in-addr.arpa.", "cluster.local. 10.in-addr.arpa.", "cluster.local."},
		{"own, not the server block's", "kubernetes a.local", "b.local.", "a.local.", "a.local."},
		{"reverse first", "kubernetes 10.in-addr.arpa cluster.local b.local", "", "10.in-addr.arpa. cluster.local. b.local.", "cluster.local."},
		{"all reverse names first", "kubernetes in-addr.arpa ip6.arpa cluster.local", "", "in-addr.arpa. ip6.arpa. cluster.local.", "cluster.local."},
		{"a network", "kubernetes cluster.local 10.0.0.0/15", "", "cluster.local. 0.10.in-addr.arpa. 1.10.in-addr.arpa.", "cluster.local."},
		{"root", "kubernetes .", "", ".", "."},
		{"all reverse names only, as in CoreDNS", "kubernetes 10.in-addr.arpa in-addr.arpa ip6.arpa", "", "10.in-addr.arpa. in-addr.arpa. ip6.arpa.", "in-addr.arpa."},
		{"all of IPv6 only", "kubernetes ip6.arpa", "", "ip6.arpa.", "ip6.arpa."},
	} {
		t.Run(c.name, func(t *testing.T) {
			controller := caddy.NewTestController("dns", c.line)
			controller.ServerBlockKeys = strings.Fields(c.keys)
			k, err := kubernetesDirective.parse(controller)
			kit.Must(t, err)
			if got := strings.Join(k.Zones, " "); got != c.zones || k.primaryZone != c.primary {
				t.Errorf("zones %q, primary zone %q, want %q, %q", got, k.primaryZone, c.zones, c.primary)
			}
		})
	}
}

func TestParse_Accepted(t *testing.T) {
	config, pem := kit.File(t, "kubeconfig", kubeconfig), kit.File(t, "pem", "")
	for _, c := range []struct {
		block string
		ok    func(k *Kubernetes) bool
	}{
		{"endpoint https://10.0.0.1:6443", func(k *Kubernetes) bool { return k.from.Connection.Endpoint == "https://10.0.0.1:6443" }},
		{"endpoint 10.0.0.1:8080", func(k *Kubernetes) bool { return k.from.Connection.Endpoint == "10.0.0.1:8080" }},
		{"endpoint http://a http://b", func(k *Kubernetes) bool { return k.from.Connection.Endpoint == "http://a" }},
		{"tls " + pem + " " + pem + " " + pem, func(k *Kubernetes) bool {
			return k.from.Connection.Cert == pem && k.from.Connection.Key == pem && k.from.Connection.CA == pem
		}},
		{"kubeconfig " + config, func(k *Kubernetes) bool {
			return k.from.Connection.Kubeconfig == config && k.from.Connection.Context == ""
		}},
		{"kubeconfig " + config + " there", func(k *Kubernetes) bool { return k.from.Connection.Context == "there" }},
		{"manifests /a/b", func(k *Kubernetes) bool { return k.from.Manifests == "/a/b" }},
		{"apiserver_qps 0.5", func(k *Kubernetes) bool { return k.from.Connection.QPS == 0.5 }},
		{"apiserver_qps 0", func(k *Kubernetes) bool { return k.from.Connection.QPS == 0 }},
		{"apiserver_qps inf", func(k *Kubernetes) bool { return math.IsInf(float64(k.from.Connection.QPS), 1) }},
		{"apiserver_burst 7", func(k *Kubernetes) bool { return k.from.Connection.Burst == 7 }},
		{"apiserver_burst 0", func(k *Kubernetes) bool { return k.from.Connection.Burst == 0 }},
		{"apiserver_max_inflight 3", func(k *Kubernetes) bool { return k.from.Connection.MaxInflight == 3 }},
		{"namespaces a b\nnamespaces c", func(k *Kubernetes) bool { return fmt.Sprint(k.namespaces) == "map[a:{} b:{} c:{}]" }},
		{"namespace_labels a=b", func(k *Kubernetes) bool { return k.source.NamespaceLabels.String() == "a=b" }},
		{"labels environment in (production, qa),application=nginx", func(k *Kubernetes) bool {
			return k.source.Labels.String() == "application=nginx,environment in (production,qa)"
		}},
		{"pods disabled", func(k *Kubernetes) bool { return k.pods == podsDisabled && !k.source.Pods }},
		{"pods insecure", func(k *Kubernetes) bool { return k.pods == podsInsecure && !k.source.Pods }},
		{"pods verified", func(k *Kubernetes) bool { return k.pods == podsVerified && k.source.Pods }},
		{"pods verified\npods insecure", func(k *Kubernetes) bool { return k.pods == podsInsecure && !k.source.Pods }},
		{"endpoint_pod_names", func(k *Kubernetes) bool { return k.source.EndpointPodNames }},
		{"ttl 0", func(k *Kubernetes) bool { return k.ttl == 0 }},
		{"ttl 3600", func(k *Kubernetes) bool { return k.ttl == 3600 }},
		{"noendpoints", func(k *Kubernetes) bool { return !k.source.Endpoints }},
		{"zonal", func(k *Kubernetes) bool { return k.source.Zones }},
		{"coherent", func(k *Kubernetes) bool { return k.coherent }},
		{"ignore empty_service further words", func(k *Kubernetes) bool { return k.ignoreEmpty }},
		{"ignore empty_service", func(k *Kubernetes) bool { return k.ignoreEmpty }},
		{"topology", func(k *Kubernetes) bool { return k.source.Topology && k.topologyKeys == nil && k.trust == nil }},
		{"topology keys kubernetes.io/hostname *", func(k *Kubernetes) bool {
			return k.source.Topology && fmt.Sprint(k.topologyKeys) == "[kubernetes.io/hostname *]"
		}},
		{"trust 10.1.2.3/8 fd00::1\ntopology\ntrust 192.0.2.1", func(k *Kubernetes) bool {
			return fmt.Sprint(k.trust) == "[10.0.0.0/8 fd00::1/128 192.0.2.1/32]"
		}},
		{"fallthrough", func(k *Kubernetes) bool { return slices.Equal(k.Fall.Zones, []string{"."}) }},
		{"fallthrough in-addr.arpa ip6.arpa", func(k *Kubernetes) bool {
			return slices.Equal(k.Fall.Zones, []string{"in-addr.arpa.", "ip6.arpa."})
		}},
		{"startup_timeout 0s", func(k *Kubernetes) bool { return k.startupTimeout == 0 }},
		{"startup_timeout 1m30s", func(k *Kubernetes) bool { return k.startupTimeout == 90*time.Second }},
		{"snapshot /s", func(k *Kubernetes) bool {
			return k.snapshot == source.Snapshot{Path: "/s", Interval: time.Minute, MaxAge: 24 * time.Hour} && !k.staleIsReady
		}},
		{"snapshot /s 10s 1h\nsnapshot_ready", func(k *Kubernetes) bool {
			return k.snapshot == source.Snapshot{Path: "/s", Interval: 10 * time.Second, MaxAge: time.Hour} && k.staleIsReady
		}},
	} {
		t.Run(c.block, func(t *testing.T) {
			k := parsed(t, kubernetesDirective, "kubernetes cluster.local {\n"+c.block+"\n}")
			if !c.ok(k) {
				t.Errorf("%+v", k.options)
			}
		})
	}
}

// Each error has the file, the line, the option and the accepted form.
func TestParse_Rejected(t *testing.T) {
	notInACluster(t) // an empty kubeconfig selects the cluster of the environment, if any
	config, bad, empty := kit.File(t, "kubeconfig", kubeconfig), kit.File(t, "bad", "{{{"), kit.File(t, "empty", "")
	const (
		requests   = ": want a number of requests, 0 or more"
		rate       = ": want a number of requests a second, 0 or more"
		file       = ": want a file and optionally a context: FILE [CONTEXT]"
		url        = ": want the URL of an API server, such as https://10.0.0.1:6443"
		topologies = ": want nothing, or the default of headless Services: keys KEY..."
		duration   = ": want a duration such as 5s, 0s or more"
		snapshots  = "a file, and optionally the interval of writes, 1s or more, and the maximum age: FILE [INTERVAL] [MAX_AGE]"
		known      = "want one of apiserver_burst, apiserver_max_inflight, apiserver_qps, coherent, endpoint, endpoint_pod_names, fallthrough, ignore, kubeconfig, labels, manifests, multicluster, namespace_labels, namespaces, noendpoints, pods, prefer-local-cluster, snapshot, snapshot_ready, startup_timeout, tls, topology, trust, ttl, zonal"
	)
	for _, c := range []struct {
		block string
		line  int
		want  string
	}{
		{"nonsense", 2, `unknown option "nonsense": ` + known},
		{"TTL 5", 2, `unknown option "TTL": ` + known},
		{"endpoint", 2, `invalid endpoint: want the URL of an API server, such as https://10.0.0.1:6443`},
		{"endpoint ::::", 2, `invalid endpoint "::::"` + url},
		{"endpoint http://[::1", 2, `invalid endpoint "http://[::1"` + url},
		{"endpoint ftp://10.0.0.1", 2, `invalid endpoint "ftp://10.0.0.1"` + url},
		{"endpoint \"\"", 2, `invalid endpoint ""` + url},
		{"tls a b", 2, `invalid tls "a" "b": want three files: CERT KEY CACERT`},
		{"tls a b c d", 2, `invalid tls "a" "b" "c" "d": want three files: CERT KEY CACERT`},
		{"endpoint https://a\ntls /none/a " + empty + " " + empty, 3, `invalid tls "/none/a" "` + empty + `" "` + empty + `": invalid configuration: unable to read client-cert /none/a for  due to open /none/a: no such file or directory: want three files: CERT KEY CACERT`},
		{"endpoint https://a\ntls " + empty + " /none/b " + empty, 3, `invalid tls "` + empty + `" "/none/b" "` + empty + `": invalid configuration: unable to read client-key /none/b for  due to open /none/b: no such file or directory: want three files: CERT KEY CACERT`},
		{"endpoint https://a\ntls " + empty + " " + empty + " /none/c", 3, `invalid tls "` + empty + `" "` + empty + `" "/none/c": invalid configuration: unable to read certificate-authority /none/c for  due to open /none/c: no such file or directory: want three files: CERT KEY CACERT`},
		{"kubeconfig", 2, `invalid kubeconfig: want a file and optionally a context: FILE [CONTEXT]`},
		{"kubeconfig a b c", 2, `invalid kubeconfig "a" "b" "c": want a file and optionally a context: FILE [CONTEXT]`},
		{"ttl 5\nkubeconfig /none/config", 3, `invalid kubeconfig "/none/config": stat /none/config: no such file or directory` + file},
		{"kubeconfig " + bad, 2, `invalid kubeconfig "` + bad + `": error loading config file "` + bad + `": yaml: line 1: did not find expected node content` + file},
		{"kubeconfig " + empty, 2, `invalid kubeconfig "` + empty + `": ` + empty + `: invalid configuration: no configuration has been provided, try setting KUBERNETES_MASTER environment variable` + file},
		{"kubeconfig " + config + " elsewhere", 2, `invalid kubeconfig "` + config + `": ` + config + `: context "elsewhere" does not exist` + file},
		{"manifests", 2, `invalid manifests: want a directory`},
		{"manifests a b", 2, `invalid manifests "a" "b": want a directory`},
		{"apiserver_qps", 2, `invalid apiserver_qps: want a number of requests a second, 0 or more`},
		{"apiserver_qps -1", 2, `invalid apiserver_qps "-1"` + rate},
		{"apiserver_qps NaN", 2, `invalid apiserver_qps "NaN"` + rate},
		{"apiserver_qps 1e39", 2, `invalid apiserver_qps "1e39"` + rate},
		{"apiserver_qps many", 2, `invalid apiserver_qps "many"` + rate},
		{"apiserver_burst 1 2", 2, `invalid apiserver_burst "1" "2": want a number of requests, 0 or more`},
		{"apiserver_burst -1", 2, `invalid apiserver_burst "-1"` + requests},
		{"apiserver_burst 1.5", 2, `invalid apiserver_burst "1.5"` + requests},
		{"apiserver_burst 99999999999999999999", 2, `invalid apiserver_burst "99999999999999999999"` + requests},
		{"apiserver_max_inflight", 2, `invalid apiserver_max_inflight: want a number of requests, 0 or more`},
		{"apiserver_max_inflight -3", 2, `invalid apiserver_max_inflight "-3"` + requests},
		{"namespaces", 2, `invalid namespaces: want names of namespaces`},
		{"namespace_labels", 2, `invalid namespace_labels: want a label selector`},
		{"namespace_labels a in (b", 2, `invalid namespace_labels "a in (b": couldn't parse the selector string "a in (b": unable to parse requirement: found '', expected: ',' or ')': want a label selector`},
		{"labels", 2, `invalid labels: want a label selector`},
		{"labels =", 2, `invalid labels "=": couldn't parse the selector string "=": found '=', expected: !, identifier, or 'end of string': want a label selector`},
		{"pods", 2, `invalid pods: want one of disabled, insecure, verified`},
		{"pods {\nverified\n}", 2, `invalid pods "{": want one of disabled, insecure, verified`},
		{"pods verified insecure", 2, `invalid pods "verified" "insecure": want one of disabled, insecure, verified`},
		{"pods Verified", 2, `invalid pods "Verified": want one of disabled, insecure, verified`},
		{"endpoint_pod_names on", 2, `invalid endpoint_pod_names "on": want no argument`},
		{"ttl", 2, `invalid ttl: want seconds, 0 to 3600`},
		{"ttl -1", 2, `invalid ttl "-1": want seconds, 0 to 3600`},
		{"\n\nttl 3601", 4, `invalid ttl "3601": want seconds, 0 to 3600`},
		{"ttl 5s", 2, `invalid ttl "5s": want seconds, 0 to 3600`},
		{"noendpoints true", 2, `invalid noendpoints "true": want no argument`},
		{"coherent on", 2, `invalid coherent "on": want no argument`},
		{"coherent\nttl 5\ncoherent", 4, `duplicate option coherent`},
		{"zonal on", 2, `invalid zonal "on": want no argument`},
		{"topology on", 2, `invalid topology "on"` + topologies},
		{"topology\ntopology keys a", 3, `duplicate option topology`},
		{"topology\ntrust ::ffff:10.0.0.0/104", 3, `invalid trust "::ffff:10.0.0.0/104": want ranges of addresses such as 10.0.0.0/8`},
		{"topology keys", 2, `invalid topology "keys"` + topologies},
		{"topology keys * a", 2, `invalid topology "keys" "*" "a": "*" must be the last key` + topologies},
		{"topology keys a/b/c", 2, `invalid topology "keys" "a/b/c": invalid label key "a/b/c": a valid label key must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')` + topologies},
		{"topology\nnoendpoints", 3, `topology and noendpoints cannot both be set: topology selects endpoints`},
		{"ttl 5\ntrust 10.0.0.0/8", 3, `trust requires topology, the only user of the caller option`},
		{"topology\ntrust", 3, `invalid trust: want ranges of addresses such as 10.0.0.0/8`},
		{"topology\ntrust all-nodes", 3, `invalid trust "all-nodes": want ranges of addresses such as 10.0.0.0/8`},
		{"topology\ntrust fe80::1%eth0", 3, `invalid trust "fe80::1%eth0": want ranges of addresses such as 10.0.0.0/8`},
		{"ignore", 2, `invalid ignore: want empty_service`},
		{"ignore everything", 2, `invalid ignore "everything": want empty_service`},
		{"startup_timeout", 2, `invalid startup_timeout: want a duration such as 5s, 0s or more`},
		{"startup_timeout 5", 2, `invalid startup_timeout "5"` + duration},
		{"startup_timeout -5s", 2, `invalid startup_timeout "-5s"` + duration},
		{"snapshot", 2, `invalid snapshot: want ` + snapshots},
		{"snapshot /s 1ms", 2, `invalid snapshot "/s" "1ms": want ` + snapshots},
		{"snapshot /s 1m soon", 2, `invalid snapshot "/s" "1m" "soon": want ` + snapshots},
		{"snapshot /s 1m 1h now", 2, `invalid snapshot "/s" "1m" "1h" "now": want ` + snapshots},
		{"snapshot /s 1m 30s", 2, `invalid snapshot "/s" "1m" "30s": the maximum age is below the interval: want ` + snapshots},
		{"snapshot /s\nsnapshot /s", 3, `duplicate option snapshot`},
		{"snapshot_ready", 2, `snapshot_ready requires snapshot`},
		{"manifests a\nsnapshot /s", 3, `snapshot and manifests cannot both be set: a snapshot replaces an API server that does not respond`},
		{"zonal\nnoendpoints", 3, `zonal and noendpoints cannot both be set: zonal names are names of endpoints`},
		{"noendpoints\nttl 5\nzonal", 4, `zonal and noendpoints cannot both be set: zonal names are names of endpoints`},
		{"namespaces a\nnamespace_labels b", 3, `namespaces and namespace_labels cannot both be set: both select namespaces`},
		{"manifests a\nendpoint http://b", 3, `manifests and endpoint cannot both be set: records are read from a directory or from an API server`},
		{"apiserver_qps 1\nmanifests a", 3, `manifests and apiserver_qps cannot both be set: records are read from a directory or from an API server`},
	} {
		t.Run(c.block, func(t *testing.T) {
			_, err := kubernetesDirective.parse(caddy.NewTestController("dns", "kubernetes cluster.local {\n"+c.block+"\n}"))
			if want := fmt.Sprintf("Testfile:%d - Error during parsing: %s", c.line, c.want); err == nil || err.Error() != want {
				t.Errorf("error is\n\t%v\nwant\n\t%s", err, want)
			}
		})
	}
}

func TestParse_RejectedZones(t *testing.T) {
	const advice = ": want at least one that is not a reverse zone, such as cluster.local"
	for _, c := range []struct{ name, corefile, want string }{
		{"none", "kubernetes", `Testfile:1 - Error during parsing: no zone of the cluster in []` + advice},
		{"reverse only", "kubernetes 10.in-addr.arpa", `Testfile:1 - Error during parsing: no zone of the cluster in ["10.in-addr.arpa"]` + advice},
		{"network only", "kubernetes 10.0.0.0/8", `Testfile:1 - Error during parsing: no zone of the cluster in ["10.0.0.0/8"]` + advice},
		{"twice", "kubernetes a.local\nkubernetes b.local", "Testfile:2 - Error during parsing: duplicate kubernetes: want one in a server block"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := kubernetesDirective.parse(caddy.NewTestController("dns", c.corefile)); err == nil || err.Error() != c.want {
				t.Errorf("error is\n\t%v\nwant\n\t%s", err, c.want)
			}
		})
	}
}

// As in CoreDNS, endpoint is ignored with a warning if kubeconfig is set, in either order.
func TestParse_KubeconfigBeatsEndpoint(t *testing.T) {
	config := kit.File(t, "kubeconfig", kubeconfig)
	for _, block := range []string{"endpoint http://10.0.0.1\nkubeconfig " + config, "kubeconfig " + config + "\nendpoint http://10.0.0.1"} {
		k, err := kubernetesDirective.parse(caddy.NewTestController("dns", "kubernetes cluster.local {\n"+block+"\n}"))
		if err != nil {
			t.Error(err)
			continue
		}
		if c, err := k.from.Connection.RESTConfig(); err != nil || c.Host != "http://127.0.0.1:1" {
			t.Errorf("%v, error %v", c, err)
		}
	}
}

// In CoreDNS these options have no effect: they are set after the clients are created.
func TestBug_LimitsTakeEffect(t *testing.T) {
	k := parsed(t, kubernetesDirective, "kubernetes cluster.local {\nendpoint http://127.0.0.1:1\napiserver_qps 77\napiserver_burst 3\napiserver_max_inflight 1\n}")
	config, err := k.from.Connection.RESTConfig()
	kit.Must(t, err)
	if qps := config.RateLimiter.QPS(); qps != 77 {
		t.Errorf("%v requests a second, want 77", qps)
	}
	for i := range 4 {
		if ok := config.RateLimiter.TryAccept(); ok != (i < 3) {
			t.Errorf("request %d of a burst of 3: let through is %v", i+1, ok)
		}
	}
	if config.WrapTransport == nil {
		t.Error("nothing limits the requests in flight")
	}
}

func TestParse_RejectedServerBlock(t *testing.T) {
	controller := caddy.NewTestController("dns", "kubernetes")
	controller.ServerBlockKeys = []string{"10.in-addr.arpa.", "8.b.d.0.1.0.0.2.ip6.arpa."}
	const want = `Testfile:1 - Error during parsing: no zone of the cluster in ["10.in-addr.arpa." "8.b.d.0.1.0.0.2.ip6.arpa."]: want at least one that is not a reverse zone, such as cluster.local`
	if _, err := kubernetesDirective.parse(controller); err == nil || err.Error() != want {
		t.Errorf("error is\n\t%v\nwant\n\t%s", err, want)
	}
}
