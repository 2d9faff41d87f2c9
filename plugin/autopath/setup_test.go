package autopath

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/kubernetes/clients"
)

// written returns a file with a text, in a folder of the test.
func written(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// controller returns what reads the text of a server block with zones.
func controller(text string, zones ...string) *caddy.Controller {
	c := caddy.NewTestController("dns", text)
	c.ServerBlockKeys = zones
	return c
}

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
	file := written(t, "resolv.conf", "search Shop.svc.cluster.local svc.cluster.local cluster.local example.org.\nnameserver 10.0.0.1\n")
	none := written(t, "none.conf", "nameserver 10.0.0.1\n")
	root := written(t, "root.conf", "search .\nnameserver 10.0.0.1\n")
	manifests := filepath.Dir(written(t, "pods.yaml", podsOfNode))
	node := fmt.Sprintf(" {\nnode n1\nmanifests %s\nresolv_conf %s\n}", manifests, file)
	list := []string{"shop.svc.cluster.local.", "svc.cluster.local.", "cluster.local.", "example.org."}
	tests := map[string]struct {
		text  string
		zones []string // of the server block
		want  []string
		list  []string // everybody's
		from  string
		zone  string // of the cluster, with pods
	}{
		"a file":                     {"autopath " + file, []string{"cluster.local."}, []string{"cluster.local."}, list, "", ""},
		"of zones of its own":        {"autopath a.Cluster.local b.cluster.local " + file, []string{"cluster.local."}, []string{"a.cluster.local.", "b.cluster.local."}, list, "", ""},
		"a file without a list":      {"autopath " + none, []string{"."}, []string{"."}, nil, "", ""},
		"a file with the root alone": {"autopath " + root, []string{"."}, []string{"."}, nil, "", ""},
		"kubernetes":                 {"autopath @kubernetes", []string{"cluster.local.", "10.in-addr.arpa."}, []string{"cluster.local.", "10.in-addr.arpa."}, nil, "kubernetes", ""},
		"kubernetes, for zones":      {"autopath svc.cluster.local @kubernetes", []string{"."}, []string{"svc.cluster.local."}, nil, "kubernetes", ""},
		"the last one counts":        {"autopath " + file + "\nautopath @kubernetes", []string{"cluster.local."}, []string{"cluster.local."}, nil, "kubernetes", ""},
		"also if it is a file":       {"autopath @kubernetes\nautopath " + file, []string{"cluster.local."}, []string{"cluster.local."}, list, "", ""},
		"the node":                   {"autopath @nodelocal" + node, []string{"cluster.local."}, []string{"cluster.local."}, nil, "", "cluster.local."},
		"the node, for a zone":       {"autopath Cluster.local @nodelocal" + node, []string{"."}, []string{"cluster.local."}, nil, "", "cluster.local."},
		"the node, reverse zones":    {"autopath @nodelocal" + node, []string{"10.in-addr.arpa.", "cluster.local.", "b.test."}, []string{"10.in-addr.arpa.", "cluster.local.", "b.test."}, nil, "", "cluster.local."},
		"a file after the node":      {"autopath @nodelocal" + node + "\nautopath " + file, []string{"cluster.local."}, []string{"cluster.local."}, list, "", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p, err := parse(controller(tt.text, tt.zones...))
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(p.zones, tt.want) || p.from != tt.from || zoneOf(p) != tt.zone {
				t.Errorf("got %+v", p)
			}
			if (p.list != nil) != (tt.list != nil) || p.list != nil && !slices.Equal(p.list.Suffixes, tt.list) {
				t.Errorf("the list is %+v, want %v", p.list, tt.list)
			}
		})
	}
}

// zoneOf returns the zone of the cluster that the node's pods are in, "" without @nodelocal.
func zoneOf(p *parsed) string {
	if p.node == nil {
		return ""
	}
	return p.node.Zone()
}

// TestMain has the programs' way to find the node's pods.
func TestMain(m *testing.M) {
	NewNodeFinder = func(c *caddy.Controller, zone string) (NodeFinder, error) { return clients.ForNode(c, zone) }
	os.Exit(m.Run())
}

