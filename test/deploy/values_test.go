package deploy

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	appsv1 "k8s.io/api/apps/v1"

	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/kit"
)

// TestLint runs helm lint on the chart.
func TestLint(t *testing.T) {
	out, complaint, err := output(controlplane.RequireBinary(t, "helm"), "lint", "--strict", chart)
	if err != nil || strings.Contains(out, "[WARNING]") {
		t.Errorf("helm lint: %v\n%s%s", err, out, complaint)
	}
}

// TestInvalidValues has invalid values, with a part of the error.
func TestInvalidValues(t *testing.T) {
	for _, tc := range []struct{ name, values, want string }{
		{"unknown name", "clusterDNS: {enabled: true}", "additional properties 'clusterDNS' not allowed"},
		{"unknown name inside", "nodecache: {localIP: 169.254.20.10}", "at '/nodecache': additional properties 'localIP' not allowed"},
		{"unknown name of a toleration", "nodecache: {tolerations: [{effects: NoSchedule}]}", "at '/nodecache/tolerations/0': additional properties 'effects'"},
		{"mode", "proxyMode: ebpf", "at '/proxyMode': value must be one of 'iptables', 'nftables', 'ipvs', 'cilium'"},
		{"switch", "dualStack: \"yes\"", "at '/dualStack': got string, want boolean"},
		{"switch of sessions", "coherent: on-demand", "at '/coherent': got string, want boolean"},
		{"no address", "nodecache: {localIPs: []}", "at '/nodecache/localIPs': minItems"},
		{"address", "nodecache: {localIPs: [169.254.20]}", "at '/nodecache/localIPs/0'"},
		{"address twice", "nodecache: {localIPs: [169.254.20.10, 169.254.20.10]}", "at '/nodecache/localIPs': items at 0 and 1 are equal"},
		{"second address", "nodecache: {secondServiceIP: fd00::g}", "at '/nodecache/secondServiceIP'"},
		{"address of the Service", "clusterdns: {service: {clusterIP: none}}", "at '/clusterdns/service/clusterIP'"},
		{"name of the Service", "clusterdns: {service: {name: kube_dns}}", "at '/clusterdns/service/name'"},
		{"zone", "clusterDomain: cluster.local.", "at '/clusterDomain'"},
		{"zone of a clusterset", "multicluster: {zones: [\"*.local\"]}", "at '/multicluster/zones/0'"},
		{"zone of the cluster as that of a clusterset", "multicluster: {zones: [cluster.local]}", "multicluster.zones contains cluster.local, which is clusterDomain"},
		{"pods", "clusterdns: {pods: all}", "at '/clusterdns/pods'"},
		{"no replica", "clusterdns: {replicas: 0}", "at '/clusterdns/replicas': minimum"},
		{"no connection", "clusterdns: {maxConnections: 0}", "at '/clusterdns/maxConnections': minimum"},
		{"connections in words", "clusterdns: {maxConnections: many}", "at '/clusterdns/maxConnections': got string"},
		{"no upstream", "clusterdns: {upstreams: []}", "at '/clusterdns/upstreams': minItems"},
		{"upstream that ends the line", "clusterdns: {upstreams: [\"192.0.2.1 {\"]}", "at '/clusterdns/upstreams/0'"},
		{"surge", "nodecache: {updateStrategy: {maxSurge: 0}}", "at '/nodecache/updateStrategy/maxSurge'"},
		{"share of a surge", "nodecache: {updateStrategy: {maxSurge: 0%}}", "at '/nodecache/updateStrategy/maxSurge'"},
		{"digest", "nodecache: {image: {digest: sha256:0}}", "at '/nodecache/image/digest'"},
		{"tag", "image: {tag: \"v1:2\"}", "at '/image/tag'"},
		{"registry of one", "nodecache: {image: {registry: registry.example.com/}}", "at '/nodecache/image/registry'"},
		{"no pod may be missing", "clusterdns: {disruptionBudget: {maxUnavailable: 0}}", "at '/clusterdns/disruptionBudget/maxUnavailable'"},
		{"no share of pods may be missing", "clusterdns: {disruptionBudget: {maxUnavailable: 0%}}", "at '/clusterdns/disruptionBudget/maxUnavailable'"},
		{"registry", "image: {registry: registry.example.com/}", "at '/image/registry'"},
		{"label that selects", "clusterdns: {podLabels: {k8s-app: other}}", "invalid propertyName 'k8s-app'"},
		{"nothing", "clusterdns: {enabled: false}\nnodecache: {enabled: false}", "there is nothing to install"},
		{"autopath without the node", "nodecache: {nodeName: false}", "nodecache.autopath needs nodecache.nodeName"},
		{"kernel", "nodecache: {kernel: auto}", "at '/nodecache/kernel': value must be one of 'off', 'on', 'force', false, true"},
		{"kernel with Cilium", "proxyMode: cilium\nnodecache: {kernel: on}", "nodecache.kernel is invalid with proxyMode cilium"},
		{"traffic distribution", "clusterdns: {service: {trafficDistribution: PreferLocal}}", "at '/clusterdns/service/trafficDistribution'"},
		{"mode of autoscaling", "clusterdns: {autoscaling: {mode: memory}}", "at '/clusterdns/autoscaling/mode'"},
		{"one replica", "clusterdns: {autoscaling: {minReplicas: 1}}", "at '/clusterdns/autoscaling/minReplicas': minimum"},
		{"fewer replicas at most than at least", "clusterdns: {autoscaling: {minReplicas: 5, maxReplicas: 4}}", "clusterdns.autoscaling.minReplicas 5 is more than maxReplicas 4"},
		{"CPU time", "clusterdns: {autoscaling: {cpu: 50%}}", "at '/clusterdns/autoscaling/cpu'"},
		{"engine of policies", "networkPolicy: {engine: flannel}", "at '/networkPolicy/engine'"},
		{"policies without addresses", "networkPolicy: {engine: calico}", "networkPolicy.serviceIPs is empty"},
		{"startup taint", "nodecache: {startupTaint: \"a/b/c\"}", "at '/nodecache/startupTaint'"},
		{"startup taint of Kubernetes", "nodecache: {startupTaint: node.kubernetes.io/not-ready}", "node.kubernetes.io/not-ready is a taint of Kubernetes"},
		{"startup taint without the node", "nodecache: {startupTaint: example.com/not-ready, nodeName: false, autopath: false}", "nodecache.startupTaint needs nodecache.nodeName"},
		{"snapshot in two volumes", "clusterdns: {snapshot: {hostPath: /var/lib/clusterdns, existingClaim: a}}", "clusterdns.snapshot has hostPath and existingClaim"},
		{"folder of the snapshot", "clusterdns: {snapshot: {hostPath: var/lib}}", "at '/clusterdns/snapshot/hostPath'"},
		{"claim of the snapshot", "clusterdns: {snapshot: {existingClaim: A}}", "at '/clusterdns/snapshot/existingClaim'"},
		{"ConfigMap with files", "nodecache: {customConfigMap: \"\"}", "at '/nodecache/customConfigMap'"},
		{"second address with IPVS", "proxyMode: ipvs\nnodecache: {secondServiceIP: \"fd00:96::a\"}", "nodecache.secondServiceIP is invalid with proxyMode ipvs"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if out, complaint, err := template(t, tc.values); err == nil || !strings.Contains(complaint, tc.want) {
				t.Errorf("error %v, %q, want %q; it made %d bytes", err, complaint, tc.want, len(out))
			}
		})
	}
}

