//go:build linux

package caller

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/forward/rogue"
	"github.com/nearside-dns/nearside/test/kit"
)

// zoneFile returns a zone file for CoreDNS, with answers that are just below and above 512 bytes, the size of a datagram.
func zoneFile(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("file.local. 60 IN SOA ns.file.local. hostmaster.file.local. 1 3600 600 86400 60\nfile.local. 60 IN NS ns.file.local.\nns.file.local. 60 IN A 192.0.2.1\n")
	for i := range 30 { // sizes around the limit
		fmt.Fprintf(&b, "size%d.file.local. 60 IN TXT %q %q\n", i, strings.Repeat("a", 250), strings.Repeat("b", 180+i))
	}
	for i := range 60 {
		fmt.Fprintf(&b, "many.file.local. 60 IN A 192.0.2.%d\n", i)
	}
	b.WriteString("alias.file.local. 60 IN CNAME many.file.local.\n")
	return kit.File(t, "zone", b.String())
}

// questions returns the questions of the queries to CoreDNS.
func questions() (all []dns.Question) {
	add := func(name string, types ...uint16) {
		for _, qtype := range types {
			all = append(all, dns.Question{Name: name, Qtype: qtype, Qclass: dns.ClassINET})
		}
	}
	add("file.local.", dns.TypeSOA, dns.TypeNS, dns.TypeA, dns.TypeAAAA)
	add("none.file.local.", dns.TypeA)
	add("many.file.local.", dns.TypeA, dns.TypeAAAA)
	add("alias.file.local.", dns.TypeA)
	for i := range 30 {
		add(fmt.Sprintf("size%d.file.local.", i), dns.TypeTXT)
	}
	add("host.hosts.local.", dns.TypeA, dns.TypeAAAA)
	add("none.hosts.local.", dns.TypeA)
	add("any.template.local.", dns.TypeA, dns.TypeTXT)
	add("a.refused.local.", dns.TypeA)
	return all
}

// TestCoreDNS has real CoreDNS as cluster DNS: it ignores the option, and clients receive the same bytes with and without
// it.
func TestCoreDNS(t *testing.T) {
	address := fmt.Sprintf("%s:%d", clusterHost, daemon.FreePort(t))
	_, port, _ := strings.Cut(address, ":")
	startCoreDNS(t, address, strings.NewReplacer("PORT", port, "HOST", clusterHost, "FILE", zoneFile(t)).Replace(`file.local:PORT {
    bind HOST
    file FILE
}
hosts.local:PORT {
    bind HOST
    hosts {
        192.0.2.7 host.hosts.local
    }
}
template.local:PORT {
    bind HOST
    template IN A {
        answer "{{ .Name }} 60 IN A 192.0.2.8"
    }
}
`))
	for _, options := range []string{"force_tcp", "prefer_udp", "fallback udp"} {
		t.Run(options, func(t *testing.T) {
			text := "local:PORT {\n    forward . " + address + " {\n        " + options + "\n    }\n}\n"
			_, without := start(t, text)
			_, with := start(t, text, "-node-name", "node-a", "-node-zone", "zone-1")
			for _, q := range questions() {
				for client, edns := range clients {
					for _, network := range []string{"udp", "tcp"} {
						m := new(dns.Msg)
						m.Id, m.RecursionDesired, m.Question = dns.Id(), true, []dns.Question{q}
						edns(m)
						same(t, fmt.Sprintf("%s, %s over %s", client, q.String(), network), network, m, without, with)
					}
				}
			}
		})
	}
}

// same fails the test if two servers do not answer with the same bytes.
func same(t *testing.T, what, network string, m *dns.Msg, without, with string) {
	t.Helper()
	var replies [2]string
	for i, address := range []string{without, with} {
		reply, err := exchange(network, address, m)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		packed, err := reply.Pack()
		kit.Must(t, err)
		replies[i] = string(packed)
		if m.IsEdns0() == nil && reply.IsEdns0() != nil {
			t.Errorf("%s: the client receives %v", what, reply.IsEdns0())
		}
	}
	if replies[0] != replies[1] {
		t.Errorf("%s: the reply is\n%x\nwith the option and\n%x\nwithout", what, replies[1], replies[0])
	}
}

