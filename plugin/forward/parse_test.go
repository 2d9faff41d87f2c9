package forward

import (
	"net"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin/pkg/transport"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/internal/nodefacts"
	"github.com/nearside-dns/nearside/plugin/internal/corefile"
	"github.com/nearside-dns/nearside/test/kit"
)

// resolvConf writes a file, and returns its path.
func resolvConf(t testing.TB, text string) string {
	t.Helper()
	return kit.File(t, "resolv.conf", text)
}

func who(data string) []byte { return append([]byte{0xff, 0x21, 0, byte(len(data))}, data...) }

func plain(address string) endpoint {
	return endpoint{protocol: transport.DNS, address: address}
}

func TestParse_Options(t *testing.T) {
	for _, c := range []struct {
		options string
		change  func(c *config)
	}{
		{"", func(*config) {}},
		{"except Example.org 10.0.0.0/15\nexcept b.example", func(c *config) {
			c.except = []string{"example.org.", "0.10.in-addr.arpa.", "1.10.in-addr.arpa.", "b.example."}
		}},
		{"force_tcp", func(c *config) { c.forceTCP = true }},
		{"prefer_udp", func(c *config) { c.preferUDP = true }},
		{"force_tcp\nprefer_udp", func(c *config) { c.forceTCP, c.preferUDP = true, true }},
		{"force_tcp\nfallback udp", func(c *config) { c.forceTCP, c.fallbackUDP = true, true }},
		{"caller node-a", func(c *config) { c.caller, c.toClusterDNS = who("\x01\x06node-a"), true }},
		{"caller node-a.example zone-1", func(c *config) {
			c.caller, c.toClusterDNS = who("\x01\x0enode-a.example\x06zone-1"), true
		}},
		{"coherent", func(c *config) { c.coherent, c.forceTCP, c.toClusterDNS = true, true, true }},
		{"caller node-a \"\"", func(c *config) { c.caller, c.toClusterDNS = who("\x01\x06node-a"), true }},
		{"timeout 8s", func(c *config) { c.timeout = 8 * time.Second }},
		{"read_timeout 500ms", func(c *config) { c.readTimeout = 500 * time.Millisecond }},
		{"read_timeout 1m", func(c *config) { c.readTimeout = time.Minute }},
		{"hedge 200ms", func(c *config) { c.hedge = 200 * time.Millisecond }},
		{"hedge 0", func(*config) {}},
		{"timeout 10s\nhedge 6s", func(c *config) { c.timeout, c.hedge = 10*time.Second, 6*time.Second }},
		{"expire 20s", func(c *config) { c.expire = 20 * time.Second }},
		{"expire 20s\nexpire 0", func(c *config) { c.expire = 0 }},
		{"max_age 30s", func(c *config) { c.maxAge = 30 * time.Second }},
		{"expire 1s max_age 1s force_tcp", func(c *config) { c.expire, c.maxAge, c.forceTCP = time.Second, time.Second, true }},
		{"max_idle_conns 10", func(c *config) { c.maxIdle = 10 }},
		{"max_in_flight 1", func(c *config) { c.maxInFlight = 1 }},
		{"max_in_flight 65000", func(c *config) { c.maxInFlight = 65000 }},
		{"max_connections 64", func(c *config) { c.maxConnections = 64 }},
		{"max_fails 0", func(c *config) { c.maxFails = 0 }},
		{"max_fails 4294967295", func(c *config) { c.maxFails = 1<<32 - 1 }},
		{"max_connect_attempts 0", func(c *config) { c.attempts = 0 }},
		{"max_connect_attempts 4294967295", func(c *config) { c.attempts = 1<<31 - 1 }},
		{"max_concurrent 1000", func(c *config) { c.maxConcurrent = 1000 }},
		{"health_check 0", func(c *config) { c.checkEvery = 0 }},
		{"health_check 5s no_rec domain Example.org", func(c *config) {
			c.checkEvery, c.checkRecursion, c.checkName = 5*time.Second, false, "example.org."
		}},
		{"health_check 5s no_rec domain a.example\nhealth_check 1s", func(c *config) { c.checkEvery, c.checkRecursion = time.Second, false }},
		{"private_names forward", func(*config) {}},
		{"private_names refuse", func(c *config) { c.private = refusePrivate }},
		{"private_names nxdomain policy sequential", func(c *config) { c.private, c.policy = denyPrivate, sequential{} }},
		{"policy random", func(*config) {}},
		{"policy round_robin", func(c *config) { c.policy = new(roundRobin) }},
		{"policy sequential", func(c *config) { c.policy = sequential{} }},
		{"next NXDOMAIN\nnext servfail NOERROR", func(c *config) {
			c.next = []int{dns.RcodeNameError, dns.RcodeServerFailure, dns.RcodeSuccess}
		}},
		{"next_on_nodata", func(c *config) { c.nextOnNodata = true }},
		{"failover SERVFAIL refused", func(c *config) { c.failover = []int{dns.RcodeServerFailure, dns.RcodeRefused} }},
		{"failfast_all_unhealthy_upstreams", func(c *config) { c.failfast = true }},
		{"doh_method GET", func(c *config) { c.dohMethod = "GET" }},
		{"source_address 127.0.0.2", func(c *config) { c.source = net.ParseIP("127.0.0.2") }},
		{"resolver 192.0.2.9\nresolver 192.0.2.1 ::1 [::1]:5353 192.0.2.2:054", func(c *config) {
			c.resolver = []string{"192.0.2.1:53", "[::1]:53", "[::1]:5353", "192.0.2.2:54"}
		}},
		{"tls_servername dns.example", func(c *config) { c.tlsServerName, c.tls.ServerName = "dns.example", "dns.example" }},
		{"tls", func(*config) {}},
		{"tls_servername dns.example\ntls", func(c *config) { c.tlsServerName, c.tls.ServerName = "dns.example", "dns.example" }},
	} {
		t.Run(c.options, func(t *testing.T) {
			all := configured(t, "forward . 192.0.2.1 {\n"+c.options+"\n}")
			want := defaults(corefile.Position{File: "Testfile", Line: 1})
			want.from = "."
			want.to = []target{{text: "192.0.2.1", endpoint: plain("192.0.2.1:53")}}
			c.change(&want)
			if len(all) != 1 || !reflect.DeepEqual(all[0], want) {
				t.Errorf("stanzas\n got %+v\nwant %+v", all, want)
			}
		})
	}
}

