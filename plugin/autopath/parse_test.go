package autopath

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

const podsOfNode = `apiVersion: v1
kind: Pod
metadata: {name: a, namespace: shop}
spec: {nodeName: n1, containers: [{name: a, image: a}]}
status: {phase: Running, podIPs: [{ip: 10.1.0.1}]}
---
apiVersion: v1
kind: Pod
metadata: {name: b, namespace: shop}
spec: {nodeName: n2, containers: [{name: a, image: a}]}
status: {phase: Running, podIPs: [{ip: 10.1.0.2}]}
`

func TestParse(t *testing.T) {
	file := kit.File(t, "resolv.conf", "search Shop.svc.cluster.local svc.cluster.local cluster.local example.org.\nnameserver 10.0.0.1\n")
	none := kit.File(t, "none.conf", "nameserver 10.0.0.1\n")
	root := kit.File(t, "root.conf", "search .\nnameserver 10.0.0.1\n")
	manifests := filepath.Dir(kit.File(t, "pods.yaml", podsOfNode))
	node := fmt.Sprintf(" {\nnode n1\nmanifests %s\nresolv_conf %s\n}", manifests, file)
	list := []string{"shop.svc.cluster.local.", "svc.cluster.local.", "cluster.local.", "example.org."}
	tests := map[string]struct {
		text   string
		keys   []string // of the server block
		zones  []string
		list   []string // for all clients
		plugin string
		zone   string // of the cluster, for @nodelocal
	}{
		"a file":                     {"autopath " + file, []string{"cluster.local."}, []string{"cluster.local."}, list, "", ""},
		"a file, for zones":          {"autopath a.Cluster.local b.cluster.local " + file, []string{"cluster.local."}, []string{"a.cluster.local.", "b.cluster.local."}, list, "", ""},
		"a file without a list":      {"autopath " + none, []string{"."}, []string{"."}, nil, "", ""},
		"a file with the root alone": {"autopath " + root, []string{"."}, []string{"."}, nil, "", ""},
		"kubernetes":                 {"autopath @kubernetes", []string{"cluster.local.", "10.in-addr.arpa."}, []string{"cluster.local.", "10.in-addr.arpa."}, nil, "kubernetes", ""},
		"kubernetes, for zones":      {"autopath svc.cluster.local @kubernetes", []string{"."}, []string{"svc.cluster.local."}, nil, "kubernetes", ""},
		"the last one is used":       {"autopath " + file + "\nautopath @kubernetes", []string{"cluster.local."}, []string{"cluster.local."}, nil, "kubernetes", ""},
		"the last one, a file":       {"autopath @kubernetes\nautopath " + file, []string{"cluster.local."}, []string{"cluster.local."}, list, "", ""},
		"the node":                   {"autopath @nodelocal" + node, []string{"cluster.local."}, []string{"cluster.local."}, nil, "", "cluster.local."},
		"the node, for a zone":       {"autopath Cluster.local @nodelocal" + node, []string{"."}, []string{"cluster.local."}, nil, "", "cluster.local."},
		"the node, reverse zones":    {"autopath @nodelocal" + node, []string{"10.in-addr.arpa.", "cluster.local.", "b.test."}, []string{"10.in-addr.arpa.", "cluster.local.", "b.test."}, nil, "", "cluster.local."},
		"a file after the node":      {"autopath @nodelocal" + node + "\nautopath " + file, []string{"cluster.local."}, []string{"cluster.local."}, list, "", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p, err := parse(controller(tt.text, tt.keys...))
			kit.Must(t, err)
			if !slices.Equal(p.zones, tt.zones) || p.plugin != tt.plugin || p.plugin == "" && p.lists.Zone() != tt.zone {
				t.Errorf("got %+v", p)
			}
			_, isNode := p.lists.(NodeFinder)
			shared, isShared := p.lists.(sharedList)
			if isNode != (tt.zone != "") || isShared != (tt.plugin == "" && tt.zone == "") {
				t.Errorf("search lists are a %T", p.lists)
			}
			if (shared.list != nil) != (tt.list != nil) || shared.list != nil && !slices.Equal(shared.list.Suffixes, tt.list) {
				t.Errorf("list %+v, want %v", shared.list, tt.list)
			}
		})
	}
}

func TestParseErrors(t *testing.T) {
	file := kit.File(t, "resolv.conf", "search cluster.local\n")
	missing := filepath.Join(t.TempDir(), "missing")
	tests := map[string]struct {
		text  string
		zones []string
		line  int
		want  string
	}{
		"nothing":                    {"autopath", nil, 1, "missing source of search lists: want autopath [ZONES...] RESOLV-CONF, @kubernetes or @nodelocal"},
		"nothing, but a block":       {"autopath {\n}", nil, 1, "missing source of search lists"},
		"a zone and nothing":         {"autopath cluster.local", nil, 1, `invalid resolv.conf "cluster.local": open cluster.local: no such file`},
		"a missing file":             {"\n\nautopath " + missing, nil, 3, `invalid resolv.conf "` + missing},
		"no plugin after @":          {"autopath @", nil, 1, "missing plugin after @"},
		"a directory":                {"autopath " + filepath.Dir(file), nil, 1, "is a directory: want autopath"},
		"options of a file":          {"autopath " + file + " {\nnode n1\n}", nil, 2, `unexpected option "node": only @nodelocal has options`},
		"options of kubernetes":      {"autopath @kubernetes {\n\nnode n1\n}", nil, 3, "only @nodelocal has options"},
		"the second is wrong":        {"autopath " + file + "\nautopath", nil, 2, "missing source of search lists"},
		"the node without a zone":    {"autopath @nodelocal {\nnode n1\n}", []string{"."}, 1, "unknown zone of the cluster: want it before @nodelocal, as in autopath cluster.local @nodelocal"},
		"the node, reverse zones":    {"autopath @nodelocal {\nnode n1\n}", []string{"10.in-addr.arpa.", "ip6.arpa."}, 1, "unknown zone of the cluster"},
		"a zone of another block":    {"autopath foo.example @nodelocal {\nnode n1\n}", []string{"cluster.local."}, 1, `invalid zone foo.example.: the server block receives queries for ["cluster.local."] only`},
		"the node without a name":    {"autopath @nodelocal", []string{"cluster.local."}, 1, "node NAME"},
		"an unknown option":          {"autopath @nodelocal {\nnode n1\npods verified\n}", []string{"cluster.local."}, 3, `unknown option "pods"`},
		"an option without argument": {"autopath @nodelocal {\nnode\n}", []string{"cluster.local."}, 2, "invalid node: want"},
		"a missing directory":        {"autopath @nodelocal {\nnode n1\nresolv_conf " + file + "\nmanifests " + missing + "\n}", []string{"cluster.local."}, 4, "manifests"},
		"a missing file of the node": {"autopath @nodelocal {\nnode n1\nresolv_conf " + missing + "\n}", []string{"cluster.local."}, 3, "resolv_conf"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := setup(controller(tt.text, tt.zones...))
			if err == nil {
				t.Fatal("no error")
			}
			if at := fmt.Sprintf("plugin/autopath: Testfile:%d - Error during parsing: ", tt.line); !strings.HasPrefix(err.Error(), at) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error is\n\t%v\nwant\n\t%s...%s", err, at, tt.want)
			}
		})
	}
}
