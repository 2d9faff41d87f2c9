package rogue

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"
)

// Certificate is a server's certificate with its authority, as files and as a TLS configuration. It is valid for an hour.
type Certificate struct {
	CA, Cert, Key string      // paths of PEM files
	Config        *tls.Config // of a server
}

// NewCertificate returns a certificate for names and addresses, signed by a new authority.
func NewCertificate(t testing.TB, hosts ...string) Certificate {
	t.Helper()
	authority := template(1, "authority")
	authority.IsCA, authority.BasicConstraintsValid = true, true
	authority.KeyUsage = x509.KeyUsageCertSign
	authorityKey := newKey(t)
	leaf := template(2, "server")
	leaf.KeyUsage = x509.KeyUsageDigitalSignature
	leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			leaf.IPAddresses = append(leaf.IPAddresses, ip)
		} else {
			leaf.DNSNames = append(leaf.DNSNames, h)
		}
	}
	key := newKey(t)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	kit.Must(t, err)
	folder := t.TempDir()
	c := Certificate{
		CA:   write(t, folder, "ca.pem", "CERTIFICATE", sign(t, authority, authority, &authorityKey.PublicKey, authorityKey)),
		Cert: write(t, folder, "cert.pem", "CERTIFICATE", sign(t, leaf, authority, &key.PublicKey, authorityKey)),
		Key:  write(t, folder, "key.pem", "PRIVATE KEY", private),
	}
	pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
	kit.Must(t, err)
	c.Config = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	return c
}

func template(serial int64, name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(serial),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Minute),
		NotAfter:     time.Now().Add(time.Hour),
	}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	kit.Must(t, err)
	return key
}

func sign(t testing.TB, child, parent *x509.Certificate, public *ecdsa.PublicKey, key *ecdsa.PrivateKey) []byte {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, child, parent, public, key)
	kit.Must(t, err)
	return der
}

func write(t testing.TB, folder, name, kind string, der []byte) string {
	t.Helper()
	path := filepath.Join(folder, name)
	kit.Must(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	return path
}
