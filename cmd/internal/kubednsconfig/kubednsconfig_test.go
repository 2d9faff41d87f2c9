package kubednsconfig

import (
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

// configMap writes a directory with these files.
func configMap(t testing.TB, files map[string]string) string {
	t.Helper()
	directory := t.TempDir()
	for name, text := range files {
		kit.Write(t, filepath.Join(directory, name), text)
	}
	return directory
}

func TestRead(t *testing.T) {
	const stub, up = "stubDomains", "upstreamNameservers"
	for _, tc := range []struct {
		name  string
		files map[string]string
		want  Config
		error string
	}{
		{"empty", nil, Config{}, ""},
		{"empty files", map[string]string{stub: " \n", up: ""}, Config{}, ""},
		{"null", map[string]string{stub: "null", up: "null"}, Config{}, ""},
		{"other files", map[string]string{"federations": "x", "README": "x"}, Config{}, ""},
		{"both", map[string]string{stub: `{"corp.example": ["10.1.2.3", "10.1.2.4:5353"], "b": ["fd00::1", "[fd00::2]:53"]}`, up: `["10.0.0.1", "10.0.0.2:53", "fd00::3"]`},
			Config{StubDomains: map[string][]string{"corp.example": {"10.1.2.3", "10.1.2.4:5353"}, "b": {"fd00::1", "[fd00::2]:53"}}, Upstreams: []string{"10.0.0.1", "10.0.0.2:53", "fd00::3"}}, ""},
		{"transports", map[string]string{up: `["tls://10.0.0.1", "dns://10.0.0.2:53"]`}, Config{Upstreams: []string{"tls://10.0.0.1", "dns://10.0.0.2:53"}}, ""},
		{"four upstreams", map[string]string{up: `["10.0.0.1","10.0.0.2","10.0.0.3","10.0.0.4"]`}, Config{}, up + ": 4 nameservers, want at most 3"},
		{"name as upstream", map[string]string{up: `["dns.example"]`}, Config{}, up + `: "dns.example" is not an IP address`},
		{"file as upstream", map[string]string{up: `["/etc/resolv.conf"]`}, Config{}, up + `: "/etc/resolv.conf" is not an IP address`},
		{"upstream of another transport", map[string]string{up: `["https://10.0.0.1/dns-query"]`}, Config{}, "the transport is not dns:// or tls://"},
		{"port", map[string]string{up: `["10.0.0.1:0"]`}, Config{}, "not a port"},
		{"empty upstream", map[string]string{up: `[""]`}, Config{}, `"" is not an IP address`},
		{"two in one", map[string]string{up: `["10.0.0.1 10.0.0.2"]`}, Config{}, "is not an IP address"},
		{"brace", map[string]string{up: `["10.0.0.1 {"]`}, Config{}, "is not an IP address"},
		{"not a list", map[string]string{up: `{"a": "b"}`}, Config{}, up + `: want JSON such as ["10.1.2.3", "10.1.2.4:5353"]: byte 1: json: cannot unmarshal object`},
		{"not JSON", map[string]string{stub: `corp.example: 10.1.2.3`}, Config{}, stub + `: want JSON such as {"corp.example": ["10.1.2.3"]}: byte 1: invalid character 'c' looking for beginning of value`},
		{"half", map[string]string{stub: `{"corp.example": ["10.1.2.3"]`}, Config{}, stub + `: want JSON such as {"corp.example": ["10.1.2.3"]}: byte 29: unexpected end of JSON input`},
		{"two values", map[string]string{stub: `{} {}`}, Config{}, stub + `: want JSON such as {"corp.example": ["10.1.2.3"]}: byte 4: invalid character '{' after top-level value`},
		{"string for a list", map[string]string{stub: `{"corp.example": "10.1.2.3"}`}, Config{}, stub + `: want JSON such as {"corp.example": ["10.1.2.3"]}: byte 27: json: cannot unmarshal string`},
		{"no nameserver", map[string]string{stub: `{"corp.example": []}`}, Config{}, "corp.example has 0 nameservers"},
		{"name as nameserver", map[string]string{stub: `{"corp.example": ["ns.corp.example"]}`}, Config{}, `corp.example: "ns.corp.example" is not an IP address`},
		{"no domain", map[string]string{stub: `{"": ["10.1.2.3"]}`}, Config{}, `"" is not a domain name`},
		{"root", map[string]string{stub: `{".": ["10.1.2.3"]}`}, Config{}, `"." is not a domain name`},
		{"domain of signs", map[string]string{stub: `{"$$$": ["10.1.2.3"]}`}, Config{}, `"$$$" is not a domain name`},
		{"domain with a brace", map[string]string{stub: `{"a {": ["10.1.2.3"]}`}, Config{}, "is not a domain name"},
		{"long label", map[string]string{stub: `{"` + strings.Repeat("a", 64) + `": ["10.1.2.3"]}`}, Config{}, "is not a domain name"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Read(configMap(t, tc.files))
			if tc.error == "" && err != nil || tc.error != "" && (err == nil || !strings.Contains(err.Error(), tc.error)) {
				t.Fatalf("error %v, want %q", err, tc.error)
			}
			if len(got.StubDomains)+len(got.Upstreams)+len(tc.want.StubDomains)+len(tc.want.Upstreams) > 0 && !reflect.DeepEqual(got, tc.want) {
				t.Errorf("%+v, want %+v", got, tc.want)
			}
		})
	}
	t.Run("missing", func(t *testing.T) {
		if _, err := Read("/none"); err == nil || !strings.Contains(err.Error(), "/none") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("a file", func(t *testing.T) {
		if _, err := Read("kubednsconfig.go"); err == nil || !strings.Contains(err.Error(), "is not a directory") {
			t.Errorf("error %v", err)
		}
	})
}
