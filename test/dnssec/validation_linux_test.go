package dnssec

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/kubeapi"
)

// startUnbound starts a validating resolver that trusts keys, and sends queries for zones to a server: kind is "stub" for the
// server of the zones, and "forward" for a cache. It returns its address.
func startUnbound(t *testing.T, p *daemon.Process, kind string, anchors []string, zones ...string) (address string) {
	t.Helper()
	path, err := exec.LookPath("unbound")
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/unbound")
	}
	if err != nil {
		kit.Lacking(t, "unbound is not installed; run test/install.sh")
	}
	program, err := os.ReadFile(path)
	kit.Must(t, err)
	folder := t.TempDir()
	path = filepath.Join(folder, "unbound") // AppArmor's profile permits the installed program to read its default configuration only
	kit.Must(t, os.WriteFile(path, program, 0o700))
	port := daemon.FreePort(t)
	config := fmt.Sprintf(`server:
    directory: "%s"
    chroot: ""
    username: ""
    pidfile: ""
    use-syslog: no
    do-daemonize: no
    num-threads: 1
    interface: 127.0.0.1@%d
    access-control: 127.0.0.0/8 allow
    module-config: "validator iterator"
    do-not-query-localhost: no
    local-zone: test. nodefault
    local-zone: 10.in-addr.arpa. nodefault
    use-caps-for-id: yes
    val-log-level: 2
remote-control:
    control-enable: no
`, folder, port)
	for _, a := range anchors {
		config = strings.Replace(config, "remote-control", fmt.Sprintf("    trust-anchor: %q\nremote-control", strings.Join(strings.Fields(a), " ")), 1)
	}
	for _, z := range zones {
		config += fmt.Sprintf("%s-zone:\n    name: %q\n    %s-addr: 127.0.0.1@%d\n", kind, z, kind, p.Port)
	}
	file := filepath.Join(folder, "unbound.conf")
	kit.Write(t, file, config)
	unbound := kit.Start(t, exec.Command(path, "-d", "-c", file))
	address = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	unbound.Succeeds(t, kit.Patience, "unbound answers", func() error {
		_, err := resolve(address, "localhost.", dns.TypeA)
		return err
	})
	return address
}

// resolve returns the reply of a resolver.
func resolve(address, name string, qtype uint16) (*dns.Msg, error) {
	m := new(dns.Msg).SetQuestion(name, qtype)
	m.SetEdns0(4096, true)
	client := dns.Client{Net: "tcp", Timeout: 20 * time.Second}
	reply, _, err := client.Exchange(m, address)
	return reply, err
}

// nodeCorefile is the Corefile of a nodecache in front of the server.
const nodeCorefile = `.:PORT {
    bind 127.0.0.1
    errors
    cache 30
    forward . UPSTREAM {
        force_tcp
    }
}
`

