package nodelocaldns

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/cmd/internal/daemon"
)

// configMap writes a directory with these files.
func configMap(t testing.TB, files map[string]string) string {
	t.Helper()
	directory := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(directory, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return directory
}

func TestReadKubeDNS(t *testing.T) {
	const stub, up = "stubDomains", "upstreamNameservers"
	for _, tc := range []struct {
		name  string
		files map[string]string
		want  kubeDNS
		error string
	}{
		{"empty", nil, kubeDNS{}, ""},
		{"empty files", map[string]string{stub: " \n", up: ""}, kubeDNS{}, ""},
		{"null", map[string]string{stub: "null", up: "null"}, kubeDNS{}, ""},
		{"other files", map[string]string{"federations": "x", "README": "x"}, kubeDNS{}, ""},
		{"both", map[string]string{stub: `{"corp.example": ["10.1.2.3", "10.1.2.4:5353"], "b": ["fd00::1", "[fd00::2]:53"]}`, up: `["10.0.0.1", "10.0.0.2:53", "fd00::3"]`},
			kubeDNS{stubDomains: map[string][]string{"corp.example": {"10.1.2.3", "10.1.2.4:5353"}, "b": {"fd00::1", "[fd00::2]:53"}}, upstreams: []string{"10.0.0.1", "10.0.0.2:53", "fd00::3"}}, ""},
		{"transports", map[string]string{up: `["tls://10.0.0.1", "dns://10.0.0.2:53"]`}, kubeDNS{upstreams: []string{"tls://10.0.0.1", "dns://10.0.0.2:53"}}, ""},
		{"four upstreams", map[string]string{up: `["10.0.0.1","10.0.0.2","10.0.0.3","10.0.0.4"]`}, kubeDNS{}, up + ": 4 nameservers, want at most 3"},
		{"name as upstream", map[string]string{up: `["dns.example"]`}, kubeDNS{}, up + `: "dns.example" is not an IP address`},
		{"file as upstream", map[string]string{up: `["/etc/resolv.conf"]`}, kubeDNS{}, up + `: "/etc/resolv.conf" is not an IP address`},
		{"upstream of another transport", map[string]string{up: `["https://10.0.0.1/dns-query"]`}, kubeDNS{}, "the transport is not dns:// or tls://"},
		{"port", map[string]string{up: `["10.0.0.1:0"]`}, kubeDNS{}, "not a port"},
		{"empty upstream", map[string]string{up: `[""]`}, kubeDNS{}, `"" is not an IP address`},
		{"two in one", map[string]string{up: `["10.0.0.1 10.0.0.2"]`}, kubeDNS{}, "is not an IP address"},
		{"brace", map[string]string{up: `["10.0.0.1 {"]`}, kubeDNS{}, "is not an IP address"},
		{"not a list", map[string]string{up: `{"a": "b"}`}, kubeDNS{}, up + `: want JSON such as ["10.1.2.3", "10.1.2.4"], got type object before byte 1`},
		{"not JSON", map[string]string{stub: `corp.example: 10.1.2.3`}, kubeDNS{}, stub + `: want JSON such as {"corp.example": ["10.1.2.3"]}, unexpected byte 1`},
		{"half", map[string]string{stub: `{"corp.example": ["10.1.2.3"]`}, kubeDNS{}, stub + `: want JSON such as {"corp.example": ["10.1.2.3"]}, the end is missing`},
		{"two values", map[string]string{stub: `{} {}`}, kubeDNS{}, stub + `: want JSON such as {"corp.example": ["10.1.2.3"]}, unexpected byte 4`},
		{"string for a list", map[string]string{stub: `{"corp.example": "10.1.2.3"}`}, kubeDNS{}, stub + `: want JSON such as {"corp.example": ["10.1.2.3"]}, got type string before byte 27`},
		{"no nameserver", map[string]string{stub: `{"corp.example": []}`}, kubeDNS{}, "corp.example has 0 nameservers"},
		{"name as nameserver", map[string]string{stub: `{"corp.example": ["ns.corp.example"]}`}, kubeDNS{}, `corp.example: "ns.corp.example" is not an IP address`},
		{"no domain", map[string]string{stub: `{"": ["10.1.2.3"]}`}, kubeDNS{}, `"" is not a domain name`},
		{"root", map[string]string{stub: `{".": ["10.1.2.3"]}`}, kubeDNS{}, `"." is not a domain name`},
		{"domain of signs", map[string]string{stub: `{"$$$": ["10.1.2.3"]}`}, kubeDNS{}, `"$$$" is not a domain name`},
		{"domain with a brace", map[string]string{stub: `{"a {": ["10.1.2.3"]}`}, kubeDNS{}, "is not a domain name"},
		{"long label", map[string]string{stub: `{"` + strings.Repeat("a", 64) + `": ["10.1.2.3"]}`}, kubeDNS{}, "is not a domain name"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := readKubeDNS(configMap(t, tc.files))
			if tc.error == "" && err != nil || tc.error != "" && (err == nil || !strings.Contains(err.Error(), tc.error)) {
				t.Fatalf("error %v, want %q", err, tc.error)
			}
			if len(got.stubDomains)+len(got.upstreams)+len(tc.want.stubDomains)+len(tc.want.upstreams) > 0 && !reflect.DeepEqual(got, tc.want) {
				t.Errorf("%+v, want %+v", got, tc.want)
			}
		})
	}
	t.Run("missing", func(t *testing.T) {
		if _, err := readKubeDNS("/none"); err == nil || !strings.Contains(err.Error(), "/none") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("a file", func(t *testing.T) {
		if _, err := readKubeDNS("kubedns.go"); err == nil || !strings.Contains(err.Error(), "is not a directory") {
			t.Errorf("error %v", err)
		}
	})
}

// TestComesBack has servers of the ConfigMap that are this node's own, and some that are not.
func TestComesBack(t *testing.T) {
	for server, want := range map[string]bool{
		"127.0.0.1": true, "::1": true, "[::1]:53": true, "0.0.0.0": true, "127.0.0.53:53": true, "dns://127.0.0.1": true,
		"169.254.20.10": true, "::ffff:169.254.20.10": true, "169.254.20.10:53": true, "10.96.0.12": true, "fd00::10": true,
		"127.0.0.1:5353": false, "tls://127.0.0.1": false, "tls://127.0.0.1:53": true, "10.1.2.3": false, "169.254.20.11": false,
	} {
		t.Run(server, func(t *testing.T) {
			const corefile = ". {\n bind 169.254.20.10 10.96.0.12\n forward . __PILLAR__UPSTREAM__SERVERS__\n}\nb {\n nodelocal fd00::10\n bind fd00::10\n}\n"
			for _, c := range []kubeDNS{{upstreams: []string{server}}, {stubDomains: map[string][]string{"a.example": {"10.1.2.3", server}}}} {
				v := example(t, "")
				v.kubeDNS = c
				_, err := v.render(daemon.Corefile{Name: "f", Text: []byte(corefile)})
				if got := err != nil && strings.Contains(err.Error(), server) && strings.Contains(err.Error(), "would come back to this node"); got != want || err != nil && !got {
					t.Errorf("%+v: error %v", c, err)
				}
			}
		})
	}
}

// FuzzConfigMap reads any two files: they are an error, or the Corefile with them parses.
func FuzzConfigMap(f *testing.F) {
	f.Add(`{"corp.example": ["10.1.2.3", "10.1.2.4:5353"]}`, `["10.0.0.1", "[fd00::1]:53"]`)
	f.Add(`{"a": ["tls://10.1.2.3"]}`, `["dns://10.0.0.1"]`)
	f.Add(`{"a { }": ["10.1.2.3 {"]}`, `["10.0.0.1\n}"]`)
	f.Fuzz(func(t *testing.T, stubDomains, upstreams string) {
		var c kubeDNS
		if c.parseStubDomains([]byte(stubDomains)) != nil || c.parseUpstreams([]byte(upstreams)) != nil {
			return
		}
		v := example(t, "169.254.20.10")
		v.kubeDNS = c
		const corefile = "example.invalid {\n bind 169.254.20.10\n forward . __PILLAR__UPSTREAM__SERVERS__\n}\n"
		if _, err := v.render(daemon.Corefile{Name: "f", Text: []byte(corefile)}); err != nil && !strings.Contains(err.Error(), "stub domain ") && !strings.Contains(err.Error(), "would come back") {
			t.Errorf("%q and %q: %v", stubDomains, upstreams, err)
		}
	})
}
