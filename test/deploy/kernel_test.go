package deploy

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/nearside-dns/nearside/test/controlplane"
)

// kernelOption matches the option kernel of the directive fastpath.
var kernelOption = regexp.MustCompile(`(?m)^    fastpath \{\n        kernel (\w+)\n    \}$`)

// kernelOptions returns the option kernel of each server block of nodecache's Corefile that has it.
func kernelOptions(t *testing.T, all objects) (options []string) {
	t.Helper()
	corefile := find[*corev1.ConfigMap](t, all, "ConfigMap nodecache").Data["Corefile.base"]
	for _, found := range kernelOption.FindAllStringSubmatch(corefile, -1) {
		options = append(options, found[1])
	}
	return options
}

// capabilities returns the capabilities of nodecache's container.
func capabilities(t *testing.T, all objects) []corev1.Capability {
	t.Helper()
	return find[*appsv1.DaemonSet](t, all, "DaemonSet nodecache").Spec.Template.Spec.Containers[0].SecurityContext.Capabilities.Add
}

// withKernel is a template of a Corefile with the option kernel.
const withKernel = `
nodecache:
  corefile: |
    .:53 {
        bind __PILLAR__LOCAL__DNS__
        cache
        fastpath {
            max_concurrent 1000
            kernel %s # a comment
        }
        forward . __PILLAR__UPSTREAM__SERVERS__
    }
`

// blockWithKernel adds a server block with the option kernel.
const blockWithKernel = `
nodecache:
  serverBlocks: |
    example.com:53 {
        bind __PILLAR__LOCAL__DNS__
        cache
        fastpath {
            kernel on
        }
        forward . __PILLAR__UPSTREAM__SERVERS__
    }
`

// TestKernelValues has values of the chart, with the capabilities of nodecache and the options of its server blocks.
func TestKernelValues(t *testing.T) {
	all := func(option string) []string { return []string{option, option, option, option} }
	for _, tc := range []struct {
		name, values string
		capability   bool
		options      []string
	}{
		{name: "default"},
		{name: "off", values: "nodecache: {kernel: \"off\"}"},
		{name: "off without quotes", values: "nodecache: {kernel: off}"},
		{name: "false", values: "nodecache: {kernel: false}"},
		{name: "on", values: "nodecache: {kernel: \"on\"}", capability: true, options: all("on")},
		{name: "on without quotes", values: "nodecache: {kernel: on}", capability: true, options: all("on")},
		{name: "true", values: "nodecache: {kernel: true}", capability: true, options: all("on")},
		{name: "force", values: "nodecache: {kernel: force}", capability: true, options: all("force")},
		{name: "a server block that has it", values: blockWithKernel, capability: true, options: []string{"on"}},
		{name: "own Corefile with on", values: fmt.Sprintf(withKernel, "on"), capability: true},
		{name: "own Corefile with force", values: fmt.Sprintf(withKernel, "force"), capability: true},
		{name: "own Corefile with off", values: fmt.Sprintf(withKernel, "off")},
		{name: "own Corefile with a comment", values: strings.ReplaceAll(fmt.Sprintf(withKernel, "on"), "kernel", "# kernel")},
		{name: "own Corefile without", values: ownCorefiles},
		{name: "own Corefile with Cilium", values: fmt.Sprintf(withKernel, "on") + "proxyMode: cilium"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			objects := decoded(t, templated(t, tc.values))
			if got := capabilities(t, objects); slices.Contains(got, "BPF") != tc.capability {
				t.Errorf("capabilities %s, BPF is wanted: %v", got, tc.capability)
			}
			if got := kernelOptions(t, objects); !slices.Equal(got, tc.options) {
				t.Errorf("kernel %s, want %s", got, tc.options)
			}
		})
	}
}

// TestKernelComponent adds the component to overlays with nodecache, and compares that with the chart.
func TestKernelComponent(t *testing.T) {
	const component = "overlays/components/kernel"
	for _, tc := range []struct{ resources, values string }{
		{"overlays/kube-proxy", "nodecache: {kernel: on}"},
		{"overlays/ipvs", "proxyMode: ipvs\nnodecache: {kernel: on}"},
		{"overlays/dual-stack", "dualStack: true\nnodecache: {kernel: on, secondServiceIP: \"fd00:96::a\"}"},
		{"overlays/ipv6", "nodecache: {kernel: on, localIPs: [\"fd00:53::10\"]}"},
		{"nodecache", "clusterdns: {enabled: false}\nnodecache: {kernel: on}"},
	} {
		t.Run(tc.resources, func(t *testing.T) {
			one := mine(t, tc.resources, component)
			for _, d := range differences(t, decoded(t, kustomize(t, one)), decoded(t, templated(t, tc.values))) {
				t.Error(d)
			}
		})
	}
	t.Run("with other components", func(t *testing.T) {
		one := mine(t, "overlays/kube-proxy", "overlays/components/topology", component)
		other := templated(t, "clusterdns: {topology: true}\nnodecache: {kernel: on}")
		for _, d := range differences(t, decoded(t, kustomize(t, one)), decoded(t, other)) {
			t.Error(d)
		}
	})
	for resources, want := range map[string]string{
		"overlays/cilium":         "hostNetwork",  // the test of the patch
		"overlays/beside-coredns": "cannot merge", // with its ConfigMap
	} {
		t.Run("not to "+resources, func(t *testing.T) {
			out, complaint, err := output(controlplane.RequireBinary(t, "kubectl"), "kustomize", mine(t, resources, component))
			if err == nil || !strings.Contains(complaint, want) {
				t.Errorf("error %v, %q, want %q; it made %d bytes", err, complaint, want, len(out))
			}
		})
	}
}
