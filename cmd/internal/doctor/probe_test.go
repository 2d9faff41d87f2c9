//go:build linux

package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/nodelocal/link"
	"github.com/nearside-dns/nearside/test/kit"
)

// server is a real DNS server on 127.0.0.1.
type server struct {
	udp, tcp dns.HandlerFunc // nil: nothing listens
}

// start returns the address of the server.
func (s server) start(t *testing.T) netip.AddrPort {
	t.Helper()
	p, l := kit.ListenBoth(t, "127.0.0.1:0")
	s.serve(t, p, l)
	return p.LocalAddr().(*net.UDPAddr).AddrPort()
}

func (s server) serve(t *testing.T, p net.PacketConn, l net.Listener) {
	t.Helper()
	run := func(d *dns.Server, unused func() error) {
		if d.Handler == nil || d.Handler.(dns.HandlerFunc) == nil {
			kit.Must(t, unused())
			return
		}
		kit.Run(t, d)
	}
	run(&dns.Server{PacketConn: p, Handler: s.udp}, p.Close)
	run(&dns.Server{Listener: l, Handler: s.tcp}, l.Close)
}

// answer returns a handler that answers with a code and records.
func answer(rcode int, records ...string) dns.HandlerFunc {
	return func(w dns.ResponseWriter, r *dns.Msg) {
		m := new(dns.Msg)
		m.SetRcode(r, rcode)
		for _, text := range records {
			rr, err := dns.NewRR(text)
			if err != nil {
				panic(err)
			}
			m.Answer = append(m.Answer, rr)
		}
		_ = w.WriteMsg(m) // the doctor may have gone
	}
}

// late returns a handler that answers its first queries after 400 ms.
func late(queries int32) dns.HandlerFunc {
	var n atomic.Int32
	return func(w dns.ResponseWriter, r *dns.Msg) {
		if n.Add(1) <= queries {
			time.Sleep(400 * time.Millisecond)
		}
		answer(dns.RcodeSuccess)(w, r)
	}
}

// silence is a handler that does not answer.
func silence(dns.ResponseWriter, *dns.Msg) {}

var (
	found  = answer(dns.RcodeSuccess, "kubernetes.default.svc.cluster.local. 5 IN A 10.96.0.1")
	absent = answer(dns.RcodeNameError)
	broken = answer(dns.RcodeServerFailure)
)

// times are replaced in lines before they are compared.
var times = regexp.MustCompile(`[0-9.]+ ms`)

func briefs(lines []Line) string {
	var b strings.Builder
	for _, l := range lines {
		advice := ""
		if l.Advice != "" {
			advice = " | advice"
		}
		b.WriteString(times.ReplaceAllString(brief(l), "N ms") + advice + "\n")
	}
	return b.String()
}

func TestProbeUpstreams(t *testing.T) {
	for _, c := range []struct {
		name   string
		server server
		want   string
	}{
		{"answers", server{answer(dns.RcodeSuccess), answer(dns.RcodeSuccess)}, "ok | udp | NOERROR in N ms\nok | tcp | NOERROR in N ms\n"},
		{"refuses, so it can be reached", server{answer(dns.RcodeRefused), answer(dns.RcodeRefused)}, "ok | udp | REFUSED in N ms\nok | tcp | REFUSED in N ms\n"},
		{"cannot resolve", server{broken, broken}, "warn | udp | SERVFAIL in N ms | advice\nwarn | tcp | SERVFAIL in N ms | advice\n"},
		{"no TCP", server{answer(dns.RcodeSuccess), nil}, "ok | udp | NOERROR in N ms\nwarn | tcp | connection refused | advice\n"},
		{"TCP hangs", server{answer(dns.RcodeSuccess), silence}, "ok | udp | NOERROR in N ms\nwarn | tcp | no answer | advice\n"},
		{"UDP hangs", server{silence, answer(dns.RcodeSuccess)}, "warn | udp | no answer | advice\nok | tcp | NOERROR in N ms\n"},
		{"both hang", server{silence, silence}, "fail | udp | no answer | advice\nfail | tcp | no answer | advice\n"},
		{"nothing listens", server{}, "fail | udp | connection refused | advice\nfail | tcp | connection refused | advice\n"},
		{"takes 400 ms", server{late(math.MaxInt32), late(math.MaxInt32)}, "warn | udp | NOERROR in N ms | advice\nwarn | tcp | NOERROR in N ms | advice\n"},
		{"takes 400 ms until it has stored the answer", server{late(1), late(1)}, "ok | udp | NOERROR in N ms\nok | tcp | NOERROR in N ms\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			address := c.server.start(t)
			n := machine{setup: setup{upstreams: []netip.AddrPort{address}, resolvConf: "/nonexistent"}}.node(t)
			if n.options.timeout = 500 * time.Millisecond; strings.Contains(c.name, "400 ms") {
				n.options.timeout = 5 * time.Second
			}
			got := briefs(n.probeUpstreams(context.Background()))
			if got = strings.ReplaceAll(got, "query upstream "+address.String()+" ", ""); got != c.want {
				t.Errorf("got\n%swant\n%s", got, c.want)
			}
		})
	}
}

