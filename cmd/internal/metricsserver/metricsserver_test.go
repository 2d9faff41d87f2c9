package metricsserver

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"
)

// patience bounds every wait.
const patience = 10 * time.Second

// certify writes a certificate for 127.0.0.1, signed by itself, and its key. It returns the certificate.
func certify(t *testing.T, serial int64, certificate, key string) *x509.Certificate {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	kit.Must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	kit.Must(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	kit.Must(t, err)
	kit.Write(t, certificate, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	kit.Write(t, key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})))
	parsed, err := x509.ParseCertificate(der)
	kit.Must(t, err)
	return parsed
}

// served is a server of metrics over TLS.
type served struct {
	address string
	folder  string // of tls.crt and tls.key
	log     *kit.Log
}

// serve serves metrics with -tls-enabled and more flags.
func serve(t *testing.T, args ...string) *served {
	t.Helper()
	s := &served{folder: t.TempDir(), log: kit.Logged(t)}
	s.certify(t, 1)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	kit.Must(t, err)
	s.address = listener.Addr().String()
	kit.Must(t, listener.Close())
	var server Server
	f := flag.NewFlagSet("nodecache", flag.ContinueOnError)
	server.Flags(f)
	kit.Must(t, f.Parse(append([]string{"-metrics-listen-address", s.address, "-tls-enabled", "-tls-cert-file", s.file("tls.crt"), "-tls-private-key-file", s.file("tls.key")}, args...)))
	kit.Background(t, func(ctx context.Context) { server.Serve(ctx, 50*time.Millisecond) })
	return s
}

func (s *served) file(name string) string { return filepath.Join(s.folder, name) }

// certify replaces the certificate and its key.
func (s *served) certify(t *testing.T, serial int64) *x509.Certificate {
	t.Helper()
	return certify(t, serial, s.file("tls.crt"), s.file("tls.key"))
}

// get reads the metrics over TLS, and returns the serial number of the certificate.
func (s *served) get(clients ...tls.Certificate) (serial int64, err error) {
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: clients}}
	defer transport.CloseIdleConnections()
	r, err := (&http.Client{Transport: transport, Timeout: patience}).Get("https://" + s.address + "/metrics")
	if err != nil {
		return 0, err
	}
	body, err := io.ReadAll(r.Body)
	if err := errors.Join(err, r.Body.Close()); err != nil {
		return 0, err
	}
	if !strings.Contains(string(body), metric) {
		return 0, fmt.Errorf("status %s, no metric in %d bytes", r.Status, len(body))
	}
	return r.TLS.PeerCertificates[0].SerialNumber.Int64(), nil
}

// awaitSerial waits until the metrics are served with a certificate.
func (s *served) awaitSerial(t *testing.T, want int64) {
	t.Helper()
	kit.Succeeds(t, kit.Patience, "the certificate", func() error {
		got, err := s.get()
		if err == nil && got != want {
			err = fmt.Errorf("certificate %d, want %d", got, want)
		}
		return err
	})
}

// awaitLog waits for a line of the log.
func (s *served) awaitLog(t *testing.T, text string) {
	t.Helper()
	kit.Eventually(t, fmt.Sprintf("%q in the log", text), func() bool { return s.log.Count(text) > 0 })
}

// metric is one of those that every process has.
const metric = "go_goroutines"

// TestRenewal replaces the files of a server: valid ones are used, invalid ones are logged once and change nothing.
func TestRenewal(t *testing.T) {
	s := serve(t)
	s.awaitSerial(t, 1)
	s.certify(t, 2)
	s.awaitSerial(t, 2)
	for _, tc := range []struct {
		name, file, text, want string
	}{
		{"no certificate", "tls.crt", "nothing", "failed to load X509KeyPair"},
		{"no key", "tls.key", "", "failed to load X509KeyPair"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := s.log.Count("valid again")
			failed := s.log.Count(lastValid)
			kit.Write(t, s.file(tc.file), tc.text)
			kit.Succeeds(t, kit.Patience, "the certificate", func() error {
				if s.log.Count(lastValid) == failed {
					return errors.New("the log has no error")
				}
				return nil
			})
			serial, err := s.get()
			if err != nil || serial == 0 || s.log.Count(tc.want) == 0 {
				t.Errorf("certificate %d, error %v, %q in the log: %d", serial, err, tc.want, s.log.Count(tc.want))
			}
			s.certify(t, serial+1)
			s.awaitSerial(t, serial+1)
			if got := s.log.Count("valid again"); got != before+1 {
				t.Errorf("%d lines about valid files, want %d", got, before+1)
			}
		})
	}
	t.Run("removed", func(t *testing.T) {
		serial, err := s.get()
		kit.Must(t, err)
		kit.Must(t, os.Remove(s.file("tls.key")))
		s.awaitLog(t, "failed to read key_file ("+s.file("tls.key")+")")
		if got, err := s.get(); err != nil || got != serial {
			t.Errorf("certificate %d, error %v, want %d", got, err, serial)
		}
	})
}

// lastValid is a part of the log line about a failed renewal.
const lastValid = "the last valid certificate stays in use"

