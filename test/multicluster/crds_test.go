//go:build linux

package multicluster

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/mcs-api/config/crd"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/nearside-dns/nearside/test/kit"
)

// The resources of the tests' objects.
var (
	definitions       = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	serviceExports    = schema.GroupVersionResource{Group: mcsv1beta1.GroupName, Version: "v1beta1", Resource: mcsv1beta1.ServiceExportPluralName}
	serviceImports    = schema.GroupVersionResource{Group: mcsv1beta1.GroupName, Version: "v1beta1", Resource: mcsv1beta1.ServiceImportPluralName}
	clusterProperties = schema.GroupVersionResource{Group: "about.k8s.io", Version: "v1beta1", Resource: "clusterproperties"}
	endpointSlices    = schema.GroupVersionResource{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"}
)

// importVersions are the versions in the definition of ServiceImports, the newest last.
var importVersions = []string{"v1alpha1", "v1beta1"}

// propertyDefinition is the definition of ClusterProperty in KEP-2149.
const propertyDefinition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: clusterproperties.about.k8s.io
  annotations:
    api-approved.kubernetes.io: "unapproved, for a test"
spec:
  group: about.k8s.io
  scope: Cluster
  names:
    plural: clusterproperties
    singular: clusterproperty
    kind: ClusterProperty
  versions:
  - name: v1beta1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            required: [value]
            properties:
              value:
                type: string
                minLength: 1
                maxLength: 128000
`

// install creates a definition, and waits until its objects can be listed.
func (c *cluster) install(t *testing.T, manifest []byte, resource schema.GroupVersionResource) {
	t.Helper()
	definition := new(unstructured.Unstructured)
	kit.Must(t, yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifest), len(manifest)).Decode(definition))
	if _, err := c.objects.Resource(definitions).Create(t.Context(), definition, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.awaitResource(t, resource, true)
}

// installImports creates the released definition of ServiceImports.
func (c *cluster) installImports(t *testing.T) {
	t.Helper()
	c.install(t, crd.ServiceImportCRD, serviceImports)
}

// awaitResource waits until a resource is served, or is not.
func (c *cluster) awaitResource(t *testing.T, resource schema.GroupVersionResource, served bool) {
	t.Helper()
	kit.Succeeds(t, bounded, fmt.Sprintf("%s is served: %t", resource.String(), served), func() error {
		_, err := c.objects.Resource(resource).List(t.Context(), metav1.ListOptions{Limit: 1})
		switch {
		case served:
			return err
		case err == nil:
			return fmt.Errorf("%s is served", resource.String())
		case !apierrors.IsNotFound(err):
			return err
		}
		return nil
	})
}

// removeImports removes the definition of ServiceImports, and with it all objects.
func (c *cluster) removeImports(t *testing.T) {
	t.Helper()
	all, name := c.objects.Resource(definitions), mcsv1beta1.ServiceImportFullName
	kit.Must(t, all.Delete(t.Context(), name, metav1.DeleteOptions{}))
	kit.Succeeds(t, bounded, "the definition is removed", func() error {
		if _, err := all.Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("get %s: error %w, want that it is not found", name, err)
		}
		return nil
	})
	c.awaitResource(t, serviceImports, false)
}

// serve makes the API server serve ServiceImports in these versions only, or in none, the newest last, and waits until
// it does.
func (c *cluster) serve(t *testing.T, served ...string) {
	t.Helper()
	all := c.objects.Resource(definitions)
	kit.Succeeds(t, bounded, "the definition is changed", func() error {
		definition, err := all.Get(t.Context(), mcsv1beta1.ServiceImportFullName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		versions, _, err := unstructured.NestedSlice(definition.Object, "spec", "versions")
		if err != nil {
			return err
		}
		for _, v := range versions {
			version := v.(map[string]any)
			version["served"] = slices.Contains(served, version["name"].(string))
		}
		if err := unstructured.SetNestedSlice(definition.Object, versions, "spec", "versions"); err != nil {
			return err
		}
		_, err = all.Update(t.Context(), definition, metav1.UpdateOptions{}) // the server updates its status meanwhile
		return err
	})
	if len(served) > 0 {
		c.version = served[len(served)-1]
	}
	for _, version := range importVersions {
		c.awaitResource(t, serviceImports.GroupResource().WithVersion(version), slices.Contains(served, version))
	}
}