func TestProbeCluster(t *testing.T) {
	for _, c := range []struct {
		name   string
		server server
		want   string
	}{
		{"answers", server{found, found}, "ok | udp | 10.96.0.1 in N ms\nok | tcp | 10.96.0.1 in N ms\n"},
		{"another domain", server{absent, absent}, "warn | udp | NXDOMAIN in N ms | advice\nwarn | tcp | NXDOMAIN in N ms | advice\n"},
		{"fails", server{broken, broken}, "fail | udp | SERVFAIL in N ms | advice\nfail | tcp | SERVFAIL in N ms | advice\n"},
		{"no TCP", server{found, nil}, "ok | udp | 10.96.0.1 in N ms\nwarn | tcp | connection refused | advice\n"},
		{"no TCP, and fails", server{broken, nil}, "fail | udp | SERVFAIL in N ms | advice\nwarn | tcp | connection refused | advice\n"},
		{"nothing listens", server{}, "fail | udp | connection refused | advice\nfail | tcp | connection refused | advice\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			address := c.server.start(t)
			n := machine{setup: setup{clusterDNS: []netip.AddrPort{address}}}.node(t)
			got := briefs(n.probeCluster(context.Background()))
			if got = strings.ReplaceAll(got, "query cluster DNS "+address.String()+" ", ""); got != c.want {
				t.Errorf("got\n%swant\n%s", got, c.want)
			}
		})
	}
	t.Run("not known", func(t *testing.T) {
		got := briefs(machine{}.node(t).probeCluster(context.Background()))
		if got != "skip | query cluster DNS | its address is not known here | advice\n" {
			t.Errorf("got %s", got)
		}
	})
}

func TestProbeLocal(t *testing.T) {
	loopback := netip.MustParseAddr("127.0.0.1")
	for _, c := range []struct {
		name   string
		server server
		rules  map[string][]netip.Addr
		leases map[netip.Addr]time.Duration
		want   string
	}{
		{"without rules", server{found, found}, nil, nil, "ok | udp | 10.96.0.1 in N ms\nok | tcp | 10.96.0.1 in N ms\n"},
		{"with a lease", server{found, found}, table(nil, nil), map[netip.Addr]time.Duration{loopback: time.Second}, "ok | udp | 10.96.0.1 in N ms from nodecache\nok | tcp | 10.96.0.1 in N ms from nodecache\n"},
		{"without a lease", server{found, nil}, table(nil, nil), nil, "ok | udp | 10.96.0.1 in N ms from cluster DNS, the lease is out\nfail | tcp | connection refused | advice\n"},
		{"fails", server{broken, broken}, nil, nil, "fail | udp | SERVFAIL in N ms | advice\nfail | tcp | SERVFAIL in N ms | advice\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			address := c.server.start(t)
			n := machine{setup: setup{addresses: []netip.Addr{loopback}}, matched: c.rules, leases: c.leases}.node(t)
			n.options.port = address.Port()
			got := briefs(n.probeLocal(context.Background()))
			if got = strings.ReplaceAll(got, "query 127.0.0.1 ", ""); got != c.want {
				t.Errorf("got\n%swant\n%s", got, c.want)
			}
		})
	}
}

