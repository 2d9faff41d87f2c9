package deploy

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nearside-dns/nearside/test/kit"
)

// ofHelm are the labels and annotations with the release of an object, and with Helm's instructions for it.
func ofHelm(name string, _ string) bool {
	return strings.HasPrefix(name, "helm.sh/") || name == "app.kubernetes.io/managed-by" || name == "app.kubernetes.io/instance"
}

// plain removes from an object the fields that only Helm reads.
func plain(t *testing.T, object runtime.Object) string {
	t.Helper()
	meta := object.(metav1.Object)
	for _, field := range []struct {
		get func() map[string]string
		set func(map[string]string)
	}{{meta.GetLabels, meta.SetLabels}, {meta.GetAnnotations, meta.SetAnnotations}} {
		rest := maps.Clone(field.get())
		maps.DeleteFunc(rest, ofHelm)
		if len(rest) == 0 {
			rest = nil
		}
		field.set(rest)
	}
	return text(t, object)
}

// differences returns the objects that only one of two sets has, or that differ.
func differences(t *testing.T, kustomized, templated objects) (all []string) {
	t.Helper()
	for _, name := range slices.Compact(slices.Sorted(slices.Values(append(kustomized.names(), templated.names()...)))) {
		a, inA := kustomized[name]
		b, inB := templated[name]
		switch {
		case !inA:
			all = append(all, name+" is in the chart alone")
		case !inB:
			all = append(all, name+" is in the kustomization alone")
		default:
			if k, h := plain(t, a), plain(t, b); k != h {
				all = append(all, name+" is not the same:\n"+firstDifference(k, h))
			}
		}
	}
	return all
}

// firstDifference returns the first lines in which two texts differ.
func firstDifference(a, b string) string {
	linesA, linesB := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(linesA), len(linesB)) {
		if linesA[i] != linesB[i] {
			return strings.Join(linesA[max(i-3, 0):min(i+3, len(linesA))], "\n") + "\n--- chart:\n" + strings.Join(linesB[max(i-3, 0):min(i+3, len(linesB))], "\n")
		}
	}
	return a[min(len(a), len(b)):] + b[min(len(a), len(b)):]
}

// labelledNodes are the values for nodecache alone, on nodes with a label.
const labelledNodes = "clusterdns: {enabled: false}\nnodecache: {upstreamService: {name: nodecache-upstream}, nodeSelector: {nearside.dev/nodecache: \"true\"}}"

// TestChartMatchesKustomization compares each kustomization with the chart, with equivalent values.
func TestChartMatchesKustomization(t *testing.T) {
	values := map[string]string{
		"clusterdns":     "nodecache: {enabled: false}",
		"nodecache":      "clusterdns: {enabled: false}",
		"kube-proxy":     "",
		"ipvs":           "proxyMode: ipvs",
		"cilium":         "proxyMode: cilium",
		"dual-stack":     "dualStack: true\nnodecache: {secondServiceIP: \"fd00:96::a\"}",
		"ipv6":           "nodecache: {localIPs: [\"fd00:53::10\"]}",
		"beside-coredns": "nodecache: {enabled: false}\nclusterdns: {service: {create: false}}",
		"labelled-nodes": labelledNodes,
		"topology":       "nodecache: {enabled: false}\nclusterdns: {topology: true}",
		"pods-verified":  "nodecache: {enabled: false}\nclusterdns: {pods: verified}",

		"labelled-nodes-ipvs": labelledNodes + "\nproxyMode: ipvs",
	}
	for _, folder := range overlays(t) {
		name := filepath.Base(folder)
		t.Run(name, func(t *testing.T) {
			same, ok := values[name]
			if !ok {
				t.Fatal("no equivalent values of the chart in this test")
			}
			for _, d := range differences(t, decoded(t, kustomize(t, folder)), decoded(t, templated(t, same))) {
				t.Error(d)
			}
		})
	}
	t.Run("can fail", func(t *testing.T) {
		base := func() objects { return decoded(t, kustomize(t, deployed+"/clusterdns")) }
		one, other := base(), base()
		delete(other, "ServiceAccount clusterdns")
		other["Deployment clusterdns"].(metav1.Object).SetLabels(nil)
		if got := differences(t, one, other); len(got) != 2 || !strings.Contains(got[0], "Deployment clusterdns is not the same") || !strings.Contains(got[1], "kustomization alone") {
			t.Errorf("differences %q", got)
		}
	})
}

// ofBoth are the components with values of the chart that are the same with every overlay.
var ofBoth = map[string]string{
	"startup-taint":         "nodecache: {startupTaint: nearside.dev/nodecache-not-ready}",
	"traffic-distribution":  "clusterdns: {service: {trafficDistribution: PreferSameZone}}\nnodecache: {upstreamService: {trafficDistribution: PreferSameZone}}",
	"autoscaling":           "clusterdns: {autoscaling: {mode: cpu}}",
	"autoscaling-nodes":     "clusterdns: {autoscaling: {mode: nodes}}",
	"snapshot-host":         "clusterdns: {snapshot: {hostPath: /var/lib/clusterdns}}",
	"snapshot-claim":        "clusterdns: {snapshot: {existingClaim: clusterdns-snapshot}}",
	"network-policy-calico": "networkPolicy: {engine: calico, serviceIPs: [10.96.0.10]}",
	"network-policy-cilium": "networkPolicy: {engine: cilium, serviceIPs: [10.96.0.10]}",
}

