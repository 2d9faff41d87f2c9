package metricsserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	clog "github.com/coredns/coredns/plugin/pkg/log"
	"github.com/prometheus/exporter-toolkit/web"

	"github.com/nearside-dns/nearside/cmd/internal/filewatch"
)

// tlsFiles are the flags of TLS. Files and policies are those of Prometheus's web configuration, as in node-local-dns.
type tlsFiles struct {
	enabled bool
	config  web.TLSConfig

	current   atomic.Pointer[tls.Config] // from the last valid files; nil before
	complaint string                     // why the files are invalid, as logged; only refresh uses it
}

func (t *tlsFiles) flags(f *flag.FlagSet) {
	t.config = web.TLSConfig{TLSCertPath: "/etc/ssl/tls.crt", TLSKeyPath: "/etc/ssl/tls.key", ClientAuth: "NoClientCert", MinVersion: tls.VersionTLS13}
	f.BoolVar(&t.enabled, "tls-enabled", false, "serve -metrics-listen-address over TLS")
	f.StringVar(&t.config.TLSCertPath, "tls-cert-file", t.config.TLSCertPath, "certificate of -tls-enabled, PEM; a changed file is used without a restart")
	f.StringVar(&t.config.TLSKeyPath, "tls-private-key-file", t.config.TLSKeyPath, "private key of -tls-cert-file, PEM")
	f.StringVar(&t.config.ClientCAs, "tls-client-ca-file", "", "certificates of the authorities that sign client certificates, PEM")
	f.Var(clientAuth{&t.config.ClientAuth}, "tls-client-auth-type", "policy for client certificates: "+list(clientAuthTypes))
	f.Var(minVersion{&t.config.MinVersion}, "tls-min-version", "lowest version of TLS: "+list(tlsVersions))
}

var (
	clientAuthTypes = []string{"NoClientCert", "RequestClientCert", "RequireAndVerifyClientCert", "RequireAnyClientCert", "VerifyClientCertIfGiven"}
	tlsVersions     = []string{"TLS10", "TLS11", "TLS12", "TLS13"}
)

// list returns "a, b or c".
func list(names []string) string {
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// clientAuth is the value of -tls-client-auth-type.
type clientAuth struct{ name *string }

func (c clientAuth) String() string {
	if c.name == nil { // the zero value, which package flag makes to find defaults
		return ""
	}
	return *c.name
}

func (c clientAuth) Set(text string) error {
	if !slices.Contains(clientAuthTypes, text) && text != "" && text != "RequireClientCert" { // package web accepts the last two too
		return fmt.Errorf("%q is not a policy for client certificates: want %s", text, list(clientAuthTypes))
	}
	*c.name = text
	return nil
}

// minVersion is the value of -tls-min-version.
type minVersion struct{ version *web.TLSVersion }

func (m minVersion) String() string {
	if m.version == nil { // the zero value, which package flag makes to find defaults
		return ""
	}
	return tlsVersions[*m.version-tls.VersionTLS10]
}

func (m minVersion) Set(text string) error {
	i := slices.Index(tlsVersions, text)
	if i < 0 {
		return fmt.Errorf("%q is not a version of TLS: want %s", text, list(tlsVersions))
	}
	*m.version = web.TLSVersion(tls.VersionTLS10 + i)
	return nil
}

// watch reads the files, and reads them again after each change, until the context ends.
func (t *tlsFiles) watch(ctx context.Context, every time.Duration) {
	paths := slices.DeleteFunc([]string{t.config.TLSCertPath, t.config.TLSKeyPath, t.config.ClientCAs}, func(path string) bool { return path == "" })
	w := filewatch.Watcher{Paths: func() []string { return paths }, Every: every, Settle: filewatch.Settle, Changed: t.refresh}
	w.Run(ctx)
}

// refresh reads the files. Invalid ones replace nothing, so that a failed renewal does not end the metrics.
func (t *tlsFiles) refresh() {
	c, err := t.load()
	if err == nil {
		if t.complaint != "" {
			clog.Info("Metrics: the files of -tls-enabled are valid again")
		}
		t.complaint = ""
		t.current.Store(c)
		return
	}
	if err.Error() == t.complaint {
		return
	}
	t.complaint = err.Error()
	if t.current.Load() == nil {
		clog.Errorf("Metrics are not served on -metrics-listen-address until the files of -tls-enabled are valid: %s", err)
		return
	}
	clog.Errorf("Metrics: the changed files of -tls-enabled are invalid, the last valid certificate stays in use: %s", err)
}

// wrap returns the listener with TLS. Until valid files were read, each handshake fails; DNS does not depend on it.
func (t *tlsFiles) wrap(listener net.Listener) net.Listener {
	return tls.NewListener(listener, &tls.Config{
		MinVersion: uint16(t.config.MinVersion),
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			if c := t.current.Load(); c != nil {
				return c, nil
			}
			return nil, errors.New("the files of -tls-enabled are invalid")
		},
	})
}

func (t *tlsFiles) load() (*tls.Config, error) {
	c, err := web.ConfigToTLSConfig(&t.config)
	if err != nil {
		return nil, err
	}
	if t.config.ClientCAs != "" && c.ClientCAs.Equal(x509.NewCertPool()) { // an empty pool refuses every client
		return nil, fmt.Errorf("%s has no certificate in PEM", t.config.ClientCAs)
	}
	// GetCertificate would read the files at each handshake, also when they are no longer valid.
	pair, err := c.GetCertificate(nil)
	if err != nil {
		return nil, err
	}
	c.Certificates, c.GetCertificate = []tls.Certificate{*pair}, nil
	c.NextProtos = []string{"http/1.1"}
	return c, nil
}
