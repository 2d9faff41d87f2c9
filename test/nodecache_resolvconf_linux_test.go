package test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// programsVariable has the folder of the programs for a test that runs in its own network namespace.
const programsVariable = "NEARSIDE_TEST_PROGRAMS"

// inNamespace is netns.Inside with these addresses of the loopback interface. It returns the path of nodecache there and ""
// here.
func inNamespace(t *testing.T, addresses ...string) (nodecache string) {
	t.Helper()
	netns.Require(t, "ip")
	folder := os.Getenv(programsVariable)
	if folder == "" {
		t.Setenv(programsVariable, filepath.Dir(daemon.Program(t, "nodecache")))
	}
	if !netns.Inside(t) {
		return ""
	}
	for _, a := range addresses {
		netns.Run(t, "ip", "address", "add", a, "dev", "lo")
	}
	// An IPv6 address cannot be bound to for a moment after it was added.
	kit.Eventually(t, "no tentative address", func() bool {
		return netns.Run(t, "ip", "-6", "-o", "address", "show", "dev", "lo", "tentative") == ""
	})
	return filepath.Join(folder, "nodecache")
}

// resolver answers on port 53 of an address with a TXT record that names the transport of the query: "udp" or "tcp".
func resolver(t *testing.T, address string, transports ...string) {
	t.Helper()
	packets, streams := kit.ListenBoth(t, net.JoinHostPort(address, "53"))
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, m *dns.Msg) {
		r := new(dns.Msg).SetReply(m)
		r.Answer = []dns.RR{&dns.TXT{
			Hdr: dns.RR_Header{Name: m.Question[0].Name, Rrtype: dns.TypeTXT, Class: dns.ClassINET},
			Txt: []string{address + "/" + w.LocalAddr().Network()},
		}}
		if err := w.WriteMsg(r); err != nil {
			t.Logf("answer: %v", err)
		}
	})
	kit.Run(t, &dns.Server{PacketConn: packets, Handler: handler})
	if slices.Contains(transports, "tcp") {
		kit.Run(t, &dns.Server{Listener: streams, Handler: handler})
	} else {
		kit.Must(t, streams.Close())
	}
}

// textOf queries a TXT record and returns it.
func textOf(addr, name string) string {
	r, err := dns.Exchange(new(dns.Msg).SetQuestion(name, dns.TypeTXT), addr)
	if err != nil {
		return err.Error()
	}
	if len(r.Answer) == 1 {
		return strings.Join(r.Answer[0].(*dns.TXT).Txt, "")
	}
	return dns.RcodeToString[r.Rcode]
}

