//go:build linux

package caller

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/kit"
)

// Data of the option for a node, and for a node with its zone.
const (
	nodeA       = "\x01\x06node-a"
	nodeAOfZone = "\x01\x06node-a\x06zone-1"
)

// corefile has the server blocks of node-local-dns, and some more. CLUSTER and OTHER are servers.
const corefile = `cluster.local:PORT {
    cache 30
    forward . CLUSTER
}
udp.local:PORT {
    forward . CLUSTER {
        prefer_udp
    }
}
client.local:PORT {
    forward . CLUSTER {
        max_concurrent 1000
        fallback udp
    }
}
mixed.local:PORT {
    forward . CLUSTER OTHER {
        policy sequential
    }
}
own.local:PORT {
    forward . CLUSTER {
        caller another
    }
}
in-addr.arpa:PORT ip6.arpa:PORT {
    forward . CLUSTER
}
.:PORT {
    forward one.local CLUSTER
    forward cluster.example CLUSTER {
        except all.cluster.example
    }
    forward all.cluster.example OTHER
    forward two.example CLUSTER OTHER
    forward . CLUSTER
}
`

// cachedZones are in blocks with a cache: the first of corefile, and those that nodecache adds.
var cachedZones = []string{"cluster.local.", "a.b.cluster.local.", "clusterset.local.", "a.b.clusterset.local.", "corp.example.", "near.example."}

// clients set the EDNS of a query, by kind of client.
var clients = map[string]func(m *dns.Msg){
	"noedns": func(*dns.Msg) {},
	"edns":   func(m *dns.Msg) { m.SetEdns0(1300, true) },
	"cookie": func(m *dns.Msg) {
		m.SetEdns0(1300, false)
		m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_NSID{}, &dns.EDNS0_COOKIE{Cookie: "0011223344556677"}}
	},
	"spoof": func(m *dns.Msg) {
		m.SetEdns0(1300, true)
		m.IsEdns0().Option = []dns.EDNS0{
			&dns.EDNS0_LOCAL{Code: optionCaller, Data: []byte("\x01\x06node-b")},
			&dns.EDNS0_NSID{},
			&dns.EDNS0_LOCAL{Code: optionCaller, Data: []byte("\x01\x06node-c\x06zone-2")},
		}
	},
	"twice": func(m *dns.Msg) {
		m.SetEdns0(1300, false)
		m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_LOCAL{Code: optionCaller, Data: []byte("\x01\x06node-a")}}
		m.Extra = append(m.Extra, dns.Copy(m.Extra[0]))
	},
}

// TestSent sends queries for names of each zone, and compares each byte that the servers receive.
func TestSent(t *testing.T) {
	cluster, other := record(t, clusterHost, false), record(t, otherHost, false)
	stubs := t.TempDir()
	kit.Must(t, os.WriteFile(filepath.Join(stubs, "stubDomains"), []byte(fmt.Sprintf(`{"corp.example": [%q], "near.example": [%q]}`, other.address, cluster.address)), 0o600))
	named := strings.NewReplacer("CLUSTER", strings.Replace(cluster.address, clusterHost, "__PILLAR__CLUSTER__DNS__", 1), "OTHER", other.address).Replace(corefile)
	for name, c := range map[string]struct {
		environ map[string]string
		args    []string
		option  string // data of option 65313; "" for none
	}{
		"nothing":      {nil, nil, ""},
		"flag":         {nil, []string{"-node-name", "node-a"}, nodeA},
		"flags":        {nil, []string{"-node-name", "node-a", "-node-zone", "zone-1"}, nodeAOfZone},
		"environment":  {map[string]string{"NODE_NAME": "node-a", "NODE_ZONE": "zone-1"}, nil, nodeAOfZone},
		"turned off":   {map[string]string{"NODE_NAME": "node-a"}, []string{"-node-name="}, ""},
		"longest name": {nil, []string{"-node-name", strings.Repeat("n", 253), "-node-zone", strings.Repeat("z", 63)}, "\x01\xfd" + strings.Repeat("n", 253) + "\x3f" + strings.Repeat("z", 63)},
	} {
		t.Run(name, func(t *testing.T) {
			for variable, value := range c.environ {
				t.Setenv(variable, value)
			}
			_, address := start(t, named, append(c.args, "-kubednscm", stubs, "-clusterset-zone", "clusterset.local")...)
			label := strings.ReplaceAll(name, " ", "-") + "."
			for zone, want := range map[string]struct {
				at      *recorder
				network string // "" for that of the client
				option  string
			}{
				"cluster.local.":        {cluster, "tcp", c.option},
				"a.b.cluster.local.":    {cluster, "tcp", c.option},
				"clusterset.local.":     {cluster, "tcp", c.option},
				"a.b.clusterset.local.": {cluster, "tcp", c.option},
				"udp.local.":            {cluster, "udp", c.option},
				"client.local.":         {cluster, "", c.option},
				"mixed.local.":          {cluster, "tcp", ""},
				"own.local.":            {cluster, "tcp", "\x01\x07another"},
				"10.in-addr.arpa.":      {cluster, "tcp", ""},
				"d.f.ip6.arpa.":         {cluster, "tcp", ""},
				"one.local.":            {cluster, "tcp", c.option},
				"cluster.example.":      {cluster, "tcp", c.option},
				"all.cluster.example.":  {other, "", ""},
				"example.":              {cluster, "tcp", ""},
				"corp.example.":         {other, "", ""},
				"near.example.":         {cluster, "", ""},
			} {
				cached := slices.Contains(cachedZones, zone)
				for client, edns := range clients {
					for _, network := range []string{"udp", "tcp"} {
						query := sent{label + client + "-" + network + "." + zone, network, edns, cached}
						w := want
						if w.network == "" {
							w.network = network
						}
						query.check(t, address, w.at, w.network, w.option)
					}
				}
			}
		})
	}
}

