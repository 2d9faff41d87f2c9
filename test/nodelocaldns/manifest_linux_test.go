package nodelocaldns

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/forward/rogue"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// manifest is the newest one.
const manifest = "testdata/nodelocaldns-v1.37.1.yaml"

// patience bounds every wait.
const patience = 60 * time.Second

// The addresses of the manual, and those of the node's resolver and of the Service kube-dns.
const (
	local4   = "169.254.20.10"
	local6   = "fd00:53::10"
	kubeDNS4 = "10.96.0.10"
	kubeDNS6 = "fd00:96::a"
	resolver = "10.2.0.53"
)

// installation is a way to fill the manifest.
type installation struct {
	name      string
	families  []corev1.IPFamily // of the Services of cluster DNS
	fill      []string          // old and new texts, in the order of the manual's sed expressions
	addresses []string          // on which nodecache answers
	tls       bool              // of the metrics
}

// filled replaces the texts of the manual's sed expressions.
func (i installation) filled(t *testing.T, text string) string {
	t.Helper()
	for fill := range slices.Chunk(i.fill, 2) {
		if !strings.Contains(text, fill[0]) {
			t.Fatalf("%q is not in the manifest", fill[0])
		}
		text = strings.ReplaceAll(text, fill[0], fill[1])
	}
	return text
}

var (
	ipv4, ipv6 = []corev1.IPFamily{corev1.IPv4Protocol}, []corev1.IPFamily{corev1.IPv6Protocol}
	both       = slices.Concat(ipv4, ipv6)
	// The API server chooses the families of kube-dns-upstream by the cluster's first one, which is IPv4 here.
	toIPv6 = []string{"spec:\n  ports:\n", "spec:\n  ipFamilies: [IPv6]\n  ports:\n"}
	toBoth = []string{"spec:\n  ports:\n", "spec:\n  ipFamilyPolicy: RequireDualStack\n  ports:\n"}
	// iptables is the command of the manual for kube-proxy's mode iptables, which applies to nftables as well.
	iptables = []string{"__PILLAR__LOCAL__DNS__", local4, "__PILLAR__DNS__DOMAIN__", "cluster.local", "__PILLAR__DNS__SERVER__", kubeDNS4}
)

var installations = []installation{
	{"iptables", ipv4, iptables, []string{local4, kubeDNS4}, false},
	{"IPVS", ipv4, []string{"__PILLAR__LOCAL__DNS__", local4, "__PILLAR__DNS__DOMAIN__", "cluster.local", ",__PILLAR__DNS__SERVER__", "", "__PILLAR__CLUSTER__DNS__", kubeDNS4}, []string{local4}, false},
	{"IPv6", ipv6, append([]string{
		"health __PILLAR__LOCAL__DNS__:8080", "health [__PILLAR__LOCAL__DNS__]:8080",
		"__PILLAR__LOCAL__DNS__", local6, "__PILLAR__DNS__DOMAIN__", "cluster.local", "__PILLAR__DNS__SERVER__", kubeDNS6,
	}, toIPv6...), []string{local6, kubeDNS6}, false},
	// The manual has no dual stack: as proposed for node-local-dns, -localip has addresses of both families, and the
	// variables of the Corefile remain for the program.
	{"dual stack", both, append([]string{
		`"__PILLAR__LOCAL__DNS__,__PILLAR__DNS__SERVER__"`, `"` + strings.Join([]string{local4, kubeDNS4, local6, kubeDNS6}, ",") + `"`,
		"host: __PILLAR__LOCAL__DNS__", "host: " + local4, "__PILLAR__DNS__DOMAIN__", "cluster.local",
	}, toBoth...), []string{local4, kubeDNS4, local6, kubeDNS6}, false},
	{"dual stack with IPv6 first", both, append([]string{
		`"__PILLAR__LOCAL__DNS__,__PILLAR__DNS__SERVER__"`, `"` + strings.Join([]string{local6, local4}, ",") + `"`,
		"health __PILLAR__LOCAL__DNS__:8080", "health [__PILLAR__LOCAL__DNS__]:8080",
		"host: __PILLAR__LOCAL__DNS__", `host: "` + local6 + `"`, "__PILLAR__DNS__DOMAIN__", "cluster.local",
	}, toBoth...), []string{local6, local4}, false},
	// Flags and variable that node-local-dns has since the last release of its image, and the option tls of CoreDNS's prometheus.
	{"TLS", ipv4, append([]string{
		"prometheus :9253", "prometheus __PROMETHEUS__ENDPOINT__ {\n                tls /etc/ssl/web.yml\n        }",
		`"kube-dns-upstream" ]`, `"kube-dns-upstream", "-tls-enabled", "-tls-min-version=TLS12", "-prometheus-listen-address", "10.2.0.1:9253" ]`,
	}, iptables...), []string{local4, kubeDNS4}, true},
}

