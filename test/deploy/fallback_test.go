package deploy

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// withoutFallback returns the node-local address that has no fallback: an address of a second family, if the Service of
// -upstreamsvc has one family.
func withoutFallback(all objects) (address string) {
	set, ok := all["DaemonSet nodecache"].(*appsv1.DaemonSet)
	if !ok {
		return ""
	}
	args := set.Spec.Template.Spec.Containers[0].Args
	value := func(flag string) string {
		if i := slices.Index(args, flag); i >= 0 && i+1 < len(args) {
			return args[i+1]
		}
		return ""
	}
	service, ok := all["Service "+value("-upstreamsvc")].(*corev1.Service)
	bothFamilies := ok && service.Spec.IPFamilyPolicy != nil && *service.Spec.IPFamilyPolicy != corev1.IPFamilyPolicySingleStack
	if bothFamilies || value("-fallback") != "" {
		return ""
	}
	var first netip.Addr
	for text := range strings.SplitSeq(value("-localip"), ",") {
		a, err := netip.ParseAddr(text)
		switch {
		case err != nil: // a variable
		case !first.IsValid():
			first = a
		case first.Is4() != a.Is4():
			return text
		}
	}
	return ""
}

// TestFallbackFamilies checks that cluster DNS has an address of each family of nodecache's addresses, in everything
// that is deployed.
func TestFallbackFamilies(t *testing.T) {
	for name, all := range rendered(t) {
		if a := withoutFallback(all); a != "" {
			t.Errorf("%s: address %s has no fallback", name, a)
		}
	}
	t.Run("can fail", func(t *testing.T) {
		all := decoded(t, kustomize(t, deployed+"/nodecache"))
		args := all["DaemonSet nodecache"].(*appsv1.DaemonSet).Spec.Template.Spec.Containers[0].Args
		args[slices.Index(args, "-localip")+1] = "169.254.20.10,fd00:20::10"
		if a := withoutFallback(all); a != "fd00:20::10" {
			t.Errorf("got %q", a)
		}
	})
}
