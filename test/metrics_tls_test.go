package test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
)

// webConfig is a web configuration of Prometheus's exporter-toolkit. Relative files are in its folder.
const webConfig = "tls_server_config:\n  cert_file: cert.pem\n  key_file: key.pem\n"

// endpoint is an address that serves metrics over TLS.
type endpoint struct{ address, folder string }

func newEndpoint(t *testing.T) endpoint {
	t.Helper()
	e := endpoint{fmt.Sprintf("127.0.0.1:%d", daemon.FreePort(t)), t.TempDir()}
	keyPair(t, e.folder)
	kit.Write(t, e.file("web.yml"), webConfig)
	return e
}

func (e endpoint) file(name string) string { return filepath.Join(e.folder, name) }

// certificate returns the certificate in the file.
func (e endpoint) certificate(t *testing.T) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode([]byte(kit.Read(t, e.file("cert.pem"))))
	if block == nil {
		t.Fatal("no certificate in the file")
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	kit.Must(t, err)
	return certificate
}

// get reads the metrics, and returns the certificate of the server.
func (e endpoint) get() (*x509.Certificate, error) {
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	r, err := (&http.Client{Transport: transport, Timeout: 10 * time.Second}).Get("https://" + e.address + "/metrics")
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(r.Body)
	if err := errors.Join(err, r.Body.Close()); err != nil {
		return nil, err
	}
	if !strings.Contains(string(body), "coredns_dns_requests_total{") {
		return nil, fmt.Errorf("%s, no metric in %d bytes", r.Status, len(body))
	}
	return r.TLS.PeerCertificates[0], nil
}

// serves reports whether the metrics are served with a certificate.
func (e endpoint) serves(certificate *x509.Certificate) func() bool {
	return func() bool {
		got, err := e.get()
		return err == nil && got.Equal(certificate)
	}
}

// failedHandshake is the log line of prometheus about files that are invalid.
var failedHandshake = regexp.MustCompile(`TLS handshake error from \S+: failed to load X509KeyPair`)

// TestMetricsTLS has both programs serve metrics over TLS, at the address of prometheus, whose option tls is that of CoreDNS,
// and at -metrics-listen-address. Probes are without TLS.
func TestMetricsTLS(t *testing.T) {
	for _, program := range []string{"clusterdns", "nodecache"} {
		t.Run(program, func(t *testing.T) {
			path := daemon.Program(t, program)
			t.Run("invalid at the start", func(t *testing.T) { metricsTLSAtStart(t, path) })
			directive, flags := newEndpoint(t), newEndpoint(t)
			health, ready := daemon.FreePort(t), daemon.FreePort(t)
			p := daemon.Start(t, path, fmt.Sprintf(".:PORT {\n    bind 127.0.0.1\n    prometheus %s {\n        tls %s\n    }\n"+
				"    health 127.0.0.1:%d\n    ready 127.0.0.1:%d\n    whoami\n}\n", directive.address, directive.file("web.yml"), health, ready),
				"-metrics-listen-address", flags.address, "-tls-enabled", "-tls-cert-file", flags.file("cert.pem"), "-tls-private-key-file", flags.file("key.pem"))
			for name, e := range map[string]endpoint{"prometheus": directive, "-metrics-listen-address": flags} {
				kit.Eventually(t, "metrics of "+name, e.serves(e.certificate(t)))
				if got := get(t, "http://"+e.address+"/metrics"); !strings.Contains(got, "HTTP request to an HTTPS server") {
					t.Errorf("%s without TLS: %q", name, got)
				}
				keyPair(t, e.folder)
				kit.Eventually(t, "the renewed certificate of "+name, e.serves(e.certificate(t)))
			}
			for url, want := range map[string]string{fmt.Sprintf("http://127.0.0.1:%d/health", health): "OK", fmt.Sprintf("http://127.0.0.1:%d/ready", ready): "OK"} {
				if got := get(t, url); got != want {
					t.Errorf("%s: %q, want %q", url, got, want)
				}
			}
			t.Run("invalid renewal of -metrics-listen-address", func(t *testing.T) {
				before := flags.certificate(t)
				kit.Write(t, flags.file("key.pem"), "")
				kit.Eventually(t, "the error", func() bool { return lines(p, "the last valid certificate stays in use: failed to load") == 1 })
				if got, err := flags.get(); err != nil || !got.Equal(before) {
					t.Errorf("error %v, or another certificate", err)
				}
				keyPair(t, flags.folder)
				kit.Eventually(t, "valid files", flags.serves(flags.certificate(t)))
			})
			t.Run("invalid renewal of prometheus", func(t *testing.T) { // as in CoreDNS, which reads the files at each handshake
				kit.Write(t, directive.file("key.pem"), "")
				if _, err := directive.get(); err == nil {
					t.Error("metrics without a key")
				}
				kit.Eventually(t, "the error", func() bool { return failedHandshake.MatchString(p.Output()) })
				if got := question(p.Addr, "a.example."); got != "NOERROR" {
					t.Errorf("DNS: %s", got)
				}
				keyPair(t, directive.folder)
				kit.Eventually(t, "valid files", directive.serves(directive.certificate(t)))
			})
		})
	}
}

// metricsTLSAtStart has files that are invalid when the program starts: the log names them, and DNS is answered.
func metricsTLSAtStart(t *testing.T, path string) {
	directive, flags := newEndpoint(t), newEndpoint(t)
	kit.Must(t, os.Remove(directive.file("cert.pem")))
	p := daemon.Start(t, path, fmt.Sprintf(".:PORT {\n    bind 127.0.0.1\n    prometheus %s {\n        tls %s\n    }\n    whoami\n}\n", directive.address, directive.file("web.yml")),
		"-metrics-listen-address", flags.address, "-tls-enabled", "-tls-cert-file", flags.file("none"), "-tls-private-key-file", flags.file("key.pem"))
	for _, want := range []string{
		"[ERROR] Invalid TLS config: failed to read cert_file (" + directive.file("cert.pem") + ")",
		"[ERROR] Metrics are not served on -metrics-listen-address until the files of -tls-enabled are valid: failed to read cert_file (" + flags.file("none") + ")",
	} {
		kit.Eventually(t, want, func() bool { return lines(p, want) == 1 })
	}
	if got := question(p.Addr, "a.example."); got != "NOERROR" {
		t.Errorf("DNS: %s", got)
	}
	kit.Must(t, os.Rename(flags.file("cert.pem"), flags.file("none")))
	kit.Eventually(t, "metrics with the file", func() bool {
		_, err := flags.get()
		return err == nil
	})
}
