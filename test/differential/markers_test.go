package differential

import (
	"fmt"
	"net"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/nearside-dns/nearside/test/kubeapi"
)

// Each resource is a separate watch, and its events imply nothing about the others. So each has a marker: an object that
// is written last in every round, and that changes an answer.
const markerNamespace = "marker"

// markerToggle returns the namespace that exists in rounds of that parity.
func markerToggle(round int) string { return fmt.Sprintf("%s-%d", markerNamespace, round%2) }

// markerIP returns an address that is used in this round only.
func markerIP(round int) string { return fmt.Sprintf("10.255.%d.%d", round>>8&0xff, round&0xff) }

// mark writes the markers of a round, and returns those that exist then.
func mark(api *kubeapi.Server, round int) ([]runtime.Object, error) {
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: markerNamespace, Name: name}
	}
	vip := service("vip", markerIP(round))
	vip.ObjectMeta = meta("vip")
	headless := service("headless", corev1.ClusterIPNone)
	headless.ObjectMeta = meta("headless")
	ofVIP, ofHeadless := slice("vip", "10.255.255.1"), slice("headless", markerIP(round))
	ofVIP.Namespace, ofHeadless.Namespace = markerNamespace, markerNamespace
	pod := &corev1.Pod{ObjectMeta: meta("pod")}
	pod.Status.Phase = corev1.PodRunning
	pod.Status.PodIPs = []corev1.PodIP{{IP: markerIP(round)}}
	imported := serviceImport("vip", mcsv1beta1.ClusterSetIP, markerIP(round))
	imported.ObjectMeta = meta("vip")
	headlessImport := serviceImport("headless", mcsv1beta1.Headless)
	headlessImport.ObjectMeta = meta("headless")
	ofVIPImport, ofImport := importedSlice("vip", "c1", "10.255.255.1"), importedSlice("headless", "c1", markerIP(round))
	ofVIPImport.Namespace, ofImport.Namespace = markerNamespace, markerNamespace
	objs := []runtime.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: markerNamespace}},
		headless, ofVIP, headlessImport, ofVIPImport, // the last of each resource are:
		vip, ofHeadless, ofImport, pod, imported,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: markerToggle(round)}},
	}
	if err := api.Delete(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: markerToggle(round + 1)}}); err != nil {
		return nil, err
	}
	return objs, api.Put(objs...)
}

// awaitMarkers waits until a server shows all markers of a round.
func (p *pair) awaitMarkers(s *server, round int, limit time.Duration) error {
	zone := p.primary()
	has := func(m *dns.Msg) bool {
		for _, rr := range m.Answer {
			if a, ok := rr.(*dns.A); ok && a.A.Equal(net.ParseIP(markerIP(round))) {
				return true
			}
		}
		return false
	}
	type marker struct {
		name  string
		shows func(*dns.Msg) bool
	}
	all := []marker{
		{fullName(zone, "vip", markerNamespace, "svc"), has},
		{fullName(zone, markerToggle(round), "svc"), func(m *dns.Msg) bool { return m.Rcode == dns.RcodeSuccess }},
	}
	if !p.noEndpoints {
		all = append(all, marker{fullName(zone, "headless", markerNamespace, "svc"), has})
	}
	if p.verified {
		all = append(all, marker{fullName(zone, dashed(markerIP(round)), markerNamespace, "pod"), has})
	}
	for _, zone := range p.clustersets {
		all = append(all, marker{fullName(zone, "vip", markerNamespace, "svc"), has})
		if !p.noEndpoints || s == p.stock { // which serves endpoints of imports nevertheless
			all = append(all, marker{fullName(zone, "headless", markerNamespace, "svc"), has})
		}
	}
	deadline := time.Now().Add(limit)
	for _, m := range all {
		for {
			reply := s.ask(question{name: m.name, qtype: dns.TypeA}, impatient)
			if reply != nil && m.shows(reply) {
				break
			}
			if err := s.ended(); err != nil {
				return err
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("%s does not show the marker %s of round %d after %v: %v\n%s", s.name, m.name, round, limit, reply, s.log())
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	return nil
}
