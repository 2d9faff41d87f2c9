package manifests

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
	"github.com/nearside-dns/nearside/test/kit"
)

// recorder stores the lines of the log.
type recorder struct {
	mu    sync.Mutex
	lines []string
}

func (r *recorder) Infof(format string, v ...any)    { r.add("info", format, v) }
func (r *recorder) Warningf(format string, v ...any) { r.add("warning", format, v) }
func (r *recorder) Errorf(format string, v ...any)   { r.add("error", format, v) }

func (r *recorder) add(level, format string, v []any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, level+" "+fmt.Sprintf(format, v...))
}

// with returns the lines that contain all of parts.
func (r *recorder) with(parts ...string) (found []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, line := range r.lines {
		if !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(line, p) }) {
			found = append(found, line)
		}
	}
	return found
}

// load makes a directory of files and returns a Source that has served it, with its index and log.
func load(t *testing.T, opts source.Options, files map[string]string) (*Source, *index.Index, *recorder) {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		kit.Write(t, dir+"/"+name, content)
	}
	s, err := newSource(dir, opts)
	kit.Must(t, err)
	log := &recorder{}
	s.log = log
	kit.Must(t, s.begin())
	s.ix = index.New()
	s.serve()
	return s, s.ix, log
}

// dump returns the records of an index as text, a line for each, in order.
func dump(ix *index.Index) string {
	all := append(entries(ix, "service", ix.Services()), entries(ix, "import", ix.Imports())...)
	if id := ix.ClusterID(); id != (index.Symbol{}) {
		all = append(all, "cluster "+id.String())
	}
	return strings.Join(all, "\n")
}

func entries(ix *index.Index, service string, entries []*index.Entry) (all []string) {
	for _, e := range entries {
		s := e.Service
		line := fmt.Sprintf("%s %s/%s", service, s.Namespace, s.Name)
		switch s.Kind {
		case index.Headless:
			line += " headless"
		case index.ExternalName:
			line += " -> " + s.Target
		default:
			line += fmt.Sprintf(" %v", s.IPs)
		}
		if !ix.HasNamespace(s.Namespace) {
			line += " (no namespace)"
		}
		all = append(all, line+ports(s.Ports))
		for _, l := range e.Slices {
			line := "  slice " + l.Name
			if l.Cluster != (index.Symbol{}) {
				line += " of " + l.Cluster.String()
			}
			line += ports(l.Ports) + ":"
			for p := range l.All() {
				line += " " + strings.Join(slices.DeleteFunc([]string{p.Addr.String(), p.Name, p.Zone.String()}, func(s string) bool { return s == "" }), ",")
			}
			all = append(all, line)
		}
	}
	return all
}

func ports(all []index.Port) (text string) {
	for _, p := range all {
		text += fmt.Sprintf(" %s/%s/%d", p.Name, p.Protocol, p.Number)
	}
	return text
}

func service(namespace, name, ip string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata:\n  name: %s\n  namespace: %s\nspec:\n  clusterIP: %s\n---\n", name, namespace, ip)
}

func selector(t *testing.T, text string) labels.Selector {
	t.Helper()
	s, err := labels.Parse(text)
	kit.Must(t, err)
	return s
}

const endpoints = `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: db-1
  labels: {kubernetes.io/service-name: db}
addressType: IPv4
ports:
- port: 5432
- name: any
endpoints:
- addresses: [10.0.0.1]
  hostname: db-0
  nodeName: node-1
- addresses: [10.0.0.2]
  conditions: {ready: true}
  nodeName: node-1
  zone: elsewhere
- addresses: [10.0.0.3]
  conditions: {ready: false}
- addresses: [10.0.0.4]
  conditions: {}
  nodeName: node-unknown
---
` + headless

const headless = "{apiVersion: v1, kind: Service, metadata: {name: db}, spec: {clusterIP: None}}\n---\n"

