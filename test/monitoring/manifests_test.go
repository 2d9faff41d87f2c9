package monitoring

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/kit"
)

// object has the fields of rendered objects that the tests read.
type object struct {
	Kind     string `yaml:"kind"`
	Metadata struct {
		Name        string            `yaml:"name"`
		Namespace   string            `yaml:"namespace"`
		Labels      map[string]string `yaml:"labels"`
		Annotations map[string]string `yaml:"annotations"`
	} `yaml:"metadata"`
	Data map[string]string `yaml:"data"`
	Spec struct {
		JobLabel string `yaml:"jobLabel"`
		Selector struct {
			MatchLabels map[string]string `yaml:"matchLabels"`
		} `yaml:"selector"`
		PodMetricsEndpoints []endpoint `yaml:"podMetricsEndpoints"`
		Endpoints           []endpoint `yaml:"endpoints"`
		Template            struct {
			Metadata struct {
				Labels map[string]string `yaml:"labels"`
			} `yaml:"metadata"`
			Spec struct {
				Containers []struct {
					Ports []port `yaml:"ports"`
				} `yaml:"containers"`
			} `yaml:"spec"`
		} `yaml:"template"`
		Ports []port `yaml:"ports"`
	} `yaml:"spec"`
}

type endpoint struct {
	Port        string `yaml:"port"`
	Relabelings []struct {
		SourceLabels []string `yaml:"sourceLabels"`
		TargetLabel  string   `yaml:"targetLabel"`
	} `yaml:"relabelings"`
}

type port struct {
	Name string `yaml:"name"`
}

// kustomized returns the rendered objects of a folder.
func kustomized(t *testing.T, folder string) (all []object) {
	t.Helper()
	var problems bytes.Buffer
	cmd := exec.Command(controlplane.RequireBinary(t, "kubectl"), "kustomize", folder)
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kubectl kustomize %s: %v\n%s", folder, err, problems.String())
	}
	decoder := yaml.NewDecoder(bytes.NewReader(out))
	for {
		var o object
		if err := decoder.Decode(&o); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, o)
	}
}

// find returns the object of a kind and a name.
func find(t *testing.T, all []object, kind, name string) object {
	t.Helper()
	i := slices.IndexFunc(all, func(o object) bool { return o.Kind == kind && o.Metadata.Name == name })
	if i < 0 {
		t.Fatalf("there is no %s %s", kind, name)
	}
	return all[i]
}

// TestManifests renders deploy/monitoring, and checks that it selects the pods of the other manifests.
func TestManifests(t *testing.T) {
	all := kustomized(t, folder)
	for program, path := range dashboards {
		t.Run("dashboard of "+program, func(t *testing.T) {
			o := find(t, all, "ConfigMap", "nearside-dashboard-"+program)
			text, err := os.ReadFile(path)
			kit.Must(t, err)
			if o.Metadata.Labels["grafana_dashboard"] != "1" || o.Data["nearside-"+program+".json"] != string(text) {
				t.Errorf("labels %v, or another dashboard than %s", o.Metadata.Labels, path)
			}
			// kubectl apply stores the object in an annotation, as JSON: quotes and new lines take two bytes each.
			if size := len(text) + strings.Count(string(text), `"`) + strings.Count(string(text), "\n"); size > 200<<10 {
				t.Errorf("%d bytes are more than kubectl apply can store", size)
			}
		})
	}
	find(t, all, "PrometheusRule", "nearside")
	t.Run("clusterdns", func(t *testing.T) {
		m := find(t, all, "PodMonitor", clusterdns)
		d := find(t, kustomized(t, "../../deploy/clusterdns"), "Deployment", clusterdns)
		finds(t, m, m.Spec.PodMetricsEndpoints, d.Spec.Template.Metadata.Labels, d.Spec.Template.Spec.Containers[0].Ports)
	})
	t.Run("nodecache", func(t *testing.T) {
		m := find(t, all, "ServiceMonitor", nodecache)
		s := find(t, kustomized(t, "../../deploy/nodecache"), "Service", nodecache)
		finds(t, m, m.Spec.Endpoints, s.Metadata.Labels, s.Spec.Ports)
	})
}

