//go:build linux

package monitoring

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/kubeapi"
	"github.com/nearside-dns/nearside/test/netns"
)

// bounded limits the wait for an event that is due soon, on a busy machine.
const bounded = 90 * time.Second

// The addresses of the network.
const (
	local      = "169.254.20.10" // the server of pods
	kubeDNS    = "10.96.0.10"    // the Service, for which no kube-proxy has rules here
	clusterDNS = "10.2.0.2"
	otherDNS   = "10.2.0.3" // another replica, which nodecache does not query
	resolver   = "10.2.0.53"
	udpOnly    = "10.2.0.54" // a resolver behind a firewall that drops TCP
	nodeName   = "node-a"
)

func TestMain(m *testing.M) { kubeapi.Main(m) }

// bed is a node with both programs.
type bed struct {
	*netns.Bed
	api      *kubeapi.Server
	resolver *resolverServer
	cache    *netns.Process
}

// newBed starts everything, and waits until pods receive answers.
func newBed(t *testing.T) *bed {
	t.Helper()
	b := &bed{Bed: netns.New(t), api: kubeapi.New(t)}
	kit.Must(t, b.api.Put(b.objects()...))
	for _, address := range []string{otherDNS, resolver, udpOnly} {
		b.Upstream.Run(t, "ip", "addr", "add", address+"/32", "dev", "eth0")
	}
	b.Upstream.Run(t, "ip", "route", "add", "10.1.0.0/16", "via", b.Node.IPv4.String())
	b.resolver = startResolver(t, b.Upstream)
	b.Upstream.Forward(t, strings.TrimPrefix(b.api.URL(), "http://"))
	for _, address := range []string{clusterDNS, otherDNS} {
		b.startClusterDNS(t, address)
	}
	b.startNodecache(t)
	return b
}

// clusterCorefile has every plugin of clusterdns with metrics.
const clusterCorefile = `.:53 {
    bind ADDRESS
    metadata
    errors
    health ADDRESS:8080
    ready ADDRESS:8181
    prometheus ADDRESS:9153
    autopath @kubernetes
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        endpoint API
        pods verified
        topology
        coherent
        ttl 30
        snapshot FOLDER/records
        fallthrough in-addr.arpa ip6.arpa
    }
    forward . ` + resolver + `
    cache 30 {
        prefetch 2 1m 50%
    }
    reload
    loadbalance
}
ap.k8s.io:53 {
    bind ADDRESS
    errors
    prometheus ADDRESS:9153
    searchpath {
        zone cluster.local
        host-searches off
    }
    cache 30
}
`

func (b *bed) startClusterDNS(t *testing.T, address string) {
	t.Helper()
	folder := t.TempDir()
	path := filepath.Join(folder, "Corefile")
	kit.Write(t, path, strings.NewReplacer("API", b.api.URL(), "ADDRESS", address, "FOLDER", folder).Replace(clusterCorefile))
	b.Upstream.Start(t, daemon.Program(t, "clusterdns"), "-conf", path)
	kit.Succeeds(t, bounded, "clusterdns answers", func() error {
		return b.answered(b.Upstream, "udp", address, "web.shop.svc.cluster.local.", dns.TypeA)
	})
}

// nodeTemplate is node-local-dns's Corefile with every plugin of nodecache with metrics.
const nodeTemplate = `cluster.local:53 {
    errors
    cache {
        success 9984 30
        denial 9984 5
        prefetch 2 1m 50%
    }
    autopath @nodelocal {
        node ` + nodeName + `
        endpoint API
    }
    reload
    loop
    bind ` + local + ` ` + kubeDNS + `
    fastpath {
        kernel on
    }
    forward . __PILLAR__CLUSTER__DNS__ {
        force_tcp
        coherent
    }
    prometheus :9253
    health ` + local + `:8080
}
ap.k8s.io:53 {
    errors
    bind ` + local + ` ` + kubeDNS + `
    searchpath {
        zone cluster.local
    }
    prometheus :9253
}
.:53 {
    errors
    cache 30 {
        prefetch 2 1m 50%
        snapshot FOLDER/external
    }
    reload
    loop
    bind ` + local + ` ` + kubeDNS + `
    fastpath {
        kernel on
    }
    forward . __PILLAR__UPSTREAM__SERVERS__ {
        force_tcp
        fallback udp
        policy round_robin
    }
    prometheus :9253
}
`

