package test

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
)

// TestNodecacheFlags has a wrong value of each flag of node-local-dns: one line, exit code 2.
func TestNodecacheFlags(t *testing.T) {
	path := daemon.Program(t, "nodecache")
	for _, tc := range []struct{ flag, value, want string }{
		{"localip", "169.254.20.10,nowhere", `"nowhere" is not an IP address`},
		{"localip", "127.0.0.1", "127.0.0.1 is a loopback address"},
		{"localip", "169.254.20.10,169.254.20.10", "duplicate value 169.254.20.10"},
		{"setupinterface", "perhaps", "parse error"},
		{"interfacename", "a/b", "an interface name has 1 to 15 visible characters"},
		{"setupiptables", "perhaps", "parse error"},
		{"skipteardown", "perhaps", "parse error"},
		{"metrics-listen-address", "9353", "want an address and a port"},
		{"prometheus-listen-address", ":x", `"x" is not a port`},
		{"health-port", "http", `"http" is not a port`},
		{"upstreamsvc", "kube_dns", "the name of a Service"},
		{"reloadwithsignal", "perhaps", "parse error"},
		{"syncinterval", "60minutes", "as 60 (seconds) or 60s"},
		{"localip", "255.255.255.255", "is the broadcast address"},
		{"fallback", "10.96.0.10,10.96.0.11", "are of one family"},
		{"dns.port", "x", `"x" is not a port`},
		{"log-format", "xml", "flag -log-format: want text or json"},
		{"nope", "", "flag provided but not defined: -nope"},
	} {
		t.Run(tc.flag+"="+tc.value, func(t *testing.T) {
			code, output := run(t, "", path, "-"+tc.flag+"="+tc.value)
			if code != 2 || !strings.Contains(output, tc.want) || strings.Count(output, "\n") != 1 {
				t.Errorf("exit code %d and %q, want 2 and one line with %q", code, output, tc.want)
			}
		})
	}
}

// TestNodecacheHelp checks facts in the help that the flags' names do not have.
func TestNodecacheHelp(t *testing.T) {
	code, output := run(t, "", daemon.Program(t, "nodecache"), "-help")
	for _, want := range []string{"nodecache doctor [flags]", "nodecache cleanup [flags]", "if there is a template (-basecorefile), the file to write", "1s to 24h"} {
		if code != 0 || !strings.Contains(output, want) {
			t.Errorf("exit code %d, %q is not in\n%s", code, want, output)
		}
	}
}

// TestNodecacheTemplate has templates that cannot be rendered: one line with file and line, exit code 1.
func TestNodecacheTemplate(t *testing.T) {
	path := daemon.Program(t, "nodecache")
	for _, tc := range []struct{ name, text, args, want string }{
		{"no Service", ".:0 {\n    forward . __PILLAR__CLUSTER__DNS__\n}\n", "-upstreamsvc kube-dns-upstream", "base:2 - __PILLAR__CLUSTER__DNS__ is the address of cluster DNS, which the variable KUBE_DNS_UPSTREAM_SERVICE_HOST"},
		{"no address", ".:0 {\n    bind __PILLAR__LOCAL__DNS__\n}\n", "", "base:2 - __PILLAR__LOCAL__DNS__ is the value of -localip"},
		{"not installed", "__PILLAR__DNS__DOMAIN__:0 {\n}\n", "", "base:1 - __PILLAR__DNS__DOMAIN__ is not a variable"},
		{"nothing answers", ".:0 {\n}\n", "-localip 169.254.20.10", "no server block on port 53"},
		{"unknown directive", ".:0 {\n    errors\n    nonsense\n}\n", "", "base:3 - Error during parsing: Unknown directive 'nonsense'"},
		{"no template", "", "-basecorefile /none/base", "no configuration: open /none/base: no such file"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			base := kit.File(t, "base", tc.text)
			args := []string{"-basecorefile", base, "-conf", filepath.Join(t.TempDir(), "Corefile")}
			code, output := run(t, "", path, append(args, strings.Fields(tc.args)...)...)
			if code != 1 || !strings.Contains(output, tc.want) || strings.Count(output, "\n") != 1 || strings.Contains(output, "nil") {
				t.Errorf("exit code %d and %q, want 1 and one line with %q", code, output, tc.want)
			}
		})
	}
}

