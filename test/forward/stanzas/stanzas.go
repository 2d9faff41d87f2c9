// Package stanzas has valid and invalid forward stanzas. Input: a test, which gets the files and the resolver that the
// stanzas name; output: the texts. Two programs parse them, which are compared: two plugins named forward cannot be linked
// into one program.
package stanzas

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/kit"
)

// Separator separates the errors of stanzas in the output of package stock.
const Separator = "\x00"

// Texts returns the stanzas, with FOLDER and RESOLVER replaced by a folder and a resolver of the test.
func Texts(t testing.TB) (all []string) {
	t.Helper()
	replace := strings.NewReplacer("FOLDER", folder(t), "RESOLVER", resolver(t))
	for _, s := range append(written(), whole...) {
		all = append(all, replace.Replace(s))
	}
	return all
}

// Names returns the stanzas with FOLDER and RESOLVER, in the order of Texts.
func Names() []string { return append(written(), whole...) }

// written returns stanzas made from upstreams and options. Names in them are looked up at the resolver of the test only.
func written() (all []string) {
	for _, to := range upstreams {
		all = append(all, "forward . "+to+" {\nresolver RESOLVER\n}")
	}
	for _, lines := range options {
		all = append(all, "forward . 192.0.2.1 {\n"+lines+"\n}")
	}
	for _, s := range both {
		all = append(all, "forward . "+s.to+" {\nresolver RESOLVER\n"+s.options+"\n}")
	}
	return all
}

func sixteen(form string) (text string) {
	for i := range 16 {
		text += fmt.Sprintf(form+" ", i+1)
	}
	return strings.TrimSpace(text)
}

var upstreams = []string{
	"127.0.0.1", "127.0.0.1:53", "127.0.0.1:8053", "::1", "[::1]", "[::1]:53", "[::1", "2003::1", "[2003::1]:5353", "fe80::1%eth0",
	"[fe80::1%eth0]:53", "127.0.0.1%eth0", "dns://127.0.0.1", "dns://127.0.0.1:53", "dns://[::1]:53", "dns://", "tls://", "https://", "quic://",
	"tls://127.0.0.1", "tls://127.0.0.1:8853", "tls://127.0.0.1%dns.example", "tls://127.0.0.1%dns.example:854", "tls://::1%dns.example",
	"tls://[::1%dns.example]:853", "tls://127.0.0.1%:853", "tls://127.0.0.1%192.0.2.7",
	"quic://127.0.0.1", "quic://127.0.0.1%dns.example:853", "https://127.0.0.1", "https://127.0.0.1:8443", "https://127.0.0.1%dns.example",
	"https://127.0.0.1/", "https://127.0.0.1/dns-query", "https://dns.example/dns-query", "https3://127.0.0.1:443", "https3://127.0.0.1",
	"grpc://127.0.0.1", "grpc://127.0.0.1:53", "unix:///run/dns.sock", "udp://127.0.0.1", "tcp://127.0.0.1:53", "TLS://127.0.0.1",
	"a27.0.0.1", "10.0.0.256", "8.9.1043", "1.2.3", "01.2.3.4", "127.0.0.1,127.0.0.2", "127.0.0.1;53", "127.0.0.1:53:53", "127.0.0.1/32", "\"\"",
	"127.0.0.1:", "127.0.0.1:0", "127.0.0.1:65535", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:port", "127.0.0.1:domain",
	"dns.example", "dns.example.", "DNS.Example", "dns.example:5353", "tls://dns.example", "tls://dns.example%other.example", "tls://dns.example%other.example:853",
	"https://dns.example", "quic://dns.example:8853", "six.example", "none.example", "missing.example", "missing.example 192.0.2.1", "under_score.example",
	"grpc://dns.example", "dns..example", ".dns.example", "-", "*", ".", "dns.example 192.0.2.1", "[dns.example]:53", "[dns.example]", "dns.example:0x35",
	"FOLDER/resolv.conf", "FOLDER/six.conf", "FOLDER/empty.conf", "FOLDER/comments.conf", "FOLDER/empty.conf 192.0.2.1", "FOLDER/many.conf", "FOLDER/names.conf",
	"FOLDER/missing.conf", "FOLDER/missing.conf 192.0.2.1", "FOLDER", "FOLDER 192.0.2.1", "FOLDER/resolv.conf:53", "dns://FOLDER/resolv.conf", "tls://FOLDER/resolv.conf",
	"FOLDER/resolv.conf FOLDER/resolv.conf 192.0.2.53", "FOLDER/resolv.conf dns.example tls://192.0.2.1",
	sixteen("192.0.2.%d"), strings.TrimSuffix(sixteen("192.0.2.%d"), " 192.0.2.16"), sixteen("192.0.2.1"), sixteen("FOLDER/resolv.conf"),
	strings.Replace(sixteen("192.0.2.%d"), "192.0.2.16", "FOLDER/empty.conf", 1),
	"192.0.2.1 192.0.2.1", "192.0.2.1 dns://192.0.2.1:53 tls://192.0.2.1",
}

