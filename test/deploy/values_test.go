package deploy

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/nearside-dns/nearside/test/controlplane"
)

// TestLint lets Helm look at the chart.
func TestLint(t *testing.T) {
	out, complaint, err := output(controlplane.RequireBinary(t, "helm"), "lint", "--strict", chart)
	if err != nil || strings.Contains(out, "[WARNING]") {
		t.Errorf("helm lint: %v\n%s%s", err, out, complaint)
	}
}

// TestWrongValues has values that are refused, with what is said of them.
func TestWrongValues(t *testing.T) {
	for _, tc := range []struct{ name, values, want string }{
		{"unknown name", "clusterDNS: {enabled: true}", "additional properties 'clusterDNS' not allowed"},
		{"unknown name inside", "nodecache: {localIP: 169.254.20.10}", "at '/nodecache': additional properties 'localIP' not allowed"},
		{"unknown name of a toleration", "nodecache: {tolerations: [{effects: NoSchedule}]}", "at '/nodecache/tolerations/0': additional properties 'effects'"},
		{"mode", "proxyMode: ebpf", "at '/proxyMode': value must be one of 'iptables', 'nftables', 'ipvs', 'cilium'"},
		{"switch", "dualStack: \"yes\"", "at '/dualStack': got string, want boolean"},
		{"no address", "nodecache: {localIPs: []}", "at '/nodecache/localIPs': minItems"},
		{"address", "nodecache: {localIPs: [169.254.20]}", "at '/nodecache/localIPs/0'"},
		{"address twice", "nodecache: {localIPs: [169.254.20.10, 169.254.20.10]}", "at '/nodecache/localIPs': items at 0 and 1 are equal"},
		{"second address", "nodecache: {secondServiceIP: fd00::g}", "at '/nodecache/secondServiceIP'"},
		{"address of the Service", "clusterdns: {service: {clusterIP: none}}", "at '/clusterdns/service/clusterIP'"},
		{"name of the Service", "clusterdns: {service: {name: kube_dns}}", "at '/clusterdns/service/name'"},
		{"zone", "clusterDomain: cluster.local.", "at '/clusterDomain'"},
		{"zone of a clusterset", "multicluster: {zones: [\"*.local\"]}", "at '/multicluster/zones/0'"},
		{"zone of the cluster as that of a clusterset", "multicluster: {zones: [cluster.local]}", "multicluster.zones has cluster.local, which is clusterDomain"},
		{"pods", "clusterdns: {pods: all}", "at '/clusterdns/pods'"},
		{"no replica", "clusterdns: {replicas: 0}", "at '/clusterdns/replicas': minimum"},
		{"no upstream", "clusterdns: {upstreams: []}", "at '/clusterdns/upstreams': minItems"},
		{"upstream that ends the line", "clusterdns: {upstreams: [\"192.0.2.1 {\"]}", "at '/clusterdns/upstreams/0'"},
		{"surge", "nodecache: {updateStrategy: {maxSurge: 0}}", "at '/nodecache/updateStrategy/maxSurge'"},
		{"share of a surge", "nodecache: {updateStrategy: {maxSurge: 0%}}", "at '/nodecache/updateStrategy/maxSurge'"},
		{"digest", "nodecache: {image: {digest: sha256:0}}", "at '/nodecache/image/digest'"},
		{"registry", "image: {registry: registry.example.com/}", "at '/image/registry'"},
		{"label that selects", "clusterdns: {podLabels: {k8s-app: other}}", "invalid propertyName 'k8s-app'"},
		{"nothing", "clusterdns: {enabled: false}\nnodecache: {enabled: false}", "there is nothing to install"},
		{"autopath without the node", "nodecache: {nodeName: false}", "nodecache.autopath needs nodecache.nodeName"},
		{"second address with IPVS", "proxyMode: ipvs\nnodecache: {secondServiceIP: \"fd00:96::a\"}", "nodecache.secondServiceIP is not taken with proxyMode ipvs"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if out, complaint, err := template(t, tc.values); err == nil || !strings.Contains(complaint, tc.want) {
				t.Errorf("error %v, %q, want %q; it made %d bytes", err, complaint, tc.want, len(out))
			}
		})
	}
}

// schema is what the test reads of a JSON schema.
type schema struct {
	Type       any
	Properties map[string]*schema
	Additional any `json:"additionalProperties"`
}

// disagreements returns where values and their schema do not speak of the same: names, and objects that take any name.
func (s *schema) disagreements(path string, values map[string]any) (all []string) {
	if s.Additional != false {
		all = append(all, path+" takes any name")
	}
	for name, value := range values {
		of, ok := s.Properties[name]
		inner, isObject := value.(map[string]any)
		switch {
		case !ok:
			all = append(all, path+"/"+name+" is not in the schema")
		case isObject && len(of.Properties) > 0:
			all = append(all, of.disagreements(path+"/"+name, inner)...)
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

// TestSchema holds that values.yaml has every name of the schema, and the other way round.
func TestSchema(t *testing.T) {
	var s schema
	text, err := os.ReadFile(chart + "/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if text, err = os.ReadFile(chart + "/values.yaml"); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	// What Kubernetes defines is given as a whole, and its parts need no default.
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