// TestManifest installs the manifest in each way.
func TestManifest(t *testing.T) {
	netns.Require(t, "ip", "unshare", "mount", "setpriv", "nft")
	kubectl := controlplane.RequireBinary(t, "kubectl")
	cluster := controlplane.Start(t)
	text := kit.Read(t, manifest)
	for _, i := range installations {
		t.Run(i.name, func(t *testing.T) {
			n := &node{Bed: netns.New(t), installation: i, etc: t.TempDir()}
			file := filepath.Join(t.TempDir(), "nodelocaldns.yaml")
			kit.Must(t, os.WriteFile(file, []byte(i.filled(t, text)), 0o600))
			n.service(t, cluster, "kube-dns")
			n.create(t, cluster, kubectl, file)
			n.environment(t, cluster)
			n.mount(t, cluster)
			p := n.start(t)
			n.awaitAnswers(t)
			n.awaitProbe(t)
			n.awaitMetrics(t)
			n.checkCorefile(t)
			if code := p.Stop(t); code != 0 {
				t.Errorf("exit code %d", code)
			}
			if out, err := n.Node.Try("ip", "link", "show", "nodelocaldns"); err == nil {
				t.Errorf("after the end, the node has\n%s", out)
			}
		})
	}
}

// node is a node with the pod of the manifest.
type node struct {
	*netns.Bed
	installation
	pod      corev1.PodSpec
	port     string   // of the metrics, from the annotation
	etc      string   // /etc of the container
	env      []string // of the container
	upstream []string // addresses of kube-dns-upstream
}