var options = []string{
	"", "except example.org", "except example.org 10.0.0.0/8 b.example", "except", "except a..b", "except example.org\nexcept example.net",
	"force_tcp", "force_tcp yes", "prefer_udp", "prefer_udp 1", "force_tcp\nprefer_udp", "force_tcp\nforce_tcp",
	"expire 20s", "expire 0", "expire 0s", "expire -1s", "expire 20", "expire", "expire 1s 2s", "expire 10s\nexpire 20s", "expire 1s force_tcp",
	"max_age 30s", "max_age 0", "max_age -1s", "max_age 1s", "max_age 1s\nexpire 1s", "max_age 10s", "max_age 9s", "max_age", "max_age 20",
	"max_idle_conns 10", "max_idle_conns 0", "max_idle_conns -1", "max_idle_conns many", "max_idle_conns", "max_idle_conns +3",
	"read_timeout 3s", "read_timeout 0", "read_timeout -1s", "read_timeout x", "read_timeout", "read_timeout 1m",
	"max_fails 0", "max_fails 3", "max_fails -1", "max_fails x", "max_fails 4294967295", "max_fails 4294967296", "max_fails", "max_fails +1", "max_fails 1 2",
	"max_connect_attempts 0", "max_connect_attempts 5", "max_connect_attempts -4", "max_connect_attempts many", "max_connect_attempts 4294967295", "max_connect_attempts",
	"doh_method GET", "doh_method POST", "doh_method PUT", "doh_method get", "doh_method",
	"tls", "tls FOLDER/cert.pem", "tls FOLDER/cert.pem FOLDER/key.pem", "tls FOLDER/cert.pem FOLDER/key.pem FOLDER/cert.pem",
	"tls FOLDER/cert.pem FOLDER/key.pem FOLDER/cert.pem x", "tls FOLDER/missing.pem", "tls FOLDER/empty.conf", "tls FOLDER/key.pem FOLDER/cert.pem", "tls FOLDER/cert.pem FOLDER/missing.pem",
	"tls_servername dns.example", "tls_servername", "tls_servername a b", "tls\ntls_servername dns.example",
	"policy random", "policy round_robin", "policy sequential", "policy least_conn", "policy Random", "policy", "policy random sequential",
	"health_check 1s", "health_check 0", "health_check -1s", "health_check", "health_check no_rec", "health_check 0.5s no_rec", "health_check 1s no_rec domain example.org",
	"health_check 1s domain", "health_check 1s domain example..org", "health_check 1s domain .", "health_check 1s rec", "health_check 1s domain a.example no_rec domain b.example",
	"health_check 1s no_rec\nhealth_check 2s", "health_check domain example.org",
	"max_concurrent 1000", "max_concurrent 0", "max_concurrent -4", "max_concurrent many", "max_concurrent",
	"next NXDOMAIN", "next nxdomain ServFail", "next", "next NOERROR", "next 3", "next NXDOMAIN BLAH", "next NXDOMAIN\nnext SERVFAIL",
	"next_on_nodata", "next_on_nodata yes", "failfast_all_unhealthy_upstreams", "failfast_all_unhealthy_upstreams true",
	"failover SERVFAIL REFUSED", "failover", "failover NOERROR", "failover SERVFAIL noerror", "failover BLAH", "failover servfail\nfailover NXDOMAIN",
	"source_address 127.0.0.1", "source_address ::1", "source_address lo", "source_address", "source_address 127.0.0.1:53",
	"resolver 10.0.0.1", "resolver 10.0.0.1:5353 ::1 [::1]:53", "resolver dns.example", "resolver", "resolver 10.0.0.1:", "resolver [::1]", "resolver 10.0.0.1 x",
	"blaatl", "FORCE_TCP", "policy random\nblaatl 1", "expire 1s {\nforce_tcp\n}", "except a {\nforce_tcp\n}", "force_tcp {\n}", "health_check 1s {\nforce_tcp\n}", "{\nforce_tcp\n}",
}