// TestInvalidAtStart has no valid files at the start: the reason is logged, and the metrics are served once there are.
func TestInvalidAtStart(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "key")
	s := serve(t, "-tls-private-key-file", missing)
	s.awaitLog(t, "Metrics are not served on -metrics-listen-address until the files of -tls-enabled are valid: failed to read key_file ("+missing+")")
	if _, err := s.get(); err == nil {
		t.Error("metrics without a key")
	}
	certify(t, 7, s.file("tls.crt"), missing)
	s.awaitSerial(t, 7)
}

// TestWithoutTLS sends a request without TLS.
func TestWithoutTLS(t *testing.T) {
	s := serve(t)
	s.awaitSerial(t, 1)
	r, err := (&http.Client{Timeout: patience}).Get("http://" + s.address + "/metrics")
	kit.Must(t, err)
	body, err := io.ReadAll(r.Body)
	if err := errors.Join(err, r.Body.Close()); err != nil || r.StatusCode != http.StatusBadRequest || strings.Contains(string(body), metric) {
		t.Errorf("status %s, error %v, %q", r.Status, err, body)
	}
}

// TestClientCertificates requires certificates of clients.
func TestClientCertificates(t *testing.T) {
	client := filepath.Join(t.TempDir(), "client")
	certify(t, 9, client+".crt", client+".key")
	pair, err := tls.LoadX509KeyPair(client+".crt", client+".key")
	kit.Must(t, err)
	s := serve(t, "-tls-client-auth-type", "RequireAndVerifyClientCert", "-tls-client-ca-file", client+".crt")
	kit.Succeeds(t, kit.Patience, "the certificate", func() error {
		_, err := s.get(pair)
		return err
	})
	if _, err := s.get(); err == nil {
		t.Error("metrics without a certificate of the client")
	}
}

// TestMinVersion has a client with an older version of TLS.
func TestMinVersion(t *testing.T) {
	s := serve(t, "-tls-min-version", "TLS13")
	s.awaitSerial(t, 1)
	conn, err := tls.Dial("tcp", s.address, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12})
	if err == nil {
		t.Errorf("version %x", conn.ConnectionState().Version)
	}
}

// TestSilentClients has clients that begin no handshake, or do not end it, beside one that reads the metrics.
func TestSilentClients(t *testing.T) {
	s := serve(t)
	s.awaitSerial(t, 1)
	for i := range 100 {
		conn, err := net.Dial("tcp", s.address)
		kit.Must(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		kit.Send(t, conn, []byte("\x16\x03\x01\x02\x00")[:i%6])
	}
	if _, err := s.get(); err != nil {
		t.Error(err)
	}
}

// TestIdleClients has clients that keep their connections after a reply: the server closes them.
func TestIdleClients(t *testing.T) {
	t.Parallel()
	s := &Server{Address: "127.0.0.1:0"}
	listener, err := net.Listen("tcp", s.Address)
	kit.Must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go s.serve(ctx, listener)
	conn, err := net.Dial("tcp", listener.Addr().String())
	kit.Must(t, err)
	defer func() { _ = conn.Close() }()
	kit.Send(t, conn, []byte("GET /metrics HTTP/1.1\r\nHost: metrics\r\n\r\n"))
	kit.Must(t, conn.SetReadDeadline(time.Now().Add(4*timeout)))
	if reply, err := io.ReadAll(conn); err != nil || !bytes.HasPrefix(reply, []byte("HTTP/1.1 200 OK")) {
		t.Errorf("the connection is not closed: %v, reply %.60q", err, reply)
	}
}

// TestInvalidFiles has files with which no handshake succeeds.
func TestInvalidFiles(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	kit.Write(t, empty, "")
	for _, tc := range []struct {
		name string
		args []string
		want string
	}{
		{"no key", []string{"-tls-private-key-file", "/none"}, "failed to read key_file (/none)"},
		{"authorities without policy", []string{"-tls-client-ca-file", "/none"}, "no such file"},
		{"authorities that no client needs", []string{"-tls-client-ca-file", empty}, "without a Client Auth Policy"},
		{"no authorities", []string{"-tls-client-ca-file", empty, "-tls-client-auth-type", "RequireAnyClientCert"}, empty + " has no certificate in PEM"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := serve(t, tc.args...)
			s.awaitLog(t, tc.want)
			if _, err := s.get(); err == nil {
				t.Error("the metrics are served")
			}
		})
	}
}

// TestDisabled has the addresses that serve nothing.
func TestDisabled(t *testing.T) {
	for _, address := range []string{"", "0"} {
		t.Run(address, func(t *testing.T) {
			var s Server
			f := flag.NewFlagSet("nodecache", flag.ContinueOnError)
			s.Flags(f)
			kit.Must(t, f.Parse([]string{"-metrics-listen-address", address, "-tls-enabled"}))
			log := kit.Logged(t)
			s.Serve(t.Context(), time.Hour) // returns
			if got := log.Count("-tls-enabled ignored: -metrics-listen-address is not set"); got != 1 {
				t.Errorf("%d lines in the log, want 1", got)
			}
		})
	}
}
