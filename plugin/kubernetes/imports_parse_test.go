package kubernetes

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/coredns/caddy"
)

func TestParseClusterset_Accepted(t *testing.T) {
	label63 := strings.Repeat("a", 63)
	for _, c := range []struct {
		block string
		ok    func(k *Kubernetes) bool
	}{
		{"", func(k *Kubernetes) bool { return len(k.clustersets) == 0 && !k.source.Imports && !k.source.ClusterID }},
		{"multicluster", func(k *Kubernetes) bool { return len(k.clustersets) == 0 && !k.source.Imports }}, // as in CoreDNS
		{"multicluster clusterset.local", func(k *Kubernetes) bool {
			return slices.Equal(k.clustersets, []string{"clusterset.local."}) && k.source.Imports && !k.source.ImportsOnly && !k.source.ClusterID && k.primaryZone == "cluster.local."
		}},
		{"multicluster ClusterSet.Local.", func(k *Kubernetes) bool { return slices.Equal(k.clustersets, []string{"clusterset.local."}) }},
		{"multicluster other.local clusterset.local", func(k *Kubernetes) bool {
			return slices.Equal(k.clustersets, []string{"other.local.", "clusterset.local."}) && k.primaryZone == "cluster.local."
		}},
		{"multicluster cluster.local", func(k *Kubernetes) bool { return k.primaryZone == "clusterset.local." }},
		{"multicluster cluster.local clusterset.local other.local", func(k *Kubernetes) bool { return k.primaryZone == "" && k.source.Imports }},
		{"multicluster clusterset.local\nprefer-local-cluster", func(k *Kubernetes) bool { return k.preferCluster && k.clusterID.String() == "" && k.source.ClusterID }},
		{"prefer-local-cluster east\nmulticluster clusterset.local", func(k *Kubernetes) bool {
			return k.preferCluster && k.clusterID.String() == "east" && !k.source.ClusterID
		}},
		{"multicluster clusterset.local\nprefer-local-cluster East", func(k *Kubernetes) bool { return strings.EqualFold(k.clusterID.String(), "east") }},
		{"multicluster clusterset.local\nprefer-local-cluster eu.west-1", func(k *Kubernetes) bool { return k.clusterID.String() == "eu.west-1" }},
		{"multicluster clusterset.local\nprefer-local-cluster 7", func(k *Kubernetes) bool { return k.clusterID.String() == "7" }},
		{"multicluster clusterset.local\nprefer-local-cluster " + label63, func(k *Kubernetes) bool { return k.clusterID.String() == label63 }},
		{"multicluster clusterset.local\ntopology", func(k *Kubernetes) bool { return k.source.ClusterID && !k.preferCluster }},
		{"multicluster clusterset.local\ntopology\nprefer-local-cluster east", func(k *Kubernetes) bool { return !k.source.ClusterID }},
		{"topology", func(k *Kubernetes) bool { return !k.source.ClusterID }},
		{"multicluster clusterset.local\nnoendpoints\nzonal", nil},
		{"multicluster clusterset.local\nnoendpoints", func(k *Kubernetes) bool { return k.source.Imports && !k.source.Endpoints }},
	} {
		t.Run(c.block, func(t *testing.T) {
			k, err := kubernetesDirective.parse(caddy.NewTestController("dns", "kubernetes cluster.local clusterset.local in-addr.arpa other.local {\n"+c.block+"\n}"))
			if c.ok == nil {
				if err == nil {
					t.Error("accepted")
				}
				return
			}
			kit.Must(t, err)
			if !c.ok(k) {
				t.Errorf("%+v, zones of the clusterset %q, first of the cluster %q", k.options, k.clustersets, k.primaryZone)
			}
		})
	}
}

