package bundle

import (
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/kubeapi"
)

const root = "../.."

func TestMain(m *testing.M) { kubeapi.Main(m) }

// ask returns the reply to a question in a form that can be compared.
func ask(t *testing.T, address, name string, qtype uint16) string {
	t.Helper()
	reply := kit.Ask(t, "udp", address, name, qtype)
	lines := []string{dns.RcodeToString[reply.Rcode]}
	for _, rr := range reply.Answer {
		rr.Header().Ttl = 0
		lines = append(lines, rr.String())
	}
	return strings.Join(lines, "\n")
}

// waitFor waits until the reply contains a text.
func waitFor(t *testing.T, address, name, want string) {
	t.Helper()
	kit.Succeeds(t, kit.Patience, name, func() error {
		if got := ask(t, address, name, dns.TypeA); !strings.Contains(got, want) {
			return fmt.Errorf("%q, want %q", got, want)
		}
		return nil
	})
}

// waitForLog waits until a program has logged a text.
func waitForLog(t *testing.T, p *daemon.Process, want string) {
	t.Helper()
	kit.Eventually(t, "a log line with "+want, func() bool { return strings.Contains(p.Output(), want) })
}

func service(name, ip string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec:       corev1.ServiceSpec{ClusterIP: ip, ClusterIPs: []string{ip}, Type: corev1.ServiceTypeClusterIP, Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}},
	}
}

// newCluster has a Service, and a pod at the address from which the tests send.
func newCluster(t *testing.T) *kubeapi.Server {
	t.Helper()
	api := kubeapi.New(t)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "client", Namespace: "default"},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "127.0.0.1", PodIPs: []corev1.PodIP{{IP: "127.0.0.1"}}},
	}
	kit.Must(t, api.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, service("web", "10.96.0.80"), pod))
	return api
}

// TestPage builds CoreDNS with all plugins of the page. The package differential asks it more questions.
func TestPage(t *testing.T) {
	program := Build(t, root, Commands(t, root))
	api := newCluster(t)
	t.Run("plugins", func(t *testing.T) {
		out, err := exec.Command(program, "-plugins").Output()
		kit.Must(t, err)
		for _, want := range []string{"cache", "etcd", "fastpath", "geoip", "multicluster", "searchpath"} {
			if !slices.Contains(strings.Fields(string(out)), want) {
				t.Errorf("no plugin %s in %q", want, out)
			}
		}
	})
	p := daemon.Start(t, program, fmt.Sprintf(`.:PORT {
    bind 127.0.0.1
    errors
    kubernetes cluster.local {
        endpoint %s
        pods verified
    }
    hosts {
        192.0.2.1 www.example.org
        fallthrough
    }
    autopath @kubernetes
    cache 30
}
`, api.URL()))
	t.Run("fast path", func(t *testing.T) {
		waitForLog(t, p, ": fast path for .")
	})
	t.Run("search list", func(t *testing.T) {
		waitFor(t, p.Addr, "www.example.org.default.svc.cluster.local.", "192.0.2.1")
	})
	t.Run("change", func(t *testing.T) {
		waitFor(t, p.Addr, "web.default.svc.cluster.local.", "10.96.0.80")
		kit.Must(t, api.Put(service("web", "10.96.0.81")))
		waitFor(t, p.Addr, "web.default.svc.cluster.local.", "10.96.0.81")
	})
	t.Run("reload under load", func(t *testing.T) { reloadUnderLoad(t, p) })
}

// reloadUnderLoad reloads the configuration five times while a client sends queries, each of which must be answered.
func reloadUnderLoad(t *testing.T, p *daemon.Process) {
	t.Helper()
	c, err := net.Dial("udp", p.Addr)
	kit.Must(t, err)
	defer func() { _ = c.Close() }()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for i := range 5 {
			p.Signal(t, syscall.SIGUSR1)
			for end := time.Now().Add(20 * time.Second); strings.Count(p.Output(), "Reloading complete") <= i; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(end) {
					t.Errorf("reload %d is not complete:\n%s", i, p.Output())
					return
				}
			}
			time.Sleep(100 * time.Millisecond) // of queries to the new configuration
		}
	}()
	for n, conn := 0, (&dns.Conn{Conn: c}); ; n++ {
		select {
		case <-ended:
			t.Logf("%d queries", n)
			return
		default:
		}
		if _, _, err := (&dns.Client{Timeout: 10 * time.Second}).ExchangeWithConn(new(dns.Msg).SetQuestion("web.default.svc.cluster.local.", dns.TypeA), conn); err != nil {
			t.Errorf("query %d: %v", n, err)
		}
	}
}

