package test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"
)

// daemonEnds bounds the wait for the end of a program.
const daemonEnds = 30 * time.Second

// forbidden are the packages that a package may not import, directly or not. The reason is in the package's comment.
var forbidden = map[string][]string{
	"plugin/kubernetes/index":            {"k8s.io/", "github.com/miekg/dns", "github.com/coredns/", "github.com/nearside-dns/nearside/plugin/internal/push", "github.com/nearside-dns/nearside/plugin/internal/dso"},
	"plugin/kubernetes/topology":         {"k8s.io/client-go", "k8s.io/api/", "github.com/miekg/dns", "github.com/coredns/", "github.com/prometheus/"},
	"plugin/internal/caller":             {"k8s.io/", "github.com/miekg/dns", "github.com/coredns/", "net"},
	"plugin/internal/searchlist":         {"k8s.io/", "github.com/coredns/", "github.com/prometheus/", "net/http"},
	"plugin/internal/searchlist/expand":  {"k8s.io/"},
	"plugin/kubernetes/clients":          {"k8s.io/client-go/kubernetes", "github.com/coredns/coredns/core"},
	"plugin/kubernetes/source":           {"k8s.io/client-go", "github.com/coredns/coredns/core"},
	"plugin/kubernetes/source/manifests": {"k8s.io/client-go", "github.com/coredns/coredns/core"},
	"plugin/kubernetes/source/apiserver": {"k8s.io/client-go/kubernetes", "github.com/coredns/coredns/core"},
	"plugin/kubernetes/source/settings":  {"k8s.io/client-go/kubernetes", "github.com/coredns/coredns/core"},
	"plugin/internal/explain/endpoint":   {"k8s.io/", "github.com/coredns/coredns/core"},
	"plugin/internal/exposed":            {"k8s.io/", "github.com/coredns/", "github.com/prometheus/"},
	"plugin/k8s_external":                {"k8s.io/", "github.com/coredns/coredns/plugin/kubernetes"},
	"plugin/dnssec":                      {"k8s.io/", "github.com/aws/"},
	"plugin/internal/store":              {"k8s.io/", "github.com/coredns/", "github.com/prometheus/"},
	"plugin/internal/validity":           {"k8s.io/", "github.com/miekg/dns", "github.com/coredns/", "github.com/prometheus/", "github.com/nearside-dns/nearside/plugin/internal/store"},
	"plugin/internal/wire":               {"k8s.io/", "github.com/miekg/dns", "github.com/coredns/", "github.com/prometheus/", "github.com/nearside-dns/nearside/", "net"},
	"plugin/internal/block":              {"k8s.io/"},
	"plugin/internal/block/wirechain":    {"k8s.io/", "github.com/coredns/", "github.com/prometheus/"},
	"plugin/internal/push":               {"k8s.io/", "github.com/miekg/dns", "github.com/coredns/", "github.com/prometheus/", "net"},
	"plugin/internal/dso":                {"k8s.io/", "github.com/miekg/dns", "github.com/coredns/", "github.com/prometheus/", "net"},
	"plugin/internal/corefile":           {"k8s.io/", "github.com/miekg/dns"},
	"plugin/cache/internal/snapshot":     {"k8s.io/", "github.com/miekg/dns", "github.com/coredns/", "github.com/prometheus/", "github.com/nearside-dns/nearside/plugin/internal/store", "github.com/nearside-dns/nearside/plugin/internal/block", "net"},
	"plugin/kubernetes/snapshot":         {"k8s.io/", "github.com/miekg/dns", "github.com/coredns/", "github.com/prometheus/", "net"},
	"plugin/internal/wholefile":          {"k8s.io/", "github.com/miekg/dns", "github.com/coredns/", "github.com/prometheus/", "net"},
	"plugin/internal/reload":             {"k8s.io/", "github.com/miekg/dns", "github.com/coredns/coredns"},
	"plugin/internal/sockets":            {"k8s.io/", "github.com/miekg/dns", "github.com/coredns/"},
	"plugin/forward/transport":           {"k8s.io/", "github.com/miekg/dns", "github.com/coredns/", "github.com/nearside-dns/nearside/plugin/internal/store", "github.com/nearside-dns/nearside/plugin/internal/block", "github.com/nearside-dns/nearside/plugin/internal/caller", "github.com/nearside-dns/nearside/plugin/internal/searchlist"},
	"plugin/internal/batch":              {"k8s.io/", "github.com/miekg/dns", "github.com/coredns/", "github.com/prometheus/", "net"},
	"plugin/internal/wheel":              {"k8s.io/", "github.com/miekg/dns", "github.com/coredns/", "github.com/prometheus/", "net"},
	"plugin/nodelocal/link":              {"k8s.io/", "github.com/miekg/dns", "github.com/coredns/coredns", "github.com/coredns/caddy"},
	"plugin/nodelocal/rules":             {"k8s.io/", "github.com/miekg/dns", "github.com/coredns/coredns", "github.com/coredns/caddy"},
	"plugin/nodelocal/rules/firewall":    {"k8s.io/", "github.com/miekg/dns", "github.com/coredns/coredns", "github.com/coredns/caddy"},
	"cmd/clusterdns":                     {"github.com/aws/", "k8s.io/client-go/kubernetes", "github.com/coredns/coredns/core/plugin", "github.com/coredns/coredns/plugin/kubernetes"},
	"cmd/nodecache":                      {"k8s.io/client-go/kubernetes", "github.com/coredns/coredns/core/plugin", "github.com/coredns/coredns/plugin/kubernetes"},
	"cmd/internal/dropin":                {"k8s.io/"},
	"cmd/internal/startuptaint":          {"k8s.io/client-go/kubernetes", "github.com/coredns/coredns/core"},
	"cmd/internal/resolvconf":            {"k8s.io/", "github.com/coredns/", "github.com/prometheus/", "github.com/nearside-dns/nearside/plugin"},
	"internal/nodefacts":                 {"k8s.io/", "github.com/miekg/dns", "github.com/coredns/", "github.com/prometheus/", "github.com/nearside-dns/nearside/plugin"},
}

