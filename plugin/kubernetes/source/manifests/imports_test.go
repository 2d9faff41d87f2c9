package manifests

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/property"
)

var (
	withImports = source.Options{Endpoints: true, Zones: true, Imports: true, ClusterID: true}
	importsOnly = source.Options{Endpoints: true, Zones: true, Imports: true, ClusterID: true, ImportsOnly: true}
)

// importFile is a manifest of a ServiceImport.
func importFile(namespace, name, spec string) string {
	return fmt.Sprintf("{apiVersion: multicluster.x-k8s.io/v1beta1, kind: ServiceImport, metadata: {name: %[1]s, namespace: %[2]s, labels: {app: %[1]s}}, spec: {%[3]s}}\n---\n", name, namespace, spec)
}

// sliceFile is a manifest of an EndpointSlice with one endpoint, and with labels.
func sliceFile(name, ip, labels string) string {
	return fmt.Sprintf("{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: %s, namespace: shop, labels: {%s}}, addressType: IPv4, endpoints: [{addresses: [%s]}]}\n---\n", name, labels, ip)
}

// clusterFile is a manifest of a ClusterProperty.
func clusterFile(name, value string) string {
	return fmt.Sprintf("{apiVersion: about.k8s.io/v1, kind: ClusterProperty, metadata: {name: %s}, spec: {value: %s}}\n---\n", name, value)
}

const (
	ofService = "kubernetes.io/service-name: db"
	ofImport  = "multicluster.kubernetes.io/service-name: db"
	ofEast    = "multicluster.kubernetes.io/source-cluster: east"
)

// imports are manifests of a Service and a ServiceImport of one name, with slices of the one, the other and both.
var imports = "{apiVersion: v1, kind: Service, metadata: {name: db, namespace: shop}, spec: {clusterIP: None}}\n---\n" +
	importFile("shop", "db", "type: Headless, ports: [{name: sql, port: 5432}]") +
	sliceFile("local", "10.0.0.1", ofService) +
	sliceFile("east", "10.0.0.2", ofImport+", "+ofEast) +
	sliceFile("both", "10.0.0.3", ofService+", "+ofImport+", multicluster.kubernetes.io/source-cluster: West.Prod") +
	sliceFile("lone", "10.0.0.4", ofImport) +
	clusterFile("cluster.clusterset.k8s.io", "east") +
	clusterFile("clusterset.k8s.io", "Shops & more")

const (
	dumpService = "service shop/db headless\n  slice both%s: 10.0.0.3\n  slice local: 10.0.0.1"
	dumpImport  = "import shop/db headless sql/tcp/5432\n  slice both of west.prod: 10.0.0.3\n  slice east of east: 10.0.0.2\n  slice lone: 10.0.0.4"
)

