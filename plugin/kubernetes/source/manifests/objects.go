package manifests

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
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
	r := reading{parser: p, file: path, seen: map[key]int{}}
	err := documents(path, content, func(d document) error {
		if string(d.text) == "null" { // between two ---
			return nil
		}
		return r.item(d, metav1.TypeMeta{}, false)
	})
	return &r.contents, err
}

// header is the part that is read of objects of all kinds.
type header struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        json.RawMessage `json:"metadata"`
	name, namespace string          // "" if missing or invalid
}

// readHeader reads the header of an object. Items of a typed list may leave out kind and version, which are then those
// of element.
func readHeader(text json.RawMessage, element metav1.TypeMeta) (h header, err error) {
	h.TypeMeta = element
	if text[0] != '{' {
		return h, errors.New("want an object with apiVersion, kind and metadata")
	}
	if err := decode(text, &h, kjson.DisallowDuplicateFields); err != nil {
		return h, err
	}
	var m struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	}
	_ = kjson.UnmarshalCaseSensitivePreserveInts(h.Metadata, &m) // its errors are reported when the kind is known
	h.name, h.namespace = m.Name, m.Namespace
	return h, nil
}

// kindRead returns the kind of an object, or of the items of a list, that is read; nil for other objects, and for a List of
// any kinds.
func kindRead(name, apiVersion string) (k *kind, isList bool) {
	name, isList = strings.CutSuffix(name, "List")
	k = kindOf(name, apiVersion)
	return k, isList && (k != nil || name == "")
}

// item reads an object, which may be an item of a list of some kind.
func (r *reading) item(d document, element metav1.TypeMeta, isItem bool) error {
	h, err := readHeader(d.text, element)
	if err != nil {
		return &problem{d.line, h.Kind, err.Error()}
	}
	k, isList := kindRead(h.Kind, h.APIVersion)
	versions := []string{"v1"}
	if k != nil {
		versions = k.apiVersions
	}
	want := strings.Join(versions, " or ")
	switch {
	case h.Kind == "":
		return &problem{d.line, "", "kind: missing; want an object with apiVersion, kind and metadata; DNS needs " + kindNames()}
	case h.APIVersion == "" && k == nil && !isList:
		return &problem{d.line, h.Kind, "apiVersion: missing"}
	case h.APIVersion == "":
		return &problem{d.line, h.Kind, "apiVersion: missing; want " + want}
	case isList && isItem:
		return &problem{d.line, "", fmt.Sprintf("a %s inside of a list; move its items to the outer list", h.Kind)}
	case element.Kind != "" && h.Kind != element.Kind:
		return &problem{d.line, "", fmt.Sprintf("kind: %s in a %sList; want %s", h.Kind, element.Kind, element.Kind)}
	case k == nil && !isList:
		r.skip(d, h)
		return nil
	case !slices.Contains(versions, h.APIVersion):
		return &problem{d.line, h.object(k), fmt.Sprintf("apiVersion: %s is not read; want %s", h.APIVersion, want)}
	case isList:
		return r.list(d, h, k)
	}
	return r.object(d, h, k)
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
func (r *reading) skip(d document, h header) {
	u := unread{kind: h.Kind, namespace: h.namespace, line: d.line}
	name := strings.TrimSuffix(h.Kind, "List")
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
	Items           []json.RawMessage `json:"items"`
}

// list reads a list of objects of a kind, or of any kinds if k is nil.
func (r *reading) list(d document, h header, k *kind) error {
	var l list
	if err := decode(d.text, &l); err != nil {
		return &problem{d.line, h.Kind, err.Error()}
	}
	var each metav1.TypeMeta
	if k != nil {
		each = metav1.TypeMeta{Kind: k.name, APIVersion: h.APIVersion}
	}
	for i, text := range l.Items {
		if err := r.item(document{d.line, text}, each, true); err != nil {
			if bad := (*problem)(nil); errors.As(err, &bad) {
				bad.object = strings.TrimSuffix(fmt.Sprintf("items[%d]: %s", i, bad.object), ": ")
			}
			return err
		}
	}
	return nil
}

// object reads an object of a kind that is read.
func (r *reading) object(d document, h header, k *kind) error {
	o := k.new()
	if err := decode(d.text, o); err != nil {
		return &problem{d.line, h.object(k), err.Error()}
	}
	if errs := check(k, o); len(errs) > 0 {
		return &problem{d.line, h.object(k), errs[0].Error()}
	}
	m := o.GetObjectMeta()
	if k.namespaced && m.GetNamespace() == "" {
		m.SetNamespace(metav1.NamespaceDefault)
	}
	name := key{h.Kind, m.GetNamespace(), m.GetName()}
	if first, ok := r.seen[name]; ok {
		return &problem{d.line, name.String(), fmt.Sprintf("already in line %d; delete one of the two", first)}
	}
	r.seen[name] = d.line
	made := r.record(o)
	made.key, made.file, made.line = name, r.file, d.line
	r.contents.objects = append(r.contents.objects, made)
	if text := r.warning(o); text != "" {
		r.contents.warnings = append(r.contents.warnings, fmt.Sprintf("%d: %s %s", d.line, name, text))
	}
	return nil
}
