// Package explain runs the worked examples of docs/troubleshooting.md: each command of the section is run as printed, on programs with a
// real API server, and prints the lines of the page.
package explain

import (
	"fmt"
	"net"
	"os"
	"os/exec"
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
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/kubeapi"
)

func TestMain(m *testing.M) { kubeapi.Main(m) }

const root = "../.."

func object(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

func namespace(name string) runtime.Object {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func node(name, zone, cidr string) runtime.Object {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: zone}},
		Spec:       corev1.NodeSpec{PodCIDR: cidr, PodCIDRs: []string{cidr}},
	}
}

func service(namespace, name string, spec corev1.ServiceSpec) runtime.Object {
	if spec.ClusterIP != "" {
		spec.ClusterIPs = []string{spec.ClusterIP}
		spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
	}
	spec.Ports = []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}
	return &corev1.Service{ObjectMeta: object(namespace, name), Spec: spec}
}

func endpoint(address, node, zone, hint string, ready bool) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Addresses: []string{address}, NodeName: &node, Zone: &zone, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}
	if hint != "" {
		e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: hint}}}
	}
	return e
}

func slice(service string, endpoints ...discoveryv1.Endpoint) runtime.Object {
	meta := object("shop", service+"-1")
	meta.Labels = map[string]string{discoveryv1.LabelServiceName: service}
	return &discoveryv1.EndpointSlice{ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4, Endpoints: endpoints}
}

// objects are those of the examples' cluster.
func objects() []runtime.Object {
	sameZone, local := corev1.ServiceTrafficDistributionPreferSameZone, corev1.ServiceInternalTrafficPolicyLocal
	return []runtime.Object{
		namespace("shop"), namespace("other"),
		node("node-a", "zone-a", "10.244.1.0/24"), node("node-b", "zone-b", "10.244.2.0/24"),
		service("shop", "web", corev1.ServiceSpec{ClusterIP: "10.96.0.20"}),
		service("shop", "db", corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, TrafficDistribution: &sameZone}),
		slice("db", endpoint("10.244.1.20", "node-a", "zone-a", "zone-a", true), endpoint("10.244.2.20", "node-b", "zone-b", "zone-b", true),
			endpoint("10.244.2.21", "node-b", "zone-b", "", false)),
		service("shop", "agent", corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, InternalTrafficPolicy: &local}),
		slice("agent", endpoint("10.244.2.30", "node-b", "zone-b", "", true)),
		service("shop", "queue", corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone}),
		slice("queue", endpoint("10.244.1.40", "node-a", "zone-a", "", false)),
		&corev1.Pod{
			ObjectMeta: object("shop", "client"), Spec: corev1.PodSpec{
				NodeName: "node-a", DNSPolicy: corev1.DNSClusterFirst, Containers: []corev1.Container{{Name: "main", Image: "main"}},
			},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.244.1.7", PodIPs: []corev1.PodIP{{IP: "10.244.1.7"}}},
		},
	}
}

// programs are the running programs of an example, by name, with the address of their health.
type programs struct {
	health map[string]string
	dns    map[string]*daemon.Process
}

// clusterFile is that of cluster DNS. Arguments: the address of health, the kubeconfig, options of kubernetes, and further directives.
const clusterFile = `.:PORT {
    bind 127.0.0.1
    errors
    health %s
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        kubeconfig %s
        topology
        %s
    }
    %s
}
org:PORT shop:PORT {
    bind 127.0.0.1
    template IN A org {
        answer "{{ .Name }} 60 IN A 192.0.2.7"
    }
    template ANY ANY shop {
        rcode NXDOMAIN
    }
}
`

// nodeFile is that of nodecache. Arguments: the address of health, the kubeconfig, a file with the search list of the node, the address of
// cluster DNS, options of forward, and the upstream.
const nodeFile = `cluster.local:PORT {
    bind 127.0.0.1
    errors
    health %s
    autopath @nodelocal {
        node node-a
        kubeconfig %s
        resolv_conf %s
    }
    cache
    forward . %s {
        force_tcp
        %s
    }
}
.:PORT {
    bind 127.0.0.1
    errors
    cache
    forward . %s {
        force_tcp
        timeout 500ms
    }
}
`

func address(t *testing.T) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(daemon.FreePort(t)))
}