// TestAddressesThatPodsCannotQuery has addresses with which nodecache would not start, in localIPs and as the second
// address of the Service: the chart refuses each. It accepts those that differ from them a little.
func TestAddressesThatPodsCannotQuery(t *testing.T) {
	quoted := func(all []string) string { return `"` + strings.Join(all, `", "`) + `"` }
	refused := []string{
		"127.0.0.1", "127.1.2.3", "0.0.0.0", "224.0.0.1", "239.255.255.250", "255.255.255.255",
		"::", "::1", "0:0:0:0:0:0:0:1", "0::0", "ff02::fb", "FF05::2", "fe80::53", "FEBF::53", "::ffff:169.254.20.10", "0:0::ffff:a9fe:140a",
	}
	_, complaint, err := template(t, "nodecache: {secondServiceIP: fe80::53, localIPs: ["+quoted(refused)+"]}")
	if err == nil {
		t.Fatal("it is accepted")
	}
	places := []string{"secondServiceIP"}
	for i := range refused {
		places = append(places, fmt.Sprintf("localIPs/%d", i))
	}
	for i, place := range places {
		if !strings.Contains(complaint, "at '/nodecache/"+place+"': 'not' failed") {
			t.Errorf("%s of %s is accepted:\n%s", place, slices.Concat([]string{"fe80::53"}, refused)[i], complaint)
		}
	}
	accepted := []string{"169.254.20.10", "10.96.0.10", "12.7.0.1", "223.0.0.1", "240.0.0.1", "fd00::a", "fd00:0:0:1::", "2001:db8::1", "::10", "fec0::1", "64:ff9b::a00:a"}
	if _, complaint, err := template(t, "nodecache: {localIPs: ["+quoted(accepted)+"]}"); err != nil {
		t.Errorf("%v\n%s", err, complaint)
	}
}

