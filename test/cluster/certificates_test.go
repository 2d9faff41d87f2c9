//go:build linux

package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/nearside-dns/nearside/test/kit"
)

// authority signs the certificates of one cluster and writes them to files.
type authority struct {
	folder      string
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// newAuthority makes an authority. Its certificate is ca.crt in the folder.
func newAuthority(t *testing.T, folder string) *authority {
	t.Helper()
	a := &authority{folder: folder, key: newKey(t)}
	a.certificate = &x509.Certificate{
		Subject: pkix.Name{CommonName: "nearside test authority"}, SerialNumber: big.NewInt(1),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, a.certificate, a.certificate, a.key.Public(), a.key)
	kit.Must(t, err)
	a.write(t, "ca.crt", "CERTIFICATE", der)
	return a
}

// server makes the pair NAME.crt and NAME.key for a server with these addresses.
func (a *authority) server(t *testing.T, name string, names []string, addresses ...net.IP) {
	t.Helper()
	a.pair(t, name, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: names, IPAddresses: addresses,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
}

// client makes the pair NAME.crt and NAME.key for a user of the API server, and NAME.kubeconfig with it.
func (a *authority) client(t *testing.T, name, server, user string, groups ...string) {
	t.Helper()
	a.pair(t, name, &x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	config := api.NewConfig()
	config.Clusters["test"] = &api.Cluster{Server: server, CertificateAuthority: a.path("ca.crt")}
	config.AuthInfos["test"] = &api.AuthInfo{ClientCertificate: a.path(name + ".crt"), ClientKey: a.path(name + ".key")}
	config.Contexts["test"] = &api.Context{Cluster: "test", AuthInfo: "test"}
	config.CurrentContext = "test"
	kit.Must(t, clientcmd.WriteToFile(*config, a.path(name+".kubeconfig")))
}

// pair signs a certificate with a new key and writes both.
func (a *authority) pair(t *testing.T, name string, template *x509.Certificate) {
	t.Helper()
	key := newKey(t)
	var err error
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 64)); err != nil {
		t.Fatal(err)
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.NotBefore, template.NotAfter = a.certificate.NotBefore, a.certificate.NotAfter
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	kit.Must(t, err)
	a.write(t, name+".crt", "CERTIFICATE", der)
	if der, err = x509.MarshalECPrivateKey(key); err != nil {
		t.Fatal(err)
	}
	a.write(t, name+".key", "EC PRIVATE KEY", der)
}

func (a *authority) path(name string) string { return filepath.Join(a.folder, name) }

func (a *authority) write(t *testing.T, name, kind string, der []byte) {
	t.Helper()
	text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	kit.Write(t, a.path(name), string(text))
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	kit.Must(t, err)
	return key
}
