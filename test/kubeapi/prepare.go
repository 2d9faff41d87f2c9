package kubeapi

import (
	"context"
	"fmt"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/mcs-api/config/crd"

	"github.com/nearside-dns/nearside/test/controlplane"
)

// propertyCRD defines ClusterProperties by KEP-2149, in all versions that a
// cluster may have.
const propertyCRD = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: clusterproperties.about.k8s.io
  annotations:
    api-approved.kubernetes.io: "unapproved, for a test"
spec:
  group: about.k8s.io
  scope: Cluster
  names: {plural: clusterproperties, singular: clusterproperty, kind: ClusterProperty}
  versions:
  - &version
    name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, required: [value], properties: {value: {type: string}}}
  - {<<: *version, name: v1beta1, storage: false}
  - {<<: *version, name: v1alpha1, storage: false}
`

// prepareTimeout bounds the wait for the API server to serve what was defined.
const prepareTimeout = time.Minute

// prepare defines the custom resources and prevents the API server from making
// the namespaces and the Service that it makes by itself, at any time.
func prepare(plane *controlplane.ControlPlane) error {
	for _, definition := range [][]byte{crd.ServiceImportCRD, crd.ServiceExportCRD, []byte(propertyCRD)} {
		text, err := yaml.ToJSON(definition)
		if err != nil {
			return fmt.Errorf("prepare API server: %w", err)
		}
		err = plane.Client().CoreV1().RESTClient().Post().AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions").
			SetHeader("Content-Type", runtime.ContentTypeJSON).Body(text).Do(context.Background()).Error()
		if err != nil {
			return fmt.Errorf("prepare API server: %w", err)
		}
	}
	if err := denyWrites(plane); err != nil {
		return fmt.Errorf("prepare API server: %w", err)
	}
	for _, r := range resources {
		for _, version := range r.versions {
			if err := eventually(func() error {
				return plane.Client().CoreV1().RESTClient().Get().AbsPath(r.path(version)).Do(context.Background()).Error()
			}); err != nil {
				return fmt.Errorf("prepare API server: %s: %w", r.path(version), err)
			}
		}
	}
	return nil
}

// appliedAnnotation is on the objects that Apply writes through the API server.
const appliedAnnotation = "nearside.test/applied"

// denyWrites makes the API server refuse writes of what it writes by itself,
// except by Apply, and waits until it does. Those into etcd do not pass through it.
func denyWrites(plane *controlplane.ControlPlane) error {
	meta := metav1.ObjectMeta{Name: "only-in-etcd"}
	rule := func(group string, resources ...string) admissionv1.NamedRuleWithOperations {
		return admissionv1.NamedRuleWithOperations{RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{admissionv1.OperationAll},
			Rule:       admissionv1.Rule{APIGroups: []string{group}, APIVersions: []string{"*"}, Resources: resources},
		}}
	}
	policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: meta, Spec: admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{
			rule("", Services, Namespaces), rule("discovery.k8s.io", EndpointSlices),
		}},
		Variables: []admissionv1.Variable{{Name: "written", Expression: "object == null ? oldObject : object"}}, // null when it is deleted
		Validations: []admissionv1.Validation{{
			Expression: "variables.written.?metadata.annotations['" + appliedAnnotation + "'].hasValue()",
		}},
	}}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: meta, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: meta.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
	}}
	admission := plane.Client().AdmissionregistrationV1()
	if _, err := admission.ValidatingAdmissionPolicies().Create(context.Background(), policy, metav1.CreateOptions{}); err != nil {
		return err
	}
	if _, err := admission.ValidatingAdmissionPolicyBindings().Create(context.Background(), binding, metav1.CreateOptions{}); err != nil {
		return err
	}
	return eventually(func() error {
		probe := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "probe"}}
		_, err := plane.Client().CoreV1().Namespaces().Create(context.Background(), probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
			return nil
		}
		return fmt.Errorf("the API server still accepts a Namespace: %v", err)
	})
}

// eventually repeats a check until it succeeds, and returns its last error.
func eventually(check func() error) (err error) {
	for end := time.Now().Add(prepareTimeout); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if err = check(); err == nil {
			return nil
		}
	}
	return err
}