// TestValidation has Unbound and delv query the server, and a nodecache in front of it: they accept all replies if they trust the
// keys of the zones, and none if they trust others.
func TestValidation(t *testing.T) {
	api := kubeapi.New(t)
	kit.Must(t, api.Replace(objects()...))
	z := newZones(t)
	ours := daemon.Start(t, daemon.Program(t, "clusterdns"), strings.ReplaceAll(z.corefile, "API", api.URL()))
	awaitServed(t, ours, "web.shop.svc.cluster.local.")
	var anchors, zones, others []string
	foreign := newZones(t)
	for i, s := range []*signer{z.split, z.common, z.two, z.cluster} {
		anchors = append(anchors, s.ds.String())
		zones = append(zones, s.zone)
		others = append(others, []*signer{foreign.split, foreign.common, foreign.two, foreign.cluster}[i].ds.String())
	}
	zones = append(zones, "insecure.example.org.", "secure.example.org.")
	trusted, untrusted := startUnbound(t, ours, "stub", anchors, zones...), startUnbound(t, ours, "stub", others, zones...)
	node := daemon.Start(t, daemon.Program(t, "nodecache"), strings.ReplaceAll(nodeCorefile, "UPSTREAM", ours.Addr))
	behind := startUnbound(t, node, "forward", anchors, zones...)
	type expectation struct {
		name     string
		qtype    uint16
		answers  int  // other records than signatures
		insecure bool // below a delegation without keys
	}
	var all []expectation
	for _, zone := range []string{"example.org.", "common.test.", "two.test."} {
		for _, e := range []expectation{
			{"", dns.TypeSOA, 1, false},
			{"", dns.TypeDNSKEY, map[string]int{"common.test.": 1}[zone], false},
			{"", dns.TypeMX, 1, false},
			{"", dns.TypeAAAA, 0, false},
			{"a.", dns.TypeA, 2, false},
			{"a.", dns.TypeTXT, 1, false},
			{"a.", dns.TypeSRV, 0, false},
			{"a.", dns.TypeHTTPS, 0, false},
			{"a.", dns.TypeDS, 0, false},
			{"a.", dns.TypeNSEC, 1, false},
			{"_dns._udp.", dns.TypeSRV, 1, false},
			{"empty.", dns.TypeA, 0, false},
			{"deep.empty.", dns.TypeA, 1, false},
			{"x.wild.", dns.TypeA, 1, false},
			{"y.x.wild.", dns.TypeA, 1, false},
			{"x.wild.", dns.TypeMX, 0, false},
			{"x.wildalias.", dns.TypeA, 3, false},
			{"aliases.", dns.TypeA, 4, false},
			{"nodata.", dns.TypeMX, 1, false},
			{"dangling.", dns.TypeA, 1, false},
			{"deep.tree.", dns.TypeA, 3, false},
			{"none.", dns.TypeA, 0, false},
			{"b.c.none.", dns.TypeA, 0, false},
			{"none.", dns.TypeTXT, 0, false},
			{"cut.", dns.TypeDS, 0, false},
		} {
			if e.qtype == dns.TypeDNSKEY && e.answers == 0 {
				e.answers = 2
			}
			e.name += zone
			all = append(all, e)
		}
	}
	all = append(all,
		expectation{"www.secure.example.org.", dns.TypeA, 1, false},
		expectation{"none.secure.example.org.", dns.TypeA, 0, false},
		expectation{"secure.example.org.", dns.TypeDS, 1, false},
		expectation{"www.insecure.example.org.", dns.TypeA, 1, true},
		expectation{"none.insecure.example.org.", dns.TypeA, 0, true},
		expectation{"web.shop.svc.cluster.local.", dns.TypeA, 1, false},
		expectation{"web.shop.svc.cluster.local.", dns.TypeAAAA, 0, false},
		expectation{"pods.shop.svc.cluster.local.", dns.TypeA, 2, false},
		expectation{"pods.shop.svc.cluster.local.", dns.TypeSRV, 2, false},
		expectation{"none.shop.svc.cluster.local.", dns.TypeA, 0, false},
		expectation{"none.shop.svc.cluster.local.", dns.TypeSRV, 0, false},
	)
	for source, address := range map[string]string{"clusterdns": ours.Addr, "nodecache": node.Addr} {
		t.Run("delv queries "+source, func(t *testing.T) { testDelv(t, address, z.cluster, foreign.cluster) })
	}
	for _, e := range all {
		t.Run(e.name+" "+dns.TypeToString[e.qtype], func(t *testing.T) {
			for source, address := range map[string]string{"clusterdns": trusted, "nodecache": behind} {
				reply, err := resolve(address, e.name, e.qtype)
				kit.Must(t, err)
				answers := 0
				for _, rr := range reply.Answer {
					if rr.Header().Rrtype != dns.TypeRRSIG {
						answers++
					}
				}
				if reply.Rcode == dns.RcodeServerFailure || reply.AuthenticatedData == e.insecure || answers != e.answers {
					t.Errorf("by %s: %s, authenticated %t, %d records, want %d:\n%s", source, dns.RcodeToString[reply.Rcode], reply.AuthenticatedData, answers, e.answers, reply)
				}
			}
			if reply, err := resolve(untrusted, e.name, e.qtype); err != nil || reply.Rcode != dns.RcodeServerFailure {
				t.Errorf("accepted with other keys: %v, %v", reply, err)
			}
		})
	}
}