// service creates a Service of cluster DNS with the addresses of the manual. The manifest creates kube-dns-upstream.
func (n *node) service(t *testing.T, cluster *controlplane.ControlPlane, name string) {
	t.Helper()
	services, policy := cluster.Client().CoreV1().Services(metav1.NamespaceSystem), corev1.IPFamilyPolicyRequireDualStack
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{IPFamilies: n.families, Ports: []corev1.ServicePort{{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}}}}
	for _, family := range n.families {
		s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, map[corev1.IPFamily]string{corev1.IPv4Protocol: kubeDNS4, corev1.IPv6Protocol: kubeDNS6}[family])
	}
	s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
	if len(n.families) == 2 {
		s.Spec.IPFamilyPolicy = &policy
	}
	_, err := services.Create(t.Context(), s, metav1.CreateOptions{})
	kit.Must(t, err)
	t.Cleanup(func() {
		if err := services.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// create runs the last command of the manual.
func (n *node) create(t *testing.T, cluster *controlplane.ControlPlane, kubectl, file string) {
	t.Helper()
	run := func(command string) error {
		out, err := exec.Command(kubectl, "--kubeconfig", cluster.Kubeconfig(), command, "-f", file).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("kubectl %s: %w\n%s", command, err, out)
		}
		return err
	}
	kit.Must(t, run("create"))
	t.Cleanup(func() {
		if err := run("delete"); err != nil {
			t.Error(err)
		}
	})
	set, err := cluster.Client().AppsV1().DaemonSets(metav1.NamespaceSystem).Get(t.Context(), "node-local-dns", metav1.GetOptions{})
	kit.Must(t, err)
	n.pod, n.port = set.Spec.Template.Spec, set.Spec.Template.Annotations["prometheus.io/port"]
}

// environment sets the variables of the Services in the pod's namespace, as the kubelet does.
func (n *node) environment(t *testing.T, cluster *controlplane.ControlPlane) {
	t.Helper()
	services, err := cluster.Client().CoreV1().Services(metav1.NamespaceSystem).List(t.Context(), metav1.ListOptions{})
	kit.Must(t, err)
	for _, s := range services.Items {
		if s.Spec.ClusterIP == corev1.ClusterIPNone {
			continue
		}
		n.env = append(n.env, strings.ToUpper(strings.ReplaceAll(s.Name, "-", "_"))+"_SERVICE_HOST="+s.Spec.ClusterIP)
		if s.Name == "kube-dns-upstream" {
			n.upstream = s.Spec.ClusterIPs
		}
	}
	n.env = append(n.env, "KUBERNETES_SERVICE_HOST=10.96.0.1", "KUBERNETES_SERVICE_PORT=443")
	if n.upstream == nil {
		t.Fatal("the manifest has no Service kube-dns-upstream")
	}
}

// mount writes the volumes of ConfigMaps below /etc, the node's resolv.conf, and the files of TLS.
func (n *node) mount(t *testing.T, cluster *controlplane.ControlPlane) {
	t.Helper()
	kit.Must(t, os.WriteFile(filepath.Join(n.etc, "resolv.conf"), []byte("nameserver "+resolver+"\n"), 0o600))
	for _, mount := range n.pod.Containers[0].VolumeMounts {
		i := slices.IndexFunc(n.pod.Volumes, func(v corev1.Volume) bool { return v.Name == mount.Name })
		source, within := n.pod.Volumes[i].ConfigMap, strings.TrimPrefix(mount.MountPath, "/etc/")
		if source == nil {
			continue
		}
		kit.Must(t, os.Mkdir(filepath.Join(n.etc, within), 0o700))
		config, err := cluster.Client().CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(t.Context(), source.Name, metav1.GetOptions{})
		if err != nil && source.Optional != nil && *source.Optional {
			continue
		}
		kit.Must(t, err)
		for _, item := range source.Items {
			kit.Must(t, os.WriteFile(filepath.Join(n.etc, within, item.Path), []byte(config.Data[item.Key]), 0o600))
		}
	}
	if n.tls {
		kit.Must(t, os.CopyFS(filepath.Join(n.etc, "ssl"), os.DirFS(filepath.Dir(rogue.NewCertificate(t, "nodecache.test").Cert))))
		for old, name := range map[string]string{"cert.pem": "tls.crt", "key.pem": "tls.key"} {
			kit.Must(t, os.Rename(filepath.Join(n.etc, "ssl", old), filepath.Join(n.etc, "ssl", name)))
		}
		kit.Must(t, os.WriteFile(filepath.Join(n.etc, "ssl", "web.yml"), []byte("tls_server_config:\n  cert_file: tls.crt\n  key_file: tls.key\n"), 0o600))
	}
}

// capabilities are those of containerd's containers.
const capabilities = "-all,+chown,+dac_override,+fsetid,+fowner,+mknod,+net_raw,+setgid,+setuid,+setfcap,+setpcap,+net_bind_service,+sys_chroot,+kill,+audit_write"

// start starts nodecache with the arguments of the container, on a node with cluster DNS and a resolver behind it.
func (n *node) start(t *testing.T) *netns.Process {
	t.Helper()
	serve(t, n.Upstream, resolver, "resolver")
	for _, address := range n.upstream {
		serve(t, n.Upstream, address, "cluster DNS")
	}
	if n.name == "IPVS" { // whose Corefile has the address of kube-dns, which kube-proxy serves
		serve(t, n.Upstream, kubeDNS4, "cluster DNS")
	}
	container, granted := n.pod.Containers[0], capabilities
	for _, c := range container.SecurityContext.Capabilities.Add {
		granted += ",+" + strings.ToLower(string(c))
	}
	args := []string{"-m", "sh", "-c", `mount --bind "$0" /etc && exec "$@"`, n.etc, "setpriv", "--bounding-set", granted, daemon.Program(t, "nodecache")}
	return n.Node.StartWith(t, n.env, "unshare", append(args, container.Args...)...)
}

// serve answers on port 53 of an address with a name and the transport of the query. It adds the address to the namespace.
func serve(t *testing.T, n *netns.Namespace, address, name string) {
	t.Helper()
	n.Run(t, "ip", "addr", "replace", address, "dev", "lo")
	for _, network := range []string{"udp", "tcp"} {
		server := &dns.Server{Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
			r := new(dns.Msg).SetReply(q)
			r.Answer = []dns.RR{&dns.TXT{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: 5}, Txt: []string{name + " over " + network}}}
			_ = w.WriteMsg(r) // the client may have closed its socket
		})}
		kit.Succeeds(t, patience, "a socket on "+address, func() error { // an IPv6 address is tentative for a moment
			return n.Do(func() (err error) {
				if network == "udp" {
					server.PacketConn, err = net.ListenPacket(network, net.JoinHostPort(address, "53"))
				} else {
					server.Listener, err = net.Listen(network, net.JoinHostPort(address, "53"))
				}
				return err
			})
		})
		kit.Run(t, server)
	}
}

