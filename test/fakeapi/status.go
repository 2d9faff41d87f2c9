package fakeapi

import (
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// statusOf gives the Status object a client gets for err.
func statusOf(err error) *metav1.Status {
	var known apierrors.APIStatus
	if !errors.As(err, &known) {
		known = apierrors.NewInternalError(err)
	}
	status := known.Status()
	status.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "Status"})
	return &status
}

// writeError answers a request with err. What fails in writing it is lost, as
// the client is gone then.
func writeError(w http.ResponseWriter, e *encoding, err error) {
	status := statusOf(err)
	w.Header().Set("Content-Type", e.name)
	w.WriteHeader(int(status.Code))
	if err := e.write(status, w); err != nil {
		return
	}
}

func errTooOld(rv, oldest uint64) error {
	return apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", rv, oldest))
}

func errTooLarge(rv, current uint64) error {
	err := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %d, current: %d", rv, current), 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{
		Type:    metav1.CauseTypeResourceVersionTooLarge,
		Message: "Too large resource version",
	}}
	return err
}

// errInvalidRV is what a real server says of a resource version which is no
// number: an error of its own, not one of the request.
func errInvalidRV(text string, err error) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusInternalServerError,
		Message: fmt.Sprintf("resourceVersion: Invalid value: %q: %v", text, err),
	}}
}

func errNotAcceptable(message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusNotAcceptable,
		Reason:  metav1.StatusReasonNotAcceptable,
		Message: message,
	}}
}

// errForbidden is what a real server says to a user whom RBAC allows nothing.
func errForbidden(verb string, t target) error {
	if verb == VerbWatchList {
		verb = VerbWatch
	}
	res := t.collection.res
	return apierrors.NewForbidden(res.groupResource(), t.name, fmt.Errorf(
		"User %q cannot %s resource %q in API group %q at the cluster scope", "test", verb, res.name, res.group))
}

func errMediaType(res *resource) error {
	if res.custom != nil {
		return errNotAcceptable("only the following media types are accepted: application/json")
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusNotAcceptable,
		Reason:  metav1.StatusReasonNotAcceptable,
		Message: "406: Not Acceptable\n\nAvailable representations: application/json, application/vnd.kubernetes.protobuf",
		Details: &metav1.StatusDetails{},
	}}
}

// errNoList is what a real server says of a custom object whose metadata was
// asked for as those of a list.
func errNoList() error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusInternalServerError,
		Message: "content is not a list",
	}}
}

// answerNoPage writes what a real server says of a path in no API group that it
// has, and of one of a custom resource that it doesn't serve.
func answerNoPage(w http.ResponseWriter) {
	http.Error(w, "404 page not found", http.StatusNotFound)
}

// errNoSuchPath is what a real server says of a path in an API group that is
// built in.
func errNoSuchPath() error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusNotFound,
		Reason:  metav1.StatusReasonNotFound,
		Message: "the server could not find the requested resource",
		Details: &metav1.StatusDetails{},
	}}
}

func errMethod(method string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusMethodNotAllowed,
		Reason:  metav1.StatusReasonMethodNotAllowed,
		Message: fmt.Sprintf("the server does not allow the method %s: objects are changed through the Go API", method),
	}}
}
