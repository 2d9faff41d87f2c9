//go:build linux

package multicluster

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// suiteCheck is a check of the suite. All rules are of KEP-1645, section "DNS".
type suiteCheck struct {
	name     string // as in the suite
	rule     string
	local    bool // it queries names of the cluster alone
	headless bool
	stateful bool // the pods are of a StatefulSet
	do       func(*trial) error
}

var suiteChecks = []suiteCheck{
	{
		name: "A DNS lookup of the <service>.<ns>.svc.clusterset.local domain for a ClusterIP service should resolve to the clusterset IP",
		rule: "in every cluster, the address is the first one of the ServiceImport in the first cluster; and, which the suite does not check, the addresses are exactly those of the cluster's own ServiceImport",
		do:   checkClusterSetIP,
	},
	{
		name: "A DNS SRV query of the <service>.<ns>.svc.clusterset.local domain for a ClusterIP service should return valid SRV records",
		rule: "in every cluster, there is one record, whose port is that of the Service and whose target is the name itself",
		do:   checkServicePort,
	},
	{
		name:  "DNS lookups of the <service>.<ns>.svc.cluster.local domain for a ClusterIP service should only resolve local services",
		rule:  "in the cluster of the Service, the name in the zone of the cluster has the cluster IP, exported or not",
		local: true,
		do:    checkLocalService,
	},
	{
		name:     "A DNS query of the <service>.<ns>.svc.clusterset.local domain for a headless service should return the ready endpoint addresses of all the backing pods",
		rule:     "in every cluster, the addresses are exactly those of the ready endpoints",
		headless: true,
		do:       checkHeadless,
	},
	{
		name:     "A DNS query of the <hostname>.<clusterid>.<service>.<ns>.svc.clusterset.local domain for a headless StatefulSet service should return the requested pod's endpoint address",
		rule:     "in every cluster, hostname and cluster ID, as in the imported EndpointSlice, name exactly the addresses of the endpoint",
		headless: true,
		stateful: true,
		do:       checkHostnames,
	},
	{
		name:     "A DNS SRV query of the <service>.<ns>.svc.clusterset.local domain for a headless service should return valid SRV records",
		rule:     "in every cluster, each ready endpoint has one record, whose target begins with the endpoint's hostname or address and whose port is that of the Service",
		headless: true,
		do:       checkEndpointPorts,
	},
}

// Limits of a check, as in the suite, and of one that has to fail.
const (
	suiteLimit   = 20 * time.Second
	controlLimit = 3 * time.Second
)

// helloPort is the port of the Service, for TCP and UDP.
const helloPort = 42

// trial is a check in a namespace.
type trial struct {
	context.Context
	*clusterset
	namespace string
	networks  map[*cluster]*netns.Namespace
	replicas  int
}

func (r *trial) name() string { return "hello." + r.namespace + ".svc.clusterset.local" }

// try creates the objects of the check in a new namespace, and repeats the check until it passes, or up to its limit.
func (s suiteCheck) try(t *testing.T, cs *clusterset, networks map[*cluster]*netns.Namespace, namespace string, control bool) error {
	t.Helper()
	r := &trial{Context: t.Context(), clusterset: cs, namespace: namespace, networks: networks, replicas: 1}
	if s.headless {
		r.replicas = 2
	}
	s.create(t, r)
	kit.Succeeds(t, bounded, "the Service has its endpoints", func() error {
		all, err := cs.west.readyEndpoints(r)
		if err == nil && len(all) != r.replicas {
			err = fmt.Errorf("%d endpoints, want %d", len(all), r.replicas)
		}
		return err
	})
	kit.Succeeds(t, bounded, "the Service is imported", func() error {
		for _, c := range cs.all() {
			if _, err := c.readImport(r); err != nil {
				return err
			}
		}
		return nil
	})
	limit := suiteLimit
	if control {
		limit = controlLimit
	}
	for end := time.Now().Add(limit); ; time.Sleep(100 * time.Millisecond) {
		if err := s.do(r); err == nil || time.Now().After(end) {
			return err
		}
	}
}

