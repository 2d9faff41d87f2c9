package kubernetes

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/coredns/coredns/plugin"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nearside-dns/nearside/plugin/internal/exposed"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

// outside sets the external addresses of a Service, and the hosts of its load balancer.
func outside(s *corev1.Service, ips []string, hosts ...string) *corev1.Service {
	s.Spec.ExternalIPs = ips
	for _, h := range hosts {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{Hostname: h})
	}
	return s
}

// exposing returns the exposed Services of a cluster.
func exposing(t *testing.T, block string, objects ...runtime.Object) (exposed.Services, *Kubernetes) {
	t.Helper()
	k := answering(t, block, objects...)
	services, err := k.Exposed()
	kit.Must(t, err)
	return services, k
}

// exposedObjects are Services of each kind.
func exposedObjects() []runtime.Object {
	db, empty := service("shop", "db", headless, tcp("sql", 5432), udp("sql", 5432)), service("shop", "empty", headless)
	inside := service("shop", "inside", []string{"10.0.0.2"}, tcp("", 80))
	return []runtime.Object{
		namespace("shop"), db, empty, inside,
		outside(service("shop", "web", []string{"10.0.0.1"}, tcp("HTTP", 80), tcp("https", 443)), []string{"192.0.2.1", "2001:db8:0::1"}, "LB.example.net"),
		outside(service("shop", "both", headless, tcp("http", 80)), []string{"192.0.2.2"}),
		outside(service("shop", "no-ports", []string{"10.0.0.3"}), []string{"192.0.2.3"}),
		outside(externalName("shop", "alias", "example.com"), []string{"192.0.2.4"}),
		outside(service("gone", "web", []string{"10.0.0.4"}, tcp("http", 80)), []string{"192.0.2.1"}),
		slice(db, "a", endpoint("10.1.0.1", hostname("db-0")), endpoint("10.1.0.2")),
		slice(inside, "a", endpoint("10.1.0.3")), slice(service("shop", "both", headless, tcp("http", 80)), "a", endpoint("10.1.0.4")),
	}
}

// targetText is a target in one word.
func targetText(t exposed.Target) string {
	at := t.Host
	if t.Addr.IsValid() {
		at = t.Addr.String()
	}
	return fmt.Sprintf("%s@%s/%s:%s:%d", t.Endpoint, at, t.PortName, t.Protocol, t.Port)
}

func TestExposedFind(t *testing.T) {
	services, _ := exposing(t, "kubernetes cluster.local", exposedObjects()...)
	for _, tc := range []struct {
		name     string
		n        exposed.Name
		headless bool
		want     string // targets; "-" for a name that does not exist
	}{
		{"all targets", exposed.Name{Namespace: "shop", Service: "web"}, false,
			"@192.0.2.1/http:tcp:80 @192.0.2.1/https:tcp:443 @2001:db8::1/http:tcp:80 @2001:db8::1/https:tcp:443 @LB.example.net./http:tcp:80 @LB.example.net./https:tcp:443"},
		{"a port", exposed.Name{Namespace: "shop", Service: "web", Port: "http", Protocol: "tcp"}, false, "@192.0.2.1/http:tcp:80 @2001:db8::1/http:tcp:80 @LB.example.net./http:tcp:80"},
		{"another protocol", exposed.Name{Namespace: "shop", Service: "web", Port: "http", Protocol: "udp"}, false, "-"},
		{"any label before the Service", exposed.Name{Namespace: "shop", Service: "web", Endpoint: "x", Port: ""}, true,
			"@192.0.2.1/http:tcp:80 @192.0.2.1/https:tcp:443 @2001:db8::1/http:tcp:80 @2001:db8::1/https:tcp:443 @LB.example.net./http:tcp:80 @LB.example.net./https:tcp:443"},
		{"without ports", exposed.Name{Namespace: "shop", Service: "no-ports"}, false, "@192.0.2.3/::-1"},
		{"a port of a Service without ports", exposed.Name{Namespace: "shop", Service: "no-ports", Port: "http", Protocol: "tcp"}, false, "-"},
		{"an ExternalName with addresses", exposed.Name{Namespace: "shop", Service: "alias"}, false, "@192.0.2.4/::-1"},
		{"no external address", exposed.Name{Namespace: "shop", Service: "inside"}, false, "-"},
		{"an endpoint of a ClusterIP Service", exposed.Name{Namespace: "shop", Service: "inside", Endpoint: "10-1-0-3"}, true, "10-1-0-3@10.1.0.3/:tcp:80"},
		{"an endpoint without headless", exposed.Name{Namespace: "shop", Service: "inside", Endpoint: "10-1-0-3"}, false, "-"},
		{"headless", exposed.Name{Namespace: "shop", Service: "db"}, true,
			"db-0@10.1.0.1/sql:tcp:5432 db-0@10.1.0.1/sql:udp:5432 10-1-0-2@10.1.0.2/sql:tcp:5432 10-1-0-2@10.1.0.2/sql:udp:5432"},
		{"a port of endpoints", exposed.Name{Namespace: "shop", Service: "db", Port: "sql", Protocol: "udp"}, true, "db-0@10.1.0.1/sql:udp:5432 10-1-0-2@10.1.0.2/sql:udp:5432"},
		{"an endpoint", exposed.Name{Namespace: "shop", Service: "db", Endpoint: "db-0"}, true, "db-0@10.1.0.1/sql:tcp:5432 db-0@10.1.0.1/sql:udp:5432"},
		{"no such endpoint", exposed.Name{Namespace: "shop", Service: "db", Endpoint: "db-1"}, true, "-"},
		{"headless that is off", exposed.Name{Namespace: "shop", Service: "db"}, false, "-"},
		{"headless without endpoints", exposed.Name{Namespace: "shop", Service: "empty"}, true, "-"},
		{"headless with external addresses", exposed.Name{Namespace: "shop", Service: "both"}, true, "@192.0.2.2/http:tcp:80"},
		{"a namespace", exposed.Name{Namespace: "shop"}, false, ""},
		{"no such namespace", exposed.Name{Namespace: "none"}, false, "-"},
		{"a Service whose namespace does not exist", exposed.Name{Namespace: "gone", Service: "web"}, false, "-"},
		{"no such Service", exposed.Name{Namespace: "shop", Service: "none"}, false, "-"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, v := range []*validity.Validity{nil, new(validity.Validity)} {
				targets, exists := services.Find(tc.n, tc.headless, v)
				var all []string
				for _, target := range targets {
					all = append(all, targetText(target))
				}
				got := strings.Join(all, " ")
				if !exists {
					got += "-"
				}
				if got != tc.want {
					t.Errorf("found %s, want %s", got, tc.want)
				}
				if v != nil && (!v.ByGeneration() || !v.Current()) {
					t.Errorf("validity %+v", v)
				}
			}
		})
	}
}

