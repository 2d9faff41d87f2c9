package deploy

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearside-dns/nearside/test/daemon"
)

// awaitMetric waits until a metric of a program with this Corefile is at least a minimum.
func awaitMetric(t *testing.T, corefile, metric string, minimum float64) {
	t.Helper()
	found := regexp.MustCompile(`(?m)^\s+prometheus (\S+)$`).FindStringSubmatch(corefile)
	if found == nil {
		t.Fatalf("no metrics in\n%s", corefile)
	}
	await(t, metric, func() error {
		if got := daemon.Scrape(t, http.DefaultClient, found[1]).Sum(metric); got < minimum {
			return fmt.Errorf("%g, want %g", got, minimum)
		}
		return nil
	})
}

// TestDeployedCoherent starts both programs with the deployed Corefiles. clusterdns notifies nodecache of a new Service,
// whose name did not exist before.
func TestDeployedCoherent(t *testing.T) {
	api, resolver := cluster(t), upstream(t, "192.0.2.80")
	server := onLoopback(t, read(t, deployed, "clusterdns", "Corefile"), api.URL(), resolver)
	clusterdns := daemon.Start(t, program(t, "clusterdns"), server)
	awaitAnswer(t, clusterdns.Addr, service.name, service.want)
	node := strings.NewReplacer(
		"__PILLAR__CLUSTER__DNS__", clusterdns.Addr, "__PILLAR__UPSTREAM__SERVERS__", "/etc/resolv.conf",
		"    bind __PILLAR__LOCAL__DNS__\n", "", "__PILLAR__LOCAL__DNS__:", ":",
	).Replace(read(t, deployed, "nodecache", "Corefile.base"))
	node = onLoopback(t, node, api.URL(), resolver)
	nodecache := daemon.Start(t, program(t, "nodecache"), node)
	awaitAnswer(t, nodecache.Addr, service.name, service.want)
	awaitMetric(t, node, "coredns_forward_coherence_sessions", 1)
	awaitMetric(t, server, "coredns_kubernetes_coherence_sessions", 1)

	const name = "late.shop.svc.cluster.local A"
	awaitAnswer(t, nodecache.Addr, name, "NXDOMAIN")
	awaitMetric(t, server, "coredns_kubernetes_coherence_subscriptions", 1)
	late := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "late", Namespace: "shop", UID: "4"}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.12.35", ClusterIPs: []string{"10.96.12.35"},
		Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
	}}
	if err := api.Put(late); err != nil {
		t.Fatal(err)
	}
	awaitMetric(t, node, "coredns_forward_coherence_invalidations_total", 1)
	awaitMetric(t, node, "coredns_cache_invalidated_total", 1)
	awaitAnswer(t, nodecache.Addr, name, "A 10.96.12.35")
}
