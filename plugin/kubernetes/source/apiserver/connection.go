package apiserver

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	_ "k8s.io/client-go/plugin/pkg/client/auth/oidc" // kubeconfigs may have it as auth-provider
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/coredns/caddy"

	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

// Connection is the address of an API server, the credentials and the limits for requests. The zero Connection is that of
// the cluster that the process runs in.
type Connection struct {
	// Endpoint is the URL of the API server; Cert, Key and CA are the PEM files with which the client connects to it.
	Endpoint, Cert, Key, CA string
	// Kubeconfig is a file, Context the name of a context in it; "" is the current context.
	Kubeconfig, Context string
	// QPS and Burst limit the requests a second, of all clients of equal connections in the process; 0 leaves client-go's defaults,
	// 5 and 10.
	QPS   float32
	Burst int
	// MaxInflight limits the requests that wait for an answer; 0 is no limit. A watch counts until it is open.
	MaxInflight int
}

// buckets are the rate limiters of the process by Connection. Otherwise the client of each group and source would have its own.
var buckets sync.Map

// RESTConfig checks the files of the connection and returns client-go's configuration. It opens no connection.
func (c Connection) RESTConfig() (*rest.Config, error) {
	config, err := c.base()
	if err != nil {
		return nil, err
	}
	if _, err := rest.TransportFor(config); err != nil {
		return nil, fmt.Errorf("credentials: %w", err)
	}
	config.UserAgent = fmt.Sprintf("nearside/%s (%s/%s)", caddy.AppVersion, runtime.GOOS, runtime.GOARCH)
	config.ContentType = apiruntime.ContentTypeProtobuf
	config.AcceptContentTypes = apiruntime.ContentTypeProtobuf + "," + apiruntime.ContentTypeJSON
	qps, burst := rest.DefaultQPS, rest.DefaultBurst
	if c.QPS > 0 {
		qps = c.QPS
	}
	if c.Burst > 0 {
		burst = c.Burst
	}
	bucket, _ := buckets.LoadOrStore(c, flowcontrol.NewTokenBucketRateLimiter(qps, burst))
	config.RateLimiter = bucket.(flowcontrol.RateLimiter)
	if c.MaxInflight > 0 {
		slots := make(chan struct{}, c.MaxInflight)
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { return inflight{slots, next} })
	}
	return config, nil
}

func (c Connection) base() (*rest.Config, error) {
	switch {
	case c.Kubeconfig != "":
		rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: c.Kubeconfig}
		file, err := rules.Load()
		if err != nil {
			return nil, err
		}
		// The deferred loader would use the in-cluster configuration for an empty file.
		config, err := clientcmd.NewNonInteractiveClientConfig(*file, "", &clientcmd.ConfigOverrides{CurrentContext: c.Context}, rules).ClientConfig()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.Kubeconfig, err)
		}
		return config, nil
	case c.Endpoint != "":
		return clientcmd.NewDefaultClientConfig(*clientcmdapi.NewConfig(), &clientcmd.ConfigOverrides{
			ClusterInfo: clientcmdapi.Cluster{Server: c.Endpoint, CertificateAuthority: c.CA},
			AuthInfo:    clientcmdapi.AuthInfo{ClientCertificate: c.Cert, ClientKey: c.Key},
		}).ClientConfig()
	}
	config, err := rest.InClusterConfig()
	if errors.Is(err, rest.ErrNotInCluster) {
		return nil, errors.New("no API server to read: not in a cluster (KUBERNETES_SERVICE_HOST is not set) and none of endpoint, kubeconfig and manifests is given")
	}
	return config, err
}

// Identity returns a text that is equal for connections to the same server in the same way. It includes the content of
// the files: with a changed file it is another connection.
func (c Connection) Identity() string {
	id := fmt.Sprintf("%+v", c)
	for _, file := range []string{c.Kubeconfig, c.Cert, c.Key, c.CA} {
		if content, err := os.ReadFile(file); err == nil {
			id += fmt.Sprintf(" %x", sha256.Sum256(content))
		}
	}
	return id
}

// inflight limits the requests at a time to the number of slots.
type inflight struct {
	slots chan struct{}
	next  http.RoundTripper
}

func (t inflight) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case t.slots <- struct{}{}:
		defer func() { <-t.slots }()
		return t.next.RoundTrip(r)
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

// metadataAs returns the Accept header for objects, or lists of them, with their metadata only.
func metadataAs(kind string) string {
	form := ";as=" + kind + ";g=" + metav1.GroupName + ";v=v1"
	return apiruntime.ContentTypeProtobuf + form + "," + apiruntime.ContentTypeJSON + form
}

// clients are the REST clients of the groups that are read, with the types of those groups only: the scheme of all of
// Kubernetes takes several MiB.
type clients struct {
	core, discovery     rest.Interface
	imports, properties rest.Interface // of custom resources; nil if they are not read
}

// newClients returns the clients of a source. Most of their objects are decoded to records, see decoder.
func newClients(config *rest.Config, o source.Options, d *decoder) (c clients, err error) {
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return c, fmt.Errorf("credentials: %w", err)
	}
	codecs, err := builtinCodecs()
	if err != nil {
		return c, err
	}
	codecs = newRecordCodecs(codecs, d)
	if c.core, err = coreClient(config, httpClient, codecs); err != nil {
		return c, err
	}
	if c.discovery, err = groupClient(config, httpClient, codecs, &discoveryv1.SchemeGroupVersion, "/apis"); err != nil {
		return c, err
	}
	if o.Imports {
		if c.imports, err = serviceImports.client(config, httpClient); err != nil {
			return c, err
		}
	}
	if o.ClusterID {
		c.properties, err = clusterProperties.client(config, httpClient)
	}
	return c, err
}

// Core returns a client of the group core, for a program that reads other objects than those of a source.
func (c Connection) Core() (rest.Interface, error) {
	config, err := c.RESTConfig()
	if err != nil {
		return nil, err
	}
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("credentials: %w", err)
	}
	codecs, err := builtinCodecs()
	if err != nil {
		return nil, err
	}
	return coreClient(config, httpClient, codecs)
}

func coreClient(config *rest.Config, client *http.Client, codecs apiruntime.NegotiatedSerializer) (rest.Interface, error) {
	return groupClient(config, client, codecs, &corev1.SchemeGroupVersion, "/api")
}

func groupClient(config *rest.Config, client *http.Client, codecs apiruntime.NegotiatedSerializer, group *schema.GroupVersion, path string) (rest.Interface, error) {
	one := rest.CopyConfig(config)
	one.GroupVersion, one.APIPath, one.NegotiatedSerializer = group, path, codecs
	return rest.RESTClientForConfigAndClient(one, client)
}

// builtinCodecs returns the codecs of the groups that are read, without custom resources.
func builtinCodecs() (apiruntime.NegotiatedSerializer, error) {
	return codecsFor(corev1.AddToScheme, discoveryv1.AddToScheme, metav1.AddMetaToScheme)
}

// codecsFor returns the codecs of these types, and of the metadata types of each group.
func codecsFor(types ...func(*apiruntime.Scheme) error) (apiruntime.NegotiatedSerializer, error) {
	scheme := apiruntime.NewScheme()
	for _, add := range types {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("scheme: %w", err)
		}
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	return serializer.NewCodecFactory(scheme).WithoutConversion(), nil
}