// TestParse_NodeFacts has a stanza with facts of the node for its line, and one with the same settings as options.
func TestParse_NodeFacts(t *testing.T) {
	for name, c := range map[string]struct {
		to, options string
		facts       nodefacts.Forward
		want        string
	}{
		"none":                      {"192.0.2.1", "", nodefacts.Forward{}, "192.0.2.1"},
		"TCP":                       {"192.0.2.1", "", nodefacts.Forward{TCP: true}, "192.0.2.1 {\nforce_tcp\nfallback udp\n}"},
		"TCP and another option":    {"192.0.2.1", "max_fails 1", nodefacts.Forward{TCP: true}, "192.0.2.1 {\nmax_fails 1\nforce_tcp\nfallback udp\n}"},
		"force_tcp":                 {"192.0.2.1", "force_tcp", nodefacts.Forward{TCP: true}, "192.0.2.1 {\nforce_tcp\n}"},
		"prefer_udp":                {"192.0.2.1", "prefer_udp", nodefacts.Forward{TCP: true}, "192.0.2.1 {\nprefer_udp\n}"},
		"fallback":                  {"192.0.2.1", "fallback udp", nodefacts.Forward{TCP: true}, "192.0.2.1 {\nfallback udp\n}"},
		"tls":                       {"192.0.2.1", "tls", nodefacts.Forward{TCP: true}, "192.0.2.1 {\ntls\n}"},
		"an upstream over TLS":      {"192.0.2.1 tls://192.0.2.2", "", nodefacts.Forward{TCP: true}, "192.0.2.1 tls://192.0.2.2"},
		"caller":                    {"192.0.2.1", "", nodefacts.Forward{Caller: true}, "192.0.2.1 {\ncaller node-a zone-1\n}"},
		"coherent":                  {"192.0.2.1", "coherent", nodefacts.Forward{TCP: true}, "192.0.2.1 {\ncoherent\nfallback udp\n}"},
		"another caller":            {"192.0.2.1", "caller b", nodefacts.Forward{Caller: true}, "192.0.2.1 {\ncaller b\n}"},
		"servers of a file":         {"/etc/resolv.conf", "", nodefacts.Forward{Servers: []string{"192.0.2.1", "fd00::1"}, TCP: true}, "192.0.2.1 fd00::1 {\nforce_tcp\nfallback udp\n}"},
		"servers of a missing file": {"/none/resolv.conf", "", nodefacts.Forward{Servers: []string{"127.0.0.1:0"}}, "127.0.0.1:0"},
		"everything":                {"192.0.2.1", "", nodefacts.Forward{TCP: true, Caller: true}, "192.0.2.1 {\nforce_tcp\nfallback udp\ncaller node-a zone-1\n}"},
	} {
		t.Run(name, func(t *testing.T) {
			parseOne := func(text string, facts nodefacts.Facts) config {
				t.Helper()
				t.Cleanup(func() { nodefacts.Set(nodefacts.Facts{}) })
				nodefacts.Set(facts)
				all, err := parse(caddy.NewTestController("dns", text))
				if err != nil || len(all) != 1 {
					t.Fatalf("%d stanzas, error %v", len(all), err)
				}
				return all[0]
			}
			text := "forward . " + c.to + " {\n" + c.options + "\n}"
			facts := nodefacts.Facts{Corefile: "Testfile", Node: "node-a", Zone: "zone-1", Forward: map[int]nodefacts.Forward{1: c.facts}}
			want := parseOne("forward . "+c.want, nodefacts.Facts{})
			if got := parseOne(text, facts); !reflect.DeepEqual(got, want) {
				t.Errorf("stanza\n got %+v\nwant %+v", got, want)
			}
			if c.facts.Servers == nil { // the directive of an imported file, and one of another line
				want = parseOne(text, nodefacts.Facts{})
				facts.Corefile = "/etc/coredns/Corefile"
				if got := parseOne(text, facts); !reflect.DeepEqual(got, want) {
					t.Errorf("stanza of another file\n got %+v\nwant %+v", got, want)
				}
				facts.Corefile, facts.Forward = "Testfile", map[int]nodefacts.Forward{2: c.facts}
				if got := parseOne(text, facts); !reflect.DeepEqual(got, want) {
					t.Errorf("stanza of another line\n got %+v\nwant %+v", got, want)
				}
			}
		})
	}
}

