package apiserver

import (
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

// definition describes a resource that an API server serves only with a CustomResourceDefinition, or by an aggregated API
// server.
type definition struct {
	kind     string
	group    string
	versions []string // that can be read, the best first
	// object and list stand for all versions.
	object, list runtime.Object
	without      string // the consequence if no version is served, for messages
}

var (
	serviceImports = definition{
		kind:     mcsv1beta1.ServiceImportKindName,
		group:    mcsv1beta1.GroupName,
		versions: []string{"v1beta1", "v1alpha1"},
		object:   &mcsv1beta1.ServiceImport{}, list: &mcsv1beta1.ServiceImportList{},
		without: "zones of a clusterset have no names",
	}
	clusterProperties = definition{
		kind:     "ClusterProperty",
		group:    "about.k8s.io",
		versions: []string{"v1", "v1beta1", "v1alpha1"},
		object:   &source.ClusterProperty{}, list: &source.ClusterPropertyList{},
		without: "the ID of this cluster is not known",
	}
)

// client returns the REST client of the resource, which reads JSON. Each request names its version.
func (d *definition) client(config *rest.Config, httpClient *http.Client) (rest.Interface, error) {
	codecs, err := codecsFor(d.addToScheme)
	if err != nil {
		return nil, err
	}
	one := rest.CopyConfig(config)
	one.GroupVersion, one.APIPath, one.NegotiatedSerializer = &schema.GroupVersion{Group: d.group, Version: d.versions[0]}, "/apis", codecs
	one.ContentType, one.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	one.WarningHandler = rest.NoWarnings{} // each answer may warn of a deprecated version, which is read only if there is no better one
	return rest.RESTClientForConfigAndClient(one, httpClient)
}

func (d *definition) addToScheme(scheme *runtime.Scheme) error {
	for _, version := range d.versions {
		g := schema.GroupVersion{Group: d.group, Version: version}
		scheme.AddKnownTypeWithName(g.WithKind(d.kind), d.object)
		scheme.AddKnownTypeWithName(g.WithKind(d.kind+"List"), d.list)
	}
	return nil
}