const node = "\n---\n{apiVersion: v1, kind: Node, metadata: {name: node-1, labels: {topology.kubernetes.io/zone: Zone-A}}}\n---\n"

func TestRecords(t *testing.T) {
	tests := map[string]struct {
		opts  source.Options
		files map[string]string
		want  string
	}{
		"yaml, yml and json, in subdirectories": {
			files: map[string]string{
				"a.yaml":     service("shop", "a", "10.96.0.1"),
				"b.yml":      service("shop", "b", "10.96.0.2"),
				"x/c.json":   `{"apiVersion":"v1","kind":"Service","metadata":{"name":"c","annotations":{"face":"\ud83d\ude00"}},"spec":{"clusterIP":"10.96.0.3"}}`,
				"x/y/D.YAML": service("shop", "d", "10.96.0.4"),
			},
			want: "service default/c [10.96.0.3]\nservice shop/a [10.96.0.1]\nservice shop/b [10.96.0.2]\nservice shop/d [10.96.0.4]",
		},
		"hidden files and leftovers are skipped": {
			files: map[string]string{
				"a.yaml": service("shop", "a", "10.96.0.1"), ".a.yaml": "{", "a.yaml~": "{", "#a.yaml#": "{", "#a.yaml": "{",
				".git/b.yaml": "{", "README.md": "{", "a.yaml.swp": "{", "kustomization.yaml": "resources: [a.yaml]", "~b.yaml": "{",
			},
			want: "service shop/a [10.96.0.1]",
		},
		"documents, empty ones too": {
			files: map[string]string{"a.yaml": "---\n# nothing\n---\n" + service("a", "a", "10.96.0.1") + "---\n" + service("a", "b", "None") + "...\n---\n"},
			want:  "service a/a [10.96.0.1]\nservice a/b headless",
		},
		"documents after directives, and after the end of others": {
			files: map[string]string{"a.yaml": "# nothing\n%YAML 1.1\n---\n" + strings.TrimSuffix(service("a", "a", "10.96.0.1"), "---\n") + "...\n---\n" + service("a", "b", "None") + "--- {apiVersion: v1, kind: Service, metadata: {name: c}}\n"},
			want:  "service a/a [10.96.0.1]\nservice a/b headless\nservice default/c []",
		},
		"line breaks of other systems": {
			files: map[string]string{"a.yaml": "\xef\xbb\xbf" + strings.ReplaceAll(service("a", "a", "10.96.0.1")+service("a", "b", "None"), "\n", "\r\n")},
			want:  "service a/a [10.96.0.1]\nservice a/b headless",
		},
		"values in objects that are not read": {
			files: map[string]string{"a.yaml": service("a", "a", "10.96.0.1") + `
apiVersion: apps/v1
kind: Deployment
metadata: {name: a}
spec: {replicas: {{ .Values.replicas }}}
---
apiVersion: v1
kind: ConfigMap
data:
  ? [a, b]
  : .inf
  c: .nan
  d: [null, ~]
  e: &labels {f: 1}
  <<: *labels
---
apiVersion: v1
kind: List
items: [{apiVersion: v1, kind: ConfigMap, data: {a: 1, b: [null, ~]}}]
`},
			want: "service a/a [10.96.0.1]",
		},
		"a merge below the field that it has too": {
			files: map[string]string{"a.yaml": "apiVersion: v1\nkind: List\nitems:\n- &a\n  apiVersion: v1\n  kind: Service\n  metadata: {name: a}\n  spec: &spec {type: ClusterIP, clusterIP: 10.96.0.1}\n- metadata: {name: b}\n  spec: {clusterIP: 10.96.0.2, <<: [*spec, {clusterIP: 10.96.0.3}]}\n  <<: *a\n"},
			want:  "service default/a [10.96.0.1]\nservice default/b [10.96.0.2]",
		},
		"numbers and text as kubectl reads them": {
			files: map[string]string{"a.yaml": `
apiVersion: v1
kind: Service
metadata: {name: !!binary YQ==, labels: {since: 2026-01-31, tag: !custom text}}
spec:
  clusterIP: None
  ports: [{name: a, port: 010}, {name: b, port: 080}, {name: c, port: 80.0}, {name: d, port: 8e1}, {name: e, port: 0x50}, {name: f, port: 8_0}]
  publishNotReadyAddresses: On
`},
			want: "service default/a headless a/tcp/8 b/tcp/80 c/tcp/80 d/tcp/80 e/tcp/80 f/tcp/80",
		},
		"escapes of JSON": {
			files: map[string]string{"a.json": `{"apiVersion":"v1","kind":"Service","metadata":{"name":"\u0061","annotations":{"\ud83d\ude00":"\/\\\"\b\u0000\ud83d é` + "\x7f\u2028" + `"}},"spec":{"clusterIP":"None"}}`},
			want:  "service default/a headless",
		},
		"a field twice in an object that is not read": {
			files: map[string]string{"a.yaml": service("a", "a", "10.96.0.1") + "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a, name: b}\n"},
			want:  "service a/a [10.96.0.1]",
		},
		"an empty file": {files: map[string]string{"a.yaml": "", "b.json": "", "c.json": "null"}},
		"a List": {
			files: map[string]string{"a.yaml": "apiVersion: v1\nkind: List\nmetadata: {resourceVersion: ''}\nitems:\n- " + strings.TrimSpace(strings.Split(headless, "---")[0]) + "\n- {apiVersion: apps/v1, kind: Deployment}\n"},
			want:  "service default/db headless",
		},
		"a typed list, whose items need no kind": {
			files: map[string]string{"a.json": `{"apiVersion":"v1","kind":"ServiceList","items":[{"metadata":{"name":"a"},"spec":{"clusterIP":"None"}}]}`},
			want:  "service default/a headless",
		},
		"anchors and merges": {
			files: map[string]string{"a.yaml": "apiVersion: v1\nkind: List\nitems:\n- &a\n  apiVersion: v1\n  kind: Service\n  metadata: {name: a}\n  spec: &spec {type: ClusterIP, clusterIP: 10.96.0.1}\n- <<: *a\n  metadata: {name: b}\n  spec: {<<: *spec, clusterIP: 10.96.0.2}\n"},
			want:  "service default/a [10.96.0.1]\nservice default/b [10.96.0.2]",
		},
		"defaults of the API server": {
			files: map[string]string{"a.yaml": `
apiVersion: v1
kind: Service
metadata: {name: one, creationTimestamp: null}
spec: {clusterIP: 10.96.0.1, ports: [{name: http, port: 80}]}
status: {loadBalancer: {}}
---
apiVersion: v1
kind: Service
metadata: {name: two}
spec:
  clusterIPs: [10.96.0.2, "fd00::2"]
  publishNotReadyAddresses: yes
  ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53}]
`},
			want: "service default/one [10.96.0.1] http/tcp/80\nservice default/two [10.96.0.2 fd00::2] dns/udp/53 dns-tcp/tcp/53",
		},
		"custom resources with kinds of the same names": {
			files: map[string]string{
				"a.yaml": "apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: a}\nspec: {template: {}}\n",
				"b.yaml": "apiVersion: multicluster.x-k8s.io/v1alpha1\nkind: Service\nmetadata: {name: a}\nspec: {template: {}}\n",
				"c.yaml": "apiVersion: net.gke.io/v1\nkind: ServiceImportList\nitems: [{metadata: {name: a}, spec: {dnsPolicy: None}}]\n",
			},
			opts: withImports,
		},
		"external names": {
			files: map[string]string{"a.yaml": "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {type: ExternalName, externalName: a.example.com}\n"},
			want:  "service default/a -> a.example.com.",
		},
		"endpoints, with the zones of their nodes": {
			opts:  everything,
			files: map[string]string{"a.yaml": endpoints, "z.yaml": node},
			want:  "service default/db headless\n  slice db-1 /tcp/5432 any/tcp/-1: 10.0.0.1,db-0,Zone-A 10.0.0.2,elsewhere 10.0.0.4",
		},
		"endpoints without zones": {
			opts:  source.Options{Endpoints: true},
			files: map[string]string{"a.yaml": endpoints, "z.yaml": node},
			want:  "service default/db headless\n  slice db-1 /tcp/5432 any/tcp/-1: 10.0.0.1,db-0 10.0.0.2 10.0.0.4",
		},
		"endpoints that are not read": {
			files: map[string]string{"a.yaml": endpoints},
			want:  "service default/db headless",
		},
		"labels select": {
			opts: source.Options{Endpoints: true, Labels: selector(t, "app=web")},
			files: map[string]string{"a.yaml": endpoints +
				"{apiVersion: v1, kind: Service, metadata: {name: web, labels: {app: web}}, spec: {clusterIP: None}}"},
			want: "service default/web headless",
		},
		"namespace labels select": {
			opts: source.Options{NamespaceLabels: selector(t, "team in (shop)")},
			files: map[string]string{"a.yaml": service("shop", "a", "None") + service("other", "a", "None") +
				"{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {team: shop}}}"},
			want: "service other/a headless (no namespace)\nservice shop/a headless",
		},
		"namespaces have the label of their name": {
			opts:  source.Options{NamespaceLabels: selector(t, "kubernetes.io/metadata.name=other")},
			files: map[string]string{"a.yaml": service("shop", "a", "None") + service("other", "a", "None")},
			want:  "service other/a headless\nservice shop/a headless (no namespace)",
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

func TestNamespaces(t *testing.T) {
	_, ix, _ := load(t, source.Options{}, map[string]string{"a.yaml": service("of-service", "a", "None") +
		"{apiVersion: v1, kind: Namespace, metadata: {name: alone}}\n---\n" +
		"{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: of-pod}}\n---\n" +
		"{apiVersion: apps/v1, kind: Deployment, metadata: {name: a, namespace: of-deployment}}\n"})
	for name, want := range map[string]bool{"default": true, "of-service": true, "alone": true, "of-pod": true, "of-deployment": true, "none": false} {
		t.Run(name, func(t *testing.T) {
			if got := ix.HasNamespace(name); got != want {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestPods(t *testing.T) {
	files := map[string]string{"a.yaml": `
apiVersion: v1
kind: PodList
items:
- metadata: {name: one, labels: {app: web}}
  status: {phase: Running, podIP: 10.0.0.1}
- metadata: {name: two, labels: {app: db}}
  status: {podIPs: [{ip: 10.0.0.2}, {ip: "fd00::2"}]}
- metadata: {name: done}
  status: {phase: Succeeded, podIP: 10.0.0.3}
`}
	tests := map[string]struct {
		opts source.Options
		want map[string]string
	}{
		"all":      {source.Options{Pods: true}, map[string]string{"one": "[10.0.0.1]", "two": "[10.0.0.2 fd00::2]"}},
		"selected": {source.Options{Pods: true, Labels: selector(t, "app=db")}, map[string]string{"two": "[10.0.0.2 fd00::2]"}},
		"not read": {source.Options{}, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, ix, _ := load(t, test.opts, files)
			for _, name := range []string{"one", "two", "done"} {
				got := ""
				if r := ix.PodRecord("default", name); r != nil {
					got = fmt.Sprint(r.IPs)
				}
				if got != test.want[name] {
					t.Errorf("%s: got %q, want %q", name, got, test.want[name])
				}
			}
		})
	}
}

func TestNotes(t *testing.T) {
	_, _, log := load(t, everything, map[string]string{
		"a.yaml": "{apiVersion: apps/v1, kind: Deployment}\n---\n{apiVersion: apps/v1, kind: Deployment}\n---\n{apiVersion: v1, kind: ConfigMap}\n",
		"b.yaml": "{apiVersion: apps/v1, kind: Deployment}\n---\n{apiVersion: v1, kind: Service, metadata: {name: web}}\n---\n" +
			"{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web-1}, addressType: IPv4}",
	})
	for name, test := range map[string]struct {
		parts []string
		lines int
	}{
		"a kind once":               {[]string{"info ", "a.yaml:1: Deployment is not read"}, 1},
		"each kind":                 {[]string{"info ", "a.yaml:5: ConfigMap is not read"}, 1},
		"not more":                  {[]string{"info "}, 2},
		"a Service without address": {[]string{"warning ", "b.yaml:3: Service default/web has no address"}, 1},
		"a slice without Service":   {[]string{"warning ", "b.yaml:5: EndpointSlice default/web-1 belongs to no Service: its label kubernetes.io/service-name must name one"}, 1},
		"unread kinds":              {[]string{"a.yaml:1: ", "DNS needs Service, EndpointSlice, ServiceImport, Namespace, Node, Pod and ClusterProperty"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			if got := log.with(test.parts...); len(got) != test.lines {
				t.Errorf("got %d lines, want %d: %q", len(got), test.lines, log.lines)
			}
		})
	}
}

func TestLinksAreFollowed(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	kit.Write(t, outside+"/linked.yaml", service("shop", "linked", "None"))
	kit.Write(t, outside+"/sub/deep.yaml", service("shop", "deep", "None"))
	for from, to := range map[string]string{
		"a.yaml": filepath.Join(outside, "linked.yaml"),
		"b":      filepath.Join(outside, "sub"),
		"again":  filepath.Join(outside, "sub"),
		"self":   ".",
	} {
		kit.Must(t, os.Symlink(to, filepath.Join(dir, from)))
	}
	s, err := New(dir, source.Options{})
	kit.Must(t, err)
	s.ix = index.New()
	s.serve()
	if got, want := dump(s.ix), "service shop/deep headless\nservice shop/linked headless"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestDemo(t *testing.T) {
	opts := everything
	opts.Imports, opts.ClusterID = true, true
	s, err := newSource("../../../../deploy/demo", opts)
	kit.Must(t, err)
	log := &recorder{}
	s.log = log
	kit.Must(t, s.begin())
	s.ix = index.New()
	s.serve()
	want := strings.TrimSpace(`
service default/kubernetes [10.96.0.1] https/tcp/443
  slice kubernetes https/tcp/6443: 192.168.0.10
service kube-system/kube-dns [10.96.0.10] dns/udp/53 dns-tcp/tcp/53 metrics/tcp/9153
  slice kube-dns-4x7wq dns/udp/53 dns-tcp/tcp/53 metrics/tcp/9153: 10.244.1.2,zone-a 10.244.3.2,zone-b
service shop/database -> db.shop.svc.cluster.local.
service shop/db headless postgres/tcp/5432
  slice db-ipv4-j6p4s postgres/tcp/5432: 10.244.1.20,db-0,zone-a 10.244.2.20,db-1,zone-a 10.244.3.20,db-2,zone-b
  slice db-ipv6-t8v2d postgres/tcp/5432: fd00:244:0:1::20,db-0,zone-a fd00:244:0:2::20,db-1,zone-a fd00:244:0:3::20,db-2,zone-b
service shop/payments -> payments.example.com.
service shop/web [10.96.12.34 fd00:96::1234] http/tcp/80
  slice web-ipv4-2hbkn http/tcp/8080: 10.244.1.11,zone-a 10.244.2.11,zone-a 10.244.3.11,zone-b
  slice web-ipv6-9mzlc http/tcp/8080: fd00:244:0:1::11,zone-a fd00:244:0:2::11,zone-a fd00:244:0:3::11,zone-b
import shop/db headless postgres/tcp/5432
  slice imported-db-east-ipv4 of east postgres/tcp/5432: 10.244.1.20,db-0,zone-a 10.244.2.20,db-1,zone-a 10.244.3.20,db-2,zone-b
  slice imported-db-east-ipv6 of east postgres/tcp/5432: fd00:244:0:1::20,db-0,zone-a fd00:244:0:2::20,db-1,zone-a fd00:244:0:3::20,db-2,zone-b
  slice imported-db-west-prod-ipv4 of west.prod postgres/tcp/5432: 10.140.1.20,db-0,zone-b 10.140.2.20,db-1,zone-c
  slice imported-db-west-prod-ipv6 of west.prod postgres/tcp/5432: fd00:140:0:1::20,db-0,zone-b fd00:140:0:2::20,db-1,zone-c
import shop/web [10.112.12.34 fd00:112::1234] http/tcp/80 https/tcp/443
cluster east`)
	if got := dump(s.ix); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	kinds := map[string]int{}
	for k := range s.cluster.objects {
		kinds[k.kind]++
	}
	for kind, n := range map[string]int{"Namespace": 3, "Node": 3, "Service": 6, "EndpointSlice": 10, "Pod": 4, "ServiceImport": 2, "ClusterProperty": 1} {
		if kinds[kind] != n {
			t.Errorf("%d of kind %s, want %d", kinds[kind], kind, n)
		}
	}
	if len(log.lines) > 0 {
		t.Errorf("logged %q", log.lines)
	}
}

func TestStatus(t *testing.T) {
	s, _, _ := load(t, everything, nil)
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s.now = func() time.Time { return at }
	if pause := s.refresh(nil); pause != s.wait.reread {
		t.Errorf("reads again after %v", pause)
	}
	all := s.Status()
	if len(all) != 4 {
		t.Errorf("got %d resources: %v", len(all), all)
	}
	for _, st := range all {
		if !st.Synced || st.Frozen || st.Uncertain || !st.Heard.Equal(at) {
			t.Errorf("%+v", st)
		}
	}
	at = at.Add(time.Minute)
	kit.Write(t, s.root+"/broken.yaml", "kind: [")
	s.refresh(nil)
	if st := s.Status()[0]; !st.Synced || st.Frozen || !st.Uncertain || !st.Heard.Equal(at) {
		t.Errorf("with a broken file: %+v", st)
	}
	kit.Write(t, s.root+"/broken.yaml", "")
	s.wait.empty = 0
	s.refresh(nil)
	if st := s.Status()[0]; st.Uncertain {
		t.Errorf("with the repaired file: %+v", st)
	}
	kit.Must(t, os.RemoveAll(s.root))
	later := at.Add(time.Minute)
	s.now = func() time.Time { return later }
	s.refresh(nil)
	if st := s.Status()[0]; !st.Synced || st.Frozen || !st.Uncertain || !st.Heard.Equal(at) {
		t.Errorf("without the directory: %+v", st)
	}
	s.refresh(&watch{failed: true})
	if st := s.Status()[0]; !st.Frozen {
		t.Errorf("without directory and watch: %+v", st)
	}
}

// TestUnreadableAfterEmpty has a file that is truncated, and then can't be read: the error is logged.
func TestUnreadableAfterEmpty(t *testing.T) {
	s, _, log := load(t, everything, map[string]string{"one.yaml": service("shop", "one", "10.96.0.1")})
	kit.Write(t, s.root+"/one.yaml", "")
	if s.refresh(nil); len(log.lines) > 0 {
		t.Fatalf("while the file is empty: %q", log.lines)
	}
	kit.Write(t, s.root+"/one.yaml", strings.Repeat("#", 200))
	s.bounds.fileBytes = 100
	if s.refresh(nil); len(log.with("larger than")) != 1 {
		t.Errorf("logged %q, want one error", log.lines)
	}
}