func TestParse_Defaults(t *testing.T) {
	c := defaults(corefile.Position{})
	if c.timeout != 4800*time.Millisecond || c.readTimeout != 2*time.Second || c.expire != 10*time.Second || c.checkEvery != 500*time.Millisecond || c.hedge != 0 ||
		c.maxFails != 2 || c.attempts != unset || c.maxInFlight != 1000 || c.maxConnections != 32 || c.maxAge != 0 || c.maxIdle != 0 || c.maxConcurrent != 0 ||
		c.checkName != "." || !c.checkRecursion || c.policy != (random{}) || c.dohMethod != "POST" || c.tls == nil {
		t.Errorf("defaults: %+v", c)
	}
}

func TestParse_Targets(t *testing.T) {
	file := resolvConf(t, "nameserver 192.0.2.53\n")
	tls := func(address, name string) endpoint { return endpoint{transport.TLS, address, name} }
	host := func(protocol, name, port, serverName string) target {
		return target{host: hostname{name: name, port: port, endpoint: endpoint{protocol: protocol, serverName: serverName}}}
	}
	for _, c := range []struct {
		to, options string
		want        target
	}{
		{"192.0.2.1", "", target{endpoint: plain("192.0.2.1:53")}},
		{"192.0.2.1:5353", "", target{endpoint: plain("192.0.2.1:5353")}},
		{"192.0.2.1:domain", "", target{endpoint: plain("192.0.2.1:53")}},
		{"dns://192.0.2.1", "", target{endpoint: plain("192.0.2.1:53")}},
		{"2001:DB8:0::1", "", target{endpoint: plain("[2001:db8::1]:53")}},
		{"[2001:db8::1]", "", target{endpoint: plain("[2001:db8::1]:53")}},
		{"[2001:db8::1]:54", "", target{endpoint: plain("[2001:db8::1]:54")}},
		{"fe80::1%eth0", "", target{endpoint: plain("[fe80::1%eth0]:53")}},
		{"[fe80::1%eth0]:54", "", target{endpoint: plain("[fe80::1%eth0]:54")}},
		{"2001:db8::1%eth0", "", target{endpoint: plain("[2001:db8::1]:53")}},
		{"192.0.2.1%eth0", "", target{endpoint: plain("192.0.2.1:53")}},
		{"tls://192.0.2.1", "", target{endpoint: tls("192.0.2.1:853", "")}},
		{"tls://192.0.2.1%DNS.example", "", target{endpoint: tls("192.0.2.1:853", "dns.example")}},
		{"tls://192.0.2.1%dns.example:854", "", target{endpoint: tls("192.0.2.1:854", "dns.example")}},
		{"tls://fe80::1%dns.example", "", target{endpoint: tls("[fe80::1]:853", "dns.example")}},
		{"tls://[2001:db8::1%dns.example]:854", "", target{endpoint: tls("[2001:db8::1]:854", "dns.example")}},
		{"tls://[2001:db8::1%2001:db8::2]:854", "", target{endpoint: tls("[2001:db8::1]:854", "2001:db8::2")}},
		{"tls://192.0.2.1", "tls_servername dns.example", target{endpoint: tls("192.0.2.1:853", "")}},
		{"quic://192.0.2.1%dns.example", "", target{endpoint: endpoint{transport.QUIC, "192.0.2.1:853", "dns.example"}}},
		{"https://192.0.2.1%dns.example", "", target{endpoint: endpoint{transport.HTTPS, "192.0.2.1:443", "dns.example"}}},
		{"https://192.0.2.1%dns.example", "tls_servername other.example", target{endpoint: endpoint{transport.HTTPS, "192.0.2.1:443", ""}}},
		{file, "", target{file: file, endpoint: endpoint{protocol: transport.DNS}}},
		{"tls://" + file, "", target{file: file, endpoint: endpoint{protocol: transport.TLS}}},
		{"Dns.example", "", host(transport.DNS, "Dns.example.", "53", "")},
		{"dns.example.:54", "", host(transport.DNS, "dns.example.", "54", "")},
		{"dns.example%name", "", host(transport.DNS, "dns.example.", "53", "")},
		{"tls://Dns.example.", "", host(transport.TLS, "Dns.example.", "853", "dns.example")},
		{"tls://dns.example%other.example:854", "", host(transport.TLS, "dns.example.", "854", "other.example")},
		{"tls://dns.example", "tls_servername other.example", host(transport.TLS, "dns.example.", "853", "")},
		{"quic://dns.example", "", host(transport.QUIC, "dns.example.", "853", "dns.example")},
		{"https://dns.example:8443", "", host(transport.HTTPS, "dns.example.", "8443", "dns.example")},
	} {
		t.Run(c.to+" "+c.options, func(t *testing.T) {
			all := configured(t, "forward . "+c.to+" {\n"+c.options+"\n}")
			c.want.text = c.to
			if got := all[0].to; len(got) != 1 || got[0] != c.want {
				t.Errorf("targets\n got %+v\nwant %+v", got, c.want)
			}
		})
	}
}