// create creates the Service and its pods in the first cluster, with an export until the end of the test.
func (s suiteCheck) create(t *testing.T, r *trial) {
	t.Helper()
	for _, c := range r.all() {
		object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: r.namespace}}
		if _, err := c.client.CoreV1().Namespaces().Create(r, object, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	c, hello := r.west, metav1.ObjectMeta{Namespace: r.namespace, Name: "hello", Labels: map[string]string{"app": "hello"}}
	service := &corev1.Service{ObjectMeta: hello, Spec: corev1.ServiceSpec{
		Selector: hello.Labels,
		Ports:    []corev1.ServicePort{{Name: "tcp", Port: helloPort}, {Name: "udp", Port: helloPort, Protocol: corev1.ProtocolUDP}},
	}}
	if s.headless {
		service.Spec.ClusterIP = corev1.ClusterIPNone
	}
	_, err := c.client.CoreV1().Services(r.namespace).Create(r, service, metav1.CreateOptions{})
	selector, replicas := &metav1.LabelSelector{MatchLabels: hello.Labels}, new(int32(r.replicas))
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: hello.Labels}}
	template.Spec.Containers = []corev1.Container{{Name: "hello", Image: "hello.invalid/hello"}}
	if s.stateful {
		set := &appsv1.StatefulSet{ObjectMeta: hello}
		set.Spec = appsv1.StatefulSetSpec{ServiceName: "hello", Selector: selector, Replicas: replicas, Template: template}
		_, serr := c.client.AppsV1().StatefulSets(r.namespace).Create(r, set, metav1.CreateOptions{})
		err = errors.Join(err, serr)
	} else {
		set := &appsv1.Deployment{ObjectMeta: hello, Spec: appsv1.DeploymentSpec{Selector: selector, Replicas: replicas, Template: template}}
		_, serr := c.client.AppsV1().Deployments(r.namespace).Create(r, set, metav1.CreateOptions{})
		err = errors.Join(err, serr)
	}
	kit.Must(t, err)
	export := &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace, Name: "hello"}}
	c.apply(t, serviceExports, mcsv1beta1.ServiceExportKindName, export)
	t.Cleanup(func() {
		exports := c.objects.Resource(serviceExports).Namespace(r.namespace)
		if err := exports.Delete(context.Background(), export.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// suiteEndpoint is a ready endpoint: its address, and the label that names it.
type suiteEndpoint struct{ address, label string }

// readyEndpoints returns the ready endpoints of the Service of a cluster.
func (c *cluster) readyEndpoints(r *trial) (all []suiteEndpoint, err error) {
	options := metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=hello"}
	list, err := c.client.DiscoveryV1().EndpointSlices(r.namespace).List(r, options)
	if err != nil {
		return nil, err
	}
	for _, s := range list.Items {
		for _, e := range s.Endpoints {
			label := strings.ReplaceAll(e.Addresses[0], ".", "-")
			if e.Hostname != nil {
				label = *e.Hostname
			}
			if e.Conditions.Ready == nil || *e.Conditions.Ready {
				all = append(all, suiteEndpoint{e.Addresses[0], label})
			}
		}
	}
	return all, nil
}

// readImport returns the ServiceImport in a cluster.
func (c *cluster) readImport(r *trial) (*mcsv1beta1.ServiceImport, error) {
	var u *unstructured.Unstructured
	u, err := c.objects.Resource(serviceImports).Namespace(r.namespace).Get(r, "hello", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	imported := new(mcsv1beta1.ServiceImport)
	return imported, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, imported)
}

// addressLines are the lines of nslookup's output with an address, and serviceLines those with an SRV record.
var (
	addressLines = regexp.MustCompile(`Name:.*\s+Address:\s*(\S+)`)
	serviceLines = regexp.MustCompile(`service = \d+ \d+ (\d+) (\S+)`)
)

// lookup returns the addresses that nslookup prints in a cluster, sorted.
func (r *trial) lookup(c *cluster, name string) ([]string, error) {
	out, err := r.networks[c].Try("busybox", "nslookup", name)
	var all []string
	for _, m := range addressLines.FindAllStringSubmatch(out, -1) {
		all = append(all, m[1])
	}
	slices.Sort(all)
	return all, err
}

// wantAddresses returns an error unless nslookup prints exactly these addresses in a cluster.
func (r *trial) wantAddresses(c *cluster, name string, want ...string) error {
	got, err := r.lookup(c, name)
	slices.Sort(want)
	if err == nil && !slices.Equal(got, want) {
		err = fmt.Errorf("%s in %s: %q, want %q", name, c.id, got, want)
	}
	return err
}

// services returns the ports and targets of the SRV records that nslookup prints in a cluster, sorted.
func (r *trial) services(c *cluster, name string) ([]string, error) {
	out, err := r.networks[c].Try("busybox", "nslookup", "-type=SRV", name)
	var all []string
	for _, m := range serviceLines.FindAllStringSubmatch(out, -1) {
		all = append(all, m[1]+" "+m[2])
	}
	slices.Sort(all)
	return all, err
}

func checkClusterSetIP(r *trial) error {
	first, err := r.west.readImport(r)
	if err == nil && len(first.Spec.IPs) == 0 {
		err = errors.New("the ServiceImport has no address")
	}
	if err != nil {
		return err
	}
	for _, c := range r.all() {
		got, lerr := r.lookup(c, r.name())
		if lerr == nil && !slices.Contains(got, first.Spec.IPs[0]) {
			lerr = fmt.Errorf("%s in %s: %q, want the clusterset IP %s", r.name(), c.id, got, first.Spec.IPs[0])
		}
		own, oerr := c.readImport(r)
		if oerr == nil {
			oerr = r.wantAddresses(c, r.name(), own.Spec.IPs...)
		}
		err = errors.Join(err, lerr, oerr)
	}
	return err
}

func checkServicePort(r *trial) (err error) {
	for _, c := range r.all() {
		got, serr := r.services(c, r.name())
		if want := []string{fmt.Sprintf("%d %s", helloPort, r.name())}; serr == nil && !slices.Equal(got, want) {
			serr = fmt.Errorf("SRV in %s: %q, want %q", c.id, got, want)
		}
		err = errors.Join(err, serr)
	}
	return err
}

func checkLocalService(r *trial) error {
	service, err := r.west.client.CoreV1().Services(r.namespace).Get(r, "hello", metav1.GetOptions{})
	if err != nil {
		return err
	}
	return r.wantAddresses(r.west, "hello."+r.namespace+".svc.cluster.local", service.Spec.ClusterIP)
}

func checkHeadless(r *trial) error {
	all, err := r.west.readyEndpoints(r)
	var want []string
	for _, e := range all {
		want = append(want, e.address)
	}
	for _, c := range r.all() {
		err = errors.Join(err, r.wantAddresses(c, r.name(), want...))
	}
	return err
}

func checkHostnames(r *trial) (err error) {
	for _, c := range r.all() {
		options := metav1.ListOptions{LabelSelector: mcsv1beta1.LabelServiceName + "=hello"}
		list, lerr := c.client.DiscoveryV1().EndpointSlices(r.namespace).List(r, options)
		if lerr != nil {
			return lerr
		}
		number := 0
		for _, s := range list.Items {
			for _, e := range s.Endpoints {
				number++
				if e.Hostname == nil {
					return fmt.Errorf("endpoint %q has no hostname", e.Addresses)
				}
				name := *e.Hostname + "." + s.Labels[mcsv1beta1.LabelSourceCluster] + "." + r.name()
				err = errors.Join(err, r.wantAddresses(c, name, e.Addresses...))
			}
		}
		if number != r.replicas {
			err = errors.Join(err, fmt.Errorf("%d endpoints are imported into %s, want %d", number, c.id, r.replicas))
		}
	}
	return err
}

func checkEndpointPorts(r *trial) error {
	all, err := r.west.readyEndpoints(r)
	if err != nil {
		return err
	}
	for _, c := range r.all() {
		got, serr := r.services(c, r.name())
		matches := func(e suiteEndpoint) bool {
			prefix := fmt.Sprintf("%d %s.", helloPort, e.label)
			return slices.ContainsFunc(got, func(record string) bool { return strings.HasPrefix(record, prefix) })
		}
		if serr == nil && (len(got) != len(all) || slices.ContainsFunc(all, func(e suiteEndpoint) bool { return !matches(e) })) {
			serr = fmt.Errorf("SRV in %s: %q, want one for each of %v", c.id, got, all)
		}
		err = errors.Join(err, serr)
	}
	return err
}