func TestImports(t *testing.T) {
	tests := map[string]struct {
		opts  source.Options
		files map[string]string
		want  string
	}{
		"beside Services": {
			withImports, map[string]string{"a.yaml": imports},
			fmt.Sprintf(dumpService, " of west.prod") + "\n" + dumpImport + "\ncluster east",
		},
		"without Services": {
			importsOnly, map[string]string{"a.yaml": imports},
			dumpImport + "\ncluster east",
		},
		"not read": {
			source.Options{Endpoints: true, Zones: true}, map[string]string{"a.yaml": imports},
			fmt.Sprintf(dumpService, ""),
		},
		"without the cluster's ID": {
			source.Options{Endpoints: true, Imports: true, ImportsOnly: true}, map[string]string{"a.yaml": imports},
			dumpImport,
		},
		"without endpoints": {
			source.Options{Imports: true}, map[string]string{"a.yaml": imports},
			"service shop/db headless\nimport shop/db headless sql/tcp/5432",
		},
		"only pods": {
			source.Options{PodsOnly: true, Pods: true}, map[string]string{"a.yaml": imports}, "",
		},
		"addresses": {
			withImports, map[string]string{"a.yaml": importFile("shop", "web", `type: ClusterSetIP, ips: [10.112.0.7, "fd00:112::7"], ports: [{port: 80}]`)},
			"import shop/web [10.112.0.7 fd00:112::7] /tcp/80",
		},
		"no address yet": {
			withImports, map[string]string{"a.yaml": importFile("shop", "web", "type: ClusterSetIP, ports: []")},
			"import shop/web []",
		},
		"the older version, in the default namespace": {
			withImports, map[string]string{"a.json": `{"apiVersion":"multicluster.x-k8s.io/v1alpha1","kind":"ServiceImport","metadata":{"name":"web"},` +
				`"spec":{"type":"ClusterSetIP","ips":["10.112.0.7"],"ports":[],"sessionAffinity":"None","ipFamilies":["IPv4"]},` +
				`"status":{"clusters":[{"cluster":"east"}],"conditions":[{"type":"Ready","status":"True","lastTransitionTime":"2026-01-31T12:00:00Z","reason":"Ready","message":""}]}}`},
			"import default/web [10.112.0.7]",
		},
		"a List of both versions": {
			withImports, map[string]string{"a.yaml": "apiVersion: v1\nkind: List\nitems:\n" +
				"- {apiVersion: multicluster.x-k8s.io/v1alpha1, kind: ServiceImport, metadata: {name: old}, spec: {type: Headless, ports: []}}\n" +
				"- {apiVersion: multicluster.x-k8s.io/v1beta1, kind: ServiceImport, metadata: {name: new}, spec: {type: Headless, ports: []}}\n" +
				"- {apiVersion: about.k8s.io/v1alpha1, kind: ClusterProperty, metadata: {name: cluster.clusterset.k8s.io}, spec: {value: a.East}}\n"},
			"import default/new headless\nimport default/old headless\ncluster a.east",
		},
		"typed lists of an older version": {
			withImports, map[string]string{
				"a.yaml": "apiVersion: multicluster.x-k8s.io/v1alpha1\nkind: ServiceImportList\nitems:\n" +
					"- metadata: {name: one}\n  spec: {type: Headless, ports: []}\n" +
					"- apiVersion: multicluster.x-k8s.io/v1beta1\n  kind: ServiceImport\n  metadata: {name: two}\n  spec: {type: Headless, ports: []}\n",
				"b.yaml": "apiVersion: about.k8s.io/v1beta1\nkind: ClusterPropertyList\nitems:\n- metadata: {name: cluster.clusterset.k8s.io}\n  spec: {value: east}\n  status: {}\n",
			},
			"import default/one headless\nimport default/two headless\ncluster east",
		},
		"labels select": {
			source.Options{Endpoints: true, Imports: true, Labels: selector(t, "app=web")},
			map[string]string{"a.yaml": imports + importFile("shop", "web", "type: Headless, ports: []") + sliceFile("web", "10.0.0.9", "app: web, multicluster.kubernetes.io/service-name: web, "+ofEast)},
			"import shop/web headless\n  slice web of east: 10.0.0.9",
		},
		"namespace labels select": {
			source.Options{Endpoints: true, Imports: true, NamespaceLabels: selector(t, "team=shop")},
			map[string]string{"a.yaml": importFile("shop", "web", "type: Headless, ports: []") + importFile("other", "web", "type: Headless, ports: []") +
				"{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {team: shop}}}"},
			"import other/web headless (no namespace)\nimport shop/web headless",
		},
		"zones of Nodes are not those of another cluster": {
			withImports, map[string]string{"a.yaml": importFile("default", "db", "type: Headless, ports: []") +
				strings.ReplaceAll(strings.ReplaceAll(endpoints, "service-name: db", "service-name: db, multicluster.kubernetes.io/service-name: db, "+ofEast), headless, ""), "z.yaml": node},
			"import default/db headless\n  slice db-1 of east /tcp/5432 any/tcp/-1: 10.0.0.1,db-0 10.0.0.2,elsewhere 10.0.0.4",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, ix, _ := load(t, test.opts, test.files)
			if got := dump(ix); got != test.want {
				t.Errorf("got\n%s\nwant\n%s", got, test.want)
			}
		})
	}
}

