package tls

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"

	"github.com/nearside-dns/nearside/test/forward/rogue"
)

// TestSetup loads certificates in the forms of the directive, and refuses others.
func TestSetup(t *testing.T) {
	folder := filepath.Dir(rogue.NewCertificate(t, "dns.test").Cert)
	for _, tc := range []struct {
		name, text string
		auth       tls.ClientAuthType
		err        string // in the error, "" for none
	}{
		{"certificate and key", "tls cert.pem key.pem", tls.NoClientCert, ""},
		{"authorities", "tls cert.pem key.pem ca.pem {\nclient_auth require_and_verify\n}", tls.RequireAndVerifyClientCert, ""},
		{"absolute path", "tls " + filepath.Join(folder, "cert.pem") + " key.pem {\nclient_auth request\n}", tls.RequestClientCert, ""},
		{"ACME", "tls", 0, "requests no certificates"},
		{"ACME with options", "tls {\ndomain example.org\n}", 0, "requests no certificates"},
		{"one file", "tls cert.pem", 0, `invalid tls "cert.pem"`},
		{"four files", "tls a b c d", 0, `invalid tls "a" "b" "c" "d"`},
		{"missing file", "tls none.crt key.pem", 0, "none.crt"},
		{"unknown option", "tls cert.pem key.pem {\nciphers all\n}", 0, `unknown option "ciphers"`},
		{"unknown value", "tls cert.pem key.pem {\nclient_auth always\n}", 0, `invalid client_auth "always": want nocert`},
		{"twice", "tls cert.pem key.pem\ntls cert.pem key.pem", 0, "duplicate tls"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := caddy.NewTestController("dns", tc.text)
			config := dnsserver.GetConfig(c)
			config.Root = folder
			err := setup(c)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error %v, want %q", err, tc.err)
				}
				return
			}
			if err != nil || len(config.TLSConfig.Certificates) != 1 || config.TLSConfig.ClientAuth != tc.auth {
				t.Errorf("%+v, %v", config.TLSConfig, err)
			}
		})
	}
}

// TestKeyLog writes keys between the start and the end of a server.
func TestKeyLog(t *testing.T) {
	folder := filepath.Dir(rogue.NewCertificate(t, "dns.test").Cert)
	c := caddy.NewTestController("dns", "tls cert.pem key.pem {\nkeylog keys\n}")
	config := dnsserver.GetConfig(c)
	config.Root = folder
	kit.Must(t, setup(c))
	keys, ok := config.TLSConfig.KeyLogWriter.(*keyLog)
	if !ok {
		t.Fatalf("%T", config.TLSConfig.KeyLogWriter)
	}
	if err := keys.close(); err != nil {
		t.Errorf("before the start: %v", err)
	}
	kit.Must(t, keys.open())
	if _, err := keys.Write([]byte("secret\n")); err != nil {
		t.Error(err)
	}
	if err := keys.close(); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(filepath.Join(folder, "keys")); err != nil || string(text) != "secret\n" {
		t.Errorf("%q, %v", text, err)
	}
	missing := keyLog{path: filepath.Join(folder, "none", "keys")}
	if err := missing.open(); err == nil {
		t.Error("a file in a missing folder")
	}
}
