package nodelocaldns

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"

	clog "github.com/coredns/coredns/plugin/pkg/log"
)

// metricsTLS is TLS of -metrics-listen-address, with the flags and the file formats of node-local-dns.
type metricsTLS struct {
	enabled          bool
	certificate, key string // paths of PEM files
	clientCAs        string // path of a PEM file, or ""
	clientAuth       clientAuth
	minVersion       tlsVersion
}

// tlsVersions are the values of -tls-min-version.
var tlsVersions = map[string]uint16{"TLS10": tls.VersionTLS10, "TLS11": tls.VersionTLS11, "TLS12": tls.VersionTLS12, "TLS13": tls.VersionTLS13}

// clientAuthTypes are the values of -tls-client-auth-type.
var clientAuthTypes = map[string]tls.ClientAuthType{
	"NoClientCert":               tls.NoClientCert,
	"RequestClientCert":          tls.RequestClientCert,
	"RequireAnyClientCert":       tls.RequireAnyClientCert,
	"VerifyClientCertIfGiven":    tls.VerifyClientCertIfGiven,
	"RequireAndVerifyClientCert": tls.RequireAndVerifyClientCert,
}

// tlsVersion is a key of tlsVersions.
type tlsVersion string

func (v *tlsVersion) String() string { return string(*v) }

func (v *tlsVersion) Set(text string) error {
	if _, ok := tlsVersions[text]; !ok {
		return fmt.Errorf("%q is not a version of TLS: want %s", text, oneOf(tlsVersions))
	}
	*v = tlsVersion(text)
	return nil
}

// clientAuth is a key of clientAuthTypes.
type clientAuth string

func (c *clientAuth) String() string { return string(*c) }

func (c *clientAuth) Set(text string) error {
	switch text {
	case "":
		text = "NoClientCert"
	case "RequireClientCert": // an older name
		text = "RequireAnyClientCert"
	}
	if _, ok := clientAuthTypes[text]; !ok {
		return fmt.Errorf("%q is not a policy for client certificates: want %s", text, oneOf(clientAuthTypes))
	}
	*c = clientAuth(text)
	return nil
}

// oneOf lists the keys of a map: "a, b or c".
func oneOf[V any](values map[string]V) string {
	keys := slices.Sorted(maps.Keys(values))
	last := len(keys) - 1
	return strings.Join(keys[:last], ", ") + " or " + keys[last]
}

// over returns the listener with TLS. The files are read at each handshake, so that renewed certificates
// need no restart; until they are right no handshake succeeds, and DNS is not affected.
func (m metricsTLS) over(listener net.Listener) net.Listener {
	if _, err := m.load(); err != nil {
		clog.Errorf("Metrics are not served on -metrics-listen-address until the files of -tls-enabled are right: %s", err)
	}
	return tls.NewListener(listener, &tls.Config{
		MinVersion:         tlsVersions[string(m.minVersion)],
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return m.load() },
	})
}

func (m metricsTLS) load() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(m.certificate, m.key)
	if err != nil {
		return nil, err
	}
	c := &tls.Config{
		Certificates: []tls.Certificate{pair},
		MinVersion:   tlsVersions[string(m.minVersion)],
		ClientAuth:   clientAuthTypes[string(m.clientAuth)],
		NextProtos:   []string{"http/1.1"},
	}
	if m.clientCAs == "" {
		return c, nil
	}
	if c.ClientAuth == tls.NoClientCert {
		return nil, errors.New("-tls-client-ca-file is set and -tls-client-auth-type is NoClientCert: want a policy that asks for certificates")
	}
	text, err := os.ReadFile(m.clientCAs)
	if err != nil {
		return nil, err
	}
	c.ClientCAs = x509.NewCertPool()
	if !c.ClientCAs.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s has no certificate in PEM", m.clientCAs)
	}
	return c, nil
}
