package metricsserver

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"flag"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// patience bounds every wait.
const patience = 10 * time.Second

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// certify writes a certificate for 127.0.0.1, signed by itself, and its key. It returns the certificate.
func certify(t *testing.T, serial int64, certificate, key string) *x509.Certificate {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	write(t, certificate, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	write(t, key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})))
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// TestMetricsTLS serves metrics over TLS with the flags of node-local-dns: none without TLS, a renewed certificate without a
// restart, and none to clients without a required certificate.
func TestMetricsTLS(t *testing.T) {
	serve := func(t *testing.T, args ...string) (address, folder string) {
		t.Helper()
		folder = t.TempDir()
		certify(t, 1, filepath.Join(folder, "tls.crt"), filepath.Join(folder, "tls.key"))
		var s Server
		f := flag.NewFlagSet("nodecache", flag.ContinueOnError)
		s.Flags(f)
		if err := f.Parse(append([]string{"-tls-enabled", "-tls-cert-file", filepath.Join(folder, "tls.crt"), "-tls-private-key-file", filepath.Join(folder, "tls.key")}, args...)); err != nil {
			t.Fatal(err)
		}
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			s.serve(ctx, listener)
		}()
		t.Cleanup(func() {
			stop()
			<-ended
		})
		return listener.Addr().String(), folder
	}
	get := func(url string, trust *x509.Certificate, clients ...tls.Certificate) (string, error) {
		pool := x509.NewCertPool()
		if trust != nil {
			pool.AddCert(trust)
		}
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: clients}}
		defer transport.CloseIdleConnections()
		r, err := (&http.Client{Transport: transport, Timeout: patience}).Get(url)
		if err != nil {
			return "", err
		}
		body, err := io.ReadAll(r.Body)
		if closeErr := r.Body.Close(); err == nil {
			err = closeErr
		}
		return string(body), err
	}
	const metric = "go_goroutines"

	t.Run("renewed", func(t *testing.T) {
		address, folder := serve(t)
		for serial := range int64(3) {
			certificate := certify(t, serial+2, filepath.Join(folder, "tls.crt"), filepath.Join(folder, "tls.key"))
			if got, err := get("https://"+address+"/metrics", certificate); err != nil || !strings.Contains(got, metric) {
				t.Errorf("certificate %d: error %v, %d bytes", serial+2, err, len(got))
			}
		}
		if got, err := get("http://"+address+"/metrics", nil); strings.Contains(got, metric) {
			t.Errorf("without TLS: error %v, %d bytes of metrics", err, len(got))
		}
	})
	t.Run("client certificates", func(t *testing.T) {
		client := filepath.Join(t.TempDir(), "client")
		certify(t, 9, client+".crt", client+".key")
		pair, err := tls.LoadX509KeyPair(client+".crt", client+".key")
		if err != nil {
			t.Fatal(err)
		}
		address, folder := serve(t, "-tls-client-auth-type", "RequireAndVerifyClientCert", "-tls-client-ca-file", client+".crt")
		certificate := certify(t, 2, filepath.Join(folder, "tls.crt"), filepath.Join(folder, "tls.key"))
		if got, err := get("https://"+address+"/metrics", certificate, pair); err != nil || !strings.Contains(got, metric) {
			t.Errorf("with a certificate: error %v, %d bytes", err, len(got))
		}
		if got, err := get("https://"+address+"/metrics", certificate); err == nil {
			t.Errorf("without a certificate: %d bytes", len(got))
		}
	})
	for name, args := range map[string][]string{
		"no key":                     {"-tls-private-key-file", "/none"},
		"authorities without policy": {"-tls-client-ca-file", "/none"},
		"no authorities":             {"-tls-client-ca-file", "/none", "-tls-client-auth-type", "RequireAnyClientCert"},
	} {
		t.Run(name, func(t *testing.T) {
			address, folder := serve(t, args...)
			certificate := certify(t, 2, filepath.Join(folder, "tls.crt"), filepath.Join(folder, "tls.key"))
			if got, err := get("https://"+address+"/metrics", certificate); err == nil {
				t.Errorf("%d bytes", len(got))
			}
		})
	}
}
