package controlplane

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"time"
)

// certificateLife is the validity of all certificates of a control plane.
const certificateLife = 24 * time.Hour

// authority is a certificate authority with its key, made for one test.
type authority struct {
	certificate *x509.Certificate
	pem         []byte // the certificate
	key         *ecdsa.PrivateKey
}

// newAuthority makes a self-signed certificate authority.
func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make certificate authority: %w", err)
	}
	template := certificateTemplate(pkix.Name{CommonName: "nearside test authority"})
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make certificate authority: %w", err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make certificate authority: %w", err)
	}
	return &authority{certificate: certificate, pem: pemBlock("CERTIFICATE", der), key: key}, nil
}

// server makes a PEM certificate and key for a TLS server with these names and
// addresses.
func (a *authority) server(names []string, addresses []net.IP) (certificate, key []byte, err error) {
	template := certificateTemplate(pkix.Name{CommonName: names[0]})
	template.DNSNames = names
	template.IPAddresses = addresses
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	return a.sign(template)
}

// client makes a PEM certificate and key that authenticate this user in these groups.
func (a *authority) client(user string, groups []string) (certificate, key []byte, err error) {
	template := certificateTemplate(pkix.Name{CommonName: user, Organization: groups})
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return a.sign(template)
}

// sign makes a key and a certificate for it from the template, both as PEM.
func (a *authority) sign(template *x509.Certificate) (certificate, key []byte, err error) {
	subject := template.Subject.CommonName
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make key for %q: %w", subject, err)
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, private.Public(), a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("make certificate for %q: %w", subject, err)
	}
	key, err = pemKey(private)
	if err != nil {
		return nil, nil, fmt.Errorf("make key for %q: %w", subject, err)
	}
	return pemBlock("CERTIFICATE", der), key, nil
}

// certificateTemplate returns the fields that all certificates here have in common.
func certificateTemplate(subject pkix.Name) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		Subject:   subject,
		NotBefore: now.Add(-time.Hour),
		NotAfter:  now.Add(certificateLife),
	}
}

// newSigningKey makes the PEM key that service-account tokens are signed with.
func newSigningKey() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make service-account key: %w", err)
	}
	text, err := pemKey(key)
	if err != nil {
		return nil, fmt.Errorf("make service-account key: %w", err)
	}
	return text, nil
}

// pemKey writes a private key as PEM.
func pemKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pemBlock("EC PRIVATE KEY", der), nil
}

// pemBlock writes one PEM block.
func pemBlock(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// writePrivate writes a file that only this user can read.
func writePrivate(path string, text []byte) error {
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return fmt.Errorf("write certificate or key: %w", err)
	}
	return nil
}