// TestNodecacheResolvConf changes the node's resolv.conf under a running nodecache, which queries servers over TCP if
// they answer there. At first the file has more servers than forward can have upstreams. The Corefile also has an error on a line that rendering has moved.
func TestNodecacheResolvConf(t *testing.T) {
	path := inNamespace(t, "10.99.0.1/32", "10.99.0.2/32", "fd99::1/128")
	if path == "" {
		return
	}
	resolver(t, "10.99.0.1", "udp", "tcp")
	resolver(t, "10.99.0.2", "udp")
	resolver(t, "fd99::1", "udp", "tcp")
	conf := filepath.Join(t.TempDir(), "resolv.conf")
	change := func(servers ...string) {
		t.Helper()
		text := "search example\n"
		for _, s := range servers {
			text += "nameserver " + s + "\n"
		}
		kit.Write(t, conf+".new", text)
		kit.Must(t, os.Rename(conf+".new", conf))
	}
	gives := func(p *daemon.Process, want string) func() bool {
		return func() bool { return textOf(p.Addr, "a.example.") == want }
	}
	many := []string{"127.0.0.1", "10.99.0.1"}
	for i := range 15 { // without a route, so that their queries fail at once
		many = append(many, fmt.Sprintf("10.98.0.%d", i+1))
	}
	change(many...)
	corefile := ".:PORT {\n    bind 127.0.0.1\n    forward . " + conf + "\n    errors\n}\n"
	p := daemon.Start(t, path, corefile, "-syncinterval", "1h")
	kit.Eventually(t, "over TCP", gives(p, "10.99.0.1/tcp"))
	if got := lines(p, conf+" has 16 usable nameservers: the last 1 are not used"); got != 1 {
		t.Errorf("%d lines name the file with 16 nameservers", got)
	}
	change("10.99.0.2")
	kit.Eventually(t, "to another server, which takes UDP only", gives(p, "10.99.0.2/udp"))
	change("fd99::1")
	kit.Eventually(t, "to one of the other family", gives(p, "fd99::1/tcp"))
	change("127.0.0.53")
	kit.Eventually(t, "only the node itself is refused", func() bool { return lines(p, "names only 127.0.0.53, which would loop back to this node") == 1 })
	if got := textOf(p.Addr, "a.example."); got != "fd99::1/tcp" {
		t.Errorf("with a useless resolv.conf the answer is %s", got)
	}
	change("10.99.0.1")
	kit.Eventually(t, "mended", gives(p, "10.99.0.1/tcp"))

	p.Configure(t, strings.Replace(corefile, "errors", "errors nonsense", 1))
	kit.Eventually(t, "the line is that of the file, not the one after two more", func() bool { return lines(p, p.Corefile+":4 - ") == 1 })
	if got := lines(p, "Restart failed"); got != 0 {
		t.Errorf("%d lines of caddy beside", got)
	}
}

// TestNodecacheUnusableResolvConf starts without a usable server: the cluster's zones are answered, and others once the
// file has a server. It is also bound to every address, with an address of each family.
func TestNodecacheUnusableResolvConf(t *testing.T) {
	path := inNamespace(t, "169.254.20.10/32", "fd00::10/128", "10.96.0.11/32", "10.99.0.1/32")
	if path == "" {
		return
	}
	resolver(t, "10.96.0.11", "udp", "tcp")
	resolver(t, "10.99.0.1", "udp", "tcp")
	conf := kit.File(t, "resolv.conf", "nameserver 127.0.0.53\n")
	for _, all := range []string{"0.0.0.0", "::"} {
		kit.Write(t, conf, "nameserver 127.0.0.53\n")
		corefile := "cluster.local:1053 {\n    bind " + all + "\n    forward . 10.96.0.11\n}\n" +
			".:1053 {\n    bind " + all + "\n    forward . " + conf + " {\n        max_fails 1\n    }\n}\n"
		p := daemon.Launch(t, path, corefile, "-localip", "169.254.20.10,fd00::10", "-dns.port", "1053", "-setupinterface=false", "-setupiptables=false", "-syncinterval", "1h")
		for _, local := range []string{"169.254.20.10:1053", "[fd00::10]:1053"} {
			kit.Eventually(t, "the cluster's zone", func() bool { return textOf(local, "a.cluster.local.") == "10.96.0.11/udp" })
			if got := textOf(local, "a.example."); got != "SERVFAIL" {
				t.Errorf("without a server the answer is %s", got)
			}
		}
		if got := lines(p, conf+" names only 127.0.0.53, which would loop back to this node"); got != 1 {
			t.Errorf("%d lines name file and reason", got)
		}
		kit.Write(t, conf, "nameserver 10.99.0.1\n")
		for _, local := range []string{"169.254.20.10:1053", "[fd00::10]:1053"} {
			kit.Eventually(t, "mended", func() bool { return textOf(local, "b.example.") == "10.99.0.1/tcp" })
		}
		kit.Write(t, conf, "nameserver 127.0.0.53\n")
		kit.Eventually(t, "useless again", func() bool { return lines(p, "Not reloaded, the previous configuration stays in use: ") == 1 })
		if got := textOf("169.254.20.10:1053", "c.example."); got != "10.99.0.1/tcp" {
			t.Errorf("with a useless resolv.conf the answer is %s", got)
		}
		p.Stop(t)
	}
}