func (b *bed) startNodecache(t *testing.T) {
	t.Helper()
	b.Node.Forward(t, strings.TrimPrefix(b.api.URL(), "http://"))
	b.Node.Etc(t, "resolv.conf", "nameserver "+resolver+"\nnameserver "+udpOnly+"\n")
	folder := t.TempDir()
	base := filepath.Join(folder, "Corefile.base")
	kit.Write(t, base, strings.NewReplacer("API", b.api.URL(), "FOLDER", folder).Replace(nodeTemplate))
	b.cache = b.Node.StartWith(t,
		[]string{"KUBE_DNS_UPSTREAM_SERVICE_HOST=" + clusterDNS, "NODE_NAME=" + nodeName, "NODE_ZONE=zone-1"},
		daemon.Program(t, "nodecache"),
		"-localip", local+","+kubeDNS,
		"-conf", filepath.Join(folder, "Corefile"),
		"-upstreamsvc", "kube-dns-upstream",
		"-pidfile", filepath.Join(folder, "node-cache.pid"),
		"-basecorefile", base)
	kit.Succeeds(t, bounded, "nodecache has the lease", func() error {
		samples, err := b.scrape(nodecache)
		if err != nil {
			return err
		}
		for _, address := range []string{local, kubeDNS} {
			if samples.Sum("nearside_nodelocal_lease", "address", address) != 1 {
				return errors.New("no lease for " + address)
			}
		}
		return nil
	})
	if samples, err := b.scrape(nodecache); err != nil {
		t.Fatal(err)
	} else if samples.Sum("nearside_kernel_interfaces", "state", "attached") == 0 {
		kit.Lacking(t, "the kernel does not permit the program for answers in the kernel")
	}
}

// objects are a cluster with a few Services, the node and its pods.
func (b *bed) objects() (all []runtime.Object) {
	meta := func(namespace, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name}
	}
	for _, namespace := range []string{"shop", "bank", "Not_a_label"} { // clusterdns skips the last one, and counts it
		all = append(all, &corev1.Namespace{ObjectMeta: meta("", namespace)})
	}
	// Its UID identifies the cluster of a snapshot.
	all = append(all, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: "1"}})
	all = append(all, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName, Labels: map[string]string{corev1.LabelTopologyZone: "zone-1"}},
		Spec:       corev1.NodeSpec{PodCIDR: "10.1.0.0/16", PodCIDRs: []string{"10.1.0.0/16"}},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: b.Node.IPv4.String()}}},
	})
	for i, p := range b.Pod {
		all = append(all, &corev1.Pod{
			ObjectMeta: meta("shop", fmt.Sprint("pod-", i)),
			Spec:       corev1.PodSpec{NodeName: nodeName, DNSPolicy: corev1.DNSClusterFirst, Containers: []corev1.Container{{Name: "main", Image: "main"}}},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIP: p.IPv4.String(), PodIPs: []corev1.PodIP{{IP: p.IPv4.String()}}},
		})
	}
	port := []corev1.ServicePort{{Name: "main", Port: 80, TargetPort: intstr.FromInt32(80), Protocol: corev1.ProtocolTCP}}
	for n := range 20 {
		ip := fmt.Sprint("10.96.1.", n+1)
		name := fmt.Sprint("web-", n)
		if n == 0 {
			name = "web"
		}
		all = append(all, &corev1.Service{
			ObjectMeta: meta([]string{"shop", "bank"}[n%2], name),
			Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, Ports: port},
		})
	}
	return append(all, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db", Annotations: map[string]string{"nearside.dev/topology-keys": "topology.kubernetes.io/zone,*"}},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: corev1.ClusterIPNone, ClusterIPs: []string{corev1.ClusterIPNone}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, Ports: port, Selector: map[string]string{"app": "db"}},
	}, b.databases(3))
}

// databases are the endpoints of the headless Service, some of which change from time to time.
func (b *bed) databases(n int) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "db-1", Labels: map[string]string{discoveryv1.LabelServiceName: "db"},
			Annotations: map[string]string{corev1.EndpointsLastChangeTriggerTime: time.Now().Format(time.RFC3339Nano)},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("main"), Port: new(int32(80)), Protocol: new(corev1.ProtocolTCP)}},
	}
	for i := range n {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprint("10.1.9.", i+1)}, Hostname: new(fmt.Sprint("db-", i)),
			NodeName: new(nodeName), Zone: new("zone-1"), Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
		})
	}
	return slice
}

// patient is the timeout of queries whose answers are checked: more than a server needs to try all its upstreams.
const patient = 8 * time.Second

// ask sends one query from a namespace, and returns the reply.
func ask(from *netns.Namespace, network, server, name string, qtype uint16, timeout time.Duration) (*dns.Msg, error) {
	return from.Exchange(network, net.JoinHostPort(server, "53"), new(dns.Msg).SetQuestion(dns.Fqdn(name), qtype), timeout)
}

// answered reports whether a name has records, within a second.
func (b *bed) answered(from *netns.Namespace, network, server, name string, qtype uint16) error {
	reply, err := ask(from, network, server, name, qtype, time.Second)
	if err != nil {
		return err
	}
	if reply.Rcode != dns.RcodeSuccess || len(reply.Answer) == 0 {
		return fmt.Errorf("%s %s: %s, %d records", name, dns.TypeToString[qtype], dns.RcodeToString[reply.Rcode], len(reply.Answer))
	}
	return nil
}
