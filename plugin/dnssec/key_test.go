package dnssec

import (
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/dnssec/keyfile"
	"github.com/nearside-dns/nearside/test/kit"
)

// newKey returns a key that was written and read.
func newKey(t testing.TB, zone string, flags uint16, algorithm uint8) *key {
	t.Helper()
	public, private := keyfile.New(t, zone, flags, algorithm)
	k, err := readKey(keyfile.Write(t, t.TempDir(), public, private))
	kit.Must(t, err)
	return k
}

// TestReadKey reads keys of each algorithm by each of their names, and refuses files that do not belong together.
func TestReadKey(t *testing.T) {
	for algorithm := range keyfile.Sizes {
		t.Run(dns.AlgorithmToString[algorithm], func(t *testing.T) {
			public, private := keyfile.New(t, "example.org.", keyfile.ZoneSigning, algorithm)
			base := keyfile.Write(t, t.TempDir(), public, private)
			for _, extension := range []string{"", ".key", ".private"} {
				k, err := readKey(base + extension)
				if err != nil || k.tag != public.KeyTag() || k.public.String() != public.String() {
					t.Errorf("%q: %+v, %v", extension, k, err)
				}
			}
		})
	}
	public, private := keyfile.New(t, "example.org.", keyfile.ZoneSigning, dns.ECDSAP256SHA256)
	other, _ := keyfile.New(t, "example.org.", keyfile.ZoneSigning, dns.ECDSAP256SHA256)
	host, hostPrivate := keyfile.New(t, "example.org.", 0, dns.ECDSAP256SHA256)
	damage := func(extension, text string) string {
		base := keyfile.Write(t, t.TempDir(), public, private)
		kit.Write(t, base+extension, text)
		return base
	}
	for name, tc := range map[string]struct {
		base string
		err  string
	}{
		"no file":               {"none", "none.key: no such file"},
		"another key":           {keyfile.Write(t, t.TempDir(), other, private), errMismatch.Error()},
		"no key of a zone":      {keyfile.Write(t, t.TempDir(), host, hostPrivate), errMismatch.Error()},
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