func (p *programs) start(t *testing.T, name, corefile string, args ...any) {
	t.Helper()
	p.health[name] = address(t)
	p.dns[name] = daemon.Start(t, daemon.Program(t, name), fmt.Sprintf(corefile, append([]any{p.health[name]}, args...)...))
}

// startPrograms starts clusterdns and a nodecache in front of it, and waits until they have read the cluster.
func startPrograms(t *testing.T, api *kubeapi.Server, e example) *programs {
	t.Helper()
	resolv := kit.File(t, "resolv.conf", "search example.net\n")
	p := &programs{health: map[string]string{}, dns: map[string]*daemon.Process{}}
	p.start(t, "clusterdns", clusterFile, api.Plane().Kubeconfig(), e.options, e.directives)
	p.start(t, "nodecache", nodeFile, api.Plane().Kubeconfig(), resolv, p.dns["clusterdns"].Addr, e.forward, dead)
	kit.Eventually(t, "clusterdns has read the cluster", func() bool {
		return rcode(t, p.dns["clusterdns"].Addr, "web.shop.svc.cluster.local.") == dns.RcodeSuccess
	})
	kit.Eventually(t, "nodecache has read the cluster", func() bool {
		return strings.Contains(p.explain(t, "nodecache explain a -client 10.244.1.7"), "search list: shop.svc.")
	})
	return p
}

// explain runs a command, with the address of the program that it names, and returns its output.
func (p *programs) explain(t *testing.T, command string) string {
	t.Helper()
	words := strings.Fields(command)
	args := append(slices.Clone(words[1:]), "-health", p.health[words[0]])
	return kit.Output(t, exec.Command(daemon.Program(t, words[0]), args...))
}

// dead is an address at which no server answers.
const dead = "127.0.0.1:1"

// example is a worked example: the heading of its section, and what precedes its command.
type example struct {
	heading             string
	options, directives string // of clusterdns
	forward             string // option of nodecache
	awaited             bool   // the output is that of the page only once the session is open
	before              func(t *testing.T, p *programs, api *kubeapi.Server)
}

var examples = []example{
	{heading: "The search list of a pod"},
	{heading: "A name without a dot at the end"},
	{heading: "A wrong ndots"},
	{heading: "A Service of another namespace"},
	{heading: "A hint that hides an endpoint"},
	{heading: "The answer for the pods of another node"},
	{heading: "An endpoint that is not ready"},
	{heading: "No endpoint on the node of the client"},
	{heading: "A headless Service without endpoints"},
	{heading: "A namespace that is not served", options: "namespaces shop"},
	{heading: "A denial in the cache of the node", options: "ttl 600", before: func(t *testing.T, p *programs, api *kubeapi.Server) {
		ask(t, p.dns["nodecache"].Addr, "new.shop.svc.cluster.local.", dns.RcodeNameError)
		kit.Must(t, api.Load(service("shop", "new", corev1.ServiceSpec{ClusterIP: "10.96.0.21"})))
		kit.Eventually(t, "clusterdns has read the new Service", func() bool {
			return rcode(t, p.dns["clusterdns"].Addr, "new.shop.svc.cluster.local.") == dns.RcodeSuccess
		})
	}},
	{heading: "An answer of a session", options: "coherent", forward: "coherent", awaited: true},
	{heading: "An upstream that does not answer"},
	{heading: "Queries that take the long way", directives: "log"},
	{heading: "An explanation as JSON"},
}

func ask(t *testing.T, server, name string, want int) {
	t.Helper()
	if got := rcode(t, server, name); got != want {
		t.Fatalf("%s: %s, want %s", name, dns.RcodeToString[got], dns.RcodeToString[want])
	}
}

func rcode(t *testing.T, server, name string) int {
	t.Helper()
	return kit.Ask(t, "udp", server, name, dns.TypeA).Rcode
}

// section is the part of the page with the examples.
const section = "## An explanation of an answer"

// blocksOf returns the command and the lines of each example of a page, by heading.
func blocksOf(page string) map[string][]string {
	_, text, _ := strings.Cut(page, "\n"+section+"\n")
	text, _, _ = strings.Cut(text, "\n## ")
	blocks := map[string][]string{}
	for _, part := range strings.Split(text, "\n### ")[1:] {
		heading, rest, _ := strings.Cut(part, "\n")
		_, block, _ := strings.Cut(rest, "```console\n")
		block, _, _ = strings.Cut(block, "```")
		blocks[heading] = strings.Split(strings.TrimSuffix(block, "\n"), "\n")
	}
	return blocks
}

