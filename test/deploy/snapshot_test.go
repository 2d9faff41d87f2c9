package deploy

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// TestSnapshotValues has values of the chart, with the options of the Corefile, the annotation of the pod, and the volume. An own
// Corefile decides by itself.
func TestSnapshotValues(t *testing.T) {
	const (
		annotation = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
		option     = "        snapshot " + snapshotFolder + "/records\n"
		own        = "clusterdns: {corefile: \".:53 {\\n    kubernetes cluster.local {\\n        OPTION\\n    }\\n}\"}"
	)
	for _, tc := range []struct {
		name, values, options string
		annotations           map[string]string
		volume                bool
	}{
		{name: "default", options: option, annotations: map[string]string{annotation: "snapshot"}, volume: true},
		{name: "ready", values: "clusterdns: {snapshot: {ready: true}}", options: option + "        snapshot_ready\n", annotations: map[string]string{annotation: "snapshot"}, volume: true},
		{name: "off", values: "clusterdns: {snapshot: {enabled: false, ready: true, hostPath: /a}}"},
		{name: "own annotations", values: "clusterdns: {podAnnotations: {a: b, " + annotation + ": other}}", options: option, annotations: map[string]string{"a": "b", annotation: "other"}, volume: true},
		{name: "own annotations without a snapshot", values: "clusterdns: {snapshot: {enabled: false}, podAnnotations: {a: b}}", annotations: map[string]string{"a": "b"}},
		{name: "own Corefile with a snapshot", values: strings.ReplaceAll(own, "OPTION", "snapshot /var/lib/clusterdns/a"), options: "        snapshot /var/lib/clusterdns/a\n", annotations: map[string]string{annotation: "snapshot"}, volume: true},
		{name: "own Corefile without", values: strings.ReplaceAll(own, "OPTION", "# snapshot a")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			all := decoded(t, templated(t, tc.values))
			var options string
			for line := range strings.Lines(find[*corev1.ConfigMap](t, all, "ConfigMap clusterdns").Data["Corefile"]) {
				if strings.HasPrefix(strings.TrimSpace(line), "snapshot") {
					options += line
				}
			}
			if options != tc.options {
				t.Errorf("options %q, want %q", options, tc.options)
			}
			template := find[*appsv1.Deployment](t, all, "Deployment clusterdns").Spec.Template
			if !maps.Equal(template.Annotations, tc.annotations) {
				t.Errorf("annotations %v, want %v", template.Annotations, tc.annotations)
			}
			if user := *template.Spec.SecurityContext.RunAsUser; user != 65532 {
				t.Errorf("user %d", user)
			}
			volume := slices.ContainsFunc(template.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == "snapshot" })
			mount := slices.ContainsFunc(template.Spec.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "snapshot" })
			if volume != tc.volume || mount != tc.volume {
				t.Errorf("volume: %v, mounted: %v, want %v", volume, mount, tc.volume)
			}
		})
	}
}

// TestSnapshotClaim compares the claim of the page with that of the component.
func TestSnapshotClaim(t *testing.T) {
	page, err := os.ReadFile(deployed + "/overlays/README.md")
	kit.Must(t, err)
	const begin = "```yaml\n"
	from := strings.Index(string(page), begin+"apiVersion: v1\nkind: PersistentVolumeClaim\n")
	if from < 0 {
		t.Fatal("the page has no claim")
	}
	text, _, _ := strings.Cut(string(page)[from+len(begin):], "```")
	const name = "clusterdns-snapshot"
	claim := find[*corev1.PersistentVolumeClaim](t, decoded(t, text), "PersistentVolumeClaim "+name)
	all := decoded(t, kustomize(t, mine(t, "clusterdns", "overlays/components/snapshot-claim")))
	deployment := find[*appsv1.Deployment](t, all, "Deployment clusterdns")
	if claim.Namespace != deployment.Namespace || !slices.Equal(claim.Spec.AccessModes, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}) {
		t.Errorf("claim in %s with %v", claim.Namespace, claim.Spec.AccessModes)
	}
	if !slices.ContainsFunc(deployment.Spec.Template.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == name
	}) {
		t.Errorf("volumes %v", deployment.Spec.Template.Spec.Volumes)
	}
}