func TestProbeSelf(t *testing.T) {
	// below answers as nodecache's plugin does: only for names below a zone.
	below := func(zone string) dns.HandlerFunc {
		return func(w dns.ResponseWriter, r *dns.Msg) {
			if !strings.HasSuffix(r.Question[0].Name, ".nodelocal-health."+zone) {
				absent(w, r)
				return
			}
			answer(dns.RcodeSuccess, r.Question[0].Name+" 0 IN TXT nearside")(w, r)
		}
	}
	for _, c := range []struct {
		name   string
		server server
		want   string
	}{
		{"rejected by a firewall", server{udp: below("")}, "fail | nodecache itself on 127.0.0.1 | answers over lo, and not on interface nodelocaldns-q1 | advice\n"},
		{"in the block of the root", server{udp: below("")}, "ok | nodecache itself on 127.0.0.1 | answers in N ms\n"},
		{"in the block of the cluster", server{udp: below("cluster.local.")}, "ok | nodecache itself on 127.0.0.1 | answers in N ms\n"},
		{"with the addresses of flags", server{udp: below("nodelocal.nearside.invalid.")}, "ok | nodecache itself on 127.0.0.1 | answers in N ms\n"},
		{"another server", server{udp: found}, "warn | nodecache itself on 127.0.0.1 | another DNS server answers | advice\n"},
		{"no server", server{}, "fail | nodecache itself on 127.0.0.1 | connection refused | advice\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := machine{setup: setup{iface: "nodelocaldns", addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}}
			if c.name == "rejected by a firewall" {
				m.links = []link.Link{device("nodelocaldns-q1", "veth")}
			}
			n := m.node(t)
			n.options.port = c.server.start(t).Port()
			if got := briefs(n.probeSelf(context.Background())); got != c.want {
				t.Errorf("got\n%swant\n%s", got, c.want)
			}
		})
	}
}

func TestProbeHealth(t *testing.T) {
	code := http.StatusOK
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/health" {
			t.Errorf("request for %s", r.URL.Path)
		}
		w.WriteHeader(code)
	}))
	t.Cleanup(s.Close)
	endpoint := s.Listener.Addr().(*net.TCPAddr).AddrPort()
	closed := netip.MustParseAddrPort("127.0.0.1:1")
	n := machine{setup: setup{health: []netip.AddrPort{closed, endpoint}}}.node(t)
	if l := n.probeHealth(context.Background()); len(l) != 1 || l[0].Verdict != OK {
		t.Errorf("got %v", l)
	}
	n = machine{setup: setup{health: []netip.AddrPort{endpoint}}}.node(t)
	code = http.StatusServiceUnavailable
	if l := n.probeHealth(context.Background()); len(l) != 1 || l[0].Verdict != Fail || !strings.Contains(l[0].Value, "503") {
		t.Errorf("got %v", l)
	}
	if l := (machine{}).node(t).probeHealth(context.Background()); l != nil {
		t.Errorf("without an endpoint: got %v", l)
	}
}

// TestCommand runs all checks on a machine of files with a real server.
func TestCommand(t *testing.T) {
	address := server{found, found}.start(t)
	root := t.TempDir()
	for _, format := range []string{"text", "json"} {
		t.Run(format, func(t *testing.T) {
			o, err := parse([]string{"-o", format, "-clusterdns", address.String(), "-resolvconf", root + "/none"}, io.Discard)
			kit.Must(t, err)
			n := machine{}.node(t)
			n.options = o
			n.setup = func() setup { return discover(o, n.proc, nil) }
			lines := examine(n)
			var b bytes.Buffer
			if format == "text" {
				err = writeText(&b, lines)
			} else if err = writeJSON(&b, lines); err == nil {
				err = json.Unmarshal(b.Bytes(), &lines)
			}
			kit.Must(t, err)
			for _, l := range lines {
				if l.Check == "" || l.Value == "" || l.Verdict == "" {
					t.Errorf("got %+v", l)
				}
			}
			if !strings.Contains(b.String(), "query cluster DNS "+address.String()+" tcp") {
				t.Errorf("got\n%s", b.String())
			}
		})
	}
}
