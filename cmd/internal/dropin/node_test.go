package dropin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/cmd/internal/daemon"
	"github.com/nearside-dns/nearside/cmd/internal/kubednsconfig"
	"github.com/nearside-dns/nearside/test/kit"
)

// reader reads a Corefile as the daemon does, except standard input.
func reader(conf string) (daemon.Corefile, error) {
	if conf == "stdin" {
		return daemon.Corefile{Name: conf, Text: []byte(". {\n    erratic\n}\n")}, nil
	}
	if conf == "" {
		return daemon.Corefile{Name: "Corefile"}, fmt.Errorf("no configuration: %w", fs.ErrNotExist)
	}
	text, err := os.ReadFile(conf)
	return daemon.Corefile{Name: conf, Text: text}, err
}

// node is a Node with an environment and files of its own.
func node(t *testing.T, environ map[string]string, args ...string) *Node {
	t.Helper()
	n, err := parseFlags(t, args...)
	kit.Must(t, err)
	n.environ = func() (all []string) {
		for name, value := range environ {
			all = append(all, name+"="+value)
		}
		return all
	}
	if !n.set("basecorefile") {
		n.options.base = filepath.Join(t.TempDir(), "Corefile.base")
	}
	if !n.set("corefile") {
		n.options.corefile = filepath.Join(t.TempDir(), "Corefile")
	}
	n.dial = func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("no cluster DNS")
	}
	n.resolvConf = filepath.Join(t.TempDir(), "resolv.conf")
	kit.Write(t, n.resolvConf, "nameserver 10.0.0.2\n")
	n.host = filepath.Join(t.TempDir(), "host")
	return n
}

// shown returns a Corefile as it is written for people to read.
func shown(c daemon.Corefile) string { return string(c.Text) + describe(c, 0) }

// mount is the directory of a ConfigMap.
type mount struct{ path string }

func newMount(t *testing.T, files map[string]string) *mount {
	m := &mount{path: filepath.Join(t.TempDir(), "mount")}
	m.swap(t, files)
	return m
}

// swap replaces the files.
func (m *mount) swap(t *testing.T, files map[string]string) {
	t.Helper()
	err := os.RemoveAll(m.path)
	if err == nil {
		err = os.Mkdir(m.path, 0o700)
	}
	kit.Must(t, err)
	for name, text := range files {
		kit.Write(t, filepath.Join(m.path, name), text)
	}
}