// nameserver answers every question with the same address, after a delay.
func nameserver(t testing.TB, address string, delay time.Duration) (addr string, asked *atomic.Int64) {
	t.Helper()
	asked = new(atomic.Int64)
	addr = kit.Serve(t, "127.0.0.1:0", func(w dns.ResponseWriter, m *dns.Msg) {
		asked.Add(1)
		time.Sleep(delay)
		r := new(dns.Msg).SetReply(m)
		r.Answer = []dns.RR{&dns.A{
			Hdr: dns.RR_Header{Name: m.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1},
			A:   net.ParseIP(address),
		}}
		if err := w.WriteMsg(r); err != nil {
			t.Logf("answer: %v", err)
		}
	})
	return addr, asked
}

// question returns the rcode and, if there is one, the address of an answer.
func question(addr, name string) string {
	r, err := kit.Exchange("udp", addr, new(dns.Msg).SetQuestion(name, dns.TypeA))
	switch {
	case err != nil:
		return err.Error()
	case len(r.Answer) == 1:
		return strings.TrimPrefix(r.Answer[0].String(), r.Answer[0].Header().String())
	}
	return dns.RcodeToString[r.Rcode]
}

func answersWith(addr, name, want string) func() bool {
	return func() bool { return question(addr, name) == want }
}

// lines counts the lines of a program's output that contain a text.
func lines(p *daemon.Process, text string) int { return strings.Count(p.Output(), text) }

// configMapMount is a directory as the kubelet mounts a ConfigMap.
type configMapMount struct {
	path    string
	version int
}

// swap changes all files at once, by the symbolic link ..data.
func (m *configMapMount) swap(t testing.TB, files map[string]string) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		kit.Must(t, err)
	}
	m.version++
	now := ".." + strconv.Itoa(m.version)
	must(os.MkdirAll(filepath.Join(m.path, now), 0o700))
	for name, text := range files {
		kit.Write(t, filepath.Join(m.path, now, name), text)
	}
	must(os.Symlink(now, filepath.Join(m.path, "..data_tmp")))
	must(os.Rename(filepath.Join(m.path, "..data_tmp"), filepath.Join(m.path, "..data")))
	for name := range files {
		if _, err := os.Lstat(filepath.Join(m.path, name)); err != nil {
			must(os.Symlink(filepath.Join("..data", name), filepath.Join(m.path, name)))
		}
	}
	must(os.RemoveAll(filepath.Join(m.path, ".."+strconv.Itoa(m.version-1))))
}

// TestNodecacheConfigMap swaps the kube-dns ConfigMap under a running nodecache. The poll is too slow to have an effect.
func TestNodecacheConfigMap(t *testing.T) {
	one, _ := nameserver(t, "192.0.2.1", 0)
	two, _ := nameserver(t, "192.0.2.2", 0)
	directory := filepath.Join(t.TempDir(), "kube-dns") // missing at first
	port := daemon.FreePort(t)
	metrics := fmt.Sprintf("127.0.0.1:%d", daemon.FreePort(t))
	p := daemon.Start(t, daemon.Program(t, "nodecache"), fmt.Sprintf("example.invalid:PORT {\n    bind 127.0.0.1\n}\n.:%d {\n    bind 127.0.0.1\n    log\n}\n", port),
		"-kubednscm", directory, "-dns.port", strconv.Itoa(port), "-syncinterval", "1h", "-metrics-listen-address", metrics)
	counted := func(n int) func() bool {
		return func() bool {
			return strings.Contains(get(t, "http://"+metrics+"/metrics"), fmt.Sprintf("coredns_nodecache_setup_errors_total{errortype=\"configmap\"} %d\n", n))
		}
	}
	stub := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	kit.Eventually(t, "the missing directory is counted", counted(1))

	m := &configMapMount{path: directory}
	m.swap(t, map[string]string{"stubDomains": fmt.Sprintf(`{"corp.example": [%q]}`, one)})
	kit.Eventually(t, "the stub domain is served", answersWith(stub, "a.corp.example.", "192.0.2.1"))
	m.swap(t, map[string]string{"stubDomains": fmt.Sprintf(`{"corp.example": [%q]}`, two)})
	kit.Eventually(t, "by another server", answersWith(stub, "b.corp.example.", "192.0.2.2"))
	m.swap(t, map[string]string{"stubDomains": `{"corp.example": ["dns.example"]}`})
	kit.Eventually(t, "the invalid one is counted", counted(2))
	if got := question(stub, "c.corp.example."); got != "192.0.2.2" {
		t.Errorf("with an invalid ConfigMap the answer is %s", got)
	}
	if got := lines(p, `stubDomains: corp.example: "dns.example" is not an IP address`); got != 1 {
		t.Errorf("%d lines name file and reason", got)
	}
	m.swap(t, map[string]string{"stubDomains": fmt.Sprintf(`{"corp.example": [%q]}`, one)})
	kit.Eventually(t, "mended", answersWith(stub, "d.corp.example.", "192.0.2.1"))
}

