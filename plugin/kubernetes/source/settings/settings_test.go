package settings

import (
	"strings"
	"testing"

	"github.com/coredns/caddy"

	"github.com/nearside-dns/nearside/plugin/internal/corefile"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
	"github.com/nearside-dns/nearside/test/kit"
)

// TestErrors asserts that each error has the line of its option: from parsing, from Check, or from Open.
func TestErrors(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "") // not in a cluster
	noPEM := kit.File(t, "cert", "this is no PEM")
	tls := "tls " + strings.Repeat(noPEM+" ", 3)
	for name, tt := range map[string]struct{ text, want string }{
		"endpoint":            {"endpoint http://127.0.0.1:1", ""},
		"unknown option":      {"tls a b c\nmanifest", `Testfile:3 - Error during parsing: unknown option "manifest": want one of`},
		"no source":           {"apiserver_qps 1", "Testfile:1 - Error during parsing: no API server to read: not in a cluster"},
		"invalid endpoint":    {"\nendpoint ftp://a", `Testfile:3 - Error during parsing: invalid endpoint "ftp://a": want the URL`},
		"missing kubeconfig":  {"kubeconfig /none/config", `Testfile:2 - Error during parsing: invalid kubeconfig "/none/config": `},
		"invalid tls":         {tls + "\nendpoint https://127.0.0.1:1", `Testfile:2 - Error during parsing: invalid tls "` + noPEM + `" "`},
		"missing manifests":   {"\nmanifests /none", "Testfile:3 - Error during parsing: manifests: manifests directory /none: no such file"},
		"two sources":         {"endpoint http://a\nmanifests /none", "Testfile:3 - Error during parsing: manifests and endpoint cannot both be set: "},
		"limits of no server": {"manifests /none\napiserver_burst 1", "Testfile:3 - Error during parsing: manifests and apiserver_burst cannot both be set: "},
	} {
		t.Run(name, func(t *testing.T) {
			c := caddy.NewTestController("dns", "directive {\n"+tt.text+"\n}")
			c.Next()
			var s Settings
			start := corefile.At(c)
			seen, err := Options.Parse(c, &s)
			if err == nil {
				err = s.Check(start, seen)
			}
			if err == nil {
				_, err = s.Open(source.Options{})
			}
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.HasPrefix(err.Error(), tt.want)) {
				t.Errorf("error is\n\t%v\nwant\n\t%s", err, tt.want)
			}
		})
	}
}