func TestExposedSelection(t *testing.T) {
	for _, tc := range []struct {
		name, block string
		all         string
		found       bool // the Service shop/web
	}{
		{"all", "kubernetes cluster.local", "alias.shop both.shop db.shop empty.shop inside.shop no-ports.shop web.shop", true},
		{"namespaces", "kubernetes cluster.local {\nnamespaces other\n}", "", false},
		{"namespace_labels", "kubernetes cluster.local {\nnamespace_labels name=other\n}", "", false},
		{"labels", "kubernetes cluster.local {\nlabels app=other\n}", "", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			services, _ := exposing(t, tc.block, exposedObjects()...)
			var all []string
			for _, n := range services.All() {
				all = append(all, n.Service+"."+n.Namespace)
			}
			if got := strings.Join(all, " "); got != tc.all {
				t.Errorf("Services %q, want %q", got, tc.all)
			}
			if _, found := services.Find(exposed.Name{Namespace: "shop", Service: "web"}, false, nil); found != tc.found {
				t.Errorf("found: %t", found)
			}
			if at := services.At("1.2.0.192.in-addr.arpa.", nil); (len(at) == 1) != tc.found {
				t.Errorf("at the address: %v", at)
			}
		})
	}
}

func TestExposedAt(t *testing.T) {
	services, _ := exposing(t, "kubernetes cluster.local", exposedObjects()...)
	six := "1" + strings.Repeat(".0", 23) + ".8.b.d.0.1.0.0.2.ip6.arpa."
	for name, want := range map[string]int{
		"1.2.0.192.in-addr.arpa.": 1, "9.2.0.192.in-addr.arpa.": 0, six: 1, "2.0.192.in-addr.arpa.": 0, "x.2.0.192.in-addr.arpa.": 0, "1.0.0.10.in-addr.arpa.": 0,
	} {
		t.Run(name, func(t *testing.T) {
			v := new(validity.Validity)
			if got := services.At(name, v); len(got) != want || !v.Current() || !v.ByGeneration() {
				t.Errorf("%v, validity %+v", got, v)
			}
		})
	}
}

func TestExposedNameServers(t *testing.T) {
	dnsService := outside(service("kube-system", "dns", []string{"10.0.0.10"}, udp("dns", 53)), []string{"192.0.2.53", "192.0.2.53"}, "lb.example.net")
	headlessDNS := service("kube-system", "dns-headless", headless, udp("dns", 53))
	for _, tc := range []struct {
		name     string
		objects  []runtime.Object
		headless bool
		want     string
	}{
		{"outside of the cluster", nil, false, "10.9.9.9"},
		{"external addresses of its Service", []runtime.Object{dnsService, slice(dnsService, "a", endpoint("10.9.9.9"))}, false, "192.0.2.53"},
		{"a Service without external addresses", []runtime.Object{headlessDNS, slice(headlessDNS, "a", endpoint("10.9.9.9"))}, false, ""},
		{"endpoints", []runtime.Object{headlessDNS, slice(headlessDNS, "a", endpoint("10.9.9.9"), endpoint("10.9.9.10"))}, true, "10.9.9.9 10.9.9.10"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			services, k := exposing(t, "kubernetes cluster.local", append(tc.objects, namespace("kube-system"))...)
			k.localIPs = []netip.Addr{netip.MustParseAddr("10.9.9.9")}
			var got []string
			for _, a := range services.NameServers(tc.headless) {
				got = append(got, a.String())
			}
			if strings.Join(got, " ") != tc.want {
				t.Errorf("%v, want %s", got, tc.want)
			}
		})
	}
}

