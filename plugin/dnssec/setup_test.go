package dnssec

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/dnssec/keyfile"
)

// TestSetup parses directives, with keys in the folder of root.
func TestSetup(t *testing.T) {
	folder := t.TempDir()
	write := func(zone string, flags uint16) string {
		public, private := keyfile.New(t, zone, flags, dns.ECDSAP256SHA256)
		return filepath.Base(keyfile.Write(t, folder, public, private))
	}
	zsk, ksk, above := write("cluster.local.", keyfile.ZoneSigning), write("cluster.local.", keyfile.KeySigning), write("Local.", keyfile.KeySigning)
	names := strings.NewReplacer("ZSK", zsk, "KSK", ksk, "ABOVE", above, "FOLDER", folder)
	for _, tc := range []struct {
		name, text string
		want       string // zones, number of keys, capacity, split
		err        string // in the error
	}{
		{"no arguments", "dnssec", "[block.test.] 0 10000 false", ""},
		{"network", "dnssec 10.0.0.0/8", "[10.in-addr.arpa.] 0 10000 false", ""},
		{"one key", "dnssec cluster.local {\nkey file ZSK\n}", "[cluster.local.] 1 10000 false", ""},
		{"two keys", "dnssec example.org Cluster.Local {\nkey file KSK.key ZSK.private\ncache_capacity 100\n}", "[example.org. cluster.local.] 2 100 true", ""},
		{"two options", "dnssec cluster.local {\nkey file FOLDER/KSK\nkey file ZSK\ncache_capacity 100\ncache_capacity 0\n}", "[cluster.local.] 2 0 true", ""},
		{"key of a zone above", "dnssec cluster.local {\nkey file ABOVE\n}", "[cluster.local.] 1 10000 false", ""},
		{"two keys of a kind", "dnssec cluster.local {\nkey file ABOVE KSK\n}", "[cluster.local.] 2 10000 false", ""},
		{"twice", "dnssec a\ndnssec b", "", "duplicate dnssec"},
		{"key of another zone", "dnssec example.org local {\nkey file ZSK ABOVE\n}", "", "of cluster.local.: want a key of one of the zones [example.org. local.], or of a zone above"},
		{"no arguments of key", "dnssec a {\nkey\n}", "", "Testfile:2 - Error during parsing: invalid key: want file and KEY..."},
		{"no file", "dnssec a {\nkey file\n}", "", `invalid key "file": want file and KEY...`},
		{"missing file", "dnssec a {\nkey file none\n}", "", "none.key: no such file or directory: want file and KEY..."},
		{"unknown place", "dnssec a {\nkey vault ZSK\n}", "", `invalid key "vault": want file and KEY...`},
		{"secrets", "dnssec a {\nkey aws_secretsmanager Ka. Kb.\n}", "", `Testfile:2 - Error during parsing: invalid key "aws_secretsmanager" "Ka." "Kb.": want file and KEY...: nearside reads keys from files only; a program with CoreDNS's dnssec: https://`},
		{"capacity without number", "dnssec a {\ncache_capacity\n}", "", "invalid cache_capacity: want 0-10000000"},
		{"capacity", "dnssec a {\ncache_capacity -1\n}", "", `invalid cache_capacity "-1": want 0-10000000`},
		{"capacity too high", "dnssec a {\ncache_capacity 10000001\n}", "", `invalid cache_capacity "10000001"`},
		{"unknown option", "dnssec a {\nnsec3\n}", "", `unknown option "nsec3": want one of cache_capacity, key`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			text := names.Replace(tc.text)
			c := caddy.NewTestController("dns", text)
			c.ServerBlockKeys = []string{"block.test.:53"}
			config := dnsserver.GetConfig(c)
			config.Root = folder
			err := setup(c)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) || strings.Contains(err.Error(), "\n") {
					t.Errorf("error %v, want %q", err, tc.err)
				}
				return
			}
			kit.Must(t, err)
			c = caddy.NewTestController("dns", text)
			c.ServerBlockKeys = []string{"block.test.:53"}
			c.Next()
			s, err := parse(c, folder)
			kit.Must(t, err)
			if got := fmt.Sprint(s.zones, len(s.keys), s.capacity, isSplit(s.keys)); got != tc.want {
				t.Errorf("parsed %s, want %s", got, tc.want)
			}
			if plugins := len(config.Plugin); plugins != min(1, len(s.keys)) {
				t.Errorf("%d handlers for %d keys", plugins, len(s.keys))
			}
		})
	}
}

// TestRelativeKey reads a key of the working directory.
func TestRelativeKey(t *testing.T) {
	folder := t.TempDir()
	t.Chdir(folder)
	public, private := keyfile.New(t, "example.org.", keyfile.ZoneSigning, dns.ED25519)
	base := filepath.Base(keyfile.Write(t, folder, public, private))
	c := caddy.NewTestController("dns", "dnssec example.org {\nkey file "+base+"\n}")
	c.Next()
	s, err := parse(c, "")
	if err != nil || len(s.keys) != 1 {
		t.Fatalf("%+v, %v", s, err)
	}
}