// sent is a query of a client.
type sent struct {
	name, network string
	edns          func(*dns.Msg)
	cached        bool
}

// check sends the query, and checks the query that the recorder receives and the reply.
func (s sent) check(t *testing.T, address string, r *recorder, network, option string) {
	t.Helper()
	m := new(dns.Msg).SetQuestion(s.name, dns.TypeA)
	s.edns(m)
	reply, err := exchange(s.network, address, m)
	if err != nil || reply.Rcode != dns.RcodeSuccess {
		t.Fatalf("%s: error %v, reply %v", s.name, err, reply)
	}
	got := r.queriesFor(s.name)
	if len(got) != 1 {
		t.Fatalf("%s: upstream received %d queries, want 1", s.name, len(got))
	}
	q, o := got[0], m.IsEdns0()
	var want []string
	if option != "" {
		want = []string{option}
	}
	if !slices.Equal(q.callers(), want) || q.network != network {
		t.Errorf("%s: upstream received the callers %q over %s, want %q over %s", s.name, q.callers(), q.network, want, network)
	}
	switch {
	case o == nil && option == "":
		if q.opts != 0 {
			t.Errorf("%s: upstream received %d OPT records", s.name, q.opts)
		}
	case o == nil:
		if q.opts != 1 || q.flags != 0 || q.size != 512+11 || len(q.others()) > 0 {
			t.Errorf("%s: upstream received %+v", s.name, q)
		}
	default:
		if q.opts != len(m.Extra) || q.size != o.UDPSize() || q.flags != o.Hdr.Ttl || !slices.Equal(q.others(), s.codes(o)) {
			t.Errorf("%s: upstream received %+v for %v", s.name, q, o)
		}
	}
	wantNoCaller(t, m, reply)
}

// codes returns the codes of the options that are passed on. A query that a cache may answer loses those for one hop, such as NSID.
func (s sent) codes(o *dns.OPT) (all []uint16) {
	for _, option := range o.Option {
		if code := option.Option(); code != optionCaller && code != dns.EDNS0COOKIE && !(s.cached && code == dns.EDNS0NSID) {
			all = append(all, code)
		}
	}
	return all
}

// wantNoCaller fails the test if a client receives an option 65313, or EDNS although its query had none.
func wantNoCaller(t *testing.T, m, reply *dns.Msg) {
	t.Helper()
	name := m.Question[0].Name
	if (reply.IsEdns0() != nil) != (m.IsEdns0() != nil) {
		t.Errorf("%s: the client receives %v", name, reply.IsEdns0())
	}
	for _, rr := range reply.Extra {
		if o, ok := rr.(*dns.OPT); ok && slices.ContainsFunc(o.Option, func(o dns.EDNS0) bool { return o.Option() == optionCaller }) {
			t.Errorf("%s: the client receives %v", name, o)
		}
	}
}

// TestUpstreamWithoutEDNS has an upstream that answers queries with EDNS by FORMERR: clients receive the same replies with and
// without the option.
func TestUpstreamWithoutEDNS(t *testing.T) {
	const learned = "gets queries without it"
	for _, args := range [][]string{nil, {"-node-name", "node-a"}} {
		for _, transport := range []string{"force_tcp", "prefer_udp"} {
			t.Run(strings.Join(args, " ")+" "+transport, func(t *testing.T) {
				old := record(t, clusterHost, true)
				p, address := start(t, "cluster.local:PORT {\n    forward . "+old.address+" {\n        "+transport+"\n    }\n}\n", args...)
				refused := 1 // queries until one is answered; over TCP edns-tcp-keepalive is omitted before the option
				if args != nil {
					refused = map[string]int{"force_tcp": 3, "prefer_udp": 2}[transport]
				}
				for i, want := range []int{refused, 1, 1} {
					name := fmt.Sprintf("a%d.cluster.local.", i)
					m := new(dns.Msg).SetQuestion(name, dns.TypeA)
					reply, err := exchange("udp", address, m)
					if err != nil || reply.Rcode != dns.RcodeSuccess {
						t.Errorf("error %v, reply %v", err, reply)
						continue
					}
					wantNoCaller(t, m, reply)
					if got := old.queriesFor(name); len(got) != want || got[len(got)-1].opts > 0 {
						t.Errorf("query %d: upstream received %+v, want %d queries", i, got, want)
					}
					if i == 0 && args != nil {
						kit.Eventually(t, "nodecache has found out that the option is refused", func() bool { return strings.Contains(p.Output(), learned) })
					}
				}
				reply, err := exchange("udp", address, new(dns.Msg).SetQuestion("b.cluster.local.", dns.TypeA).SetEdns0(1232, false))
				if err != nil || reply.Rcode != dns.RcodeFormatError {
					t.Errorf("with EDNS: error %v, reply %v", err, reply)
				}
			})
		}
	}
}