// TestChoose has the file that is read and the file that is written.
func TestChoose(t *testing.T) {
	const base, other = ". {\n    cache\n}\n", ". {\n    log\n}\n"
	directory := t.TempDir()
	at := func(name string) string { return filepath.Join(directory, name) }
	kit.Write(t, at("base"), base)
	kit.Write(t, at("conf"), other)
	kit.Write(t, at("foreign"), other)
	kit.Write(t, at("mark"), "\ufeff"+base)
	kit.Write(t, at("leftover"), renderedHeader+"/etc/coredns/Corefile.base\n"+base)
	for _, tc := range []struct {
		name          string
		args          []string
		conf          string
		with          func(*Node)
		read, written string
		error         string
	}{
		{"template", []string{"-basecorefile", at("base")}, at("out"), nil, at("base"), at("out"), ""},
		{"template and corefile", []string{"-basecorefile", at("base"), "-corefile", at("out2")}, "", nil, at("base"), at("out2"), ""},
		{"conf goes before corefile", []string{"-basecorefile", at("base"), "-corefile", at("out3")}, at("out4"), nil, at("base"), at("out4"), ""},
		{"template is the conf", []string{"-basecorefile", at("base")}, at("base"), nil, at("base"), "", ""},
		{"standard input", []string{"-basecorefile", at("base")}, "stdin", nil, "stdin", "", ""},
		{"template by default", nil, at("out5"), func(n *Node) { n.options.base = at("base") }, at("base"), at("out5"), ""},
		{"template named and missing", []string{"-basecorefile", at("none")}, at("conf"), nil, "", "", at("none")},
		{"no template", nil, at("conf"), nil, at("conf"), "", ""},
		{"no template, corefile", []string{"-corefile", at("conf")}, "", nil, at("conf"), "", ""},
		{"no template, corefile missing", []string{"-corefile", at("none")}, "", nil, "", "", at("none")},
		{"no template, corefile by default", nil, "", func(n *Node) { n.options.corefile = at("conf") }, at("conf"), "", ""},
		{"nothing", nil, "", nil, "", "", "no configuration"},
		{"a rendered file", nil, at("leftover"), nil, "", "", "nodecache rendered " + at("leftover")},
		{"template with a byte order mark", []string{"-basecorefile", at("mark")}, at("out7"), nil, at("mark"), at("out7"), ""},
		{"written before", []string{"-basecorefile", at("base")}, at("leftover"), nil, at("base"), at("leftover"), ""},
		{"written nowhere", []string{"-basecorefile", at("base")}, "/none/out", nil, at("base"), "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := node(t, nil, tc.args...)
			if tc.with != nil {
				tc.with(n)
			}
			got, err := n.Source(tc.conf, reader)
			if tc.error != "" {
				if err == nil || !strings.Contains(err.Error(), tc.error) {
					t.Errorf("error %v, want %q", err, tc.error)
				}
				return
			}
			if err != nil || got.Name != tc.read {
				t.Fatalf("read %s, error %v, want %s", got.Name, err, tc.read)
			}
			if tc.written == "" {
				return
			}
			text, err := os.ReadFile(tc.written)
			if want := renderedHeader + tc.read + "\n" + base; err != nil || string(text) != want {
				t.Errorf("written was %q, error %v, want %q", text, err, want)
			}
		})
	}
	t.Run("file of another program", func(t *testing.T) {
		n := node(t, nil, "-basecorefile", at("base"))
		if _, err := n.Source(at("foreign"), reader); err != nil || !strings.Contains(n.unwritten, "exists and nodecache has not written it") {
			t.Errorf("error %v, logged %q", err, n.unwritten)
		}
		if text, err := os.ReadFile(at("foreign")); err != nil || string(text) != other {
			t.Errorf("%q, error %v", text, err)
		}
	})
	t.Run("template removed", func(t *testing.T) {
		n := node(t, nil)
		n.options.base = at("removed")
		kit.Write(t, at("removed"), base)
		if _, err := n.Source(at("out6"), reader); err != nil {
			t.Fatal(err)
		}
		kit.Must(t, os.Remove(at("removed")))
		if _, err := n.Source(at("out6"), reader); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("error %v", err)
		}
	})
}

// TestConfigMap changes the ConfigMap while the node runs.
func TestConfigMap(t *testing.T) {
	m := newMount(t, map[string]string{"stubDomains": `{"a.example": ["10.1.2.3"]}`})
	n := node(t, nil, "-kubednscm", m.path)
	counted := 0
	n.setupError = func(errortype string) {
		if errortype != "configmap" {
			t.Errorf("counted %q", errortype)
		}
		counted++
	}
	conf := filepath.Join(t.TempDir(), "Corefile")
	kit.Write(t, conf, "b.example {\n    forward . __PILLAR__UPSTREAM__SERVERS__\n}\n")
	step := func(name string, count int, want ...string) {
		t.Helper()
		got, err := n.Source(conf, reader)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, w := range want {
			if no, ok := strings.CutPrefix(w, "not "); strings.Contains(shown(got), no) == ok {
				t.Errorf("%s: %q is not as wanted in\n%s", name, w, shown(got))
			}
		}
		if counted != count {
			t.Errorf("%s: %d errors counted, want %d", name, counted, count)
		}
	}
	step("at the start", 0, "a.example:53 {", "# forward in line 2: to 10.0.0.2, force_tcp, fallback udp\n")
	m.swap(t, map[string]string{"stubDomains": `{"a.example": ["name"]}`})
	step("invalid", 1, "a.example:53 {")
	step("still invalid", 1, "a.example:53 {")
	m.swap(t, map[string]string{"stubDomains": `{"b.example": ["10.1.2.3"]}`})
	step("a zone of the Corefile", 2, "a.example:53 {", "not b.example:53")
	m.swap(t, map[string]string{"stubDomains": `{"c.example": ["10.1.2.3"]}`, "upstreamNameservers": `["10.1.2.4"]`})
	step("valid", 2, "not a.example", "c.example:53 {", "forward . 10.1.2.4")
	kit.Write(t, conf, "c.example {\n    log\n}\n")
	step("the Corefile takes the zone", 3, "not c.example:53")
	m.swap(t, map[string]string{"upstreamNameservers": `["10.1.2.4"]`})
	kit.Write(t, conf, "b.example {\n    bind 169.254.20.10\n    forward . __PILLAR__UPSTREAM__SERVERS__\n}\n")
	step("valid again", 3, "forward . 10.1.2.4")
	m.swap(t, map[string]string{"upstreamNameservers": `["169.254.20.10"]`})
	step("an own address", 4, "forward . 10.1.2.4")
	kit.Must(t, os.RemoveAll(m.path))
	step("missing", 5, "forward . 10.1.2.4")
	if !slices.Contains(n.watched(), m.path) {
		t.Errorf("watched are %q", n.watched())
	}
}

