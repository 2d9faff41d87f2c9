package deploy

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/kubeapi"
)

// deadline bounds the wait for a state.
const deadline = 60 * time.Second

func TestMain(m *testing.M) { kubeapi.Main(m) }

// cluster starts an API server with a Service, web of the namespace shop, with one pod, on node-a of zone-1, and the
// same Service for a clusterset.
func cluster(t *testing.T) *kubeapi.Server {
	t.Helper()
	api := kubeapi.New(t)
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: name, Namespace: "shop", UID: "1"}
	}
	ready, port, protocol := true, int32(80), corev1.ProtocolTCP
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: meta("web-1"), AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.244.1.20"}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
		Ports:     []discoveryv1.EndpointPort{{Port: &port, Protocol: &protocol}},
	}
	slice.Labels = map[string]string{discoveryv1.LabelServiceName: "web"}
	pod := &corev1.Pod{
		ObjectMeta: meta("web-1"), Spec: corev1.PodSpec{NodeName: "node-a"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.244.1.20", PodIPs: []corev1.PodIP{{IP: "10.244.1.20"}}},
	}
	err := api.Put(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", UID: "2"}},
		&corev1.Service{ObjectMeta: meta("web"), Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.12.34", ClusterIPs: []string{"10.96.12.34"},
			Ports: []corev1.ServicePort{{Port: 80, Protocol: protocol}},
		}},
		slice, pod,
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a", UID: "3", Labels: map[string]string{corev1.LabelTopologyZone: "zone-1"}}},
	)
	kit.Must(t, err)
	return api
}

// pods matches the directive that reads the pods of a node.
var pods = regexp.MustCompile(`(?m)^(    autopath.* @nodelocal)\n`)

// snapshotFolder is the folder of the snapshot in the container of clusterdns.
const snapshotFolder = "/var/lib/clusterdns"

// onLoopback makes a Corefile answer on PORT of 127.0.0.1, with an API server, one resolver for those of the node, HTTP on
// free ports, and its snapshot in a folder of the test. loop is left out: it ends a process whose upstream does not run yet.
func onLoopback(t *testing.T, corefile, apiURL, resolver string) string {
	t.Helper()
	corefile = regexp.MustCompile(`(?m)^([.\w-]+):53 \{$`).ReplaceAllString(corefile, "$1:PORT {\n    bind 127.0.0.1")
	corefile = regexp.MustCompile(`(?m)^    (kubernetes .*\{|multicluster .*\{)$`).ReplaceAllString(corefile, "    $1\n        endpoint "+apiURL)
	for _, listener := range []string{"prometheus", "ready", "health"} {
		address := "127.0.0.1:" + strconv.Itoa(daemon.FreePort(t))
		corefile = regexp.MustCompile(`(?m)^(\s+`+listener+`)( [\d.:]+)?( \{)?$`).ReplaceAllString(corefile, "$1 "+address+"$3")
	}
	corefile = regexp.MustCompile(`(?m)^    nodelocal \S+ \{\n        setup none\n    \}\n`).ReplaceAllString(corefile, "") // loopback is no address that pods query
	corefile = pods.ReplaceAllString(corefile, "$1 {\n        node node-a\n        endpoint "+apiURL+"\n    }\n")
	return strings.NewReplacer("    loop\n", "", "lameduck 5s", "lameduck 1ms", "/etc/resolv.conf", resolver, snapshotFolder, t.TempDir()).Replace(corefile)
}

// answer returns the records, or the response code, of a question such as "web.shop.svc.cluster.local A".
func answer(server, question string) (string, error) {
	conn, err := net.Dial("udp", server)
	if err != nil {
		return "", err
	}
	return exchange(conn, question)
}

// exchange is answer on a connection, which it closes.
func exchange(conn net.Conn, question string) (reply string, err error) {
	defer func() { err = errors.Join(err, conn.Close()) }()
	name, kind, _ := strings.Cut(question, " ")
	client := dns.Client{Timeout: 2 * time.Second} // the caller retries
	r, _, err := client.ExchangeWithConn(new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.StringToType[kind]), &dns.Conn{Conn: conn})
	if err != nil {
		return "", err
	}
	if len(r.Answer) == 0 {
		return dns.RcodeToString[r.Rcode], nil
	}
	var all []string
	for _, record := range r.Answer {
		fields := strings.Fields(record.String())
		all = append(all, strings.Join(fields[3:], " "))
	}
	return strings.Join(all, ", "), nil
}

// awaitAnswer waits for the answer to a question.
func awaitAnswer(t *testing.T, server, question, want string) {
	t.Helper()
	kit.Succeeds(t, deadline, question, func() error {
		got, err := answer(server, question)
		if err == nil && got != want {
			err = fmt.Errorf("got %s, want %s", got, want)
		}
		return err
	})
}

// always answers every A question with an address, and others without records. With no address, no name exists.
func always(address string) dns.HandlerFunc {
	return func(w dns.ResponseWriter, q *dns.Msg) {
		r := new(dns.Msg).SetReply(q)
		switch {
		case address == "":
			r.Rcode = dns.RcodeNameError
		case q.Question[0].Qtype == dns.TypeA:
			r.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 5}, A: net.ParseIP(address)}}
		}
		_ = w.WriteMsg(r) // the client may have closed its socket
	}
}

// upstream serves an address on a free port, over UDP and TCP, and returns the port's address.
func upstream(t *testing.T, address string) string {
	t.Helper()
	return kit.Serve(t, "127.0.0.1:0", always(address))
}

// bootClusterDNS starts clusterdns with a Corefile and queries a Service.
func bootClusterDNS(t *testing.T, corefile, zone string) *daemon.Process {
	t.Helper()
	p := daemon.Start(t, daemon.Program(t, "clusterdns"), onLoopback(t, corefile, cluster(t).URL(), upstream(t, "192.0.2.80")))
	awaitAnswer(t, p.Addr, "web.shop.svc."+zone+" A", "A 10.96.12.34")
	awaitAnswer(t, p.Addr, "www.example.com A", "A 192.0.2.80")
	return p
}

// rendered returns everything that users may apply, by the name of its overlay or variant.
func rendered(t *testing.T) map[string]objects {
	t.Helper()
	all := map[string]objects{}
	for _, folder := range overlays(t) {
		all[filepath.Base(folder)] = decoded(t, kustomize(t, folder))
	}
	for name, values := range variants {
		all["chart "+name] = decoded(t, templated(t, values))
	}
	return all
}

// TestClusterDNSCorefiles starts clusterdns with every deployed Corefile, each once.
func TestClusterDNSCorefiles(t *testing.T) {
	seen := map[string]bool{}
	everything := rendered(t)
	for _, name := range slices.Sorted(maps.Keys(everything)) {
		all := everything[name]
		config, ok := all["ConfigMap clusterdns"].(*corev1.ConfigMap)
		if !ok || seen[config.Data["Corefile"]] || strings.Contains(config.Data["Corefile"], "tls://") { // a case of TestSnippets
			continue
		}
		corefile := config.Data["Corefile"]
		seen[corefile] = true
		zone := regexp.MustCompile(`(?m)^    kubernetes (\S+)`).FindStringSubmatch(corefile)[1]
		t.Run(name, func(t *testing.T) { bootClusterDNS(t, corefile, zone) })
	}
	if len(seen) < 6 {
		t.Errorf("only %d Corefiles were found", len(seen))
	}
}