func TestParseErrors(t *testing.T) {
	file := written(t, "resolv.conf", "search cluster.local\n")
	missing := filepath.Join(t.TempDir(), "missing")
	tests := map[string]struct {
		text  string
		zones []string
		line  int
		says  string
	}{
		"nothing":                    {"autopath", nil, 1, "autopath [ZONE...] FILE, @kubernetes or @nodelocal"},
		"nothing, but a block":       {"autopath {\n}", nil, 1, "autopath [ZONE...] FILE"},
		"a zone and nothing":         {"autopath cluster.local", nil, 1, "cluster.local is no resolv.conf"},
		"a file that is not there":   {"\n\nautopath " + missing, nil, 3, missing + " is no resolv.conf"},
		"nobody":                     {"autopath @", nil, 1, "@"},
		"options of a file":          {"autopath " + file + " {\nnode n1\n}", nil, 2, `"node": only @nodelocal has options`},
		"options of kubernetes":      {"autopath @kubernetes {\n\nnode n1\n}", nil, 3, "only @nodelocal has options"},
		"the second is wrong":        {"autopath " + file + "\nautopath", nil, 2, "autopath [ZONE...] FILE"},
		"the node without a zone":    {"autopath @nodelocal {\nnode n1\n}", []string{"."}, 1, "the zone of the cluster is not known: autopath cluster.local @nodelocal"},
		"the node, reverse zones":    {"autopath @nodelocal {\nnode n1\n}", []string{"10.in-addr.arpa.", "ip6.arpa."}, 1, "the zone of the cluster is not known"},
		"a zone of another block":    {"autopath foo.example @nodelocal {\nnode n1\n}", []string{"cluster.local."}, 1, "the server block gets no query for names in foo.example."},
		"the node without a name":    {"autopath @nodelocal", []string{"cluster.local."}, 1, "node NAME"},
		"an unknown option":          {"autopath @nodelocal {\nnode n1\npods verified\n}", []string{"cluster.local."}, 3, `unknown option "pods"`},
		"an option without its word": {"autopath @nodelocal {\nnode\n}", []string{"cluster.local."}, 2, "node takes"},
		"no folder of manifests":     {"autopath @nodelocal {\nnode n1\nresolv_conf " + file + "\nmanifests " + missing + "\n}", []string{"cluster.local."}, 4, "manifests"},
		"no resolv.conf of the node": {"autopath @nodelocal {\nnode n1\nresolv_conf " + missing + "\n}", []string{"cluster.local."}, 3, "resolv_conf"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := setup(controller(tt.text, tt.zones...))
			if err == nil {
				t.Fatal("it is accepted")
			}
			if at := fmt.Sprintf("plugin/autopath: Testfile:%d - Error during parsing: ", tt.line); !strings.HasPrefix(err.Error(), at) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("error is\n\t%v\nwant\n\t%s...%s", err, at, tt.says)
			}
		})
	}
}

// What the directives of the server in these tests do: one knows search lists, one does not, and one is a cache.
var (
	knows   knowing
	started *Autopath // by the last start
)

func init() {
	dnsserver.Directives = append(dnsserver.Directives, "knowing", "ignorant")
	add := func(name string, handler func(next plugin.Handler) plugin.Handler) {
		plugin.Register(name, func(c *caddy.Controller) error {
			config := dnsserver.GetConfig(c)
			config.AddPlugin(handler)
			c.OnStartup(func() error { started, _ = config.Handler("autopath").(*Autopath); return nil })
			return nil
		})
	}
	add("knowing", func(next plugin.Handler) plugin.Handler { k := knows; k.Handler = next; return k })
	add("ignorant", func(next plugin.Handler) plugin.Handler { return ignorant{next} })
	add("cache", func(next plugin.Handler) plugin.Handler { return caching{next} })
}

// knowing is a plugin that knows search lists.
type knowing struct {
	plugin.Handler
	finder searchlist.Finder
	err    error
}

func (knowing) Name() string { return "knowing" }

func (k knowing) SearchLists() (searchlist.Finder, error) { return k.finder, k.err }

// ignorant is one that does not.
type ignorant struct{ plugin.Handler }