func TestImportTopology(t *testing.T) {
	opts := withImports
	opts.Topology = true
	_, ix, _ := load(t, opts, map[string]string{"a.yaml": importFile("shop", "db", "type: Headless, trafficDistribution: PreferClose, internalTrafficPolicy: Local, ports: []")})
	want := &index.Topology{Local: true, Distribution: index.PreferSameZone}
	if got := ix.ImportRecord("shop", "db").Topology; !got.Equal(want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestImportNotes expects a line in the log for each ServiceImport and EndpointSlice without an answer, and no other.
func TestImportNotes(t *testing.T) {
	files := map[string]string{
		"a.yaml": importFile("shop", "web", "type: ClusterSetIP, ports: []") + importFile("shop", "db", "type: Headless, ports: []") +
			sliceFile("lone", "10.0.0.4", ofImport) + sliceFile("east", "10.0.0.2", ofImport+", "+ofEast),
		"b.yaml": importFile("shop", "other", "type: ClusterSetIP, ips: [10.112.0.7], ports: []") + sliceFile("lost", "10.0.0.5", ofEast),
	}
	const (
		unserved = "info %s/a.yaml:1: a kubernetes block without zones of multicluster does not answer for ServiceImports"
		address  = "warning %s/a.yaml:1: ServiceImport shop/web has no address: in a cluster its controller would set one, here spec.ips must give it"
		cluster  = "warning %s/a.yaml:5: EndpointSlice shop/lone is of no cluster: the names of its endpoints have none, unless its label multicluster.kubernetes.io/source-cluster names one"
		lost     = "warning %s/b.yaml:3: EndpointSlice shop/lost belongs to no Service: its label kubernetes.io/service-name must name one, or multicluster.kubernetes.io/service-name a ServiceImport"
	)
	for name, test := range map[string]struct {
		opts source.Options
		want []string
	}{
		"with a multicluster zone":    {withImports, []string{address, cluster, lost}},
		"with nothing else":           {importsOnly, []string{address, cluster, lost}},
		"without a multicluster zone": {everything, []string{unserved, lost}},
		"with only pods":              {source.Options{Pods: true, PodsOnly: true}, []string{lost}},
	} {
		t.Run(name, func(t *testing.T) {
			s, _, log := load(t, test.opts, files)
			var want []string
			for _, line := range test.want {
				want = append(want, fmt.Sprintf(line, s.dir))
			}
			if !slices.Equal(log.lines, want) {
				t.Errorf("logged\n%s\nwant\n%s", strings.Join(log.lines, "\n"), strings.Join(want, "\n"))
			}
			s.refresh(nil)
			if len(log.lines) != len(want) {
				t.Errorf("logged again: %q", log.lines)
			}
		})
	}
}

func TestImportsStatus(t *testing.T) {
	for name, test := range map[string]struct {
		opts source.Options
		want []string
	}{
		"beside Services": {withImports, []string{"services", "namespaces", "endpointslices", "serviceimports", "clusterproperties"}},
		"alone":           {importsOnly, []string{"namespaces", "endpointslices", "serviceimports", "clusterproperties"}},
	} {
		t.Run(name, func(t *testing.T) {
			s, _, _ := load(t, test.opts, nil)
			var got []string
			for _, st := range s.Status() {
				if got = append(got, st.Resource); !st.Synced || st.Frozen || st.Denied {
					t.Errorf("%+v", st)
				}
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// TestWatchImports edits files: each change is served.
func TestWatchImports(t *testing.T) {
	service := service("shop", "db", "10.96.0.1")
	const dumpLocal = "service shop/db [10.96.0.1]\n"
	headless := importFile("shop", "db", "type: Headless, ports: []")
	east := sliceFile("east", "10.0.0.2", ofImport+", "+ofEast)
	r := run(t, withImports, map[string]string{"service.yaml": service, "import.yaml": headless, "slice.yaml": east}, nil)
	r.serves(dumpLocal + "import shop/db headless\n  slice east of east: 10.0.0.2")

	r.write("slice.yaml", strings.ReplaceAll(east, "10.0.0.2", "10.0.0.9"))
	r.serves(dumpLocal + "import shop/db headless\n  slice east of east: 10.0.0.9")
	r.write("slice.yaml", strings.ReplaceAll(east, "source-cluster: east", "source-cluster: west"))
	r.serves(dumpLocal + "import shop/db headless\n  slice east of west: 10.0.0.2")
	r.write("slice.yaml", strings.ReplaceAll(east, ofImport, ofService+", "+ofImport))
	r.serves(dumpLocal + "  slice east of east: 10.0.0.2\nimport shop/db headless\n  slice east of east: 10.0.0.2")
	r.write("slice.yaml", strings.ReplaceAll(east, ofImport, ofService))
	r.serves(dumpLocal + "  slice east: 10.0.0.2\nimport shop/db headless")

	r.write("id.yaml", clusterFile("cluster.clusterset.k8s.io", "west"))
	r.serves(dumpLocal + "  slice east: 10.0.0.2\nimport shop/db headless\ncluster west")
	r.write("id.yaml", clusterFile("cluster.clusterset.k8s.io", "east"))
	r.serves(dumpLocal + "  slice east: 10.0.0.2\nimport shop/db headless\ncluster east")
	r.must(os.Remove(r.path("id.yaml")))
	r.serves(dumpLocal + "  slice east: 10.0.0.2\nimport shop/db headless")

	r.write("import.yaml", importFile("shop", "db", "type: ClusterSetIP, ips: [10.112.0.7], ports: []"))
	r.serves(dumpLocal + "  slice east: 10.0.0.2\nimport shop/db [10.112.0.7]")
	r.write("import.yaml", importFile("shop", "db", "type: ClusterSetIP, ip: 10.112.0.8, ports: []"))
	r.logs(1, "error ", "import.yaml:1: ServiceImport shop/db: unknown field \"spec.ip\"; the last valid state of the directory is served")
	r.must(os.Remove(r.path("service.yaml")))
	r.write("import.yaml", importFile("shop", "db", "type: ClusterSetIP, ips: [10.112.0.8], ports: []"))
	r.serves("import shop/db [10.112.0.8]")
	r.must(os.Remove(r.path("import.yaml")))
	r.serves("")
}

// TestImportRecordsStay changes one object and expects the records and generations of others to stay.
func TestImportRecordsStay(t *testing.T) {
	stays := importFile("shop", "db", "type: Headless, ports: []") + sliceFile("east", "10.0.0.2", ofImport+", "+ofEast) + service("shop", "web", "10.96.0.1") +
		clusterFile("cluster.clusterset.k8s.io", "east")
	s, ix, _ := load(t, withImports, map[string]string{"a.yaml": stays + importFile("shop", "web", "type: ClusterSetIP, ips: [10.112.0.7], ports: []")})
	imported, slice := ix.ImportRecord("shop", "db"), ix.SliceRecord("shop", "east")
	var before []uint64
	generations := func() (all []uint64) {
		for _, g := range []*index.Generation{
			ix.Import("shop", "db").Generation(), ix.Service("shop", "web").Generation(), ix.NamespaceGeneration("shop"), ix.NodesGeneration(),
			ix.Import("shop", "web").Generation(),
		} {
			all = append(all, g.Load())
		}
		return all
	}
	before = generations()
	kit.Write(t, s.root+"/a.yaml", "# the same\n"+stays+importFile("shop", "web", "type: ClusterSetIP, ips: [10.112.0.8], ports: []"))
	s.refresh(nil)
	if ix.ImportRecord("shop", "db") != imported || ix.SliceRecord("shop", "east") != slice {
		t.Error("an unchanged record was replaced")
	}
	if kept := s.cluster.objects[key{"ServiceImport", "shop", "db"}].record; kept != imported {
		t.Error("an unchanged record is in memory twice")
	}
	after := generations()
	if last := len(before) - 1; !slices.Equal(after[:last], before[:last]) || after[last] == before[last] {
		t.Errorf("generations %d and %d, want all but the last to stay", before, after)
	}
}

// TestOrder reads an index while it is filled: endpoints are in it before the name of their ServiceImport.
func TestOrder(t *testing.T) {
	const many = 500 // so that each step is slow enough to be seen
	text := imports + nodeFile("node-1", "zone-a", "")
	for i := range many {
		text += sliceFile(fmt.Sprint("other-", i), "10.1.0.1", "multicluster.kubernetes.io/service-name: other")
	}
	opts := withImports
	opts.Topology = true
	s, _, _ := load(t, opts, map[string]string{"a.yaml": text})
	early := func(ix *index.Index) string {
		if len(ix.SlicesByIP(netip.MustParseAddr("10.0.0.1"))) > 0 && (ix.ClusterID() == (index.Symbol{}) || ix.Node(index.NewSymbol("node-1")) == nil) {
			return "endpoints were visible before their Nodes and the ID of the cluster"
		}
		if e := ix.Import("shop", "db"); e != nil && len(e.Slices) != 3 {
			return fmt.Sprintf("the import was visible with %d slices, want 3", len(e.Slices))
		}
		return ""
	}
	for range 20 {
		s.ix = index.New()
		begun, found := make(chan struct{}), make(chan string)
		var filled atomic.Bool
		go func() {
			close(begun)
			problem := ""
			for problem == "" && !filled.Load() {
				problem = early(s.ix)
			}
			found <- problem
		}()
		<-begun
		s.serve()
		filled.Store(true)
		if problem := <-found; problem != "" {
			t.Fatal(problem)
		}
	}
}

// TestRandomImports edits files at random: each state is served as by a Source that starts with it.
func TestRandomImports(t *testing.T) {
	property.Seeds(t, 0, 1, func(t *testing.T, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 0))
		for _, opts := range []source.Options{withImports, importsOnly, {Endpoints: true, Imports: true, Labels: selector(t, "!hidden")}} {
			s, ix, _ := load(t, opts, nil)
			files := map[string]string{}
			for i := range 60 {
				for range 1 + random.IntN(3) {
					name := fmt.Sprintf("%d.yaml", random.IntN(4))
					files[name] = randomFile(random, name[:1])
					kit.Write(t, s.root+"/"+name, files[name])
				}
				if random.IntN(8) == 0 {
					for name := range files {
						delete(files, name)
						kit.Must(t, os.Remove(filepath.Join(s.root, name)))
						break
					}
				}
				s.refresh(nil)
				_, fresh, _ := load(t, opts, files)
				if got, want := dump(ix), dump(fresh); got != want {
					t.Fatalf("state %d: got\n%s\nwant\n%s\nof %q", i, got, want, slices.Sorted(maps.Values(files)))
				}
			}
		}
	})
}

// randomFile returns objects that are in no file with another number.
func randomFile(random *rand.Rand, number string) string {
	pick := func(all ...string) string { return all[random.IntN(len(all))] }
	text := "# never empty\n---\n"
	if random.IntN(2) == 0 {
		text += importFile("shop", "db-"+number, pick("type: Headless, ports: []", "type: ClusterSetIP, ips: [10.112.0.7], ports: []", "type: ClusterSetIP, ports: []"))
	}
	if random.IntN(2) == 0 {
		text += service("shop", "db-"+number, pick("None", "10.96.0.1"))
	}
	for _, slice := range []string{"a", "b"} {
		if random.IntN(3) == 0 {
			continue
		}
		service := "db-" + pick("0", "1", "2", "3") // also one of another file
		labels := pick("kubernetes.io/service-name: "+service, "multicluster.kubernetes.io/service-name: "+service, "kubernetes.io/service-name: "+service+", multicluster.kubernetes.io/service-name: "+service) +
			pick("", ", "+ofEast, ", multicluster.kubernetes.io/source-cluster: west") + pick("", "", ", hidden: any")
		text += sliceFile(slice+"-"+number, pick("10.0.0.1", "10.0.0.2"), labels)
	}
	if number == "0" && random.IntN(2) == 0 {
		text += clusterFile("cluster.clusterset.k8s.io", pick("east", "west"))
	}
	return text
}
