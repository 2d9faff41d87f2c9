package deploy

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
)

// metricsOf returns the address of the metrics in a Corefile.
func metricsOf(t *testing.T, corefile string) string {
	t.Helper()
	found := regexp.MustCompile(`(?m)^\s+prometheus (\S+)$`).FindStringSubmatch(corefile)
	if found == nil {
		t.Fatalf("no metrics in\n%s", corefile)
	}
	return found[1]
}

// awaitMetric waits until a metric of a program with this Corefile is at least a minimum.
func awaitMetric(t *testing.T, corefile, metric string, minimum float64) {
	t.Helper()
	address := metricsOf(t, corefile)
	kit.Succeeds(t, deadline, metric, func() error {
		if got := daemon.Scrape(t, http.DefaultClient, address).Sum(metric); got < minimum {
			return fmt.Errorf("%g, want %g", got, minimum)
		}
		return nil
	})
}

// coherenceLines returns the lines of nodecache doctor on coherence, with their verdicts, by check.
func coherenceLines(t *testing.T, corefile, clusterMetrics string) (map[string]string, error) {
	t.Helper()
	host, port, err := net.SplitHostPort(clusterMetrics)
	kit.Must(t, err)
	cmd := exec.Command(daemon.Program(t, "nodecache"), "doctor", "-o", "json", "-conf", corefile)
	cmd.Env = append(os.Environ(), "KUBE_DNS_SERVICE_HOST="+host, "KUBE_DNS_SERVICE_PORT_METRICS="+port)
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) { // other checks fail here
		return nil, err
	}
	var lines []struct{ Check, Value, Verdict string }
	if err := json.Unmarshal(out, &lines); err != nil {
		return nil, fmt.Errorf("%w in\n%s", err, out)
	}
	found := map[string]string{}
	for _, l := range lines {
		if strings.HasPrefix(l.Check, "coherence") {
			found[l.Check] = l.Verdict + ": " + l.Value
		}
	}
	return found, nil
}

// TestDeployedCoherent starts both programs with the deployed Corefiles. clusterdns notifies nodecache of a new Service,
// whose name did not exist before, and nodecache doctor reports their session.
func TestDeployedCoherent(t *testing.T) {
	api, resolver := cluster(t), upstream(t, "192.0.2.80")
	server := onLoopback(t, kit.Read(t, deployed+"/clusterdns/Corefile"), api.URL(), resolver)
	clusterdns := daemon.Start(t, daemon.Program(t, "clusterdns"), server)
	awaitAnswer(t, clusterdns.Addr, service.name, service.want)
	node := strings.NewReplacer(
		"__PILLAR__CLUSTER__DNS__", clusterdns.Addr, "__PILLAR__UPSTREAM__SERVERS__", "/etc/resolv.conf",
		"    bind __PILLAR__LOCAL__DNS__\n", "", "__PILLAR__LOCAL__DNS__:", ":",
	).Replace(kit.Read(t, deployed+"/nodecache/Corefile.base"))
	node = onLoopback(t, node, api.URL(), resolver)
	nodecache := daemon.Start(t, daemon.Program(t, "nodecache"), node)
	awaitAnswer(t, nodecache.Addr, service.name, service.want)
	awaitMetric(t, node, "nearside_forward_coherence_sessions", 1)
	awaitMetric(t, server, "nearside_kubernetes_coherence_sessions", 1)

	const name = "late.shop.svc.cluster.local A"
	awaitAnswer(t, nodecache.Addr, name, "NXDOMAIN")
	awaitMetric(t, server, "nearside_kubernetes_coherence_subscriptions", 1)
	late := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "late", Namespace: "shop", UID: "4"}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.12.35", ClusterIPs: []string{"10.96.12.35"},
		Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
	}}
	kit.Must(t, api.Put(late))
	awaitMetric(t, node, "nearside_forward_coherence_invalidations_total", 1)
	awaitMetric(t, node, "nearside_cache_invalidated_total", 1)
	awaitAnswer(t, nodecache.Addr, name, "A 10.96.12.35")

	kit.Succeeds(t, deadline, "nodecache doctor", func() error { // a busy machine may delay a heartbeat
		got, err := coherenceLines(t, nodecache.Corefile, metricsOf(t, server))
		for check, want := range map[string]string{"coherence " + clusterdns.Addr: "ok: ", "coherence of cluster DNS": "ok: live, "} {
			if err == nil && !strings.HasPrefix(got[check], want) {
				err = fmt.Errorf("%q, want %q of %s", got, want, check)
			}
		}
		return err
	})
}