// awaitAnswers waits until a pod gets names of the cluster from cluster DNS and others from the node's resolver, on each address.
func (n *node) awaitAnswers(t *testing.T) {
	t.Helper()
	for _, address := range n.addresses {
		for _, network := range []string{"udp", "tcp"} {
			for name, want := range map[string]string{
				"web.default.svc.cluster.local.":    "cluster DNS over tcp",
				"1.0.96.10.in-addr.arpa.":           "cluster DNS over tcp",
				"a.0.0.0.9.6.0.0.0.0.d.f.ip6.arpa.": "cluster DNS over tcp",
				"www.example.com.":                  "resolver over tcp",
			} {
				kit.Succeeds(t, patience, fmt.Sprintf("%s from %s over %s", name, address, network), func() error {
					got, err := n.Pod[0].Ask(network, netip.MustParseAddr(address), name, 2*time.Second)
					if err == nil && got[0] != want {
						err = fmt.Errorf("got %q, want %q", got, want)
					}
					return err
				})
			}
		}
	}
}

// awaitProbe waits for the success of the liveness probe, which is without TLS.
func (n *node) awaitProbe(t *testing.T) {
	t.Helper()
	probe := n.pod.Containers[0].LivenessProbe.HTTPGet
	n.awaitPage(t, n.Node, "http://"+net.JoinHostPort(probe.Host, probe.Port.String())+probe.Path, "OK")
}

// awaitMetrics waits for the metrics of both ports, from another host.
func (n *node) awaitMetrics(t *testing.T) {
	t.Helper()
	scheme := "http"
	if n.tls {
		scheme = "https"
	}
	for port, want := range map[string]string{n.port: "coredns_dns_requests_total{", "9353": "coredns_nodecache_setup_errors_total{"} {
		n.awaitPage(t, n.Upstream, scheme+"://"+net.JoinHostPort(n.Node.IPv4.String(), port)+"/metrics", want)
	}
}

// awaitPage waits until a page has a text.
func (n *node) awaitPage(t *testing.T, from *netns.Namespace, url, text string) {
	t.Helper()
	client := from.Client()
	client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
	kit.Succeeds(t, patience, url, func() error {
		page, err := kit.Get(client, url)
		if err == nil && !strings.Contains(page, text) {
			err = fmt.Errorf("%q is not in %d bytes", text, len(page))
		}
		return err
	})
}

// checkCorefile checks the file that is written from the template.
func (n *node) checkCorefile(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(n.etc, "Corefile"))
	kit.Must(t, err)
	if bytes.Contains(text, []byte("PILLAR__")) || bytes.Contains(text, []byte("PROMETHEUS__")) {
		t.Errorf("variables remain in\n%s", text)
	}
}
