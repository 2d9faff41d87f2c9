package dnssec

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/dnssec/keyfile"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/kubeapi"
)

func TestMain(m *testing.M) { kubeapi.Main(m) }

// zone is a zone of the plugin file. Names of insecure are delegated to another zone of the server, which is not signed, those of
// secure to one with other keys, and those of cut to a server that does not run.
const zone = `$TTL 3600
@ IN SOA ns mail 1 7200 3600 1209600 300
@ IN NS ns
@ IN MX 10 a
@ IN TXT "text of the zone"
ns IN A 127.0.0.1
a 60 IN A 192.0.2.1
a 60 IN A 192.0.2.2
a 60 IN AAAA 2001:db8::1
a 60 IN TXT "one" "two"
_dns._udp IN SRV 0 0 53 ns
deep.empty IN A 192.0.2.3
*.wild IN A 192.0.2.4
*.wildalias IN CNAME a
alias IN CNAME a
aliases IN CNAME alias
nodata IN CNAME ns
dangling IN CNAME none
outside IN CNAME www.example.net.
tree IN DNAME empty
cut IN NS ns.cut
cut IN NS ns.example.net.
ns.cut IN A 127.0.0.2
insecure IN NS ns
secure IN NS ns
DS
`

// owners are the names of the zone and others, relative to the zone.
var owners = []string{
	"", "ns.", "a.", "A.", "_dns._udp.", "empty.", "deep.empty.", "below.deep.empty.", "x.wild.", "y.x.wild.", "wild.", "*.wild.", "x.wildalias.", "alias.",
	"aliases.", "nodata.", "dangling.", "outside.", "tree.", "deep.tree.", "none.tree.", "cut.", "Www.cut.", "ns.cut.", "b.c.d.cut.", "none.", "None.none.", "\\000.a.", "*.",
	strings.Repeat("a", 63) + ".",
}

// queried are the types of questions.
var queried = []uint16{
	dns.TypeA, dns.TypeAAAA, dns.TypeMX, dns.TypeTXT, dns.TypeNS, dns.TypeSOA, dns.TypeSRV, dns.TypeCNAME, dns.TypeDNAME, dns.TypePTR, dns.TypeDS, dns.TypeDNSKEY,
	dns.TypeCDS, dns.TypeNSEC, dns.TypeNSEC3PARAM, dns.TypeRRSIG, dns.TypeANY, dns.TypeHTTPS, 65280,
}

// signer is a zone with keys.
type signer struct {
	zone string
	keys []*dns.DNSKEY
	ds   *dns.DS // of the first key
	line string  // the option key of the Corefile
}

// newSigner writes keys with flags for a zone.
func newSigner(t *testing.T, folder, zone string, algorithm uint8, flags ...uint16) *signer {
	t.Helper()
	s := &signer{zone: zone, line: "key file"}
	for _, f := range flags {
		public, private := keyfile.New(t, zone, f, algorithm)
		s.keys = append(s.keys, public)
		s.line += " " + keyfile.Write(t, folder, public, private)
	}
	s.ds = s.keys[0].ToDS(dns.SHA256)
	return s
}

// zones are the signed zones, and the Corefile that serves them.
type zones struct {
	corefile                            string // API is the address of an API server
	split, common, two, cluster, secure *signer
}

const corefile = `
example.org:PORT {
    bind 127.0.0.1
    errors
    dnssec {
        SPLIT
    }
    transfer {
        to *
    }
    file FOLDER/zone
}
insecure.example.org:PORT {
    bind 127.0.0.1
    file FOLDER/plain
}
secure.example.org:PORT {
    bind 127.0.0.1
    dnssec {
        SECURE
    }
    file FOLDER/plain
}
common.test:PORT other.test:PORT {
    bind 127.0.0.1
    dnssec {
        COMMON
        cache_capacity 100
    }
    file FOLDER/zone
}
two.test:PORT {
    bind 127.0.0.1
    dnssec {
        TWO
    }
    file FOLDER/zone
}
cluster.local:PORT in-addr.arpa:PORT {
    bind 127.0.0.1
    dnssec cluster.local {
        CLUSTER
    }
    kubernetes cluster.local in-addr.arpa {
        endpoint API
    }
}
`

func newZones(t *testing.T) *zones {
	t.Helper()
	folder := t.TempDir()
	z := &zones{
		split:   newSigner(t, folder, "example.org.", dns.ECDSAP256SHA256, keyfile.KeySigning, keyfile.ZoneSigning),
		secure:  newSigner(t, folder, "secure.example.org.", dns.ED25519, keyfile.KeySigning),
		common:  newSigner(t, folder, "common.test.", dns.RSASHA256, keyfile.ZoneSigning),
		two:     newSigner(t, folder, "two.test.", dns.ECDSAP256SHA256, keyfile.KeySigning, keyfile.KeySigning),
		cluster: newSigner(t, folder, "cluster.local.", dns.ECDSAP256SHA256, keyfile.KeySigning),
	}
	z.secure.ds.Hdr.Ttl = 3600
	for name, text := range map[string]string{
		"zone":  strings.Replace(zone, "DS\n", strings.Replace(z.secure.ds.String(), z.secure.zone, "secure", 1)+"\n", 1),
		"plain": "$TTL 60\n@ IN SOA ns mail 1 7200 3600 1209600 300\n@ IN NS ns\nns IN A 127.0.0.1\nwww IN A 192.0.2.9\n",
	} {
		kit.Must(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600))
	}
	z.corefile = strings.NewReplacer("FOLDER", folder, "SPLIT", z.split.line, "SECURE", z.secure.line, "COMMON", z.common.line, "TWO", z.two.line, "CLUSTER", z.cluster.line).Replace(corefile)
	return z
}

// ask returns the reply to a question. do requests signatures.
func ask(t *testing.T, p *daemon.Process, name string, qtype uint16, do bool) *dns.Msg {
	t.Helper()
	m := new(dns.Msg).SetQuestion(name, qtype)
	m.SetEdns0(4096, do)
	reply, err := kit.Exchange("tcp", p.Addr, m)
	if err != nil {
		t.Fatalf("%s %s: %v", name, dns.Type(qtype), err)
	}
	return reply
}

// awaitServed waits until a server of the cluster has an address of a name.
func awaitServed(t *testing.T, p *daemon.Process, name string) {
	t.Helper()
	kit.Within(t, time.Minute, name+" is served", func() bool { return len(ask(t, p, name, dns.TypeA, false).Answer) > 0 })
}

// summary is the content of a reply, without the parts of signatures that depend on the time. A section is a set.
func summary(m *dns.Msg) string {
	text := fmt.Sprintf("%s aa=%t ad=%t tc=%t", dns.RcodeToString[m.Rcode], m.Authoritative, m.AuthenticatedData, m.Truncated)
	for i, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, line := range lines(section) {
			text += fmt.Sprintf("\n    %d %s", i, line)
		}
	}
	return text
}
