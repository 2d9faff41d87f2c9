package deploy

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	serializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/kit"
)

const (
	deployed = "../../deploy"
	chart    = deployed + "/helm/nearside"
)

// foreign are the kinds that have no type here: only the API server with their definitions knows the fields.
var foreign = map[string]bool{
	"cilium.io/v2, Kind=CiliumClusterwideNetworkPolicy": true,
	"cilium.io/v2, Kind=CiliumLocalRedirectPolicy":      true,
	"monitoring.coreos.com/v1, Kind=PodMonitor":         true,
	"monitoring.coreos.com/v1, Kind=ServiceMonitor":     true,
	"projectcalico.org/v3, Kind=GlobalNetworkPolicy":    true,
	"projectcalico.org/v3, Kind=GlobalNetworkSet":       true,
}

// objects are the objects of a rendered text, by kind and name.
type objects map[string]runtime.Object

// output runs a program and returns its standard output, and its errors.
func output(program string, args ...string) (out, complaint string, err error) {
	cmd := exec.Command(program, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	return stdout.String(), stderr.String(), err
}

// texts are earlier renderings, by folder or values: several tests use each.
var texts = map[string]string{}

// kustomize renders a folder.
func kustomize(t *testing.T, folder string) string {
	t.Helper()
	if text, ok := texts[folder]; ok {
		return text
	}
	out, complaint, err := output(controlplane.RequireBinary(t, "kubectl"), "kustomize", folder)
	if err != nil || complaint != "" {
		t.Fatalf("kubectl kustomize %s: %v\n%s", folder, err, complaint)
	}
	texts[folder] = out
	return out
}

// template renders the chart with a file of values.
func template(t *testing.T, values string) (out, complaint string, err error) {
	t.Helper()
	return output(controlplane.RequireBinary(t, "helm"), "template", "nearside", chart, "--namespace", "kube-system", "--values", valuesFile(t, values))
}

// valuesFile returns a file with values of the chart.
func valuesFile(t *testing.T, values string) (path string) {
	t.Helper()
	return kit.File(t, "values.yaml", values)
}

// templated is template with valid values.
func templated(t *testing.T, values string) string {
	t.Helper()
	if text, ok := texts["values: "+values]; ok {
		return text
	}
	out, complaint, err := template(t, values)
	if err != nil {
		t.Fatalf("helm template: %v\n%s", err, complaint)
	}
	texts["values: "+values] = out
	return out
}

// decode returns the objects of a text. An unknown field or a duplicate object is an error.
func decode(text string) (objects, error) {
	strict := serializer.NewSerializerWithOptions(serializer.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, serializer.SerializerOptions{Yaml: true, Strict: true})
	all := objects{}
	for documents := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text))); ; {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		if len(bytes.TrimSpace(withoutComments(document))) == 0 {
			continue
		}
		object, gvk, err := strict.Decode(document, nil, nil)
		if runtime.IsNotRegisteredError(err) && foreign[gvk.String()] {
			object = &unstructured.Unstructured{}
			err = utilyaml.Unmarshal(document, &object.(*unstructured.Unstructured).Object)
		}
		if err != nil {
			return nil, fmt.Errorf("%w in\n%s", err, document)
		}
		name := gvk.Kind + " " + object.(metav1.Object).GetName()
		if _, twice := all[name]; twice {
			return nil, fmt.Errorf("%s stands there twice", name)
		}
		all[name] = object
	}
}

func withoutComments(document []byte) []byte {
	lines := bytes.Split(document, []byte("\n"))
	return bytes.Join(slices.DeleteFunc(lines, func(l []byte) bool { return bytes.HasPrefix(l, []byte("#")) || bytes.HasPrefix(l, []byte("---")) }), []byte("\n"))
}

func decoded(t *testing.T, text string) objects {
	t.Helper()
	all, err := decode(text)
	kit.Must(t, err)
	return all
}

