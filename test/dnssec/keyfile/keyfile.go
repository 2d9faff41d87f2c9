// Package keyfile makes the keys of signed zones for tests, in files as dnssec-keygen writes them.
package keyfile

import (
	"crypto"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/kit"
)

// Sizes are the sizes of the keys of an algorithm, in bits.
var Sizes = map[uint8]int{dns.ECDSAP256SHA256: 256, dns.ECDSAP384SHA384: 384, dns.ED25519: 256, dns.RSASHA256: 1024}

// Flags of keys.
const (
	KeySigning  = dns.ZONE | dns.SEP
	ZoneSigning = dns.ZONE
)

// New returns a key of a zone, and its private part.
func New(t testing.TB, zone string, flags uint16, algorithm uint8) (*dns.DNSKEY, crypto.PrivateKey) {
	t.Helper()
	public := &dns.DNSKEY{
		Hdr:   dns.RR_Header{Name: zone, Rrtype: dns.TypeDNSKEY, Class: dns.ClassINET, Ttl: 3600},
		Flags: flags, Protocol: 3, Algorithm: algorithm,
	}
	private, err := public.Generate(Sizes[algorithm])
	kit.Must(t, err)
	return public, private
}

// Write writes the two files of a key into a folder, and returns their path without the extension.
func Write(t testing.TB, folder string, public *dns.DNSKEY, private crypto.PrivateKey) string {
	t.Helper()
	base := filepath.Join(folder, fmt.Sprintf("K%s+%03d+%05d", public.Hdr.Name, public.Algorithm, public.KeyTag()))
	for path, text := range map[string]string{
		base + ".key":     "; a comment\n" + public.String() + "\n",
		base + ".private": public.PrivateKeyString(private),
	} {
		kit.Write(t, path, text)
	}
	return base
}