// get returns the body of a page, or the error.
func get(t testing.TB, url string) string {
	t.Helper()
	page, err := kit.Get(http.DefaultClient, url)
	if page == "" && err != nil {
		return err.Error()
	}
	return page
}

// TestNodecacheTemplateChanges writes invalid and valid templates under a running nodecache.
func TestNodecacheTemplateChanges(t *testing.T) {
	one, _ := nameserver(t, "192.0.2.1", 0)
	two, _ := nameserver(t, "192.0.2.2", 0)
	port := daemon.FreePort(t)
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	text := func(server string) map[string]string {
		return map[string]string{"Corefile.base": fmt.Sprintf(".:%d {\n    bind 127.0.0.1\n    forward . %s\n}\n", port, server)}
	}
	m := &configMapMount{path: filepath.Join(t.TempDir(), "coredns")}
	m.swap(t, text(one))
	base := filepath.Join(m.path, "Corefile.base")
	metrics := fmt.Sprintf("127.0.0.1:%d", daemon.FreePort(t))
	p := daemon.Launch(t, daemon.Program(t, "nodecache"), "", "-basecorefile", base, "-syncinterval", "1h", "-metrics-listen-address", metrics)
	kit.Eventually(t, "served", answersWith(addr, "a.example.", "192.0.2.1"))
	if got := kit.Read(t, p.Corefile); !strings.HasPrefix(got, "# Rendered by nodecache") || !strings.Contains(got, one) {
		t.Errorf("written was %q", got)
	}
	for i, broken := range []string{
		".:53 {\n    forward . __PILLAR__NOTHING__\n}\n",
		fmt.Sprintf(".:%d {\n    nonsense\n}\n", port),
		fmt.Sprintf(".:%d {\n    cache {\n        nonsense\n    }\n}\n", port),
		" ",
	} {
		m.swap(t, map[string]string{"Corefile.base": broken})
		kit.Eventually(t, "refused", func() bool { return lines(p, "Not reloaded, the previous configuration stays in use: ") == i+1 })
		if got := question(addr, fmt.Sprintf("b%d.example.", i)); got != "192.0.2.1" {
			t.Errorf("with a broken template the answer is %s", got)
		}
	}
	for _, want := range []string{
		base + ":2 - __PILLAR__NOTHING__ is not a variable",
		base + ":2 - Error during parsing: Unknown directive 'nonsense'",
		"plugin/cache: " + base + ":3",
		base + " is empty",
	} {
		if got := lines(p, want); got != 1 {
			t.Errorf("%d lines with %q", got, want)
		}
	}
	if got := get(t, "http://"+metrics+"/metrics"); !strings.Contains(got, "\nnearside_reload_failed_total 4\n") {
		t.Errorf("four refused templates are not counted")
	}
	m.swap(t, text(two))
	kit.Eventually(t, "mended", answersWith(addr, "c.example.", "192.0.2.2"))
}

