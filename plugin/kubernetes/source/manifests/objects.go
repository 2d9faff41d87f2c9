package manifests

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

// key names one object of the cluster.
type key struct{ kind, namespace, name string }

func (k key) String() string {
	if k.namespace == "" {
		return k.kind + " " + k.name
	}
	return k.kind + " " + k.namespace + "/" + k.name
}

// contents is what one file says.
type contents struct {
	objects []*object
	others  []other  // objects of kinds that are not read
	notes   []string // line and text of what is no error and may still be a mistake
}

func (c *contents) all() []*object {
	if c == nil {
		return nil
	}
	return c.objects
}

// other stands for objects of a kind that is not read, in one namespace.
type other struct {
	kind, namespace string
	line            int
}

// object is one object of a file with what is needed of it.
type object struct {
	key  key
	line int

	service   *index.Service // nil unless selected, as imported, slice and pod
	imported  *index.Service // of a ServiceImport
	slice     *index.Slice
	pod       *index.Pod
	node      *index.Node       // nil without topology
	clusterID index.Symbol      // zero unless the object gives the cluster its ID
	labels    map[string]string // of a Namespace
	zone      string            // of a Node
	// unplaced is an EndpointSlice with endpoints whose zone is that of their Node; its slice is made
	// once the Nodes are known.
	unplaced *discoveryv1.EndpointSlice
	placed   int // the state of the Nodes that slice was made with
}

// apiObject is what the API types have in common.
type apiObject interface{ GetObjectMeta() metav1.Object }

// clusterProperty is a ClusterProperty with the status that an API server gives it.
type clusterProperty struct {
	source.ClusterProperty `json:",inline"`
	Status                 struct{} `json:"status"`
}

// kind is a kind of object that is read.
type kind struct {
	apiVersions []string // one at least, of one group; the newest first
	namespaced  bool
	new         func() apiObject
	// label tells that the name is one DNS label; other names are several.
	label bool
}

var kinds = map[string]kind{
	"Service":         {[]string{"v1"}, true, func() apiObject { return new(corev1.Service) }, true},
	"EndpointSlice":   {[]string{"discovery.k8s.io/v1"}, true, func() apiObject { return new(discoveryv1.EndpointSlice) }, false},
	"ServiceImport":   {inGroup(mcsv1beta1.GroupName, "v1beta1", "v1alpha1"), true, func() apiObject { return new(mcsv1beta1.ServiceImport) }, true},
	"Namespace":       {[]string{"v1"}, false, func() apiObject { return new(corev1.Namespace) }, true},
	"Node":            {[]string{"v1"}, false, func() apiObject { return new(corev1.Node) }, false},
	"Pod":             {[]string{"v1"}, true, func() apiObject { return new(corev1.Pod) }, false},
	"ClusterProperty": {inGroup("about.k8s.io", "v1", "v1beta1", "v1alpha1"), false, func() apiObject { return new(clusterProperty) }, false},
}

// kindNames are those of kinds, in the order of messages.
var kindNames = []string{"Service", "EndpointSlice", "ServiceImport", "Namespace", "Node", "Pod", "ClusterProperty"}

// inGroup returns the API versions of a group. All versions of a kind have the same fields, as far as they are read.
func inGroup(group string, versions ...string) (all []string) {
	for _, v := range versions {
		all = append(all, group+"/"+v)
	}
	return all
}

// foreign tells a group of custom resources, which may have kinds of the same names: Knative has a
// Service. Names in k8s.io are kept for Kubernetes.
func (k kind) foreign(group string) bool {
	own := func(apiVersion string) bool { return strings.HasPrefix(apiVersion, group+"/") }
	return strings.Contains(group, ".") && !strings.HasSuffix(group, ".k8s.io") && !slices.ContainsFunc(k.apiVersions, own)
}

// collection is an object that holds others: a List, as kubectl get -o yaml writes, or a ServiceList.
type collection struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []*yaml.Node `json:"items"`
}

// parser makes contents of files.
type parser struct {
	opts  source.Options
	strip source.Stripper
}

// reading is the parser at one file.
type reading struct {
	parser
	decoder decoder
	out     contents
	seen    map[key]int // the line of each object
}

// parse returns what a file says, or what is wrong with the first place where something is.
func (p parser) parse(path string, content []byte) (*contents, *problem) {
	roots, bad := documents(path, content)
	if bad != nil {
		return nil, bad
	}
	r := reading{parser: p, seen: map[key]int{}}
	for _, n := range roots {
		if bad := r.document(n, position{line: n.Line}, metav1.TypeMeta{}, true); bad != nil {
			return nil, bad
		}
	}
	return &r.out, nil
}

