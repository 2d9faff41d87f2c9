package manifests

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
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

// place is where an object is: in a document of a file, at a path.
type place struct {
	file   string
	number int    // of the document
	path   string // "" or that of an item of a list
}

// contents are the objects of one file.
type contents struct {
	objects  []*object
	unread   []unread
	warnings []warning
}

// unread stands for the objects of one kind that is not read, in one namespace.
type unread struct {
	kind, namespace string
	place           place
}

// warning is about a valid object that may be a mistake.
type warning struct {
	place place
	text  string
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

// item is an object that has been found in a document.
type item struct {
	place
	text  *text
	json  []byte
	twice *problem // nil if there is none; objects that are not read may have one
}

// problem returns an error of a field of an object, which has a name or none yet.
func (it item) problem(object, path, text string) *problem {
	return &problem{it.text.lineOf(it.number, join(it.path, path)), object, path, text}
}

// parser makes contents of files.
type parser struct {
	opts  source.Options
	strip source.Stripper
}

// reading is a parser at one file.
type reading struct {
	parser
	contents contents
	seen     map[key]place
}

// parse returns the contents of a file, or its first error. It reads a file again if a field is set twice: that is no
// error in an object that is not read, nor if one of the two is merged by `<<`.
func (p parser) parse(path string, content []byte) (*contents, error) {
	t := newText(path, content)
	c, err := p.read(path, t, true)
	if errors.Is(err, errTwice) {
		c, err = p.read(path, t, false)
	}
	return c, err
}

func (p parser) read(path string, t *text, strict bool) (*contents, error) {
	r := reading{parser: p, seen: map[key]place{}}
	err := t.documents(strict, func(number int, document []byte) error {
		it := item{place: place{path, number, ""}, text: t, json: document}
		if !strict {
			it.twice = duplicate(t.root(number), "")
		}
		if bad := r.item(it, metav1.TypeMeta{}); bad != nil {
			return bad
		}
		return nil
	})
	return &r.contents, err
}

// header is read of objects of all kinds.
type header struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
}

// item reads an object. Those in a typed list may leave out kind and version, which are then those of the list.
func (r *reading) item(it item, inherited metav1.TypeMeta) *problem {
	if string(it.json) == "null" && it.path == "" {
		return nil // an empty document
	}
	h := header{TypeMeta: inherited}
	_ = kjson.UnmarshalCaseSensitivePreserveInts(it.json, &h) // other errors are reported when the kind is known
	name, isList := strings.CutSuffix(h.Kind, "List")
	k := kindOf(name, h.APIVersion)
	isList = isList && (k != nil || name == "")
	isRead, versions := k != nil || isList, []string{"v1"}
	if k != nil {
		versions = k.apiVersions
	}
	switch {
	case h.Kind == "":
		return it.problem("", "kind", "missing; want an object with apiVersion, kind and metadata; DNS needs "+kindNames())
	case h.APIVersion == "" && isRead:
		return it.problem(h.Kind, "apiVersion", "missing; want "+strings.Join(versions, " or "))
	case h.APIVersion == "":
		return it.problem(h.Kind, "apiVersion", "missing")
	case isList && it.path != "":
		return it.problem("", "", fmt.Sprintf("a %s inside of a list; move its items to the outer list", h.Kind))
	case inherited.Kind != "" && h.Kind != inherited.Kind:
		return it.problem("", "kind", fmt.Sprintf("%s in a %sList; want %s", h.Kind, inherited.Kind, inherited.Kind))
	case it.twice != nil && (isRead || it.twice.path == "kind" || it.twice.path == "apiVersion"):
		it.twice.object = h.object(k)
		return it.twice
	case !isRead:
		r.skip(it, h, name)
		return nil
	case !slices.Contains(versions, h.APIVersion):
		return it.problem(h.object(k), "apiVersion", fmt.Sprintf("%s is not read; want %s", h.APIVersion, strings.Join(versions, " or ")))
	case isList:
		return r.list(it, h, name)
	}
	return r.object(it, h, k)
}

// object returns the name of an object for errors: its kind, and its name if it has one.
func (h header) object(k *kind) string {
	if h.Metadata.Name == "" || k == nil || k.name != h.Kind {
		return h.Kind
	}
	o := key{kind: h.Kind, name: h.Metadata.Name}
	if k.namespaced {
		o.namespace = cmp.Or(h.Metadata.Namespace, metav1.NamespaceDefault)
	}
	return o.String()
}