// TestOverlay renders the overlay of the README.
func TestOverlay(t *testing.T) {
	text := kit.Read(t, folder+"/README.md")
	_, rest, found := strings.Cut(text, "\n```yaml\n")
	overlay, _, _ := strings.Cut(rest, "\n```")
	base, err := filepath.Abs(folder)
	kit.Must(t, err)
	in := t.TempDir()
	// kustomize takes no absolute path.
	relative, err := filepath.Rel(in, base)
	if err != nil || !found || !strings.Contains(overlay, "../nearside/deploy/monitoring") {
		t.Fatalf("overlay %q, error %v", overlay, err)
	}
	overlay = strings.Replace(overlay, "../nearside/deploy/monitoring", relative, 1)
	kit.Write(t, filepath.Join(in, "kustomization.yaml"), overlay)
	all := kustomized(t, in)
	for kind, name := range map[string]string{"PodMonitor": clusterdns, "ServiceMonitor": nodecache, "PrometheusRule": "nearside"} {
		o := find(t, all, kind, name)
		if o.Metadata.Labels["release"] == "" || o.Spec.Selector.MatchLabels["release"] != "" {
			t.Errorf("%s has the labels %v and selects %v", kind, o.Metadata.Labels, o.Spec.Selector.MatchLabels)
		}
	}
}

// finds checks that a monitor selects pods or Services by labels and ports, and adds the labels of the rules.
func finds(t *testing.T, monitor object, endpoints []endpoint, labels map[string]string, ports []port) {
	t.Helper()
	if len(monitor.Spec.Selector.MatchLabels) == 0 {
		t.Error("the monitor selects everything")
	}
	for name, value := range monitor.Spec.Selector.MatchLabels {
		if labels[name] != value {
			t.Errorf("the monitor wants %s=%s, there is %v", name, value, labels)
		}
	}
	if job := labels[monitor.Spec.JobLabel]; job != monitor.Metadata.Name {
		t.Errorf("the job is %q, want %s", job, monitor.Metadata.Name)
	}
	if len(endpoints) != 1 {
		t.Fatalf("there are %d endpoints", len(endpoints))
	}
	e := endpoints[0]
	if !slices.ContainsFunc(ports, func(p port) bool { return p.Name == e.Port }) {
		t.Errorf("the port is %s, there are %v", e.Port, ports)
	}
	if len(e.Relabelings) != 1 || e.Relabelings[0].TargetLabel != "node" || !slices.Equal(e.Relabelings[0].SourceLabels, []string{"__meta_kubernetes_pod_node_name"}) {
		t.Errorf("nothing makes the label node: %+v", e.Relabelings)
	}
}

// withoutKubernetes writes the example of a configuration with rules.yaml beside it, and fixed targets instead of those
// of Kubernetes, which Debian's Prometheus does not support.
func withoutKubernetes(t *testing.T) string {
	t.Helper()
	var configuration map[string]any
	readYAML(t, folder+"/prometheus.yaml", &configuration)
	var jobs []string
	for _, c := range configuration["scrape_configs"].([]any) {
		job := c.(map[string]any)
		jobs = append(jobs, job["job_name"].(string))
		found := job["kubernetes_sd_configs"].([]any)
		if role := found[0].(map[string]any)["role"]; len(found) != 1 || role != "pod" && role != "endpointslice" {
			t.Errorf("the job %s finds %v", job["job_name"], found)
		}
		delete(job, "kubernetes_sd_configs")
		job["static_configs"] = []any{map[string]any{"targets": []string{"192.0.2.1:9"}}}
	}
	if !slices.Equal(jobs, []string{clusterdns, nodecache}) {
		t.Errorf("the jobs are %q", jobs)
	}
	text, err := yaml.Marshal(configuration)
	kit.Must(t, err)
	rules, err := os.ReadFile(rulesFile)
	kit.Must(t, err)
	in := t.TempDir()
	for name, text := range map[string][]byte{"prometheus.yaml": text, "rules.yaml": rules} {
		kit.Write(t, filepath.Join(in, name), string(text))
	}
	return filepath.Join(in, "prometheus.yaml")
}