// TestImages has the image references, by the values of both programs and of one.
func TestImages(t *testing.T) {
	version, _, err := output(controlplane.RequireBinary(t, "helm"), "show", "chart", chart)
	kit.Must(t, err)
	var metadata struct {
		AppVersion string `yaml:"appVersion"`
	}
	kit.Must(t, yaml.Unmarshal([]byte(version), &metadata))
	const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for _, tc := range []struct{ name, values, clusterdns, nodecache string }{
		{"neither", "", "nearside.invalid/nearside/clusterdns:" + metadata.AppVersion, "nearside.invalid/nearside/nodecache:" + metadata.AppVersion},
		{"both", "image: {registry: example.com, tag: v1}", "example.com/nearside/clusterdns:v1", "example.com/nearside/nodecache:v1"},
		{"one", "clusterdns: {image: {registry: example.com, tag: v1}}", "example.com/nearside/clusterdns:v1", "nearside.invalid/nearside/nodecache:" + metadata.AppVersion},
		{
			"one beside both", "image: {registry: example.com, tag: v1}\nnodecache: {image: {registry: \"example.org:5000/dns\", repository: cache, tag: v2}}",
			"example.com/nearside/clusterdns:v1", "example.org:5000/dns/cache:v2",
		},
		{"a digest beside a tag of both", "image: {tag: v1}\nclusterdns: {image: {digest: " + digest + "}}", "nearside.invalid/nearside/clusterdns@" + digest, "nearside.invalid/nearside/nodecache:v1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			all := decoded(t, templated(t, tc.values))
			if got := find[*appsv1.Deployment](t, all, "Deployment clusterdns").Spec.Template.Spec.Containers[0].Image; got != tc.clusterdns {
				t.Errorf("clusterdns is %s, want %s", got, tc.clusterdns)
			}
			if got := find[*appsv1.DaemonSet](t, all, "DaemonSet nodecache").Spec.Template.Spec.Containers[0].Image; got != tc.nodecache {
				t.Errorf("nodecache is %s, want %s", got, tc.nodecache)
			}
		})
	}
}