// document reads one object. Items of a typed list may leave out what the list says already; lists
// may not be in lists.
func (r *reading) document(n *yaml.Node, at position, of metav1.TypeMeta, lists bool) *problem {
	h, bad := r.header(n, at, of)
	if bad != nil {
		return bad
	}
	group, _, _ := strings.Cut(h.apiVersion, "/")
	item, isList := strings.CutSuffix(h.kind, "List")
	k, known := kinds[item]
	switch {
	case isList && (known || item == "") && !k.foreign(group):
		if !lists {
			return at.problem("a %s inside of a list; put its items there", h.kind)
		}
		return r.list(n, at, h)
	case known && !k.foreign(group):
		return r.object(n, at, h)
	}
	if known {
		h.kind += "." + group
	}
	r.skip(h)
	return nil
}

// header is what all objects begin with.
type header struct {
	kind, apiVersion, namespace, name string
	line                              int
}

// String names the object as far as it has a name.
func (h header) String() string {
	switch {
	case h.name == "":
		return h.kind
	case !kinds[h.kind].namespaced:
		h.namespace = ""
	case h.namespace == "":
		h.namespace = metav1.NamespaceDefault
	}
	return key{h.kind, h.namespace, h.name}.String()
}

// header reads kind and apiVersion strictly, and the name as far as there is one.
func (r *reading) header(n *yaml.Node, at position, of metav1.TypeMeta) (header, *problem) {
	h := header{kind: of.Kind, apiVersion: of.APIVersion, line: at.line}
	pairs, bad := r.decoder.pairs(n, at)
	if bad != nil {
		if n.Kind != yaml.MappingNode {
			bad.text = fmt.Sprintf("want an object with apiVersion, kind and metadata, not %s", describe(n))
		}
		return h, bad
	}
	for _, f := range pairs {
		var to *string
		switch f.name {
		case "kind":
			to = &h.kind
		case "apiVersion":
			to = &h.apiVersion
		default:
			continue
		}
		if bad := scalarField(f, to); bad != nil {
			return h, bad
		}
	}
	switch {
	case h.kind == "":
		return h, at.problem("kind is missing; want %s or another kind of Kubernetes", strings.Join(kindNames, ", "))
	case h.apiVersion == "":
		return h, at.problem("%s: apiVersion is missing%s", h.kind, wantVersion(h.kind))
	}
	h.namespace, h.name = textAt(n, "metadata", "namespace"), textAt(n, "metadata", "name")
	return h, nil
}

func scalarField(f pair, to *string) *problem {
	at := position{line: f.line, path: f.name}
	if f.value.Kind == yaml.AliasNode {
		f.value = f.value.Alias
	}
	if f.value.ShortTag() == "!!null" {
		return nil
	}
	return scalar(f.value, reflect.ValueOf(to).Elem(), at)
}

func wantVersion(of string) string {
	if k, ok := kinds[of]; ok {
		return "; want " + series(k.apiVersions, "or")
	}
	if of == "List" {
		return "; want " + series(listVersions, "or")
	}
	return ""
}

// listVersions are those of a List, whatever it holds.
var listVersions = []string{"v1"}

// series writes one or more things for a message, with a word before the last of several.
func series(all []string, word string) string {
	last := len(all) - 1
	if last == 0 {
		return all[0]
	}
	return strings.Join(all[:last], ", ") + " " + word + " " + all[last]
}

// skip notes an object of a kind that is not read: its namespace exists nevertheless.
func (r *reading) skip(h header) {
	o := other{kind: h.kind, namespace: h.namespace, line: h.line}
	if !slices.ContainsFunc(r.out.others, func(p other) bool { return p.kind == o.kind && p.namespace == o.namespace }) {
		r.out.others = append(r.out.others, o)
	}
}

func (r *reading) list(n *yaml.Node, at position, h header) *problem {
	item := strings.TrimSuffix(h.kind, "List")
	of := metav1.TypeMeta{}
	want := listVersions
	if item != "" {
		of = metav1.TypeMeta{Kind: item, APIVersion: h.apiVersion}
		want = kinds[item].apiVersions
	}
	if !slices.Contains(want, h.apiVersion) {
		return version(n, h, want)
	}
	var c collection
	if bad := r.decoder.decode(n, reflect.ValueOf(&c).Elem(), at); bad != nil {
		bad.object = h.kind
		return bad
	}
	for i, n := range c.Items {
		if bad := r.document(n, at.field("items", at.line).item(i, n.Line).bare(), of, false); bad != nil {
			return bad
		}
		if n.Kind == yaml.AliasNode {
			n = n.Alias
		}
		if k := textAt(n, "kind"); item != "" && k != "" && k != item {
			return position{line: lineAt(n, "kind"), path: "kind"}.problem("%s in a %s; want %s", k, h.kind, item)
		}
	}
	return nil
}

