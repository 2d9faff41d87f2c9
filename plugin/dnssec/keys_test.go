package dnssec

import (
	"crypto"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// keySizes are the sizes of the keys of an algorithm, in bits.
var keySizes = map[uint8]int{dns.ECDSAP256SHA256: 256, dns.ECDSAP384SHA384: 384, dns.ED25519: 256, dns.RSASHA256: 1024}

const (
	keySigning  = dns.ZONE | dns.SEP
	zoneSigning = dns.ZONE
)

// newKeyPair returns a key of a zone and its private part.
func newKeyPair(t testing.TB, zone string, flags uint16, algorithm uint8) (*dns.DNSKEY, crypto.PrivateKey) {
	t.Helper()
	public := &dns.DNSKEY{
		Hdr:   dns.RR_Header{Name: zone, Rrtype: dns.TypeDNSKEY, Class: dns.ClassINET, Ttl: 3600},
		Flags: flags, Protocol: 3, Algorithm: algorithm,
	}
	private, err := public.Generate(keySizes[algorithm])
	if err != nil {
		t.Fatal(err)
	}
	return public, private
}

// writeKey writes a key as dnssec-keygen does, and returns the path without extension.
func writeKey(t testing.TB, folder string, public *dns.DNSKEY, private crypto.PrivateKey) string {
	t.Helper()
	base := filepath.Join(folder, fmt.Sprintf("K%s+%03d+%05d", public.Hdr.Name, public.Algorithm, public.KeyTag()))
	for path, text := range map[string]string{
		base + ".key":     "; a comment\n" + public.String() + "\n",
		base + ".private": public.PrivateKeyString(private),
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return base
}

// newKey returns a key that was written and read.
func newKey(t testing.TB, zone string, flags uint16, algorithm uint8) *key {
	t.Helper()
	public, private := newKeyPair(t, zone, flags, algorithm)
	k, err := readKey(writeKey(t, t.TempDir(), public, private))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// TestReadKey reads keys of each algorithm by each of their names, and refuses files that do not belong together.
func TestReadKey(t *testing.T) {
	for algorithm := range keySizes {
		t.Run(dns.AlgorithmToString[algorithm], func(t *testing.T) {
			public, private := newKeyPair(t, "example.org.", zoneSigning, algorithm)
			base := writeKey(t, t.TempDir(), public, private)
			for _, extension := range []string{"", ".key", ".private"} {
				k, err := readKey(base + extension)
				if err != nil || k.tag != public.KeyTag() || k.public.String() != public.String() {
					t.Errorf("%q: %+v, %v", extension, k, err)
				}
			}
		})
	}
	public, private := newKeyPair(t, "example.org.", zoneSigning, dns.ECDSAP256SHA256)
	other, _ := newKeyPair(t, "example.org.", zoneSigning, dns.ECDSAP256SHA256)
	host, hostPrivate := newKeyPair(t, "example.org.", 0, dns.ECDSAP256SHA256)
	damage := func(extension, text string) string {
		base := writeKey(t, t.TempDir(), public, private)
		if err := os.WriteFile(base+extension, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return base
	}
	for name, tc := range map[string]struct {
		base string
		err  string
	}{
		"no file":               {"none", "none.key: no such file"},
		"another key":           {writeKey(t, t.TempDir(), other, private), errMismatch.Error()},
		"no key of a zone":      {writeKey(t, t.TempDir(), host, hostPrivate), errMismatch.Error()},
		"another record":        {damage(".key", "example.org. 60 IN A 192.0.2.1\n"), "no DNSKEY record"},
		"an empty file":         {damage(".key", ""), "no DNSKEY record"},
		"a damaged record":      {damage(".key", "example.org. DNSKEY x"), "bad DNSKEY"},
		"an empty private file": {damage(".private", ""), "private"},
		"an old algorithm":      {damage(".private", "Private-key-format: v1.3\nAlgorithm: 1\n"), ".private: dns: bad algorithm"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := readKey(tc.base); err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("error %v, want %q", err, tc.err)
			}
		})
	}
}
