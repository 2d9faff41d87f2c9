package forward

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/plugin/pkg/nearside"
	"github.com/coredns/coredns/plugin/pkg/proxy"

	"github.com/miekg/dns"
)

func newController(serverType, input string) *caddy.Controller {
	return nearside.NewController(serverType, input)
}

var (
	stanzas  = map[*Forward]string{} // of the first of several
	programs = map[*Forward]*nearside.Program{}
)

func parseForward(c *caddy.Controller) ([]*Forward, error) {
	all, err := coreParseForward(c)
	if len(all) > 0 {
		stanzas[all[0]] = nearside.Text(c)
	}
	nearside.Parsed(c, err)
	return all, err
}

// ServeDNS sends the query to the program.
func (f *Forward) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	if programs[f] == nil {
		programs[f] = &nearside.Program{}
	}
	p := programs[f]
	if err := p.Use(f.corefile()); err != nil {
		return dns.RcodeServerFailure, err
	}
	reply, err := p.Exchange(ctx, w, r)
	if err != nil && reply != nil {
		return reply.Rcode, err
	}
	if err != nil {
		return dns.RcodeServerFailure, err
	}
	return dns.RcodeSuccess, w.WriteMsg(reply)
}

// corefile returns the stanzas that the test has parsed, or the configuration of the fields.
func (f *Forward) corefile() string {
	var b strings.Builder
	line := func(format string, values ...any) { fmt.Fprintf(&b, format+"\n", values...) }
	line(".:0 {\nerrors")
	if text := stanzas[f]; text != "" {
		line("%s\n}", withOptions(text, f.options()))
		return b.String()
	}
	line("forward %s %s {", f.from, strings.Join(f.addresses(), " "))
	line("max_fails %d\npolicy %s", f.maxfails, f.p)
	if h := f.health(); h != nil && h.GetRecursionDesired() {
		line("health_check %s domain %s", f.hcInterval, h.GetDomain())
	} else if h != nil {
		line("health_check %s no_rec domain %s", f.hcInterval, h.GetDomain())
	}
	if f.opts.ForceTCP {
		line("force_tcp")
	}
	if f.opts.PreferUDP {
		line("prefer_udp")
	}
	if f.maxConnectAttemptsSet {
		line("max_connect_attempts %d", f.maxConnectAttempts)
	}
	if f.failfastUnhealthyUpstreams {
		line("failfast_all_unhealthy_upstreams")
	}
	line("}\n}")
	return b.String()
}

// options are those that tests set in Go after they have parsed a stanza.
func (f *Forward) options() (lines []string) {
	certificate := trusted[f]
	if certificate == nil && len(f.proxies) > 0 {
		if config := f.proxies[0].GetTransport().GetTLSConfig(); config != nil {
			certificate = roots[config.RootCAs]
		}
	}
	if certificate != nil {
		path := filepath.Join(os.TempDir(), fmt.Sprintf("%x.pem", sha256.Sum256(certificate.Raw)))
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw}), 0o600); err != nil {
			panic(err)
		}
		lines = append(lines, "tls "+path)
	}
	return lines
}

// withOptions returns a stanza with more lines.
func withOptions(stanza string, lines []string) string {
	if len(lines) == 0 {
		return stanza
	}
	head, ok := strings.CutSuffix(strings.TrimSpace(stanza), "}")
	if !ok {
		head += " {"
	}
	return head + "\n" + strings.Join(lines, "\n") + "\n}"
}

var (
	roots   = map[*x509.CertPool]*x509.Certificate{}
	trusted = map[*Forward]*x509.Certificate{}
)

// addRoot adds a certificate to a pool, which does not return it.
func addRoot(pool *x509.CertPool, certificate *x509.Certificate) {
	pool.AddCert(certificate)
	roots[pool] = certificate
}

// trust replaces SetHTTPClient with a client that trusts the certificate.
func trust(f *Forward, certificate *x509.Certificate) { trusted[f] = certificate }

func (f *Forward) addresses() (all []string) {
	for _, p := range f.proxies {
		all = append(all, p.Addr())
	}
	return all
}

// health returns the checker of the first proxy, whose options the tests set, or nil.
func (f *Forward) health() proxy.HealthChecker {
	if len(f.proxies) == 0 {
		return nil
	}
	return f.proxies[0].GetHealthchecker()
}
