package clients

import (
	"strings"
	"testing"

	"github.com/coredns/caddy"

	"github.com/nearside-dns/nearside/internal/nodefacts"
	"github.com/nearside-dns/nearside/test/kit"
)

// notInACluster unsets the environment variables with the address of the API server.
func notInACluster(t testing.TB) {
	t.Helper()
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	t.Setenv("KUBERNETES_SERVICE_PORT", "")
}

// parseText parses a directive with a block of these lines.
func parseText(block string) (*nodePods, error) {
	c := caddy.NewTestController("dns", "autopath @nodelocal {\n"+block+"\n}")
	c.Next()
	c.RemainingArgs()
	return parseNodePods(c)
}

func TestParse(t *testing.T) {
	notInACluster(t)
	folder := t.TempDir()
	resolvConf := kit.File(t, "resolv.conf", "search corp.example\n")
	s, err := parseText("node node-1.example\nendpoint https://10.0.0.1:6443\nresolv_conf " + resolvConf)
	if err != nil || s.node != "node-1.example" || s.from.Connection.Endpoint != "https://10.0.0.1:6443" || len(s.hostSearch()) != 1 {
		t.Errorf("%+v, error %v", s, err)
	}
	s, err = parseText("manifests " + folder + "\nnode node-1")
	if err != nil || s.from.Manifests != folder || s.resolvConf != defaultResolvConf {
		t.Errorf("%+v, error %v", s, err)
	}
}

// TestParseNode asserts that the node name is that of the option, or else that of the process.
func TestParseNode(t *testing.T) {
	notInACluster(t)
	t.Cleanup(func() { nodefacts.Set(nodefacts.Facts{}) })
	block := "manifests " + t.TempDir()
	nodefacts.Set(nodefacts.Facts{Corefile: "Testfile", Node: "node-a"})
	if s, err := parseText(block); err != nil || s.node != "node-a" {
		t.Errorf("%+v, error %v, want node-a", s, err)
	}
	if s, err := parseText(block + "\nnode node-b"); err != nil || s.node != "node-b" {
		t.Errorf("%+v, error %v, want node-b", s, err)
	}
	nodefacts.Set(nodefacts.Facts{Corefile: "/etc/coredns/Corefile", Node: "node-a"})
	if _, err := parseText(block); err == nil {
		t.Error("a directive in an imported file has a node")
	}
}

// TestParseErrors asserts that errors have the file and the line.
func TestParseErrors(t *testing.T) {
	notInACluster(t)
	noPEM, noResolvConf := kit.File(t, "cert", "this is no PEM"), kit.File(t, "resolv.conf", "\nnameserver\n")
	for name, tc := range map[string]struct{ block, want string }{
		"no node":              {"endpoint http://127.0.0.1:1", "Testfile:1 - Error during parsing: missing node: want node NAME"},
		"no name":              {"\nnode Node_1", `Testfile:3 - Error during parsing: invalid node "Node_1": want the name of this node: 1 to 253 characters a-z, 0-9, - and ., with a letter or digit at both ends`},
		"two names":            {"node a b", `Testfile:2 - Error during parsing: invalid node "a" "b": want the name of this node`},
		"no argument":          {"node", `Testfile:2 - Error during parsing: invalid node: want the name of this node`},
		"unknown":              {"node a\nnonsense", `Testfile:3 - Error during parsing: unknown option "nonsense": want one of endpoint, kubeconfig, manifests, node, resolv_conf, tls`},
		"an option of cluster": {"node a\npods verified", `Testfile:3 - Error during parsing: unknown option "pods"`},
		"twice":                {"node a\nnode b", "Testfile:3 - Error during parsing: duplicate option node"},
		"endpoint":             {"node a\nendpoint ftp://10.0.0.1", `Testfile:3 - Error during parsing: invalid endpoint "ftp://10.0.0.1": want the URL of an API server`},
		"kubeconfig":           {"node a\nkubeconfig /none/config", `Testfile:3 - Error during parsing: invalid kubeconfig "/none/config": `},
		"tls":                  {"node a\nendpoint https://127.0.0.1:1\ntls " + noPEM + " " + noPEM + " " + noPEM, `Testfile:4 - Error during parsing: invalid tls "`},
		"manifests":            {"node a\nmanifests /none", "Testfile:3 - Error during parsing: manifests: manifests directory /none: no such file or directory"},
		"manifests, server":    {"node a\nendpoint http://127.0.0.1:1\nmanifests /none", "Testfile:4 - Error during parsing: manifests and endpoint cannot both be set: records are read from a directory or from an API server"},
		"server, manifests":    {"manifests /none\nnode a\ntls a b c", "Testfile:4 - Error during parsing: manifests and tls cannot both be set"},
		"no resolv.conf":       {"node a\nendpoint http://127.0.0.1:1\nresolv_conf /none/resolv.conf", "Testfile:4 - Error during parsing: invalid resolv_conf \"/none/resolv.conf\": open /none/resolv.conf: no such file or directory: want the file"},
		"wrong resolv.conf":    {"node a\nresolv_conf " + noResolvConf + "\nendpoint http://127.0.0.1:1", "Testfile:3 - Error during parsing: invalid resolv_conf \"" + noResolvConf + "\": " + noResolvConf + ":2: nameserver without an address"},
		"not in a cluster":     {"node a", "Testfile:1 - Error during parsing: no API server to read: not in a cluster"},
	} {
		t.Run(name, func(t *testing.T) {
			if s, err := parseText(tc.block); s != nil || err == nil || !strings.HasPrefix(err.Error(), tc.want) {
				t.Errorf("error is\n\t%v\nwant\n\t%s", err, tc.want)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	notInACluster(f)
	resolvConf := kit.File(f, "resolv.conf", "")
	for name := range known {
		for _, args := range []string{"", " a", " a b c", " {\n", ` ""`, " http://10.0.0.1", " http://a b"} {
			f.Add("node a\n" + name + args)
			f.Add(name + args + "\nendpoint http://10.0.0.1")
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, "/") && strings.ContainsAny(text, "kmrt") { // a path for kubeconfig, manifests, resolv_conf or tls
			t.Skip("other files may block")
		}
		s, err := parseText("resolv_conf " + resolvConf + "\n" + text)
		switch {
		case err != nil && s != nil:
			t.Errorf("error %v and a source", err)
		case err != nil && !strings.HasPrefix(err.Error(), "Testfile:"):
			t.Errorf("the error names no file: %v", err)
		case err == nil && (s == nil || s.node == ""):
			t.Errorf("accepted: %+v", s)
		}
	})
}
