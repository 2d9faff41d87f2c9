package kubernetes

import (
	"context"
	"maps"
	"testing"

	"github.com/coredns/coredns/plugin/metadata"
	"github.com/coredns/coredns/plugin/test"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
)

var _ metadata.Provider = (*Kubernetes)(nil)

// values returns the metadata of a query from an address.
func values(k *Kubernetes, from, owner string) map[string]string {
	ctx := metadata.ContextWithMetadata(context.Background())
	r := test.Case{Qname: owner, Qtype: dns.TypeA}.Msg()
	ctx = k.Metadata(ctx, request.Request{W: &test.ResponseWriter{RemoteIP: from}, Req: r})
	all := map[string]string{}
	for name, value := range metadata.ValueFuncs(ctx) {
		all[name] = value()
	}
	return all
}

// parts returns the metadata of a name: kind, namespace, service, endpoint, port, protocol.
func parts(kind, ns, service, endpoint, port, protocol string) map[string]string {
	return map[string]string{"kubernetes/kind": kind, "kubernetes/namespace": ns, "kubernetes/service": service,
		"kubernetes/endpoint": endpoint, "kubernetes/port-name": port, "kubernetes/protocol": protocol}
}

func TestMetadata_Name(t *testing.T) {
	failed := map[string]string{"kubernetes/parse-error": "invalid query name"}
	k := answering(t, "kubernetes cluster.local 10.in-addr.arpa")
	for _, c := range []struct {
		owner string
		want  map[string]string
	}{
		{"web.shop.svc.cluster.local", parts("svc", "shop", "web", "", "", "")},
		{"Web.Shop.SVC.Cluster.Local", parts("svc", "shop", "web", "", "", "")},
		{"db-0.db.shop.svc.cluster.local", parts("svc", "shop", "db", "db-0", "", "")},
		{"_http._tcp.web.shop.svc.cluster.local", parts("svc", "shop", "web", "", "http", "tcp")},
		{"10-1-0-1.shop.pod.cluster.local", parts("pod", "shop", "10-1-0-1", "", "", "")},
		{"shop.svc.cluster.local", parts("svc", "shop", "", "", "", "")},
		{"svc.cluster.local", parts("", "", "", "", "", "")},
		{"cluster.local", parts("", "", "", "", "", "")},
		{"web.shop.cluster.local", failed},
		{"a.b.c.web.shop.svc.cluster.local", failed},
		{"1.0.0.10.in-addr.arpa", failed},
		{"example.org", map[string]string{}},
	} {
		t.Run(c.owner, func(t *testing.T) {
			if got := values(k, "10.240.0.1", c.owner); !maps.Equal(got, c.want) {
				t.Errorf("got %v\nwant %v", got, c.want)
			}
		})
	}
}

func TestMetadata_Zone(t *testing.T) {
	k := answering(t, "kubernetes cluster.local {\nzonal\n}")
	want := parts("svc", "shop", "db", "", "", "")
	want["kubernetes/zone"] = "corp.example.com"
	if got := values(k, "10.240.0.1", "Corp.example.com.pin._zone.db.shop.svc.cluster.local"); !maps.Equal(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
	want["kubernetes/zone"] = ""
	if got := values(k, "10.240.0.1", "db.shop.svc.cluster.local"); !maps.Equal(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
}

func TestMetadata_Client(t *testing.T) {
	p := podIn("shop", "client", corev1.PodRunning, "10.1.0.7", "2001:db8::7")
	p.Labels = map[string]string{"app": "front", "example.org/tier": "1"}
	own := map[string]string{"kubernetes/client-namespace": "shop", "kubernetes/client-pod-name": "client",
		"kubernetes/client-label/app": "front", "kubernetes/client-label/example.org/tier": "1"}
	shared := []*corev1.Pod{podIn("z", "a", corev1.PodRunning, "10.1.0.9"), podIn("a", "z", corev1.PodRunning, "10.1.0.9"), podIn("a", "b", corev1.PodRunning, "10.1.0.9")}
	for _, c := range []struct {
		name, block, from string
		want              map[string]string
	}{
		{"IPv4", "pods verified", "10.1.0.7", own},
		{"IPv6", "pods verified", "2001:db8::7", own},
		{"IPv4 inside of IPv6", "pods verified", "::ffff:10.1.0.7", own},
		{"unknown", "pods verified", "10.1.0.8", nil},
		{"host network: the first by name", "pods verified", "10.1.0.9",
			map[string]string{"kubernetes/client-namespace": "a", "kubernetes/client-pod-name": "b"}},
		{"pods are not watched", "pods insecure", "10.1.0.7", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := answering(t, "kubernetes cluster.local {\n"+c.block+"\n}", p, shared[0], shared[1], shared[2])
			// The client is also known for a name in another zone.
			if got := values(k, c.from, "example.org"); !maps.Equal(got, c.want) {
				t.Errorf("got %v\nwant %v", got, c.want)
			}
			want := parts("svc", "shop", "web", "", "", "")
			maps.Copy(want, c.want)
			if got := values(k, c.from, "web.shop.svc.cluster.local"); !maps.Equal(got, want) {
				t.Errorf("got %v\nwant %v", got, want)
			}
		})
	}
}