// Each error has the file, the line, the option and the invalid word.
func TestParseClusterset_Rejected(t *testing.T) {
	const set = "multicluster clusterset.local\n"
	for _, c := range []struct {
		block string
		line  int
		want  []string // parts of the message, in order
	}{
		{"multicluster none.local", 2, []string{"multicluster", "none.local.", "not a zone of this block", "cluster.local., clusterset.local., in-addr.arpa."}},
		{"ttl 5\nmulticluster clusterset.local svc.cluster.local", 3, []string{"multicluster", "svc.cluster.local.", "not a zone"}},
		{"multicluster local", 2, []string{"multicluster", "local.", "not a zone"}},
		{"multicluster .", 2, []string{"multicluster", `".": not a zone`}},
		{"multicluster in-addr.arpa", 2, []string{"multicluster", "in-addr.arpa.", "reverse zone"}},
		{"multicluster clusterset.local in-addr.arpa\nttl 5", 2, []string{"multicluster", "in-addr.arpa.", "reverse zone"}},
		{"multicluster 10.0.0.0/8", 2, []string{"multicluster", "10.in-addr.arpa.", "not a zone"}},
		{"ttl 5\nprefer-local-cluster", 3, []string{"prefer-local-cluster", "requires a zone of multicluster"}},
		{"multicluster\nprefer-local-cluster east", 3, []string{"prefer-local-cluster", "requires a zone of multicluster"}},
		{set + "prefer-local-cluster a b", 3, []string{`invalid prefer-local-cluster "a" "b"`, "the ID of this cluster"}},
		{set + "prefer-local-cluster a_b", 3, []string{"prefer-local-cluster", `"a_b"`, "the ID of this cluster"}},
		{set + "prefer-local-cluster -a", 3, []string{"prefer-local-cluster", `"-a"`}},
		{set + "prefer-local-cluster a-", 3, []string{"prefer-local-cluster", `"a-"`}},
		{set + "prefer-local-cluster a..b", 3, []string{"prefer-local-cluster", `"a..b"`}},
		{set + "prefer-local-cluster a.", 3, []string{"prefer-local-cluster", `"a."`}},
		{set + `prefer-local-cluster ""`, 3, []string{"prefer-local-cluster", `""`}},
		{set + "prefer-local-cluster *", 3, []string{"prefer-local-cluster", `"*"`}},
		{set + "prefer-local-cluster ü", 3, []string{"prefer-local-cluster", `"ü"`}},
		{set + "prefer-local-cluster " + strings.Repeat("a", 64), 3, []string{"prefer-local-cluster", strings.Repeat("a", 64)}},
		{set + "prefer-local-cluster " + strings.Repeat("a.", 127) + "a", 3, []string{"prefer-local-cluster"}},
		{set + "prefer-local-cluster\nnoendpoints", 4, []string{"prefer-local-cluster and noendpoints cannot both be set"}},
		{set + "noendpoints\nttl 5\nprefer-local-cluster east", 5, []string{"prefer-local-cluster and noendpoints cannot both be set"}},
		{"multicluster {\nclusterset.local\n}", 3, nil},
		{"Multicluster clusterset.local", 2, []string{`unknown option "Multicluster"`, "multicluster", "prefer-local-cluster"}},
		{"prefer_local_cluster", 2, []string{`unknown option "prefer_local_cluster"`, "prefer-local-cluster"}},
	} {
		t.Run(c.block, func(t *testing.T) {
			k, err := kubernetesDirective.parse(caddy.NewTestController("dns", "kubernetes cluster.local clusterset.local in-addr.arpa {\n"+c.block+"\n}"))
			if err == nil || k != nil {
				t.Fatalf("accepted, error %v", err)
			}
			checkMessage(t, err, c.line, c.want)
		})
	}
}

// checkMessage asserts that an error has the line, and parts of the message in order.
func checkMessage(t *testing.T, err error, line int, parts []string) {
	t.Helper()
	prefix := fmt.Sprintf("Testfile:%d - Error during parsing: ", line)
	if parts == nil {
		prefix = "Testfile:"
	}
	rest, ok := strings.CutPrefix(err.Error(), prefix)
	for _, p := range parts {
		var found bool
		_, rest, found = strings.Cut(rest, p)
		ok = ok && found
	}
	if !ok || strings.Contains(err.Error(), "\n") {
		t.Errorf("error is\n\t%v\nwant one that begins with %q and has %q", err, prefix, parts)
	}
}

