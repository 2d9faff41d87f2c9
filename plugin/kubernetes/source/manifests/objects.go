package manifests

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

// key identifies an object of the cluster.
type key struct{ kind, namespace, name string }

func (k key) String() string {
	if k.namespace == "" {
		return k.kind + " " + k.name
	}
	return k.kind + " " + k.namespace + "/" + k.name
}

// contents are the objects of one file.
type contents struct {
	objects  []*object
	unread   []unread
	warnings []string // each begins with its line
}

// unread stands for the objects of one kind that is not read, in one namespace.
type unread struct {
	kind, namespace string
	line            int
}

// apiObject is what the API types have in common.
type apiObject interface{ GetObjectMeta() metav1.Object }

// clusterProperty is a ClusterProperty with the status that an API server adds.
type clusterProperty struct {
	source.ClusterProperty `json:",inline"`
	Status                 struct{} `json:"status"`
}

// kind is a kind of object that is read. All versions of a kind have the same fields, as far as they are read.
type kind struct {
	name        string
	apiVersions []string // of one group, the newest first
	namespaced  bool
	isLabel     bool // names are one DNS label, not several
	new         func() apiObject
}

var kinds = []kind{
	{"Service", []string{"v1"}, true, true, func() apiObject { return new(corev1.Service) }},
	{"EndpointSlice", []string{"discovery.k8s.io/v1"}, true, false, func() apiObject { return new(discoveryv1.EndpointSlice) }},
	{"ServiceImport", []string{"multicluster.x-k8s.io/v1beta1", "multicluster.x-k8s.io/v1alpha1"}, true, true, func() apiObject { return new(mcsv1beta1.ServiceImport) }},
	{"Namespace", []string{"v1"}, false, true, func() apiObject { return new(corev1.Namespace) }},
	{"Node", []string{"v1"}, false, false, func() apiObject { return new(corev1.Node) }},
	{"Pod", []string{"v1"}, true, false, func() apiObject { return new(corev1.Pod) }},
	{"ClusterProperty", []string{"about.k8s.io/v1", "about.k8s.io/v1beta1", "about.k8s.io/v1alpha1"}, false, false, func() apiObject { return new(clusterProperty) }},
}

// kindNames returns the names of the kinds that are read, for messages.
func kindNames() string {
	var names []string
	for _, k := range kinds {
		names = append(names, k.name)
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " and " + names[last]
}

// kindOf returns the kind of an object, nil for one that is not read. Custom resources of other groups may have kinds
// of the same names, as Knative has a Service; names in k8s.io are reserved for Kubernetes.
func kindOf(name, apiVersion string) *kind {
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.name == name })
	if i < 0 {
		return nil
	}
	group, _, _ := strings.Cut(apiVersion, "/")
	own, _, _ := strings.Cut(kinds[i].apiVersions[0], "/")
	if strings.Contains(group, ".") && !strings.HasSuffix(group, ".k8s.io") && group != own {
		return nil
	}
	return &kinds[i]
}

// parser makes contents of files.
type parser struct {
	opts  source.Options
	strip source.Stripper
}

// reading is a parser at one file.
type reading struct {
	parser
	file     string
	contents contents
	seen     map[key]int // lines of objects
}

// parse returns the contents of a file, or its first error.
func (p parser) parse(path string, content []byte) (*contents, error) {
	roots, err := documents(path, content)
	if err != nil {
		return nil, err
	}
	r := reading{parser: p, file: path, seen: map[key]int{}}
	for _, n := range roots {
		if bad := r.item(n, metav1.TypeMeta{}, false); bad != nil {
			return nil, bad
		}
	}
	return &r.contents, nil
}

// header is read of objects of all kinds.
type header struct {
	metav1.TypeMeta
	name, namespace string // "" if missing or invalid
}

// readHeader reads the header of an object. Items of a typed list may leave out kind and version, which are then those
// of the list.
func readHeader(n *yaml.Node, element metav1.TypeMeta) (h header, bad *problem) {
	h.TypeMeta = element
	if target(n).Kind != yaml.MappingNode {
		return h, &problem{line: n.Line, text: "want an object with apiVersion, kind and metadata, not " + describe(n)}
	}
	for _, field := range []struct {
		path string
		into *string
	}{{"metadata.name", &h.name}, {"metadata.namespace", &h.namespace}, {"kind", &h.Kind}, {"apiVersion", &h.APIVersion}} {
		value, line := find(n, field.path)
		if value == nil {
			continue
		}
		bad := decode(value, line, field.path, field.into)
		if bad != nil && !strings.Contains(field.path, ".") { // others are reported when the kind is known
			return h, bad
		}
	}
	_, bad = fieldsOf(n)
	return h, bad
}