// TestOtherPlugins builds CoreDNS with fastpath, cache and forward of nearside, and its own kubernetes and autopath. Its answers
// are those of the stock CoreDNS.
func TestOtherPlugins(t *testing.T) {
	stock := controlplane.RequireBinary(t, "coredns")
	mixed := Build(t, root, `nearside=`+module+`/plugin
sed -i -E -e "s|^(cache\|forward):.*|\1:$nearside/\1|" -e "s|^autopath:|fastpath:$nearside/fastpath\n&|" plugin.cfg
go generate coredns.go
go get .`)
	api := newCluster(t)
	for _, tc := range []struct{ name, autopath, log string }{
		{"kubernetes of CoreDNS", "", ": fast path for ."},
		{"autopath of CoreDNS", "autopath @kubernetes", "no fast path for .: plugin autopath is CoreDNS's and not nearside's"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			corefile := fmt.Sprintf(".:PORT {\nbind 127.0.0.1\nkubernetes cluster.local {\nendpoint %s\npods verified\n}\nhosts {\n192.0.2.1 www.example.org\nfallthrough\n}\n%s\ncache 30\n}\n", api.URL(), tc.autopath)
			ours, theirs := daemon.Start(t, mixed, corefile), daemon.Start(t, stock, corefile)
			waitForLog(t, ours, tc.log)
			waitFor(t, ours.Addr, "web.default.svc.cluster.local.", "10.96.0.80")
			waitFor(t, theirs.Addr, "web.default.svc.cluster.local.", "10.96.0.80")
			for range 3 { // of which the fast path answers the last
				for _, name := range []string{"web.default.svc.cluster.local.", "none.default.svc.cluster.local.", "www.example.org.default.svc.cluster.local.", "www.example.org.svc.cluster.local.", "www.example.org."} {
					for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV} {
						if got, want := ask(t, ours.Addr, name, qtype), ask(t, theirs.Addr, name, qtype); got != want {
							t.Errorf("%s %s: %q, want %q", name, dns.TypeToString[qtype], got, want)
						}
					}
				}
			}
		})
	}
}

// fails runs a program with a Corefile, and asserts one line with a text.
func fails(t *testing.T, program, corefile, want string) {
	t.Helper()
	p := daemon.Launch(t, program, corefile)
	code, err := p.Wait(20 * time.Second)
	lines := slices.DeleteFunc(strings.Split(strings.TrimSpace(p.Output()), "\n"), func(line string) bool { return strings.HasPrefix(line, "maxprocs: ") })
	if err != nil || code == 0 || len(lines) != 1 || !strings.Contains(lines[0], want) {
		t.Errorf("exit code %d (%v), output %q, want one line with %q", code, err, lines, want)
	}
}

// TestTwoOfKubernetes builds CoreDNS with both plugins kubernetes: CoreDNS's k8s_external imports CoreDNS's.
func TestTwoOfKubernetes(t *testing.T) {
	program := Build(t, root, `nearside=`+module+`/plugin
sed -i -E -e "s|^kubernetes:.*|kubernetes:$nearside/kubernetes|" -e "s|^forward:|nodelocal:$nearside/nodelocal\n&|" plugin.cfg
go generate coredns.go
go get .`)
	fails(t, program, ".:PORT {\n}\n", "plugin kubernetes of nearside: this program has CoreDNS's as well")
}

// TestCombinations has combinations that are errors when the server block starts.
func TestCombinations(t *testing.T) {
	program := Build(t, root, `nearside=`+module+`/plugin
sed -i -E -e "s|^kubernetes:.*|kubernetes:$nearside/kubernetes|" -e "s|^forward:|nodelocal:$nearside/nodelocal\n&|" -e "/^k8s_external:/d" plugin.cfg
go generate coredns.go
go get .`)
	for _, tc := range []struct{ name, block, want string }{
		{"autopath of CoreDNS", "kubernetes cluster.local {\nmanifests " + t.TempDir() + "\n}\nautopath @kubernetes", "autopath"},
		{"nodelocal", "nodelocal {\naddress 127.0.0.1\n}", "only nodecache removes the interface and the rules at its end"},
	} {
		t.Run(tc.name, func(t *testing.T) { fails(t, program, ".:PORT {\nbind 127.0.0.1\n"+tc.block+"\n}\n", tc.want) })
	}
}

// TestExample builds the example of the page. The plugin finds the country of a client subnet in CoreDNS's test data, and log
// prints it.
func TestExample(t *testing.T) {
	folder := filepath.Join(root, "examples/geoip")
	program := filepath.Join(t.TempDir(), "clusterdns-geoip")
	run(t, folder, "go", "build", "-trimpath", "-o", program)
	if out := run(t, folder, program, "-plugins"); !strings.HasPrefix(out, "root\nmetadata\ngeoip\n") {
		t.Errorf("plugins %q", out)
	}
	stock := strings.TrimSpace(run(t, root, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/coredns/coredns"))
	p := daemon.Start(t, program, ".:PORT {\nbind 127.0.0.1\nmetadata\ngeoip "+filepath.Join(stock, "plugin/geoip/testdata/GeoLite2-City.mmdb")+" {\nedns-subnet\n}\nlog . \"country {/geoip/country/code}\"\nwhoami\n}\n")
	m := new(dns.Msg).SetQuestion("www.example.org.", dns.TypeA)
	m.SetEdns0(1232, false).IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 32, Address: net.IPv4(81, 2, 69, 142)}}
	if _, err := dns.Exchange(m, p.Addr); err != nil {
		t.Fatal(err)
	}
	waitForLog(t, p, "country GB")
}
