package deploy

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

var (
	kubernetesBlock = regexp.MustCompile(`(?ms)^    kubernetes .*?^    \}$`)
	clusterForward  = regexp.MustCompile(`(?ms)^    forward \. __PILLAR__CLUSTER__DNS__ \{$.*?^    \}$`)
	coherentOption  = regexp.MustCompile(`(?m)^        coherent$`)
)

// withoutCoherent returns the directives of a Corefile that lack the option coherent, or have it although they should
// not. A Corefile without such directives is reported as well.
func withoutCoherent(corefile string, directive *regexp.Regexp, coherent bool) (all []string) {
	found := directive.FindAllString(corefile, -1)
	if len(found) == 0 {
		return []string{"no directive"}
	}
	for _, d := range found {
		if coherentOption.MatchString(d) != coherent {
			line, _, _ := strings.Cut(strings.TrimSpace(d), "\n")
			all = append(all, fmt.Sprintf("%s: coherent is wanted: %v", line, coherent))
		}
	}
	return all
}

// TestCoherent asserts that everything that users may apply has the option coherent on both sides, and the chart
// without it on neither.
func TestCoherent(t *testing.T) {
	everything := rendered(t)
	for _, name := range slices.Sorted(maps.Keys(everything)) {
		if name == "chart own Corefiles" {
			continue
		}
		coherent := name != "chart without coherent"
		t.Run(name, func(t *testing.T) {
			for object, side := range map[string]struct {
				key       string
				directive *regexp.Regexp
			}{
				"ConfigMap clusterdns": {"Corefile", kubernetesBlock},
				"ConfigMap nodecache":  {"Corefile.base", clusterForward},
			} {
				config, ok := everything[name][object].(*corev1.ConfigMap)
				if !ok {
					continue
				}
				for _, problem := range withoutCoherent(config.Data[side.key], side.directive, coherent) {
					t.Errorf("%s: %s", object, problem)
				}
			}
		})
	}
	t.Run("can fail", func(t *testing.T) {
		const corefile = "a:53 {\n    kubernetes a {\n        ttl 30\n        coherent\n    }\n    kubernetes b {\n        ttl 30\n    }\n}\n"
		for want, coherent := range map[string]bool{"kubernetes b {": true, "kubernetes a {": false} {
			if got := withoutCoherent(corefile, kubernetesBlock, coherent); len(got) != 1 || !strings.HasPrefix(got[0], want) {
				t.Errorf("problems %q, want one of %q", got, want)
			}
		}
		if got := withoutCoherent("a:53 {\n}\n", clusterForward, true); len(got) != 1 {
			t.Errorf("problems %q, want one", got)
		}
	})
}
