package apiserver

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"

	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

var _ source.Identified = (*Source)(nil)

// serverOf returns the address of the API server and the fingerprint of its authority: many clusters have the same address.
func serverOf(c *rest.Config) string {
	authority := c.CAData
	if len(authority) == 0 && c.CAFile != "" {
		authority, _ = os.ReadFile(c.CAFile) // a rotation may have replaced it
	}
	return fmt.Sprintf("%s %x", c.Host, sha256.Sum256(authority))
}

// Server implements source.Identified.
func (s *Source) Server() string { return s.server() }

// ClusterUID implements source.Identified. It lists namespaces, since the account need not have the permission to get one.
func (s *Source) ClusterUID(ctx context.Context) (string, error) {
	list := &corev1.NamespaceList{}
	err := s.clients.core.Get().Resource("namespaces").VersionedParams(&metav1.ListOptions{
		ResourceVersion: "0", // from the cache of the API server
		FieldSelector:   fields.OneTermEqualSelector(metav1.ObjectNameField, metav1.NamespaceSystem).String(),
	}, metav1.ParameterCodec).Do(ctx).Into(list)
	switch {
	case err != nil:
		return "", err
	case len(list.Items) == 0:
		return "", errors.New("no namespace " + metav1.NamespaceSystem)
	}
	return string(list.Items[0].UID), nil
}