// TestShutdown ends the programs while a query to a slow server is in progress.
func TestShutdown(t *testing.T) {
	for _, program := range []string{"clusterdns", "nodecache"} {
		path := daemon.Program(t, program)
		for _, tc := range []struct {
			name    string
			signals []syscall.Signal
			code    int
			want    string
		}{
			{"SIGTERM", []syscall.Signal{syscall.SIGTERM}, 0, "192.0.2.1"},
			{"SIGINT", []syscall.Signal{syscall.SIGINT}, 0, "192.0.2.1"},
			{"SIGQUIT", []syscall.Signal{syscall.SIGQUIT}, 0, "192.0.2.1"},
			{"SIGHUP and SIGTERM", []syscall.Signal{syscall.SIGHUP, syscall.SIGUSR2, syscall.SIGTERM}, 0, "192.0.2.1"},
			{"SIGTERM twice", []syscall.Signal{syscall.SIGTERM, syscall.SIGTERM}, 2, ""},
		} {
			t.Run(program+"/"+tc.name, func(t *testing.T) {
				t.Parallel()
				slow, asked := nameserver(t, "192.0.2.1", time.Second)
				pidfile := filepath.Join(t.TempDir(), "pid")
				p := daemon.Launch(t, path, ".:PORT {\n    bind 127.0.0.1\n    forward . "+slow+"\n}\n", "-pidfile", pidfile)
				kit.Eventually(t, "answers", func() bool { return !strings.Contains(question(p.Addr, "first.example."), "refused") })
				before := asked.Load()
				answer := make(chan string, 1)
				go func() { answer <- question(p.Addr, "a.example.") }()
				kit.Eventually(t, "the query is in progress", func() bool { return asked.Load() > before })
				for _, s := range tc.signals {
					p.Signal(t, s)
					time.Sleep(100 * time.Millisecond) // two equal signals at once are one
				}
				code, err := p.Wait(20 * time.Second)
				if err != nil || code != tc.code {
					t.Errorf("exit code %d, error %v, want %d", code, err, tc.code)
				}
				if tc.want != "" {
					if got := <-answer; got != tc.want {
						t.Errorf("answer %s, want %s", got, tc.want)
					}
				}
				if _, err := os.Stat(pidfile); tc.code == 0 && !os.IsNotExist(err) {
					t.Errorf("the pidfile is left: %v", err)
				}
			})
		}
	}
}

// TestClosedStdout closes the pipe of standard output and error, as the end of a log collector does: the programs answer
// after the next log line, and end with code 0.
func TestClosedStdout(t *testing.T) {
	for _, program := range []string{"clusterdns", "nodecache"} {
		t.Run(program, func(t *testing.T) {
			t.Parallel()
			r, w, err := os.Pipe()
			kit.Must(t, err)
			address := net.JoinHostPort("127.0.0.1", strconv.Itoa(daemon.FreePort(t)))
			conf := kit.File(t, "Corefile", ".:"+address[len("127.0.0.1:"):]+" {\n    bind 127.0.0.1\n    template IN A {\n        answer \"{{ .Name }} 1 IN A 192.0.2.1\"\n    }\n}\n")
			cmd := exec.Command(daemon.Program(t, program), "-conf", conf)
			cmd.Stdout, cmd.Stderr = w, w
			kit.Must(t, cmd.Start())
			defer func() { _ = cmd.Process.Kill() }() // unless it has ended
			kit.Eventually(t, "answers", answersWith(address, "a.example.", "192.0.2.1"))
			kit.Must(t, errors.Join(w.Close(), r.Close()))
			for _, s := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGTERM} { // each causes log lines
				if got := question(address, "b.example."); got != "192.0.2.1" {
					t.Errorf("before %s the answer is %s", s, got)
				}
				kit.Must(t, cmd.Process.Signal(s))
				time.Sleep(100 * time.Millisecond)
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("with a closed standard output it ended: %v", err)
			}
		})
	}
}

// TestReloadSignal reloads with SIGUSR1, and then with the reload plugin, which must still see changes after a SIGUSR1.
func TestReloadSignal(t *testing.T) {
	for _, program := range []string{"clusterdns", "nodecache"} {
		t.Run(program, func(t *testing.T) {
			t.Parallel()
			text := func(address string) string {
				return ".:PORT {\n    bind 127.0.0.1\n    reload 2s 0s\n    template IN A {\n        answer \"{{ .Name }} 1 IN A " + address + "\"\n    }\n}\n"
			}
			p := daemon.Start(t, daemon.Program(t, program), text("192.0.2.1"))
			if got := question(p.Addr, "a.example."); got != "192.0.2.1" {
				t.Fatalf("answer %s", got)
			}
			p.Configure(t, text("192.0.2.2"))
			p.Signal(t, syscall.SIGUSR1)
			kit.Eventually(t, "reloaded by the signal", answersWith(p.Addr, "a.example.", "192.0.2.2"))
			p.Configure(t, text("192.0.2.3"))
			kit.Eventually(t, "reloaded by itself", answersWith(p.Addr, "a.example.", "192.0.2.3"))
			p.Configure(t, ".:PORT {\n    bind 127.0.0.1\n    nonsense\n}\n")
			p.Signal(t, syscall.SIGUSR1)
			kit.Eventually(t, "refused", func() bool { return lines(p, "Unknown directive 'nonsense'") > 0 })
			if got := question(p.Addr, "a.example."); got != "192.0.2.3" {
				t.Errorf("with a broken Corefile the answer is %s", got)
			}
			p.Configure(t, text("192.0.2.4"))
			p.Signal(t, syscall.SIGUSR1)
			kit.Eventually(t, "mended", answersWith(p.Addr, "a.example.", "192.0.2.4"))
		})
	}
}