// TestComponentsOfBoth adds each of these components to overlays, and compares that with the chart.
func TestComponentsOfBoth(t *testing.T) {
	for component, values := range ofBoth {
		for overlay, mode := range map[string]string{"kube-proxy": "iptables", "cilium": "cilium"} {
			t.Run(component+" with "+overlay, func(t *testing.T) {
				folder := mine(t, "overlays/"+overlay, "overlays/components/"+component)
				for _, d := range differences(t, decoded(t, kustomize(t, folder)), decoded(t, templated(t, values+"\nproxyMode: "+mode))) {
					t.Error(d)
				}
			})
		}
	}
	t.Run("all with one base", func(t *testing.T) {
		for base, components := range map[string][]string{
			"nodecache":  {"startup-taint", "traffic-distribution", "network-policy-calico", "network-policy-cilium"},
			"clusterdns": {"traffic-distribution", "autoscaling-nodes", "snapshot-host"},
		} {
			for i := range components {
				components[i] = "overlays/components/" + components[i]
			}
			decoded(t, kustomize(t, mine(t, base, components...)))
		}
	})
}

// TestComponents adds each component of clusterdns to overlays of a cluster, and compares that with the chart.
// TestKernelComponent does so for the one of nodecache.
func TestComponents(t *testing.T) {
	with := map[string]string{"topology": "clusterdns: {topology: true", "pods-verified": "clusterdns: {pods: verified"}
	folders, err := filepath.Glob(deployed + "/overlays/components/*")
	kit.Must(t, err)
	if known := len(with) + len(ofBoth) + 1; len(folders) != known {
		t.Errorf("%d components, %d of them known", len(folders), known)
	}
	for _, tc := range []struct{ name, resources, values string }{
		{"kube-proxy", "overlays/kube-proxy", "}"},
		{"cilium", "overlays/cilium", "}\nproxyMode: cilium"},
		{"beside-coredns", "overlays/beside-coredns", ", service: {create: false}}\nnodecache: {enabled: false}"},
		{"both bases", "clusterdns, nodecache", "}"},
	} {
		for component, values := range with {
			t.Run(component+" with "+tc.name, func(t *testing.T) {
				one := mine(t, tc.resources, "overlays/components/"+component)
				for _, d := range differences(t, decoded(t, kustomize(t, one)), decoded(t, templated(t, values+tc.values))) {
					t.Error(d)
				}
			})
		}
	}
	for name, resources := range map[string]string{"topology": "overlays/topology, nodecache", "pods-verified": "overlays/pods-verified, nodecache"} {
		t.Run(name+" with nodecache", func(t *testing.T) {
			for _, d := range differences(t, decoded(t, kustomize(t, mine(t, resources))), decoded(t, templated(t, with[name]+"}"))) {
				t.Error(d)
			}
		})
	}
}

// mine makes a folder with a kustomization of these folders of deploy, separated by commas, and components.
func mine(t *testing.T, resources string, components ...string) string {
	t.Helper()
	folder, err := filepath.EvalSymlinks(t.TempDir())
	kit.Must(t, err)
	at, err := filepath.Abs(deployed)
	kit.Must(t, err)
	if at, err = filepath.EvalSymlinks(at); err != nil {
		t.Fatal(err)
	}
	relative, err := filepath.Rel(folder, at) // which is what kustomize takes
	kit.Must(t, err)
	text := "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n"
	for name := range strings.SplitSeq(resources, ", ") {
		text += "- " + filepath.Join(relative, name) + "\n"
	}
	text += "components:\n"
	for _, name := range components {
		text += "- " + filepath.Join(relative, name) + "\n"
	}
	kit.Write(t, filepath.Join(folder, "kustomization.yaml"), text)
	return folder
}

// TestMonitors compares the chart's monitors with those of deploy/monitoring: the alerts need their labels.
func TestMonitors(t *testing.T) {
	file := kit.Read(t, filepath.Join(deployed, "monitoring", "monitors.yaml"))
	chart := decoded(t, templated(t, "clusterdns: {podMonitor: {enabled: true}}\nnodecache: {serviceMonitor: {enabled: true}}"))
	for name, object := range decoded(t, file) {
		rendered, ok := chart[name].(*unstructured.Unstructured)
		if !ok {
			t.Errorf("the chart has no %s", name)
			continue
		}
		for _, list := range []string{"podMetricsEndpoints", "endpoints"} {
			endpoints, _, err := unstructured.NestedSlice(rendered.Object, "spec", list)
			kit.Must(t, err)
			for _, e := range endpoints {
				delete(e.(map[string]any), "interval") // for which the chart has a value
			}
			if len(endpoints) > 0 {
				kit.Must(t, unstructured.SetNestedSlice(rendered.Object, endpoints, "spec", list))
			}
		}
		if k, h := plain(t, object), plain(t, rendered); k != h {
			t.Errorf("%s is not the same:\n%s", name, firstDifference(k, h))
		}
	}
}