// TestExposedValidity asserts that each change ends the answers that it changes.
func TestExposedValidity(t *testing.T) {
	web, db := exposed.Name{Namespace: "shop", Service: "web"}, exposed.Name{Namespace: "shop", Service: "db"}
	const first, other = "1.2.0.192.in-addr.arpa.", "7.2.0.192.in-addr.arpa."
	changed := func(ips ...string) *corev1.Service {
		return outside(service("shop", "web", []string{"10.0.0.1"}, tcp("http", 80)), ips)
	}
	for _, tc := range []struct {
		name   string
		change func(k *Kubernetes, strip source.Stripper)
		ends   string // the lookups whose validity ends
	}{
		{"the address of a load balancer", func(k *Kubernetes, strip source.Stripper) { put(k, strip, changed("192.0.2.7")) }, "web first other"},
		{"an additional address", func(k *Kubernetes, strip source.Stripper) { put(k, strip, changed("192.0.2.1", "192.0.2.7")) }, "web first other"},
		{"no address any more", func(k *Kubernetes, strip source.Stripper) { put(k, strip, changed()) }, "web first"},
		{"another Service with the address", func(k *Kubernetes, strip source.Stripper) {
			put(k, strip, outside(service("shop", "new", []string{"10.0.0.9"}), []string{"192.0.2.1"}))
		}, "first new"},
		{"the end of a Service", func(k *Kubernetes, _ source.Stripper) { indexOf(k).DeleteService("shop", "web") }, "web first"},
		{"the end of the namespace", func(k *Kubernetes, _ source.Stripper) { indexOf(k).DeleteNamespace("shop") }, "web db first namespace"},
		{"an endpoint", func(k *Kubernetes, strip source.Stripper) {
			put(k, strip, slice(service("shop", "db", headless, tcp("sql", 5432)), "b", endpoint("10.1.0.9")))
		}, "db"},
		{"lost access", func(k *Kubernetes, _ source.Stripper) { indexOf(k).Outdate() }, "web db first other new namespace"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			services, k := exposing(t, "kubernetes cluster.local", exposedObjects()...)
			valid := map[string]*validity.Validity{}
			lookups := []string{"web", "db", "first", "other", "new", "namespace"}
			for _, l := range lookups {
				valid[l] = new(validity.Validity)
			}
			services.Find(web, true, valid["web"])
			services.Find(db, true, valid["db"])
			services.At(first, valid["first"])
			services.At(other, valid["other"])
			services.Find(exposed.Name{Namespace: "shop", Service: "new"}, true, valid["new"])
			services.Find(exposed.Name{Namespace: "shop"}, true, valid["namespace"])
			before := services.Modified()
			tc.change(k, source.NewStripper(k.source))
			var ended []string
			for _, l := range lookups {
				if !valid[l].Current() {
					ended = append(ended, l)
				}
			}
			if got := strings.Join(ended, " "); got != tc.ends {
				t.Errorf("ended: %s, want %s", got, tc.ends)
			}
			if services.Modified() < before {
				t.Errorf("serial %d after %d", services.Modified(), before)
			}
		})
	}
}

func TestExposedWithoutServices(t *testing.T) {
	k := answering(t, "kubernetes clusterset.local {\nmulticluster clusterset.local\n}")
	if _, err := k.Exposed(); !errors.Is(err, errNoServices) {
		t.Errorf("error %v, want %v", err, errNoServices)
	}
}

func TestExposedSynced(t *testing.T) {
	services, k := exposing(t, "kubernetes cluster.local")
	if !services.Synced() {
		t.Error("not synced")
	}
	unsynced(k)
	if services.Synced() {
		t.Error("synced")
	}
}

// owner is a plugin with zones.
type owner struct {
	plugin.Handler
	zones []string
}

func (o owner) OwnZones() []string { return o.zones }

// TestNeutralExternal asserts that kubernetes tries the candidates of a search list beside a k8s_external in other zones only.
func TestNeutralExternal(t *testing.T) {
	for _, tc := range []struct {
		name  string
		zones []string // of k8s_external, nil without it
		want  bool
	}{
		{"no such plugin", nil, false},
		{"another zone", []string{"example.org."}, true},
		{"reverse zones", []string{"example.org.", "in-addr.arpa."}, true},
		{"the same zone", []string{"example.org.", "cluster.local."}, false},
		{"a zone in it", []string{"ext.cluster.local."}, false},
		{"a zone around it", []string{"local."}, false},
		{"the root", []string{"."}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			k := answering(t, "kubernetes cluster.local in-addr.arpa")
			var h plugin.Handler
			if tc.zones != nil {
				h = owner{zones: tc.zones}
			}
			if got := slices.Contains(k.neutral(kubernetesDirective, h), externalPlugin); got != tc.want {
				t.Errorf("neutral: %t, want %t", got, tc.want)
			}
		})
	}
}