func (ignorant) Name() string { return "ignorant" }

// caching is a plugin named cache.
type caching struct{ plugin.Handler }

func (caching) Name() string { return "cache" }

// start starts a server with a block, and stops it; the handler stays as it was.
func start(t *testing.T, zones, block string) (*Autopath, error) {
	t.Helper()
	caddy.Quiet, dnsserver.Quiet, started = true, true, nil
	text := fmt.Sprintf("%s {\n%s\n}\n", zones, block)
	instance, err := caddy.Start(caddy.CaddyfileInput{Filepath: "Corefile", Contents: []byte(text), ServerTypeName: "dns"})
	if err != nil {
		return nil, err
	}
	instance.ShutdownCallbacks()
	if err := instance.Stop(); err != nil {
		t.Error(err)
	}
	return started, nil
}

func TestStart(t *testing.T) {
	file := written(t, "resolv.conf", "search shop.svc.cluster.local cluster.local\n")
	none := written(t, "none.conf", "nameserver 10.0.0.1\n")
	manifests := filepath.Dir(written(t, "pods.yaml", podsOfNode))
	node := fmt.Sprintf("autopath @nodelocal {\nnode n1\nmanifests %s\nresolv_conf %s\n}\n", manifests, file)
	tests := map[string]struct {
		block    string
		keeps    bool
		expanded []string       // zones of which one server knows all names
		first    map[string]any // of the list of a client, or why there is none
	}{
		"another plugin": {"autopath @knowing\nknowing", true, []string{"cluster.local."}, map[string]any{"10.1.0.1": "shop.svc.cluster.local."}},
		"with a cache":   {"autopath @knowing\nknowing\ncache", false, []string{"cluster.local."}, map[string]any{"10.1.0.2": searchlist.NoPod}},
		"a file":         {"autopath " + file + "\nignorant", true, nil, map[string]any{"192.0.2.1": "shop.svc.cluster.local.", "2001:db8::1": "shop.svc.cluster.local."}},
		"an empty file":  {"autopath " + none + "\nignorant", true, nil, map[string]any{"192.0.2.1": searchlist.NoList}},
		"the node":       {node + "cache", false, []string{"cluster.local."}, map[string]any{"10.1.0.1": "shop.svc.cluster.local.", "10.1.0.2": searchlist.NoPod}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			knows = knowing{finder: lists{netip.MustParseAddr("10.1.0.1"): searchlist.New([]string{"shop.svc.cluster.local.", "cluster.local."})}}
			a, err := start(t, "cluster.local:0 b.test:0", tt.block)
			if err != nil {
				t.Fatal(err)
			}
			if a.Name() != "autopath" || a.Plugin != "autopath" || a.Block == nil || a.Next == nil || a.Results != results || a.KeepsPlain != tt.keeps {
				t.Errorf("got %+v", a)
			}
			if !slices.Equal(a.Zones, []string{"cluster.local.", "b.test."}) || !slices.Equal(a.Expander.Zones, tt.expanded) {
				t.Errorf("zones %q and %q", a.Zones, a.Expander.Zones)
			}
			for from, want := range tt.first {
				p, why := a.Clients.Find(netip.MustParseAddr(from))
				if p != nil && p.First() != want || p == nil && why != want {
					t.Errorf("%s: got %+v, %v, want %v", from, p, why, want)
				}
			}
		})
	}
}

func TestStartErrors(t *testing.T) {
	for _, tt := range []struct {
		block string
		err   error
		says  string
	}{
		{"autopath @knowing", nil, "@knowing: there is no such plugin"},
		{"autopath @ignorant\nignorant", nil, "@ignorant: there is no such plugin"},
		{"autopath @knowing\nknowing", errors.New("no pods are watched"), "@knowing: no pods are watched"},
	} {
		knows = knowing{err: tt.err}
		_, err := start(t, "cluster.local:0", tt.block)
		if err == nil || !strings.Contains(err.Error(), "plugin/autopath: Corefile:2 - Error during parsing: "+tt.says) {
			t.Errorf("%q: error %v", tt.block, err)
		}
	}
}