func dependencies(t *testing.T, pkg string) []string {
	t.Helper()
	out, err := exec.Command("go", "list", "-deps", "github.com/nearside-dns/nearside/"+pkg).Output()
	if err != nil {
		t.Fatalf("go list %s: %v", pkg, err)
	}
	return strings.Fields(string(out))
}

// violations returns the dependencies that begin with a forbidden path. net/netip has values only: it is allowed where package
// net is not.
func violations(dependencies, forbidden []string) (found []string) {
	for _, d := range dependencies {
		if d == "net/netip" {
			continue
		}
		for _, f := range forbidden {
			if d == f || strings.HasPrefix(d, strings.TrimSuffix(f, "/")+"/") {
				found = append(found, d)
			}
		}
	}
	return found
}

func TestImports(t *testing.T) {
	for pkg, not := range forbidden {
		t.Run(pkg, func(t *testing.T) {
			others := slices.DeleteFunc(dependencies(t, pkg), func(path string) bool { return strings.HasSuffix(path, "/"+pkg) })
			if found := violations(others, not); len(found) > 0 {
				t.Errorf("%s imports %q", pkg, found)
			}
		})
	}
	t.Run("can fail", func(t *testing.T) {
		got := violations([]string{"fmt", "k8s.io/api/core/v1", "github.com/miekg/dns", "k8s.iox", "net", "net/http", "net/netip"}, []string{"k8s.io/", "github.com/miekg/dns", "net"})
		if want := []string{"k8s.io/api/core/v1", "github.com/miekg/dns", "net", "net/http"}; !slices.Equal(got, want) {
			t.Errorf("violations %q, want %q", got, want)
		}
	})
}

// sections are the fixed ones of a CoreDNS plugin's README.
var sections = []string{"## Name", "## Description", "## Syntax", "## Examples"}

// missing returns the files that the folder of a plugin lacks.
func missing(t *testing.T, folder string) (all []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(folder, "README.md"))
	if err != nil {
		return []string{"README.md"}
	}
	for _, s := range sections {
		if !strings.Contains(string(text), "\n"+s+"\n") {
			all = append(all, s)
		}
	}
	if _, err := os.Stat(filepath.Join(folder, "setup.go")); err != nil {
		all = append(all, "setup.go")
	}
	return all
}

func TestPlugins(t *testing.T) {
	folders, err := os.ReadDir(filepath.Join(root, "plugin"))
	kit.Must(t, err)
	for _, f := range folders {
		if f.Name() == "internal" {
			continue
		}
		if lacks := missing(t, filepath.Join(root, "plugin", f.Name())); len(lacks) > 0 {
			t.Errorf("plugin/%s lacks %q", f.Name(), lacks)
		}
	}
	t.Run("can fail", func(t *testing.T) {
		empty, half := t.TempDir(), t.TempDir()
		kit.Write(t, filepath.Join(half, "README.md"), "\n## Name\n\n## Description\n\n## Syntax\n")
		if got := missing(t, empty); !slices.Equal(got, []string{"README.md"}) {
			t.Errorf("an empty folder lacks %q", got)
		}
		if got := missing(t, half); !slices.Equal(got, []string{"## Examples", "setup.go"}) {
			t.Errorf("a README of three sections lacks %q", got)
		}
	})
}

// keyPair writes a certificate and key.pem to the folder, and returns the certificate's path.
func keyPair(t *testing.T, folder string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	kit.Must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	kit.Must(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	kit.Must(t, err)
	for name, b := range map[string]*pem.Block{
		"cert.pem": {Type: "CERTIFICATE", Bytes: der},
		"key.pem":  {Type: "PRIVATE KEY", Bytes: private},
	} {
		kit.Must(t, os.WriteFile(filepath.Join(folder, name), pem.EncodeToMemory(b), 0o600))
	}
	return filepath.Join(folder, "cert.pem")
}