// The directive of the external plugin has zones of the clusterset only, and no options about others.
func TestParseMulticluster(t *testing.T) {
	parse := func(text, keys string) (*Kubernetes, error) {
		c := caddy.NewTestController("dns", text)
		c.ServerBlockKeys = strings.Fields(keys)
		return multiclusterDirective.parse(c)
	}
	for _, c := range []struct{ name, text, keys, zones, sets string }{
		{"its own zones", "multicluster clusterset.local Super.Local", "other.local.", "clusterset.local. super.local.", "clusterset.local. super.local."},
		{"those of the server block", "multicluster", "clusterset.local.", "clusterset.local.", "clusterset.local."},
		{"with options", "multicluster clusterset.local {\nnoendpoints\nfallthrough\n}", "", "clusterset.local.", "clusterset.local."},
		{"a reverse zone beside it", "multicluster clusterset.local 10.in-addr.arpa", "", "clusterset.local. 10.in-addr.arpa.", "clusterset.local."},
		{"nearside's options", "multicluster clusterset.local {\nnamespaces a\nlabels a=b\nendpoint_pod_names\nttl 7\nignore empty_service\ntopology\ntrust 10.0.0.0/8\nstartup_timeout 1s\nprefer-local-cluster\n}",
			"", "clusterset.local.", "clusterset.local."},
	} {
		t.Run(c.name, func(t *testing.T) {
			k, err := parse(c.text, c.keys)
			kit.Must(t, err)
			if zones, sets := strings.Join(k.Zones, " "), strings.Join(k.clustersets, " "); zones != c.zones || sets != c.sets {
				t.Errorf("zones %q, of the clusterset %q, want %q and %q", zones, sets, c.zones, c.sets)
			}
			if !k.source.Imports || !k.source.ImportsOnly || k.source.Pods || k.primaryZone != "" || k.Name() != "multicluster" || k.ttl == 0 {
				t.Errorf("%s reads %+v, and its first zone of the cluster is %q", k.Name(), k.source, k.primaryZone)
			}
		})
	}
	for _, c := range []struct {
		block string
		want  []string
	}{
		{"pods verified", []string{`unknown option "pods"`}},
		{"zonal", []string{`unknown option "zonal"`}},
		{"multicluster clusterset.local", []string{`unknown option "multicluster"`}},
		{"prefer-local-cluster\nnoendpoints", []string{"prefer-local-cluster and noendpoints"}},
		{"ttl never", []string{"ttl", "never"}},
	} {
		t.Run(c.block, func(t *testing.T) {
			_, err := parse("multicluster clusterset.local {\n"+c.block+"\n}", "")
			if err == nil {
				t.Fatal("accepted")
			}
			checkMessage(t, err, 2+strings.Count(c.block, "\n"), c.want)
			if _, known, _ := strings.Cut(err.Error(), "want one of "); slices.ContainsFunc(strings.Split(known, ", "), func(o string) bool {
				return o == "pods" || o == "zonal" || o == "multicluster"
			}) {
				t.Errorf("the error has options that it does not know: %v", err)
			}
		})
	}
	for _, text := range []string{"multicluster 10.in-addr.arpa", "multicluster a.local\nmulticluster b.local"} {
		if _, err := parse(text, ""); err == nil || !strings.HasPrefix(err.Error(), "Testfile:") {
			t.Errorf("%q: error %v", text, err)
		}
	}
}

// Blocks that read the same records share a source; ServiceImports need other records.
func TestSourceIdentity_Clusterset(t *testing.T) {
	identity := func(block string) string {
		k := parsed(t, kubernetesDirective, "kubernetes cluster.local clusterset.local {\n"+block+"\n}")
		return k.sourceIdentity()
	}
	const set = "multicluster clusterset.local\n"
	seen := map[string]string{}
	for _, block := range []string{"", set, set + "prefer-local-cluster", set + "noendpoints", set + "topology", set + "topology\nprefer-local-cluster a", set + "labels a=b"} {
		id := identity(block)
		if other, ok := seen[id]; ok {
			t.Errorf("%q and %q have the same source", block, other)
		}
		seen[id] = block
	}
	for one, other := range map[string]string{
		set + "prefer-local-cluster a":           set,
		"multicluster cluster.local":             set,
		set + "ttl 7\nfallthrough":               set,
		set + "topology\nprefer-local-cluster":   set + "topology",
		set + "prefer-local-cluster b\ntopology": set + "topology\nprefer-local-cluster a",
		"multicluster":                           "",
	} {
		if identity(one) != identity(other) {
			t.Errorf("%q is not read from the same source as %q", one, other)
		}
	}
	k := parsed(t, multiclusterDirective, "multicluster clusterset.local")
	if other, ok := seen[k.sourceIdentity()]; ok {
		t.Errorf("the directive multicluster has the source of %q", other)
	}
}