// skip records an object that is not read: its namespace exists nevertheless.
func (r *reading) skip(it item, h header, name string) {
	u := unread{kind: h.Kind, namespace: h.Metadata.Namespace, place: it.place}
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

func (r *reading) list(it item, h header, kind string) *problem {
	all := &list{}
	if path, text := decode(it.json, all, h.Kind); text != "" {
		return it.problem(h.Kind, path, text)
	}
	var each metav1.TypeMeta
	if kind != "" {
		each = metav1.TypeMeta{Kind: kind, APIVersion: h.APIVersion}
	}
	for i, text := range all.Items {
		all.Items[i] = nil
		if bad := r.item(item{place: place{it.file, it.number, fmt.Sprintf("items[%d]", i)}, text: it.text, json: text}, each); bad != nil {
			return bad
		}
	}
	return nil
}

// object reads an object of a kind that is read.
func (r *reading) object(it item, h header, k *kind) *problem {
	o := k.new()
	if path, text := decode(it.json, o, h.Kind); text != "" {
		return it.problem(h.object(k), path, text)
	}
	if errs := check(k, o); len(errs) > 0 {
		return it.problem(h.object(k), errs[0].Field, errs[0].ErrorBody())
	}
	m := o.GetObjectMeta()
	if k.namespaced && m.GetNamespace() == "" {
		m.SetNamespace(metav1.NamespaceDefault)
	}
	name := key{h.Kind, m.GetNamespace(), m.GetName()}
	if first, ok := r.seen[name]; ok {
		return it.problem(name.String(), "", fmt.Sprintf("already in line %d; delete one of the two", it.text.lineOf(first.number, first.path)))
	}
	r.seen[name] = it.place
	made := r.record(o)
	made.key, made.place = name, it.place
	r.contents.objects = append(r.contents.objects, made)
	if text := r.warning(o); text != "" {
		r.contents.warnings = append(r.contents.warnings, warning{it.place, name.String() + " " + text})
	}
	return nil
}

// decode fills an object from JSON as strictly as the API server does with fieldValidation=Strict. It returns the path
// and the text of the first error, "" for none.
func decode(text []byte, into any, kind string) (path, problem string) {
	strict, err := kjson.UnmarshalStrict(text, into)
	var field kjson.FieldError
	switch {
	case err != nil:
		var value any
		_ = kjson.UnmarshalCaseSensitivePreserveInts(text, &value) // it has been parsed before
		path = culprit(value, func(v any) bool {
			text, _ := json.Marshal(v)
			_, err := kjson.UnmarshalStrict(text, reflect.New(reflect.TypeOf(into).Elem()).Interface())
			return err != nil
		})
		problem = describe(err)
	case len(strict) > 0 && errors.As(strict[0], &field):
		path = field.FieldPath()
		problem, _, _ = strings.Cut(field.Error(), " \"") // "unknown field" or "duplicate field"
		if problem == "unknown field" {
			around := path[:max(strings.LastIndex(path, "."), 0)]
			problem += "; see kubectl explain " + strings.ToLower(kind) + indexes.ReplaceAllString(strings.TrimSuffix("."+around, "."), "")
		}
	default:
		return "", ""
	}
	return path, problem
}

var indexes = regexp.MustCompile(`\[\d+\]`)

// culprit returns the path of the value that makes a call fail: of the innermost one that does without those beside it.
func culprit(v any, fails func(any) bool) (path string) {
	switch v := v.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			alone := func(child any) bool { return fails(map[string]any{name: child}) }
			if !fails(map[string]any{}) && alone(v[name]) {
				return join(name, culprit(v[name], alone))
			}
		}
	case []any:
		for i, child := range v {
			alone := func(child any) bool { return fails([]any{child}) }
			if !fails([]any{}) && alone(child) {
				return join(fmt.Sprintf("[%d]", i), culprit(child, alone))
			}
		}
	}
	return ""
}

// wanted are the forms of values by the kinds of Go's types.
var wanted = map[reflect.Kind]string{
	reflect.String: "text in quotes",
	reflect.Bool:   "true or false",
	reflect.Int32:  "a whole number of up to 32 bits",
	reflect.Int64:  "a whole number",
	reflect.Slice:  `a list ("- ...")`,
	reflect.Map:    `fields ("name: value")`,
	reflect.Struct: `fields ("name: value")`,
}

// describe returns the text of a decoder's error.
func describe(err error) string {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) && wanted[wrong.Type.Kind()] != "" {
		return fmt.Sprintf("want %s, not %s", wanted[wrong.Type.Kind()], wrong.Value)
	}
	return err.Error()
}