// TestInstallNotes has the notes after an installation about missing addresses.
func TestInstallNotes(t *testing.T) {
	const (
		second = "set\nnodecache.secondServiceIP to the other one"
		local  = "nodecache.localIPs has none"
	)
	for _, tc := range []struct {
		name, values  string
		second, local bool
	}{
		{name: "IPv4", values: "clusterdns: {service: {clusterIP: 10.96.0.10}}"},
		{name: "both families", values: "dualStack: true", second: true},
		{name: "both families with IPv6 first", values: "dualStack: true\nclusterdns: {service: {clusterIP: \"fd00:96::a\"}}", second: true},
		{name: "both families with the second address", values: "dualStack: true\nnodecache: {secondServiceIP: \"fd00:96::a\"}"},
		{name: "both families with IPVS", values: "dualStack: true\nproxyMode: ipvs"},
		{name: "both families for clusterdns alone", values: "dualStack: true\nnodecache: {enabled: false}"},
		{name: "IPv6", values: "clusterdns: {service: {clusterIP: \"fd00:96::a\"}}", local: true},
		{name: "IPv6 with an address", values: "clusterdns: {service: {clusterIP: \"fd00:96::a\"}}\nnodecache: {localIPs: [\"fd00:53::10\"]}"},
		{name: "IPv6 with Cilium", values: "proxyMode: cilium\nclusterdns: {service: {clusterIP: \"fd00:96::a\"}}"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out, complaint, err := output(controlplane.RequireBinary(t, "helm"), "install", "nearside", chart, "--namespace", "kube-system", "--dry-run=client", "--values", valuesFile(t, tc.values))
			if err != nil {
				t.Fatalf("helm install: %v\n%s", err, complaint)
			}
			_, notes, ok := strings.Cut(out, "NOTES:\n")
			if !ok {
				t.Fatalf("it has no notes:\n%s", out)
			}
			for what, want := range map[string]bool{second: tc.second, local: tc.local} {
				if got := strings.Contains(notes, what); got != want {
					t.Errorf("%q: %v, want %v:\n%s", what, got, want, notes)
				}
			}
		})
	}
}

// schema has the fields of a JSON schema that the test reads.
type schema struct {
	Type       any
	Properties map[string]*schema
	Additional any `json:"additionalProperties"`
}

// disagreements returns the differences between values and their schema: names, and objects that accept any name.
func (s *schema) disagreements(path string, values map[string]any) (all []string) {
	if s.Additional != false {
		all = append(all, path+" takes any name")
	}
	for name, value := range values {
		property, ok := s.Properties[name]
		inner, isObject := value.(map[string]any)
		switch {
		case !ok:
			all = append(all, path+"/"+name+" is not in the schema")
		case isObject && len(property.Properties) > 0:
			all = append(all, property.disagreements(path+"/"+name, inner)...)
		}
	}
	for name := range s.Properties {
		if _, ok := values[name]; !ok && path+"/"+name != "/global" { // which Helm itself adds
			all = append(all, path+"/"+name+" is not in values.yaml")
		}
	}
	slices.Sort(all)
	return all
}

// TestSchema asserts that values.yaml and the schema have the same names.
func TestSchema(t *testing.T) {
	var s schema
	text, err := os.ReadFile(chart + "/values.schema.json")
	kit.Must(t, err)
	kit.Must(t, json.Unmarshal(text, &s))
	var values map[string]any
	if text, err = os.ReadFile(chart + "/values.yaml"); err != nil {
		t.Fatal(err)
	}
	kit.Must(t, yaml.Unmarshal(text, &values))
	// Objects that Kubernetes defines are passed on as a whole, and their fields need no default.
	kubernetes := []string{"/clusterdns/affinity", "/nodecache/affinity", "/clusterdns/resources", "/nodecache/resources"}
	for _, d := range s.disagreements("", values) {
		if !slices.ContainsFunc(kubernetes, func(path string) bool { return strings.HasPrefix(d, path+"/") }) {
			t.Error(d)
		}
	}
	t.Run("can fail", func(t *testing.T) {
		s := schema{Properties: map[string]*schema{"a": {Properties: map[string]*schema{"b": {}}, Additional: false}, "c": {}}, Additional: false}
		got := fmt.Sprint(s.disagreements("", map[string]any{"a": map[string]any{"x": 1}, "d": 1}))
		if want := "[/a/b is not in values.yaml /a/x is not in the schema /c is not in values.yaml /d is not in the schema]"; got != want {
			t.Errorf("disagreements %s, want %s", got, want)
		}
	})
}
