package deploy

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
)

const corefiles = deployed + "/corefiles"

// question is a question with its answer.
type question struct{ name, want string }

// Answers of the servers that a Corefile here names: ofOutside is the node's resolver's.
const (
	ofOutside = "A 192.0.2.80"
	ofInside  = "A 192.0.2.90"
	ofService = "A 10.96.12.34"
)

// service is the Service that every Corefile must answer.
var service = question{"web.shop.svc.cluster.local A", ofService}

// cases are the questions for the files of a program.
var cases = map[string]map[string][]question{
	"clusterdns": {
		"stub-domain":   {{"www.corp.example.com A", ofInside}, {"www.example.com A", ofOutside}},
		"split-horizon": {{"www.example.com A", ofOutside}, {"www.example.org A", ofOutside}},
		"dns-over-tls":  {{"www.example.com A", ofInside}},
		"hosts":         {{"registry.example.com A", "A 192.0.2.10"}, {"www.example.com A", ofOutside}},
		"rewrite":       {{"shop.example.com A", ofService}, {"web.shop.cluster.example.com A", ofService}, {"www.example.com A", ofOutside}},
		"log":           {{"www.corp.example.com A", ofOutside}},
		"topology":      {{"www.example.com A", ofOutside}},
		"autopath":      {{"www.example.com A", ofOutside}},
		"searchpath":    {{"web.v1.search.shop.cluster.local.ap.k8s.io A", "CNAME web.shop.svc.cluster.local., " + ofService}},
		"clusterset":    {{"dns-version.clusterset.local TXT", `TXT "1.0.0"`}},
		"several-zones": {{"web.shop.svc.k8s.example.com A", ofService}},
	},
	"nodecache": {
		"stub-domain":         {{"www.corp.example.com A", ofInside}, {"www.example.com A", ofOutside}},
		"split-horizon":       {{"www.example.com A", ofOutside}},
		"dns-over-tls":        {{"www.example.com A", ofInside}},
		"hosts":               {{"registry.example.com A", "A 192.0.2.10"}, {"www.example.com A", ofOutside}},
		"no-ipv6":             {{"www.example.com AAAA", "NOERROR"}, {"www.example.com A", ofOutside}},
		"log":                 {{"www.corp.example.com A", ofOutside}},
		"cluster-dns-for-all": {{"www.example.com A", ofService}},
		"stale":               {{"www.example.com A", ofOutside}},
		"searchpath":          {{"web.v1.search.shop.cluster.local.ap.k8s.io A", "CNAME web.shop.svc.cluster.local., " + ofService}},
		"clusterset":          {{"web.shop.svc.clusterset.local A", ofService}},
	},
}

// snippet reads a file and replaces the servers in it by those of the test.
func snippet(t *testing.T, program, name string) string {
	t.Helper()
	text := kit.Read(t, filepath.Join(corefiles, program, name+".corefile"))
	inside := "192.0.2.90"
	if name == "split-horizon" {
		inside = "" // and has no names
	}
	address := upstream(t, inside)
	replaced := regexp.MustCompile(`(?m)^(    forward \.) 10\.150\.0\.1.*?( \{)?$`).ReplaceAllString(text, "$1 "+address+"$2")
	if strings.Contains(replaced, "tls://") {
		secure, ca := upstreamTLS(t, "192.0.2.90", "dns.quad9.net")
		replaced = regexp.MustCompile(`forward \. tls://.* \{`).ReplaceAllString(replaced, "forward . tls://"+secure+" {\n        tls "+ca)
	}
	return replaced
}

// upstreamTLS is upstream over TLS, with a certificate for this name, whose file it returns.
func upstreamTLS(t *testing.T, address, name string) (at, ca string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	kit.Must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	kit.Must(t, err)
	ca = filepath.Join(t.TempDir(), "ca.pem")
	kit.Must(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS12})
	kit.Must(t, err)
	kit.Run(t, &dns.Server{Listener: listener, Handler: always(address)})
	return listener.Addr().String(), ca
}

// blockName matches the first line of a server block.
var blockName = regexp.MustCompile(`(?m)^(\S+):53 \{\n`)

// added adds server blocks to a Corefile: they replace those of the same name, or are appended.
func added(t *testing.T, corefile, blocks string) string {
	t.Helper()
	for _, name := range blockName.FindAllStringSubmatch(blocks, -1) {
		corefile = regexp.MustCompile(`(?ms)^`+regexp.QuoteMeta(name[1])+`:53 \{\n.*?^\}\n`).ReplaceAllString(corefile, "")
	}
	return corefile + blocks
}

// TestSnippets starts each file of deploy/corefiles and sends the questions that the file is about.
func TestSnippets(t *testing.T) {
	base := kit.Read(t, deployed+"/nodecache/Corefile.base")
	for name, questionsOf := range cases {
		files, err := filepath.Glob(filepath.Join(corefiles, name, "*"))
		kit.Must(t, err)
		for _, file := range files {
			file = strings.TrimSuffix(filepath.Base(file), ".corefile")
			t.Run(name+"/"+file, func(t *testing.T) {
				questions, ok := questionsOf[file]
				if !ok {
					t.Fatal("no question in cases")
				}
				corefile := snippet(t, name, file)
				if name == "nodecache" {
					corefile = added(t, base, corefile)
					corefile = strings.NewReplacer(
						"__PILLAR__CLUSTER__DNS__", upstream(t, "10.96.12.34"), "__PILLAR__UPSTREAM__SERVERS__", "/etc/resolv.conf",
						"    bind __PILLAR__LOCAL__DNS__\n", "", "__PILLAR__LOCAL__DNS__:", ":",
					).Replace(corefile)
				}
				corefile = onLoopback(t, corefile, cluster(t).URL(), upstream(t, "192.0.2.80"))
				p := daemon.Start(t, daemon.Program(t, name), corefile)
				for _, q := range append(slices.Clone(questions), service) {
					awaitAnswer(t, p.Addr, q.name, q.want)
				}
				if file == "log" { // the line is written after the answer
					kit.Succeeds(t, deadline, "the query in the log", func() error {
						if !strings.Contains(p.Output(), "www.corp.example.com") {
							return errors.New(p.Output())
						}
						return nil
					})
				}
			})
		}
		if len(files) != len(questionsOf) {
			t.Errorf("%s: %d files, %d of them known", name, len(files), len(questionsOf))
		}
	}
}

// TestAddServerBlocks has the places of added server blocks.
func TestAddServerBlocks(t *testing.T) {
	const corefile = "a:53 {\n    x {\n    }\n}\nb:53 {\n    y\n}\n"
	for _, tc := range []struct{ name, blocks, want string }{
		{"in the place", "# why\na:53 {\n    z\n}\n", "b:53 {\n    y\n}\n# why\na:53 {\n    z\n}\n"},
		{"at the end", "c:53 {\n}\n", corefile + "c:53 {\n}\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := added(t, corefile, tc.blocks); got != tc.want {
				t.Errorf("got\n%s", got)
			}
		})
	}
}