var both = []struct{ to, options string }{
	{"tls://127.0.0.1", "tls_servername dns.example"},
	{"tls://127.0.0.1%a.example", "tls_servername dns.example"},
	{"quic://127.0.0.1%a.example", "tls_servername dns.example"},
	{"https://127.0.0.1%a.example", "tls_servername dns.example"},
	{"127.0.0.1%eth0", "tls_servername dns.example"},
	{"tls://dns.example%a.example", "tls_servername dns.example"},
	{"tls://dns.example", "tls_servername dns.example"},
	{"tls://127.0.0.1%a.example", "tls"},
	{"192.0.2.1 192.0.2.2", "policy sequential\nfailover SERVFAIL\nmax_fails 0\nforce_tcp\nexpire 1m\nmax_age 1h"},
}

var whole = []string{
	"forward", "forward .", "forward . {\n}", "forward {\n}", "forward example.org 192.0.2.1", "forward Example.ORG. 192.0.2.1", "forward example.org:53 192.0.2.1",
	"forward 10.9.3.0/18 127.0.0.1", "forward 10.0.0.0/8 127.0.0.1", "forward 2001:db8::/32 127.0.0.1", "forward 10.0.0.0/33 127.0.0.1", "forward dns://. 127.0.0.1",
	"forward xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx 127.0.0.1", "forward a..b 127.0.0.1", "forward \"\" 127.0.0.1", "forward example.org: 127.0.0.1",
	"forward . 192.0.2.1 { }", "forward . 192.0.2.1 {\n}\nforward com 192.0.2.2", "forward . ::1\nforward com ::2", "forward . ::1\nforward com",
	"forward . 192.0.2.1 {\nnext NXDOMAIN\n}\nforward . 192.0.2.2 {\nblaatl\n}", "forward a.example 192.0.2.1\nforward a.example 192.0.2.1", "forward . \"192.0.2.1\"",
}

// folder returns the path of a folder with the files that the stanzas name.
func folder(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	certificate, key := pair(t)
	for name, text := range map[string]string{
		"resolv.conf":   "search example.org\nnameserver 192.0.2.53\nnameserver 192.0.2.54\noptions ndots:5\n",
		"six.conf":      "nameserver 2001:db8::53\nnameserver fe80::53%eth0\n",
		"empty.conf":    "",
		"comments.conf": "# nameserver 192.0.2.53\n; nameserver 192.0.2.53\nnameserver\n",
		"many.conf":     strings.ReplaceAll(sixteen("nameserver,192.0.2.%d"), " ", "\n"),
		"names.conf":    "nameserver dns.example\n",
		"cert.pem":      certificate,
		"key.pem":       key,
	} {
		text = strings.ReplaceAll(text, "nameserver,", "nameserver ")
		kit.Write(t, filepath.Join(dir, name), text)
	}
	return dir
}

func pair(t testing.TB) (certificate, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	kit.Must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	kit.Must(t, err)
	text, err := x509.MarshalPKCS8PrivateKey(private)
	kit.Must(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: text}))
}

// records are the resolver's records.
var records = map[dns.Question][]string{
	{Name: "dns.example.", Qtype: dns.TypeA, Qclass: dns.ClassINET}:            {"A 192.0.2.1", "A 192.0.2.2"},
	{Name: "dns.example.", Qtype: dns.TypeAAAA, Qclass: dns.ClassINET}:         {"AAAA 2001:db8::1"},
	{Name: "six.example.", Qtype: dns.TypeAAAA, Qclass: dns.ClassINET}:         {"AAAA 2001:db8::2"},
	{Name: "under_score.example.", Qtype: dns.TypeAAAA, Qclass: dns.ClassINET}: {"AAAA 2001:db8::2"},
}

// resolver starts a DNS server on a loopback address, and returns the address.
func resolver(t testing.TB) string {
	t.Helper()
	return kit.Serve(t, "127.0.0.1:0", func(w dns.ResponseWriter, r *dns.Msg) {
		m := new(dns.Msg)
		m.SetReply(r)
		q := r.Question[0]
		q.Name = strings.ToLower(q.Name)
		for _, text := range records[q] {
			rr, err := dns.NewRR(q.Name + " 60 IN " + text)
			if err != nil {
				t.Error(err)
				return
			}
			m.Answer = append(m.Answer, rr)
		}
		if q.Name != "none.example." && len(m.Answer) == 0 && len(records[dns.Question{Name: q.Name, Qtype: dns.TypeAAAA, Qclass: q.Qclass}]) == 0 {
			m.Rcode = dns.RcodeNameError
		}
		_ = w.WriteMsg(m) // the client may be gone
	})
}