// TestEncrypted tests the option over TLS, HTTPS and QUIC: CoreDNS receives the queries and forwards them to a recorder.
func TestEncrypted(t *testing.T) {
	cert := rogue.NewCertificate(t, "127.0.0.3")
	r := record(t, otherHost, false)
	plain := daemon.FreePort(t)
	var text strings.Builder
	ports := map[string]int{}
	for _, scheme := range []string{"tls", "https", "quic"} {
		ports[scheme] = daemon.FreePort(t)
		fmt.Fprintf(&text, "%s://.:%d {\n    bind %s\n    tls %s %s\n    forward . %s\n}\n", scheme, ports[scheme], otherHost, cert.Cert, cert.Key, r.address)
	}
	fmt.Fprintf(&text, "alive.invalid:%d {\n    bind %s\n}\n", plain, otherHost)
	startCoreDNS(t, fmt.Sprintf("%s:%d", otherHost, plain), text.String())
	for scheme, port := range ports {
		t.Run(scheme, func(t *testing.T) {
			_, address := start(t, fmt.Sprintf("local:PORT {\n    forward . %s://%s:%d {\n        tls %s\n        caller node-a zone-1\n    }\n}\n", scheme, otherHost, port, cert.CA))
			for client, edns := range clients {
				m := new(dns.Msg).SetQuestion(client+"."+scheme+".local.", dns.TypeA)
				edns(m)
				reply, err := exchange("udp", address, m)
				if err != nil || reply.Rcode != dns.RcodeSuccess {
					t.Fatalf("%s: error %v, reply %v", client, err, reply)
				}
				got := r.queriesFor(m.Question[0].Name)
				if len(got) != 1 || len(got[0].callers()) != 1 || got[0].callers()[0] != nodeAOfZone {
					t.Errorf("%s: upstream received %+v", client, got)
				}
				wantNoCaller(t, m, reply)
			}
		})
	}
}

// dig runs dig with a server, and returns its output.
func dig(t *testing.T, address string, args ...string) string {
	t.Helper()
	kit.Require(t, "dig")
	host, port, _ := strings.Cut(address, ":")
	return kit.Output(t, exec.Command("dig", append([]string{"@" + host, "-p", port, "+nocmd", "+time=15", "+tries=1"}, args...)...))
}

// TestDig has a client that sends the option itself, to impersonate a client on another node.
func TestDig(t *testing.T) {
	const spoofed = "+ednsopt=65313:01066e6f64652d62" // node-b
	r, other := record(t, clusterHost, false), record(t, otherHost, false)
	_, address := start(t, "cluster.local:PORT {\n    cache\n    forward . "+r.address+"\n}\n.:PORT {\n    forward . "+other.address+"\n}\n", "-node-name", "node-a")
	for i, c := range []struct {
		args []string
		opt  bool
	}{
		{[]string{"+noedns"}, false},
		{[]string{"+nocookie"}, true},
		{[]string{"+nocookie", spoofed}, true},
		{[]string{"+cookie", spoofed, spoofed, "+tcp"}, true},
		{[]string{"+nocookie", "+dnssec", spoofed}, true},
		{[]string{"+noedns", "+tcp"}, false},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			for domain, at := range map[string]*recorder{"cluster.local.": r, "example.": other} {
				name := "n" + strconv.Itoa(i) + "." + domain
				out := dig(t, address, append(c.args, name)...)
				if !strings.Contains(out, "status: NOERROR") || strings.Contains(out, "65313") || strings.Contains(out, "OPT PSEUDOSECTION") != c.opt {
					t.Errorf("output of dig:\n%s", out)
				}
				got := at.queriesFor(name)
				if len(got) != 1 {
					t.Fatalf("upstream received %d queries, want 1", len(got))
				}
				callers := strings.Join(got[0].callers(), " ")
				if want := map[bool]string{true: nodeA, false: ""}[at == r]; callers != want {
					t.Errorf("upstream of %s received the callers %q, want %q", domain, callers, want)
				}
			}
		})
	}
}

// TestInvalid has invalid names of nodes: an invalid flag is an error of one line, an invalid variable is logged in one
// line.
func TestInvalid(t *testing.T) {
	path := daemon.Program(t, "nodecache")
	for _, arg := range []string{"-node-name=Node A", "-node-name=a_b", "-node-name=" + strings.Repeat("a", 254), "-node-zone=zone 1", "-node-zone=" + strings.Repeat("a", 64)} {
		t.Run(arg, func(t *testing.T) {
			out, err := exec.Command(path, arg).CombinedOutput()
			code := -1
			if exit, ok := err.(*exec.ExitError); ok { //nolint:errorlint // it is returned as it is
				code = exit.ExitCode()
			}
			name, _, _ := strings.Cut(arg, "=")
			if code != 2 || strings.Count(string(out), "\n") != 1 || !strings.Contains(string(out), name) {
				t.Errorf("exit code %d and output %q, want 2 and one line", code, out)
			}
		})
	}
	t.Run("NODE_NAME", func(t *testing.T) {
		t.Setenv("NODE_NAME", "Node A")
		r := record(t, clusterHost, false)
		p, address := start(t, "cluster.local:PORT {\n    forward . "+r.address+"\n}\n")
		if _, err := exchange("udp", address, new(dns.Msg).SetQuestion("a.cluster.local.", dns.TypeA)); err != nil {
			t.Error(err)
		}
		if got := r.queriesFor("a.cluster.local."); len(got) != 1 || got[0].opts > 0 {
			t.Errorf("upstream received %+v", got)
		}
		const want = `variable NODE_NAME of the environment: "Node A" is not the name of a node`
		if n := strings.Count(p.Output(), want); n != 1 {
			t.Errorf("%d lines with %q", n, want)
		}
	})
}