// item reads an object, which may be an item of a list of some kind.
func (r *reading) item(n *yaml.Node, element metav1.TypeMeta, isItem bool) *problem {
	h, bad := readHeader(n, element)
	if bad != nil {
		bad.object = h.Kind
		return bad
	}
	name, isList := strings.CutSuffix(h.Kind, "List")
	k := kindOf(name, h.APIVersion)
	isList = isList && (k != nil || name == "")
	isRead, versions := k != nil || isList, []string{"v1"}
	if k != nil {
		versions = k.apiVersions
	}
	switch {
	case h.Kind == "":
		return problemAt(n, "", "kind", "missing; want an object with apiVersion, kind and metadata; DNS needs "+kindNames())
	case h.APIVersion == "" && isRead:
		return problemAt(n, h.Kind, "apiVersion", "missing; want "+strings.Join(versions, " or "))
	case h.APIVersion == "":
		return problemAt(n, h.Kind, "apiVersion", "missing")
	case isList && isItem:
		return problemAt(n, "", "", fmt.Sprintf("a %s inside of a list; move its items to the outer list", h.Kind))
	case element.Kind != "" && h.Kind != element.Kind:
		return problemAt(n, "", "kind", fmt.Sprintf("%s in a %sList; want %s", h.Kind, element.Kind, element.Kind))
	case !isRead:
		r.skip(n, h, name)
		return nil
	case !slices.Contains(versions, h.APIVersion):
		return problemAt(n, h.object(k), "apiVersion", fmt.Sprintf("%s is not read; want %s", h.APIVersion, strings.Join(versions, " or ")))
	case isList:
		return r.list(n, h, name)
	}
	return r.object(n, h, k)
}

// object returns the name of an object for errors: its kind, and its name if it has one.
func (h header) object(k *kind) string {
	if h.name == "" || k == nil || k.name != h.Kind {
		return h.Kind
	}
	o := key{kind: h.Kind, name: h.name}
	if k.namespaced {
		o.namespace = cmp.Or(h.namespace, metav1.NamespaceDefault)
	}
	return o.String()
}

// skip records an object that is not read: its namespace exists nevertheless.
func (r *reading) skip(n *yaml.Node, h header, name string) {
	u := unread{kind: h.Kind, namespace: h.namespace, line: n.Line}
	if slices.ContainsFunc(kinds, func(k kind) bool { return k.name == name }) {
		group, _, _ := strings.Cut(h.APIVersion, "/")
		u.kind += "." + group
	}
	if !slices.ContainsFunc(r.contents.unread, func(o unread) bool { return o.kind == u.kind && o.namespace == u.namespace }) {
		r.contents.unread = append(r.contents.unread, u)
	}
}

// list is an object that contains others: a List, as kubectl get -o yaml writes, or one of a kind, such as a ServiceList.
type list struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []struct{} `json:"items"` // are read one by one
}

func (r *reading) list(n *yaml.Node, h header, kind string) *problem {
	fields, _ := fieldsOf(n) // the header has been read of them
	all := *target(n)
	all.Content = nil
	var items []*yaml.Node
	for _, f := range fields {
		if f.key.Value == "items" && target(f.value).Kind == yaml.SequenceNode {
			items = target(f.value).Content
			continue
		}
		all.Content = append(all.Content, f.key, f.value)
	}
	if bad := decode(&all, n.Line, "", &list{}); bad != nil {
		bad.object = h.Kind
		return bad
	}
	var each metav1.TypeMeta
	if kind != "" {
		each = metav1.TypeMeta{Kind: kind, APIVersion: h.APIVersion}
	}
	for _, n := range items {
		if bad := r.item(n, each, true); bad != nil {
			return bad
		}
	}
	return nil
}

// object reads an object of a kind that is read.
func (r *reading) object(n *yaml.Node, h header, k *kind) *problem {
	o := k.new()
	if bad := decode(n, n.Line, "", o); bad != nil {
		bad.object = h.object(k)
		return bad
	}
	if errs := check(k, o); len(errs) > 0 {
		return problemAt(n, h.object(k), errs[0].Field, errs[0].ErrorBody())
	}
	m := o.GetObjectMeta()
	if k.namespaced && m.GetNamespace() == "" {
		m.SetNamespace(metav1.NamespaceDefault)
	}
	name := key{h.Kind, m.GetNamespace(), m.GetName()}
	if first, ok := r.seen[name]; ok {
		return problemAt(n, name.String(), "", fmt.Sprintf("already in line %d; delete one of the two", first))
	}
	r.seen[name] = n.Line
	made := r.record(o)
	made.key, made.file, made.line = name, r.file, n.Line
	r.contents.objects = append(r.contents.objects, made)
	if text := r.warning(o); text != "" {
		r.contents.warnings = append(r.contents.warnings, fmt.Sprintf("%d: %s %s", n.Line, name, text))
	}
	return nil
}