func TestParse_Stanzas(t *testing.T) {
	all := configured(t, "forward Example.org 192.0.2.1\n\nforward . 192.0.2.2 192.0.2.3 {\n}")
	if len(all) != 2 || all[0].from != "example.org." || all[1].from != "." || len(all[1].to) != 2 || all[1].at.Line != 3 {
		t.Errorf("stanzas %+v", all)
	}
	if none, err := parse(caddy.NewTestController("dns", "")); none != nil || err != nil {
		t.Errorf("stanzas %v and error %v of an empty text, want none", none, err)
	}
}

func TestParse_Policies(t *testing.T) {
	all := configured(t, "forward a 192.0.2.1 {\npolicy round_robin\n}\nforward b 192.0.2.1 {\npolicy round_robin\n}")
	if all[0].policy == all[1].policy {
		t.Error("two stanzas share the state of round_robin")
	}
}

// Files of certificates are relative to the root of the server block.
func TestParse_Root(t *testing.T) {
	c := caddy.NewTestController("dns", "forward . tls://192.0.2.1 {\n tls missing.pem\n}")
	dnsserver.GetConfig(c).Root = "/nowhere"
	_, err := parse(c)
	if err == nil || !strings.Contains(err.Error(), "/nowhere/missing.pem") {
		t.Errorf("error %v", err)
	}
}