// TestConfigMapByDefault has the ConfigMap of the default path: it may be missing, but not removed.
func TestConfigMapByDefault(t *testing.T) {
	n := node(t, nil)
	n.kubeDNSPath = filepath.Join(t.TempDir(), "kube-dns")
	counted := 0
	n.setupError = func(string) { counted++ }
	conf := filepath.Join(t.TempDir(), "Corefile")
	kit.Write(t, conf, ". {\n    log\n}\n")
	step := func(name string, served bool, count int) {
		t.Helper()
		got, err := n.Source(conf, reader)
		if err != nil || strings.Contains(string(got.Text), "a.example:53 {") != served || counted != count {
			t.Errorf("%s: error %v, %d errors counted, text\n%s", name, err, counted, got.Text)
		}
	}
	step("at the start", false, 0)
	kit.Must(t, os.Mkdir(n.kubeDNSPath, 0o700))
	kit.Write(t, filepath.Join(n.kubeDNSPath, kubednsconfig.StubDomains), `{"a.example": ["10.1.2.3"]}`)
	step("there", true, 0)
	kit.Must(t, os.RemoveAll(n.kubeDNSPath))
	step("gone", true, 1)
	step("still gone", true, 1)
}

// TestUselessResolvConf has a resolv.conf without a usable server, at the start and later.
func TestUselessResolvConf(t *testing.T) {
	n := node(t, nil)
	conf := filepath.Join(t.TempDir(), "Corefile")
	kit.Write(t, conf, ". {\n    forward . "+n.resolvConf+" {\n        max_fails 3\n    }\n}\nb {\n    forward . 10.9.9.9 "+n.resolvConf+"\n}\n")
	step := func(name, text, want, message, refused string) {
		t.Helper()
		kit.Write(t, n.resolvConf, text)
		got, err := n.Source(conf, reader)
		if refused != "" {
			if err == nil || !strings.Contains(err.Error(), refused) {
				t.Errorf("%s: error %v, want %q", name, err, refused)
			}
			return
		}
		if err != nil || !strings.Contains(shown(got), want) {
			t.Errorf("%s: error %v, %q is not in\n%s", name, err, want, shown(got))
		}
		if (len(n.logged) == 0) != (message == "") || message != "" && !strings.Contains(n.logged[0].text, message) {
			t.Errorf("%s: messages %v, want %q", name, n.logged, message)
		}
	}
	step("at the start", "nameserver 127.0.0.1\n", "# forward in line 2: to 127.0.0.1:0\n", n.resolvConf+" names only 127.0.0.1", "")
	step("beside a server", "nameserver 127.0.0.1\n", "# forward in line 7: to 10.9.9.9, force_tcp, fallback udp\n", n.resolvConf+" names only 127.0.0.1", "")
	step("still", "nameserver dns.example\n", "# forward in line 2: to 127.0.0.1:0\n", `nameserver "dns.example" is not an IP address`, "")
	step("mended", "nameserver 10.0.0.2\n", "to 10.0.0.2, force_tcp", "", "")
	step("broken", "nameserver 127.0.0.1\n", "", "", conf+":2 - "+n.resolvConf+" names only 127.0.0.1")
	step("mended again", "nameserver 10.0.0.3\n", "to 10.0.0.3, force_tcp", "", "")
}