// bare leaves out the path: fields are named from their object on.
func (at position) bare() position {
	at.path = ""
	return at
}

func version(n *yaml.Node, h header, want []string) *problem {
	return &problem{
		line: lineAt(n, "apiVersion"), object: h.String(), path: "apiVersion",
		text: fmt.Sprintf("%s is not read; want %s", clip(h.apiVersion), series(want, "or")),
	}
}

// object reads an object of a kind that is read.
func (r *reading) object(n *yaml.Node, at position, h header) *problem {
	k := kinds[h.kind]
	if !slices.Contains(k.apiVersions, h.apiVersion) {
		return version(n, h, k.apiVersions)
	}
	o := k.new()
	bad := r.decoder.decode(n, reflect.ValueOf(o).Elem(), at)
	if bad == nil {
		bad = checkName(n, o.GetObjectMeta(), h.kind)
	}
	if bad == nil {
		bad = check(n, o)
	}
	if bad != nil {
		bad.object = h.String()
		return bad
	}
	return r.add(n, o, h)
}

// checkName completes and checks what an object is called.
func checkName(n *yaml.Node, m metav1.Object, of string) *problem {
	k := kinds[of]
	switch {
	case m.GetName() == "":
		return wrong(n, "is missing; every object needs a name", "metadata", "name")
	case !k.namespaced && m.GetNamespace() != "":
		return wrong(n, fmt.Sprintf("a %s is in no namespace; leave it out", of), "metadata", "namespace")
	case k.namespaced && m.GetNamespace() == "":
		m.SetNamespace(metav1.NamespaceDefault)
	}
	const want = "%q; want lower-case letters, digits and dashes, a letter or digit first and last, %s"
	switch {
	case k.label && !isLabel(m.GetName()):
		return wrong(n, fmt.Sprintf(want, clip(m.GetName()), "63 at most"), "metadata", "name")
	case len(validation.IsDNS1123Subdomain(m.GetName())) > 0:
		return wrong(n, fmt.Sprintf(want, clip(m.GetName()), "or several of that with dots between, 253 at most"), "metadata", "name")
	case k.namespaced && !isLabel(m.GetNamespace()):
		return wrong(n, fmt.Sprintf(want, clip(m.GetNamespace()), "63 at most"), "metadata", "namespace")
	}
	return nil
}

func isLabel(name string) bool { return len(validation.IsDNS1123Label(name)) == 0 }

// add puts an object into the contents, unless it is there already.
func (r *reading) add(n *yaml.Node, o apiObject, h header) *problem {
	m := o.GetObjectMeta()
	k := key{h.kind, m.GetNamespace(), m.GetName()}
	if line, ok := r.seen[k]; ok {
		return &problem{line: h.line, object: k.String(), text: fmt.Sprintf("already in line %d; delete one of the two", line)}
	}
	r.seen[k] = h.line
	made := r.record(o)
	made.key, made.line = k, h.line
	r.out.objects = append(r.out.objects, made)
	if note := r.doubt(o); note != "" {
		r.out.notes = append(r.out.notes, fmt.Sprintf("%d: %s %s", h.line, k, note))
	}
	return nil
}

// step returns the child of a node and the line in which it is announced.
func step(n *yaml.Node, to any) (*yaml.Node, int) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch to := to.(type) {
	case int:
		if n.Kind == yaml.SequenceNode && to < len(n.Content) {
			return n.Content[to], n.Content[to].Line
		}
	case string:
		if n.Kind != yaml.MappingNode {
			return nil, 0
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == to {
				return n.Content[i+1], n.Content[i].Line
			}
		}
	}
	return nil, 0
}

// lineAt returns the line of a field, or of what it would be in.
func lineAt(n *yaml.Node, path ...any) int {
	line := n.Line
	for _, to := range path {
		child, at := step(n, to)
		if child == nil {
			break
		}
		n, line = child, at
	}
	return line
}

// textAt returns the text of a field, or "".
func textAt(n *yaml.Node, path ...any) string {
	for _, to := range path {
		if n, _ = step(n, to); n == nil {
			return ""
		}
	}
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str" {
		return ""
	}
	return n.Value
}

// wrong returns the problem of a field of an object.
func wrong(n *yaml.Node, text string, path ...any) *problem {
	var name strings.Builder
	for _, to := range path {
		switch to := to.(type) {
		case int:
			fmt.Fprintf(&name, "[%d]", to)
		case string:
			if name.Len() > 0 {
				name.WriteByte('.')
			}
			name.WriteString(to)
		}
	}
	return &problem{line: lineAt(n, path...), path: name.String(), text: text}
}