// find returns an object of a rendered text.
func find[T runtime.Object](t *testing.T, all objects, name string) T {
	t.Helper()
	object, ok := all[name].(T)
	if !ok {
		t.Fatalf("there is no %s, but %q", name, all.names())
	}
	return object
}

func (o objects) names() (all []string) {
	for name := range o {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// overlays are the folders that users can apply.
func overlays(t *testing.T) (folders []string) {
	t.Helper()
	files, err := filepath.Glob(deployed + "/*/kustomization.yaml")
	kit.Must(t, err)
	more, err := filepath.Glob(deployed + "/overlays/*/kustomization.yaml")
	kit.Must(t, err)
	for _, f := range append(files, more...) {
		folder := filepath.Dir(f)
		text, err := os.ReadFile(f)
		kit.Must(t, err)
		// Others have tests of their own.
		if strings.Contains(folder, "overlays") || bytes.Contains(text, []byte("images:")) {
			folders = append(folders, folder)
		}
	}
	if len(folders) < 9 {
		t.Fatalf("only %q were found", folders)
	}
	return folders
}

// variants are values to render the chart with, besides those of TestChartMatchesKustomization.
var variants = map[string]string{
	"all":                         everyValue,
	"clusterdns alone":            "nodecache: {enabled: false}",
	"nodecache alone":             "clusterdns: {enabled: false}",
	"monitors":                    "clusterdns: {podMonitor: {enabled: true}}\nnodecache: {serviceMonitor: {enabled: true, labels: {release: prometheus}}}",
	"clusterset":                  "multicluster: {zones: [clusterset.local]}",
	"without autopath":            "nodecache: {autopath: false, nodeName: false}",
	"pods disabled":               "clusterdns: {pods: disabled}",
	"without coherent":            "coherent: false",
	"another zone and Service":    "clusterDomain: k8s.example.com\nclusterdns: {service: {name: rke2-coredns-rke2-coredns, create: false}}",
	"images of a mirror":          "image: {registry: \"registry.example.com:5000/mirror\", pullSecrets: [mirror]}\nnodecache: {image: {digest: sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef}}",
	"neither spread nor budget":   "clusterdns: {topologySpreadConstraints: [], disruptionBudget: {enabled: false}}",
	"a share of nodes in updates": "nodecache: {updateStrategy: {maxSurge: 10%}}",
	"upstreams over TLS":          "clusterdns: {upstreams: [\"tls://192.0.2.53%dns.example.org\", \"192.0.2.54:5353\"]}",
	"own Corefiles":               ownCorefiles,
	"cilium with a clusterset":    "proxyMode: cilium\nmulticluster: {zones: [clusterset.local]}",
	"kernel":                      "nodecache: {kernel: on}",
	"kernel forced":               "nodecache: {kernel: force}",
	"policies of Cilium":          "networkPolicy: {engine: cilium, serviceIPs: [\"fd00:96::a\"]}",
	"autoscaling by CPU":          "clusterdns: {autoscaling: {mode: cpu, cpu: \"2\", maxReplicas: 4}}",
	"without a snapshot":          "clusterdns: {snapshot: {enabled: false, ready: true}}",
	"a snapshot of the node":      "clusterdns: {snapshot: {hostPath: /var/lib/dns}}",
	"a startup taint alone":       "nodecache: {startupTaint: not-ready, autopath: false}",
}

// everyValue sets the values that the other variants do not set.
const everyValue = `
clusterDomain: k8s.example.com
dualStack: true
proxyMode: nftables
multicluster: {zones: [clusterset.local, mesh.example.com]}
image: {pullPolicy: Always}
networkPolicy: {engine: calico, serviceIPs: [10.96.0.10, "fd00:96::a"]}
clusterdns:
  image: {repository: example/clusterdns, tag: v1.2.3}
  replicas: 5
  autoscaling: {mode: nodes, minReplicas: 3, maxReplicas: 5, nodesPerReplica: 500, image: "registry.example.com/cpa:v1"}
  customConfigMap: dns-files
  topology: true
  pods: verified
  maxConnections: 50000
  snapshot: {existingClaim: records, ready: true}
  serverBlocks: |
    corp.example.com:53 {
        errors
        forward . 10.150.0.1
    }
  service: {clusterIP: 10.96.0.10, trafficDistribution: PreferSameZone}
  serviceAccount: {name: dns, annotations: {example.com/a: b}}
  disruptionBudget: {maxUnavailable: 25%}
  resources: {limits: {memory: 1Gi}}
  priorityClassName: system-node-critical
  nodeSelector: {node-role.kubernetes.io/dns: ""}
  tolerations: [{key: dns, operator: Exists}]
  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]}}}
  topologySpreadConstraints: [{topologyKey: rack, maxSkew: 2, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app.kubernetes.io/name: clusterdns}}}]
  podAnnotations: {example.com/a: b}
  podLabels: {team: dns}
  extraArgs: [-log-format, json]
  extraEnv: [{name: GOMEMLIMIT, value: 900MiB}]
nodecache:
  image: {repository: example/nodecache, tag: v1.2.3}
  localIPs: [169.254.20.11]
  secondServiceIP: fd00:96::a
  upstreamService: {name: cluster-dns, trafficDistribution: PreferSameNode}
  startupTaint: example.com/not-ready
  customConfigMap: cache-files
  kubeDNSConfigMap: stubs
  followResolvConf: false
  serviceAccount: {name: cache, annotations: {example.com/a: b}}
  updateStrategy: {minReadySeconds: 5}
  resources: {}
  priorityClassName: system-cluster-critical
  nodeSelector: {}
  tolerations: []
  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]}}}
  podAnnotations: {example.com/a: b}
  podLabels: {team: dns}
  extraArgs: [-log-format, json]
  extraEnv: [{name: GOGC, value: "50"}]
  serverBlocks: |
    corp.example.com:53 {
        errors
        forward . 10.150.0.1
    }
`

// ownCorefiles need other permissions than those of the values.
const ownCorefiles = `
proxyMode: cilium
clusterdns:
  corefile: |
    .:53 {
        errors
        ready
        kubernetes cluster.local clusterset.local {
            pods verified
            topology
            multicluster clusterset.local
        }
        forward . /etc/resolv.conf
    }
nodecache:
  autopath: false
  corefile: |
    .:53 {
        errors
        health :8080
        ready :8181
        autopath cluster.local @nodelocal
        cache
        forward . __PILLAR__UPSTREAM__SERVERS__
    }
`

// TestRender renders everything, and decodes each object as strictly as an API server.
func TestRender(t *testing.T) {
	for _, folder := range overlays(t) {
		t.Run(filepath.Base(folder), func(t *testing.T) { decoded(t, kustomize(t, folder)) })
	}
	for name, values := range variants {
		t.Run(name, func(t *testing.T) { decoded(t, templated(t, values)) })
	}
}

// TestInvalidObjects has an unknown field and a duplicate object, which are errors.
func TestInvalidObjects(t *testing.T) {
	const account = "apiVersion: v1\nkind: ServiceAccount\nmetadata:\n  name: a\n"
	for _, tc := range []struct{ name, text, want string }{
		{"right", "# comment\n---\n" + account, ""},
		{"a field", account + "rights: []\n", `unknown field "rights"`},
		{"twice", account + "---\n" + account, "ServiceAccount a stands there twice"},
		{"a kind", "apiVersion: example.com/v1\nkind: Nonsense\nmetadata:\n  name: a\n", `no kind "Nonsense"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			all, err := decode(tc.text)
			switch {
			case tc.want == "" && (err != nil || len(all) != 1):
				t.Errorf("%d objects, error %v", len(all), err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

// text is an object as indented JSON, to compare by line.
func text(t *testing.T, object runtime.Object) string {
	t.Helper()
	out, err := json.MarshalIndent(object, "", " ")
	kit.Must(t, err)
	return string(out)
}