func TestConfigMapMissingAtTheStart(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "kube-dns")
	n := node(t, nil, "-kubednscm", directory)
	counted := 0
	n.setupError = func(string) { counted++ }
	conf := filepath.Join(t.TempDir(), "Corefile")
	kit.Write(t, conf, ". {\n    log\n}\n")
	if _, err := n.Source(conf, reader); err != nil || counted != 1 {
		t.Fatalf("error %v, counted %d", err, counted)
	}
	kit.Must(t, os.Mkdir(directory, 0o700))
	kit.Write(t, filepath.Join(directory, "stubDomains"), `{"a.example": ["10.1.2.3"]}`)
	if got, err := n.Source(conf, reader); err != nil || !strings.Contains(string(got.Text), "a.example:53 {") {
		t.Errorf("error %v, text\n%s", err, got.Text)
	}
}

// TestNodelocalDirective has the nodelocal directive made from flags and environment.
func TestNodelocalDirective(t *testing.T) {
	service := map[string]string{"KUBE_DNS_SERVICE_HOST": "10.96.0.10", "UP_SERVICE_HOST": "fd00:0::11", "BAD_SERVICE_HOST": "x"}
	for _, tc := range []struct {
		name string
		args []string
		want []string
	}{
		{"defaults", nil, []string{"interface nodelocaldns\n", "setup interface rules\n", "health 8080\n", "interval 1m0s\n", "fallback 10.96.0.10\n", "not keep", "not bind"}},
		{"all else", []string{"-setupinterface=false", "-setupiptables=false", "-interfacename", "d0", "-health-port", "1", "-syncinterval", "5", "-skipteardown", "-upstreamsvc", "up"},
			[]string{"interface d0\n", "setup none\n", "health 1\n", "interval 5s\n", "keep\n", "fallback fd00::11\n"}},
		{"rules only", []string{"-setupinterface=false"}, []string{"setup rules\n"}},
		{"interface only", []string{"-setupiptables=false"}, []string{"setup interface\n"}},
		{"a Service's address", []string{"-localip", "169.254.20.10,10.96.0.10", "-upstreamsvc", "up"}, []string{"fallback fd00::11 except 10.96.0.10\n"}},
		{"fallback of both families", []string{"-fallback", "10.96.0.11,fd00::12", "-upstreamsvc", "up"}, []string{"fallback 10.96.0.11 fd00::12\n"}},
		{"no question", nil, []string{"not question"}},
		{"question over lo", []string{"-question-from", "lo"}, []string{"question lo\n"}},
		{"question from addresses", []string{"-question-from", "10.1.0.1,fd00:1::1"}, []string{"question from 10.1.0.1 fd00:1::1\n"}},
		{"cluster DNS here", []string{"-localip", "10.96.0.10"}, []string{"nodelocal 10.96.0.10 {", "not fallback"}},
		{"no cluster DNS", []string{"-upstreamsvc", "none"}, []string{"not fallback"}},
		{"nonsense", []string{"-upstreamsvc", "bad"}, []string{"not fallback"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := node(t, service, append([]string{"-localip", "169.254.20.10"}, tc.args...)...)
			conf := filepath.Join(t.TempDir(), "Corefile")
			kit.Write(t, conf, ".:53 {\n    log\n}\n")
			got, err := n.Source(conf, reader)
			kit.Must(t, err)
			for _, w := range tc.want {
				if no, ok := strings.CutPrefix(w, "not "); strings.Contains(string(got.Text), no) == ok {
					t.Errorf("%q is not as wanted in\n%s", w, got.Text)
				}
			}
		})
	}
}