// Parts of lines that differ in each run.
var (
	durations    = regexp.MustCompile(`\+?(\d+h)?(\d+m)?\d+(\.\d+)?(µs|ms|s)\b`)
	microseconds = regexp.MustCompile(`Microseconds": \d+`)
	ports        = regexp.MustCompile(`127\.0\.0\.1:\d+`)
	ids          = regexp.MustCompile(`id: \d+`)
	spaces       = regexp.MustCompile(`\s+`)
)

func normalized(line string) string {
	for _, part := range []struct {
		*regexp.Regexp
		name string
	}{{durations, "TIME"}, {microseconds, "TIME"}, {ports, "ADDRESS"}, {ids, "ID"}, {spaces, " "}} {
		line = part.ReplaceAllString(line, part.name)
	}
	return strings.TrimSpace(line)
}

// missing returns the first lines of a page that an output does not have, "" for none. The page leaves out lines only at "...".
func missing(lines []string, output string) string {
	var printed []string
	for line := range strings.Lines(output) {
		printed = append(printed, normalized(line))
	}
	runs := [][]string{nil} // of lines without "..." between them
	for _, line := range lines {
		if line == "..." {
			runs = append(runs, nil)
			continue
		}
		last := len(runs) - 1
		runs[last] = append(runs[last], normalized(line))
	}
	for i, run := range runs {
		begin, end := 0, len(printed)-len(run) // of where the run may be
		if i == 0 {
			end = min(end, 0)
		}
		if i == len(runs)-1 {
			begin = max(0, len(printed)-len(run))
		}
		for begin <= end && !slices.Equal(printed[begin:begin+len(run)], run) {
			begin++
		}
		if begin > end {
			return strings.Join(run, "\n") + "\n"
		}
		printed = printed[begin+len(run):]
	}
	return ""
}

func TestExamples(t *testing.T) {
	api := kubeapi.New(t)
	kit.Must(t, api.Load(objects()...))
	page, err := os.ReadFile(filepath.Join(root, "docs/troubleshooting.md"))
	kit.Must(t, err)
	blocks := blocksOf(string(page))
	if len(blocks) != len(examples) {
		t.Errorf("the page has %d examples, want %d", len(blocks), len(examples))
	}
	started := map[string]*programs{} // by the settings of clusterdns
	for _, e := range examples {
		settings := fmt.Sprint(e.options, "/", e.directives, "/", e.forward)
		if started[settings] == nil {
			started[settings] = startPrograms(t, api, e)
		}
		p := started[settings]
		t.Run(e.heading, func(t *testing.T) {
			if e.before != nil {
				e.before(t, p, api)
			}
			lines := blocks[e.heading]
			if len(lines) < 2 || !strings.HasPrefix(lines[0], "$ ") {
				t.Fatalf("the example is %q, want a command and its output", lines)
			}
			var out, part string
			for end := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) {
				out = p.explain(t, lines[0][2:])
				if part = missing(lines[1:], out); part == "" || !e.awaited || time.Now().After(end) {
					break
				}
			}
			if part != "" {
				t.Errorf("the page has\n%swhich is not in\n%s", part, out)
			}
		})
	}
	t.Run("can fail", func(t *testing.T) {
		for _, tt := range []struct{ page, output, want string }{
			{"a 5µs,b", "a 1m2.5s\nb\n", ""},
			{"a 5µs,...,c", "a 1ms\nb\nc\n", ""},
			{"a,...", "a\nb\n", ""},
			{"...,b,...", "a\nb\nb\nc\n", ""},
			{"...,b,c", "b\na\nb\nc\n", ""},
			{"a", "a\nb\n", "a\n"},
			{"b", "a\nb\n", "b\n"},
			{"a,c", "a\nb\nc\n", "a\nc\n"},
			{"a,...,b,...,b", "a\nb\n", "b\n"},
			{"...,c,...,b", "a\nb\nc\n", "b\n"},
			{"a,b", "a\n", "a\nb\n"},
		} {
			if got := missing(strings.Split(tt.page, ","), tt.output); got != tt.want {
				t.Errorf("%q of %q: %q, want %q", tt.page, tt.output, got, tt.want)
			}
		}
	})
}
