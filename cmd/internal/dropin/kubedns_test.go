package dropin

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/cmd/internal/daemon"
	"github.com/nearside-dns/nearside/cmd/internal/kubednsconfig"
	"github.com/nearside-dns/nearside/test/kit"
)

// TestServersOfThisNode has servers of the ConfigMap that are this node's own, and others.
func TestServersOfThisNode(t *testing.T) {
	for server, want := range map[string]bool{
		"127.0.0.1": true, "::1": true, "[::1]:53": true, "0.0.0.0": true, "127.0.0.53:53": true, "dns://127.0.0.1": true,
		"169.254.20.10": true, "::ffff:169.254.20.10": true, "169.254.20.10:53": true, "10.96.0.12": true, "fd00::10": true,
		"127.0.0.1:5353": false, "tls://127.0.0.1": false, "tls://127.0.0.1:53": true, "10.1.2.3": false, "169.254.20.11": false,
	} {
		t.Run(server, func(t *testing.T) {
			const corefile = ". {\n bind 169.254.20.10 10.96.0.12\n forward . __PILLAR__UPSTREAM__SERVERS__\n}\nb {\n nodelocal fd00::10\n bind fd00::10\n}\n"
			for _, c := range []kubednsconfig.Config{{Upstreams: []string{server}}, {StubDomains: map[string][]string{"a.example": {"10.1.2.3", server}}}} {
				v := example(t, "")
				v.kubeDNS = c
				_, err := v.render(daemon.Corefile{Name: "f", Text: []byte(corefile)})
				if got := err != nil && strings.Contains(err.Error(), server) && strings.Contains(err.Error(), "would loop back to this node"); got != want || err != nil && !got {
					t.Errorf("%+v: error %v", c, err)
				}
			}
		})
	}
}

// FuzzConfigMap reads any two files: they are invalid, or the Corefile rendered with them is valid.
func FuzzConfigMap(f *testing.F) {
	f.Add(`{"corp.example": ["10.1.2.3", "10.1.2.4:5353"]}`, `["10.0.0.1", "[fd00::1]:53"]`)
	f.Add(`{"a": ["tls://10.1.2.3"]}`, `["dns://10.0.0.1"]`)
	f.Add(`{"a { }": ["10.1.2.3 {"]}`, `["10.0.0.1\n}"]`)
	f.Fuzz(func(t *testing.T, stubDomains, upstreams string) {
		directory := t.TempDir()
		kit.Write(t, filepath.Join(directory, kubednsconfig.StubDomains), stubDomains)
		kit.Write(t, filepath.Join(directory, kubednsconfig.UpstreamNameservers), upstreams)
		c, err := kubednsconfig.Read(directory)
		if err != nil {
			return
		}
		v := example(t, "169.254.20.10")
		v.kubeDNS = c
		const corefile = "example.invalid {\n bind 169.254.20.10\n forward . __PILLAR__UPSTREAM__SERVERS__\n}\n"
		if _, err := v.render(daemon.Corefile{Name: "f", Text: []byte(corefile)}); err != nil && !strings.Contains(err.Error(), "stub domain ") && !strings.Contains(err.Error(), "would loop back") {
			t.Errorf("%q and %q: %v", stubDomains, upstreams, err)
		}
	})
}