// TestReloadWhileStarting sends SIGUSR1 while a plugin waits for an API server that is down. The new configuration is in
// use after the start.
func TestReloadWhileStarting(t *testing.T) {
	t.Parallel()
	text := func(address string) string {
		return ".:PORT {\n    bind 127.0.0.1\n    template IN A {\n        answer \"{{ .Name }} 1 IN A " + address + "\"\n    }\n    kubernetes cluster.local {\n        endpoint http://127.0.0.1:1\n    }\n}\n"
	}
	p := daemon.Launch(t, daemon.Program(t, "clusterdns"), text("192.0.2.1"))
	kit.Eventually(t, "starting", func() bool { return lines(p, "waiting up to 5s for the first sync") > 0 })
	p.Configure(t, text("192.0.2.2"))
	p.Signal(t, syscall.SIGUSR1)
	kit.Eventually(t, "reloaded", func() bool { return lines(p, "Reloading complete") > 0 })
	if got := question(p.Addr, "a.example."); got != "192.0.2.2" {
		t.Errorf("answer %s", got)
	}
}

// TestNodecacheImport changes a file that the Corefile imports, and adds one that a pattern matches. The poll is too
// slow to have an effect, and there is no reload plugin.
func TestNodecacheImport(t *testing.T) {
	imported := filepath.Join(t.TempDir(), "imported")
	text := func(address string) string {
		return "template IN A {\n    answer \"{{ .Name }} 1 IN A " + address + "\"\n}\n"
	}
	kit.Write(t, imported, text("192.0.2.1"))
	p := daemon.Start(t, daemon.Program(t, "nodecache"), ".:PORT {\n    bind 127.0.0.1\n    import "+imported+"\n}\nimport "+filepath.Dir(imported)+"/*.server\n", "-syncinterval", "1h")
	for i := range 3 {
		address := fmt.Sprintf("192.0.2.%d", 10+i)
		kit.Write(t, imported, text(address))
		kit.Eventually(t, "reloaded", answersWith(p.Addr, "a.example.", address))
	}
	kit.Write(t, filepath.Join(filepath.Dir(imported), "b.server"), fmt.Sprintf("b.example:%d {\n bind 127.0.0.1\n %s}\n", p.Port, text("192.0.2.99")))
	kit.Eventually(t, "another file", answersWith(p.Addr, "a.b.example.", "192.0.2.99"))
	kit.Write(t, imported, "forward . __PILLAR__CLUSTER__DNS__\n")
	kit.Eventually(t, "a variable there is refused", func() bool { return lines(p, imported+":1 - __PILLAR__CLUSTER__DNS__ is in an imported file") == 1 })
	if got := question(p.Addr, "c.example."); got != "192.0.2.12" {
		t.Errorf("with a variable in the imported file the answer is %s", got)
	}
}

// TestNodecacheOverlap has two instances with the same metrics port, as the old and the new one of a DaemonSet that
// surges.
func TestNodecacheOverlap(t *testing.T) {
	path, metrics := daemon.Program(t, "nodecache"), fmt.Sprintf("127.0.0.1:%d", daemon.FreePort(t))
	corefile := ".:PORT {\n    bind 127.0.0.1\n}\n"
	there := func() bool {
		return strings.Contains(get(t, "http://"+metrics+"/metrics"), "coredns_nodecache_setup_errors_total")
	}
	old := daemon.Start(t, path, corefile, "-metrics-listen-address", metrics)
	kit.Eventually(t, "metrics of the old instance", there)
	young := daemon.Start(t, path, corefile, "-metrics-listen-address", metrics)
	old.Stop(t)
	kit.Eventually(t, "metrics of the new instance", there)
	if strings.Contains(young.Output(), "ERROR") {
		t.Errorf("output %s", young.Output())
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	kit.Must(t, err)
	third := daemon.Start(t, path, corefile, "-metrics-listen-address", taken.Addr().String(), "-syncinterval", "1s")
	kit.Eventually(t, "the port is taken", func() bool { return lines(third, "Metrics are not served on -metrics-listen-address") == 1 })
	kit.Must(t, taken.Close())
	kit.Eventually(t, "the port is free again", func() bool {
		return strings.Contains(get(t, "http://"+taken.Addr().String()+"/metrics"), "coredns_nodecache_setup_errors_total")
	})
}
