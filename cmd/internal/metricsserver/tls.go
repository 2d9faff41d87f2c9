package metricsserver

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"

	clog "github.com/coredns/coredns/plugin/pkg/log"
)

// tlsFiles are the flags of TLS, with the file formats of node-local-dns.
type tlsFiles struct {
	enabled          bool
	certificate, key string // paths of PEM files
	clientCAs        string // path of a PEM file, or ""
	clientAuth       choice[tls.ClientAuthType]
	minVersion       choice[uint16]
}

func (t *tlsFiles) flags(f *flag.FlagSet) {
	t.minVersion = choice[uint16]{"TLS13", "version of TLS", tlsVersions}
	t.clientAuth = choice[tls.ClientAuthType]{"NoClientCert", "policy for client certificates", clientAuthTypes}
	f.BoolVar(&t.enabled, "tls-enabled", false, "serve -metrics-listen-address over TLS")
	f.StringVar(&t.certificate, "tls-cert-file", "/etc/ssl/tls.crt", "certificate of -tls-enabled, PEM, read for each connection")
	f.StringVar(&t.key, "tls-private-key-file", "/etc/ssl/tls.key", "private key of -tls-cert-file, PEM")
	f.StringVar(&t.clientCAs, "tls-client-ca-file", "", "certificates of the authorities that sign client certificates, PEM")
	f.Var(&t.clientAuth, "tls-client-auth-type", "policy for client certificates: "+t.clientAuth.names())
	f.Var(&t.minVersion, "tls-min-version", "lowest version of TLS: "+t.minVersion.names())
}

var tlsVersions = map[string]uint16{"TLS10": tls.VersionTLS10, "TLS11": tls.VersionTLS11, "TLS12": tls.VersionTLS12, "TLS13": tls.VersionTLS13}

var clientAuthTypes = map[string]tls.ClientAuthType{
	"NoClientCert":               tls.NoClientCert,
	"RequestClientCert":          tls.RequestClientCert,
	"RequireAnyClientCert":       tls.RequireAnyClientCert,
	"VerifyClientCertIfGiven":    tls.VerifyClientCertIfGiven,
	"RequireAndVerifyClientCert": tls.RequireAndVerifyClientCert,
}

// aliases are other names that node-local-dns accepts.
var aliases = map[string]string{"": "NoClientCert", "RequireClientCert": "RequireAnyClientCert"}

// choice is a flag whose value is one of several names.
type choice[V any] struct {
	name   string
	what   string // for errors
	values map[string]V
}

func (c *choice[V]) String() string { return c.name }

func (c *choice[V]) Set(text string) error {
	for _, name := range []string{text, aliases[text]} {
		if _, known := c.values[name]; known {
			c.name = name
			return nil
		}
	}
	return fmt.Errorf("%q is not a %s: want %s", text, c.what, c.names())
}

func (c *choice[V]) value() V { return c.values[c.name] }

// names lists the names: "a, b or c".
func (c *choice[V]) names() string {
	names := slices.Sorted(maps.Keys(c.values))
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// wrap returns the listener with TLS. The files are read at each handshake, so that renewed certificates need no
// restart; while they are invalid no handshake succeeds, and DNS is not affected.
func (t *tlsFiles) wrap(listener net.Listener) net.Listener {
	if _, err := t.load(); err != nil {
		clog.Errorf("Metrics are not served on -metrics-listen-address until the files of -tls-enabled are valid: %s", err)
	}
	return tls.NewListener(listener, &tls.Config{
		MinVersion:         t.minVersion.value(),
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return t.load() },
	})
}

func (t *tlsFiles) load() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(t.certificate, t.key)
	if err != nil {
		return nil, err
	}
	c := &tls.Config{
		Certificates: []tls.Certificate{pair},
		MinVersion:   t.minVersion.value(),
		ClientAuth:   t.clientAuth.value(),
		NextProtos:   []string{"http/1.1"},
	}
	if t.clientCAs == "" {
		return c, nil
	}
	if c.ClientAuth == tls.NoClientCert {
		return nil, errors.New("-tls-client-ca-file is set and -tls-client-auth-type is NoClientCert: want a policy that requests certificates")
	}
	text, err := os.ReadFile(t.clientCAs)
	if err != nil {
		return nil, err
	}
	c.ClientCAs = x509.NewCertPool()
	if !c.ClientCAs.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s has no certificate in PEM", t.clientCAs)
	}
	return c, nil
}