func TestParse_Errors(t *testing.T) {
	empty, named := resolvConf(t, "search example.org\n"), resolvConf(t, "nameserver dns.example\n")
	for _, c := range []struct{ text, want string }{
		{"forward", "Testfile:1 - Error during parsing: invalid forward: want a zone and upstreams: FROM TO..."},
		{"forward .", `invalid forward ".": missing upstream: want a zone and upstreams: FROM TO...`},
		{"forward a..b 192.0.2.1", `invalid forward "a..b": invalid zone: want a zone and upstreams`},
		{"forward . 192.0.2.1\n\nforward . 192.0.2.1:70000", `Testfile:3 - Error during parsing: invalid upstream "192.0.2.1:70000": invalid port "70000": want an address such as`},
		{"forward . 192.0.2.256", `invalid upstream "192.0.2.256": invalid address: want an address such as 192.0.2.53, 192.0.2.53:5353`},
		{"forward . 192.0.2.1,192.0.2.2", `"192.0.2.1,192.0.2.2": neither an address nor a file nor a hostname`},
		{"forward . /nowhere/resolv.conf", `"/nowhere/resolv.conf": no such file`},
		{"forward . /", `"/": not a text file`},
		{"forward . " + empty, "no upstream in " + empty + ": want at least one"},
		{"forward . " + named, "no upstream in " + named},
		{"forward . tcp://192.0.2.1", `"tcp://192.0.2.1": unknown protocol`},
		{"forward . grpc://192.0.2.1", "protocol grpc is not dns, tls, quic or https"},
		{"forward . dns://", "no address"},
		{"forward . https://192.0.2.1/dns-query", "unexpected path: it is always /dns-query"},
		{"forward . [::1]%dns.example:853", "neither an address nor a file nor a hostname"},
		{"forward . tls://::1%dns.example:853", `invalid server name "dns.example:853"`},
		{"forward . tls://192.0.2.1%a {\ntls_servername b\n}", "server name both after % and by tls_servername: a and b"},
		{"forward ." + strings.Repeat(" 192.0.2.1", 16), "16 upstreams: want 1-15"},
		{"forward . 192.0.2.1 {\n\nblaatl\n}", `Testfile:3 - Error during parsing: unknown option "blaatl": want one of caller, coherent, doh_method, except, expire,`},
		{"forward . 192.0.2.1 {\nmax_fails 1 2\n}", `Testfile:2 - Error during parsing: invalid max_fails "2": unexpected argument: want a number, 0 or more`},
		{"forward . 192.0.2.1 {\nexcept\n}", "invalid except: want zones"},
		{"forward . 192.0.2.1 {\nexcept a {\nforce_tcp\n}\n}", `invalid except "a" "{": want zones`},
		{"forward . 192.0.2.1 {\nforce_tcp yes\n}", `invalid force_tcp "yes": want no argument`},
		{"forward . 192.0.2.1 {\nfallback tcp\n}", `invalid fallback "tcp": want udp`},
		{"forward . 192.0.2.1 {\nfallback udp\nfallback udp\n}", "Testfile:3 - Error during parsing: duplicate option fallback"},
		{"forward . 192.0.2.1 {\nfallback\n}", "invalid fallback: want udp"},
		{"forward . 192.0.2.1 {\ncaller\n}", "invalid caller: want the name of a node, and optionally its zone: NODE [ZONE]"},
		{"forward . 192.0.2.1 {\ncaller a b c\n}", `invalid caller "a" "b" "c": want the name of a node, and optionally its zone: NODE [ZONE]`},
		{"forward . 192.0.2.1 {\ncaller \"\"\n}", `Testfile:2 - Error during parsing: invalid caller "": not 1-253 bytes: want the name of a node`},
		{"forward . 192.0.2.1 {\ncaller " + strings.Repeat("a", 254) + "\n}", `a": not 1-253 bytes`},
		{"forward . 192.0.2.1 {\ncaller a " + strings.Repeat("b", 64) + "\n}", `b": not 1-63 bytes`},
		{"forward . 192.0.2.1 {\ncoherent on\n}", `Testfile:2 - Error during parsing: invalid coherent "on": want no argument`},
		{"forward . 192.0.2.1 {\ncoherent\ncoherent\n}", "Testfile:3 - Error during parsing: duplicate option coherent"},
		{"forward . 192.0.2.1 {\nprefer_udp\ncoherent\n}", "Testfile:3 - Error during parsing: invalid coherent: prefer_udp in the same stanza: want TCP"},
		{"forward . 192.0.2.1 {\nmax_in_flight 1\ncoherent\n}", `Testfile:2 - Error during parsing: invalid max_in_flight "1": want a number of 2 to 65000 with coherent, which opens a session on each connection`},
		{"forward . 192.0.2.1 tls://192.0.2.2 {\ncoherent\n}", `Testfile:2 - Error during parsing: invalid coherent: upstream "tls://192.0.2.2" uses tls: want upstreams over TCP without TLS`},
		{"forward . https://dns.example.org {\ncoherent\n}", `invalid coherent: upstream "https://dns.example.org" uses https: want upstreams over TCP without TLS`},
		{"forward . 192.0.2.1 {\ncaller a\ncaller a\n}", "Testfile:3 - Error during parsing: duplicate option caller"},
		{"forward . 192.0.2.1 {\ntimeout 0\n}", `invalid timeout "0": want a duration of more than 0, such as 5s`},
		{"forward . 192.0.2.1 {\ntimeout -1s\n}", `invalid timeout "-1s": want`},
		{"forward . 192.0.2.1 {\ntimeout 1s\ntimeout 2s\n}", "duplicate option timeout"},
		{"forward . 192.0.2.1 {\nread_timeout 0s\n}", `invalid read_timeout "0s": want`},
		{"forward . 192.0.2.1 {\nhedge 5s\n}", `Testfile:2 - Error during parsing: invalid hedge "5s": want less than timeout (4.8s)`},
		{"forward . 192.0.2.1 {\nhedge 2s\ntimeout 1s\n}", `Testfile:2 - Error during parsing: invalid hedge "2s": want less than timeout (1s)`},
		{"forward . 192.0.2.1 {\nhedge 200\n}", `invalid hedge "200": want a duration less than timeout`},
		{"forward . 192.0.2.1 {\nexpire -1s\n}", `invalid expire "-1s": want a duration such as 10s`},
		{"forward . 192.0.2.1 {\n\nmax_age 1s\n}", `Testfile:3 - Error during parsing: invalid max_age "1s": want 0, or expire (10s) or more`},
		{"forward . 192.0.2.1 {\nmax_idle_conns -1\n}", `invalid max_idle_conns "-1": want a number, 0 or more`},
		{"forward . 192.0.2.1 {\nmax_in_flight 0\n}", `invalid max_in_flight "0": want a number of 1 to 65000`},
		{"forward . 192.0.2.1 {\nmax_in_flight 65001\n}", `invalid max_in_flight "65001": want`},
		{"forward . 192.0.2.1 {\nmax_in_flight many\n}", `invalid max_in_flight "many": want`},
		{"forward . 192.0.2.1 {\nmax_connections 65\n}", `invalid max_connections "65": want a number of 1 to 64`},
		{"forward . 192.0.2.1 {\nmax_connections 1\nmax_connections 1\n}", "duplicate option max_connections"},
		{"forward . 192.0.2.1 {\nmax_fails 4294967296\n}", `invalid max_fails "4294967296": out of range 0-4294967295`},
		{"forward . 192.0.2.1 {\nmax_connect_attempts -1\n}", `invalid max_connect_attempts "-1": out of range`},
		{"forward . 192.0.2.1 {\nmax_concurrent many\n}", `invalid max_concurrent "many": want a number, 0 or more`},
		{"forward . 192.0.2.1 {\nhealth_check 1s domain\n}", `invalid health_check "domain": missing name: want a duration, and optionally no_rec and a name: DURATION [no_rec] [domain FQDN]`},
		{"forward . 192.0.2.1 {\nhealth_check 1s domain a..b\n}", `"a..b": invalid name`},
		{"forward . 192.0.2.1 {\nhealth_check 1s rec\n}", `"rec": unexpected argument`},
		{"forward . 192.0.2.1 {\nprivate_names\n}", "Testfile:2 - Error during parsing: invalid private_names: want refuse, nxdomain or forward"},
		{"forward . 192.0.2.1 {\nprivate_names deny\n}", `Testfile:2 - Error during parsing: invalid private_names "deny": want refuse, nxdomain or forward`},
		{"forward . 192.0.2.1 {\nprivate_names refuse\nprivate_names refuse\n}", "Testfile:3 - Error during parsing: duplicate option private_names"},
		{"forward . 192.0.2.1 {\nprivate_names refuse\ncaller a\n}", "Testfile:2 - Error during parsing: invalid private_names: the upstreams are cluster DNS: want upstreams outside of the cluster"},
		{"forward . 192.0.2.1 {\ncoherent\nprivate_names nxdomain\n}", "Testfile:3 - Error during parsing: invalid private_names: the upstreams are cluster DNS: want upstreams outside of the cluster"},
		{"forward . 192.0.2.1 {\npolicy best\n}", `invalid policy "best": want random, round_robin or sequential`},
		{"forward . 192.0.2.1 {\nnext 3\n}", `invalid next "3": want response codes such as SERVFAIL`},
		{"forward . 192.0.2.1 {\nfailover NOERROR\n}", `invalid failover "NOERROR": want response codes such as SERVFAIL, but not NOERROR`},
		{"forward . 192.0.2.1 {\ntls a b c d\n}", `invalid tls "a" "b" "c" "d": want files: [CA], or CERT KEY [CA]`},
		{"forward . 192.0.2.1 {\ntls /nowhere/ca.pem\n}", "/nowhere/ca.pem"},
		{"forward . 192.0.2.1 {\ndoh_method PUT\n}", `invalid doh_method "PUT": want GET or POST`},
		{"forward . 192.0.2.1 {\nsource_address lo\n}", `invalid source_address "lo": want an IP address`},
		{"forward . 192.0.2.1 {\nresolver dns.example\n}", `invalid resolver "dns.example": not an IP address: want IP addresses, each optionally with a port`},
		{"forward . 192.0.2.1 {\nresolver 192.0.2.1:x\n}", `invalid port "x"`},
	} {
		t.Run(c.text, func(t *testing.T) {
			_, err := parse(caddy.NewTestController("dns", c.text))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error\n got %v\nwant %s", err, c.want)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	for name := range options {
		for _, args := range []string{"", " a", " 5", " a b c d", " -1", " {\n", ` ""`, " 5s", " udp", " NXDOMAIN", " 192.0.2.1", " 5 force_tcp"} {
			f.Add(". 192.0.2.1 {\n" + name + args + "\n}")
		}
	}
	for _, to := range []string{"a", "[::1%b]:853", "tls://192.0.2.1%a:1", "dns://a", "quic://a.b%c:65536", "%", "[", "a..b", "1.2.3.4%", "https://[::1]", "fe80::1%"} {
		f.Add("a " + to)
	}
	f.Add(". 192.0.2.1\nforward b a")
	f.Add(". 192.0.2.1 {\n{\n}")
	f.Fuzz(func(t *testing.T, text string) {
		if strings.ContainsAny(text, "/~") && strings.Contains(strings.NewReplacer("dns://", "", "tls://", "", "quic://", "", "https://", "").Replace(text), "/") {
			t.Skip("files that are none of this test's, and may block")
		}
		all, err := parse(caddy.NewTestController("dns", "forward "+text))
		if err != nil && (all != nil || !strings.HasPrefix(err.Error(), "Testfile:")) {
			t.Errorf("%d stanzas and error %v, want no stanzas and an error that names the file", len(all), err)
		}
		if err == nil && len(all) == 0 {
			t.Error("neither a stanza nor an error")
		}
		for _, c := range all {
			checkParsed(t, c)
		}
	})
}

// checkParsed fails the test for values that no handler supports.
func checkParsed(t *testing.T, c config) {
	t.Helper()
	if c.from == "" || len(c.to) == 0 || c.timeout <= 0 || c.readTimeout <= 0 || c.hedge < 0 || c.hedge >= c.timeout || c.expire < 0 || c.maxAge < 0 ||
		c.maxAge > 0 && c.maxAge < c.expire || c.maxIdle < 0 || c.maxInFlight < 1 || c.maxInFlight > 65000 || c.maxConnections < 1 || c.maxConnections > 64 ||
		c.attempts < unset || c.checkEvery < 0 || c.maxConcurrent < 0 || c.policy == nil || c.tls == nil || !dns.IsFqdn(c.checkName) {
		t.Errorf("accepted: %+v", c)
	}
	for _, to := range c.to {
		e := to.endpoint
		if to.host.name != "" {
			e = to.host.endpoint
			e.address = net.JoinHostPort("192.0.2.1", to.host.port)
		}
		if to.file != "" {
			continue
		}
		if _, err := net.ResolveTCPAddr("tcp", e.address); err != nil || ports[e.protocol] == "" {
			t.Errorf("accepted as an upstream: %+v", to)
		}
	}
}