// TestNodecacheStock runs the stock template of node-local-dns, with stub domains and an address of each family, with
// the command line of its DaemonSet. The addresses exist, and nodecache makes no rules.
func TestNodecacheStock(t *testing.T) {
	path := inNamespace(t, "169.254.20.10/32", "fd00::10/128", "10.96.0.11/32", "10.99.0.1/32", "10.99.0.2/32")
	if path == "" {
		return
	}
	resolver(t, "10.96.0.11", "udp", "tcp")
	resolver(t, "10.99.0.1", "udp", "tcp")
	resolver(t, "10.99.0.2", "udp")
	conf := kit.File(t, "resolv.conf", "nameserver 169.254.20.10\nnameserver 10.99.0.1\n")
	mount(t, conf, "/etc/resolv.conf")
	coredns := &configMapMount{path: filepath.Join(t.TempDir(), "coredns")}
	coredns.swap(t, map[string]string{"Corefile.base": kit.Read(t, filepath.Join(root, "cmd/internal/dropin/testdata/render/stock.base"))})
	kubeDNS := &configMapMount{path: filepath.Join(t.TempDir(), "kube-dns")}
	kubeDNS.swap(t, map[string]string{"stubDomains": `{"corp.example": ["10.99.0.2"]}`})
	t.Setenv("KUBE_DNS_UPSTREAM_SERVICE_HOST", "10.96.0.11")
	p := daemon.Launch(t, path, "", "-localip", "169.254.20.10,fd00::10", "-upstreamsvc", "kube-dns-upstream",
		"-basecorefile", filepath.Join(coredns.path, "Corefile.base"), "-kubednscm", kubeDNS.path,
		"-setupinterface=false", "-setupiptables=false", "-pidfile", filepath.Join(t.TempDir(), "pid"))
	for _, local := range []string{"169.254.20.10:53", "[fd00::10]:53"} {
		for name, want := range map[string]string{
			"a.default.svc.cluster.local.": "10.96.0.11/tcp",
			"1.0.96.10.in-addr.arpa.":      "10.96.0.11/tcp",
			"8.b.d.0.1.0.0.2.ip6.arpa.":    "10.96.0.11/tcp",
			"a.example.":                   "10.99.0.1/tcp",
			"a.corp.example.":              "10.99.0.2/udp",
		} {
			kit.Eventually(t, name+" at "+local, func() bool { return textOf(local, name) == want })
		}
	}
	for url, want := range map[string]string{
		"http://169.254.20.10:8080/health": "OK",
		"http://127.0.0.1:9253/metrics":    "coredns_dns_requests_total",
		"http://127.0.0.1:9353/metrics":    "coredns_nodecache_setup_errors_total",
	} {
		if got := get(t, url); !strings.Contains(got, want) {
			t.Errorf("%s: %q is not in %d bytes", url, want, len(got))
		}
	}
	kubeDNS.swap(t, map[string]string{"upstreamNameservers": `["10.99.0.2"]`})
	kit.Eventually(t, "the ConfigMap's upstream", func() bool { return textOf("169.254.20.10:53", "b.example.") == "10.99.0.2/udp" })
	if got := lines(p, "ERROR"); got != 0 {
		t.Errorf("%d errors in the log", got)
	}
	p.Signal(t, syscall.SIGTERM)
	if code, err := p.Wait(20 * time.Second); code != 0 || err != nil {
		t.Errorf("exit code %d, error %v", code, err)
	}
}

// mount mounts a file over another, in this process's mount namespace.
func mount(t *testing.T, file, over string) {
	t.Helper()
	kit.Must(t, syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""))
	if err := syscall.Mount(file, over, "", syscall.MS_BIND, ""); err != nil {
		t.Fatalf("mount over %s: %v", over, err)
	}
}
