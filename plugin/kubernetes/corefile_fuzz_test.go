package kubernetes

import (
	"slices"
	"strings"
	"testing"

	"github.com/coredns/caddy"
)

func FuzzCorefile(f *testing.F) {
	f.Add("cluster.local")
	f.Add("cluster.local 10.0.0.0/15 {\n\n}")
	for name := range parsers {
		for _, args := range []string{"", " a", " 5", " a b c", " -1", " {\n", ` ""`, " 5s", " verified"} {
			f.Add("cluster.local {\n" + name + args + "\n}")
		}
	}
	f.Add("cluster.local {\nnamespaces a\nnamespace_labels b\n}\nkubernetes c.local")
	f.Add("cluster.local {\n{\n}\nttl 5")
	f.Add("cluster.local set.local {\nmulticluster set.local\nprefer-local-cluster a.b\n}")
	f.Add("10.in-addr.arpa ip6.arpa")
	f.Add("set.local in-addr.arpa {\nmulticluster set.local in-addr.arpa\n}")
	t0, err := kubernetesDirective.parse(caddy.NewTestController("dns", ""))
	if t0 != nil || err != nil {
		f.Fatalf("no arguments: %v and %v", t0, err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, "/") && (strings.Contains(text, "kubeconfig") || strings.Contains(text, "tls")) {
			t.Skip("other files may block")
		}
		k, err := kubernetesDirective.parse(caddy.NewTestController("dns", "kubernetes "+text))
		switch {
		case err != nil && k != nil:
			t.Errorf("error %v and a handler", err)
		case err != nil && !strings.HasPrefix(err.Error(), "Testfile:"):
			t.Errorf("the error names no file: %v", err)
		case err == nil && k == nil:
			t.Error("neither an error nor a handler")
		case err == nil:
			ofCluster := slices.ContainsFunc(k.Zones, func(z string) bool { return !isReverse(z) && !slices.Contains(k.clustersets, z) }) ||
				!slices.ContainsFunc(k.Zones, isForward) && slices.ContainsFunc(k.Zones, isReverseTree)
			if (k.primaryZone != "") != ofCluster || !ofCluster && len(k.clustersets) == 0 || k.source.Imports != (len(k.clustersets) > 0) || k.preferCluster && !k.source.Imports || k.ttl > maxTTL || k.startupTimeout < 0 || k.from.Connection.QPS < 0 || k.from.Connection.Burst < 0 ||
				k.from.Connection.MaxInflight < 0 || k.source.Zones && !k.source.Endpoints || k.source.Pods != (k.pods == podsVerified) {
				t.Errorf("accepted: %+v", k.options)
			}
		}
	})
}
