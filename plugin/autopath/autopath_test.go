package autopath

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/dnstest"
	"github.com/coredns/coredns/plugin/pkg/nonwriter"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist/expand"
)

// lists is a path.Finder: the lists of addresses. To nil, and to what is not there, there is none.
type lists map[netip.Addr]*searchlist.List

func (l lists) Find(from netip.Addr) (*searchlist.List, searchlist.Unknown) {
	p, ok := l[from]
	switch {
	case !ok:
		return nil, searchlist.NoPod
	case p == nil:
		return nil, searchlist.HostNetwork
	}
	return p, searchlist.Known
}

func (lists) Zone() string { return "cluster.local." }

const (
	podIP  = "10.1.0.1"
	bankIP = "10.1.0.2"
	hostIP = "10.1.0.3"
	noIP   = "10.1.0.4"
)

var (
	shop = searchlist.New([]string{"shop.svc.cluster.local.", "svc.cluster.local.", "cluster.local."})
	bank = searchlist.New([]string{"bank.svc.cluster.local.", "svc.cluster.local.", "cluster.local."})
)

// names is a plugin that answers the names that it has with an address, and notes what it is asked for.
type names struct {
	has   []string
	asked []string
	then  func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) // before it answers
}

func (*names) Name() string { return "names" }

func (n *names) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	name := strings.ToLower(r.Question[0].Name)
	n.asked = append(n.asked, name)
	if n.then != nil {
		n.then(ctx, w, r)
	}
	if c := answers.PropertiesOf(ctx, r); c != nil {
		c.Expires = answers.Now() + 3600e9
	}
	m := new(dns.Msg).SetReply(r)
	if slices.Contains(n.has, name) {
		m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: r.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 5}, A: net.IPv4(192, 0, 2, 1)}}
	} else {
		m.Rcode = dns.RcodeNameError
	}
	return dns.RcodeSuccess, w.WriteMsg(m)
}

// newAutopath returns a handler in front of names.
func newAutopath(next *names) *Autopath {
	return &Autopath{
		Expander: expand.Expander{Plugin: pluginName, Next: next, Block: &block.Block{Keyspace: answers.Shared.NewKeyspace()}, Results: results},
		Zones:    []string{"cluster.local."},
		Clients: lists{
			netip.MustParseAddr(podIP): shop, netip.MustParseAddr(bankIP): bank, netip.MustParseAddr("fd00::1"): shop,
			netip.MustParseAddr(hostIP): nil,
		},
	}
}

// from is the way to a client with an address.
type from struct {
	test.ResponseWriter
	addr net.Addr
}

func (f *from) RemoteAddr() net.Addr { return f.addr }

func newWriter(address string) *dnstest.Recorder {
	return dnstest.NewRecorder(&from{addr: &net.UDPAddr{IP: net.ParseIP(address), Port: 40000}})
}

// counted is what the metrics of the plugin say of a server, by name and labels.
func counted(t *testing.T, server string) map[string]float64 {
	t.Helper()
	families, err := prometheus.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		if !strings.Contains(f.GetName(), "_autopath_") {
			continue
		}
		for _, m := range f.GetMetric() {
			key, of := f.GetName(), ""
			for _, l := range m.GetLabel() {
				if l.GetName() == "server" {
					of = l.GetValue()
				} else {
					key += " " + l.GetValue()
				}
			}
			if of == server && m.GetCounter().GetValue() > 0 {
				all[key] = m.GetCounter().GetValue()
			}
		}
	}
	return all
}

// since returns what has been counted since.
func since(now, before map[string]float64) map[string]float64 {
	now = maps.Clone(now)
	for key, value := range before {
		if now[key] -= value; now[key] == 0 {
			delete(now, key)
		}
	}
	return now
}

func expansions(outcome, position string, saved float64) map[string]float64 {
	all := map[string]float64{"nearside_autopath_expansions_total " + outcome + " " + position: 1}
	if position != "none" {
		all["coredns_autopath_success_total"] = 1
	}
	if saved > 0 {
		all["nearside_autopath_queries_saved_total"] = saved
	}
	return all
}

func unknownClient(why string) map[string]float64 {
	return map[string]float64{"nearside_autopath_unknown_clients_total " + why: 1}
}

func TestServeDNS(t *testing.T) {
	list, _ := searchlist.AppendSuffixes(nil, shop.Suffixes)
	change := func(f func(*dns.Msg)) func(*dns.Msg) { return f }
	const name = "www.shop.svc.cluster.local."
	walked := []string{name, "www.svc.cluster.local.", "www.cluster.local.", "www."}
	tests := map[string]struct {
		from   string
		name   string
		change func(*dns.Msg)
		nested bool
		asked  []string // nil: the name alone
		counts map[string]float64
	}{
		"a pod":                       {podIP, name, nil, false, walked, expansions("success", "bare", 3)},
		"over IPv6":                   {"fd00::1", name, nil, false, walked, expansions("success", "bare", 3)},
		"in the other form":           {"::ffff:" + podIP, name, nil, false, walked, expansions("success", "bare", 3)},
		"in upper case":               {podIP, "WWW.Shop.svc.cluster.local.", nil, false, walked, expansions("success", "bare", 3)},
		"nothing is found":            {podIP, "no.shop.svc.cluster.local.", nil, false, []string{"no.shop.svc.cluster.local.", "no.svc.cluster.local.", "no.cluster.local.", "no."}, expansions("nxdomain", "none", 0)},
		"the suffix itself":           {podIP, shop.First(), nil, false, nil, nil},
		"below another suffix":        {podIP, "www.svc.cluster.local.", nil, false, nil, nil},
		"below the suffix of another": {bankIP, name, nil, false, nil, nil},
		"in no zone of the plugin":    {podIP, "www.example.org.", nil, false, nil, nil},
		"the host network":            {hostIP, name, nil, false, nil, unknownClient("host_network")},
		"nobody":                      {noIP, name, nil, false, nil, unknownClient("no_pod")},
		"nobody, for another name":    {noIP, "cluster.local.", nil, false, nil, unknownClient("no_pod")},
		"nobody, in no zone":          {noIP, "www.example.org.", nil, false, nil, nil},
		"for a candidate":             {podIP, name, nil, true, nil, nil},
		"for a candidate of nobody":   {noIP, name, nil, true, nil, nil},
		"with a list of its own":      {podIP, name, change(func(r *dns.Msg) { *r = *searchlist.WithOption(r, list) }), false, nil, nil},
		"CH":                          {podIP, name, change(func(r *dns.Msg) { r.Question[0].Qclass = dns.ClassCHAOS }), false, nil, nil},
		"AXFR":                        {podIP, name, change(func(r *dns.Msg) { r.Question[0].Qtype = dns.TypeAXFR }), false, nil, nil},
		"a notification":              {podIP, name, change(func(r *dns.Msg) { r.Opcode = dns.OpcodeNotify }), false, nil, nil},
	}
	for title, tt := range tests {
		t.Run(title, func(t *testing.T) {
			next := &names{has: []string{"www."}}
			a := newAutopath(next)
			r := new(dns.Msg).SetQuestion(tt.name, dns.TypeA)
			if tt.change != nil {
				tt.change(r)
			}
			ctx := context.Background()
			if tt.nested {
				ctx = nestedIn(t, a)
			}
			before := counted(t, "")
			w := newWriter(tt.from)
			code, err := a.ServeDNS(ctx, w, r)
			if err != nil || code != dns.RcodeSuccess || w.Msg == nil || w.Msg.Id != r.Id || len(w.Msg.Question) != 1 || w.Msg.Question[0] != r.Question[0] {
				t.Fatalf("got %v, %d, %v", w.Msg, code, err)
			}
			want := tt.asked
			if want == nil {
				want = []string{strings.ToLower(tt.name)}
			}
			if tt.nested {
				next.asked = next.asked[len(next.asked)-1:]
			}
			if !slices.Equal(next.asked, want) {
				t.Errorf("asked for %q, want %q", next.asked, want)
			}
			if counts := since(counted(t, ""), before); !maps.Equal(counts, tt.counts) {
				t.Errorf("counted %v, want %v", counts, tt.counts)
			}
		})
	}
}

// nestedIn returns the context of a query for a candidate.
func nestedIn(t *testing.T, a *Autopath) (inner context.Context) {
	t.Helper()
	next := a.Next.(*names)
	next.then = func(ctx context.Context, _ dns.ResponseWriter, _ *dns.Msg) { inner = ctx }
	if _, err := a.ServeDNS(context.Background(), newWriter(podIP), new(dns.Msg).SetQuestion("other.shop.svc.cluster.local.", dns.TypeA)); err != nil {
		t.Fatal(err)
	}
	next.then = nil
	return inner
}

// TestPathsApart asks from two pods and from nobody for the same names, again and again: what is kept for one is not
// given to another.
func TestPathsApart(t *testing.T) {
	next := &names{has: []string{"www.", "www.bank.svc.cluster.local."}}
	a := newAutopath(next)
	for round := range 3 {
		for _, tt := range []struct{ from, name, want string }{
			{podIP, "www.shop.svc.cluster.local.", "www."},
			{bankIP, "www.shop.svc.cluster.local.", ""},
			{noIP, "www.shop.svc.cluster.local.", ""},
			{hostIP, "www.shop.svc.cluster.local.", ""},
			{podIP, "www.bank.svc.cluster.local.", "www.bank.svc.cluster.local."},
			{bankIP, "www.bank.svc.cluster.local.", "www.bank.svc.cluster.local."},
			{noIP, "www.bank.svc.cluster.local.", "www.bank.svc.cluster.local."},
		} {
			next.asked = nil
			w := newWriter(tt.from)
			if _, err := a.ServeDNS(context.Background(), w, new(dns.Msg).SetQuestion(tt.name, dns.TypeA)); err != nil {
				t.Fatal(err)
			}
			got := ""
			if n := len(w.Msg.Answer); n > 0 {
				got = w.Msg.Answer[n-1].Header().Name
			}
			if got != tt.want || (got == "") != (w.Msg.Rcode == dns.RcodeNameError) {
				t.Errorf("round %d: %s asks for %s: got %v, want that of %q", round, tt.from, tt.name, w.Msg, tt.want)
			}
			if expanded := tt.want == "www."; expanded && round > 0 && len(next.asked) > 0 {
				t.Errorf("round %d: %s asks for %s: it is not kept", round, tt.from, tt.name)
			}
		}
	}
}

// TestAlias has a plugin look up where an alias leads, as kubernetes does for a Service of type ExternalName. The
// target is a name, and no text for a resolver to complete: it is not expanded, whoever asks. Else what one client's
// list leads to would be kept as the answer for all.
func TestAlias(t *testing.T) {
	const target = "www.shop.svc.cluster.local."
	for _, asked := range []string{"alias.shop.svc.cluster.local.", "alias.bank.svc.cluster.local.", "alias.example.org."} {
		next := &names{has: []string{asked, "www."}}
		a := newAutopath(next)
		var found *dns.Msg
		next.then = func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) {
			if strings.HasPrefix(r.Question[0].Name, "alias.") {
				lookup := nonwriter.New(w)
				if _, err := a.ServeDNS(ctx, lookup, new(dns.Msg).SetQuestion(target, dns.TypeA)); err != nil {
					t.Fatal(err)
				}
				found = lookup.Msg
			}
		}
		for _, client := range []string{podIP, bankIP, noIP} {
			if _, err := a.ServeDNS(context.Background(), newWriter(client), new(dns.Msg).SetQuestion(asked, dns.TypeA)); err != nil {
				t.Fatal(err)
			}
			if found == nil || found.Rcode != dns.RcodeNameError {
				t.Errorf("%s asks for %s, which leads to what does not exist: got %v", client, asked, found)
			}
		}
	}
}

// TestSearches asserts that the fast path is told the same as the plugin does: who is expanded, and what is counted
// where the first name of the list has data.
func TestSearches(t *testing.T) {
	next := &names{has: []string{"www.shop.svc.cluster.local.", "www.bank.svc.cluster.local.", "www.cluster.local."}}
	a := newAutopath(next)
	if !slices.Equal(a.SearchZones(), a.Zones) {
		t.Errorf("zones %q", a.SearchZones())
	}
	const server = "dns://:53"
	searches := a.SearchesOn(server)
	ctx := context.WithValue(context.Background(), dnsserver.Key{}, &dnsserver.Server{Addr: server})
	paths := map[uint32]string{}
	for _, client := range []string{podIP, bankIP, hostIP, noIP, "fd00::1"} {
		for _, name := range []string{
			"www.shop.svc.cluster.local.", "www.bank.svc.cluster.local.", "shop.svc.cluster.local.", "www.cluster.local.", "cluster.local.",
		} {
			before := counted(t, server)
			w := newWriter(client)
			if _, err := a.ServeDNS(ctx, w, new(dns.Msg).SetQuestion(name, dns.TypeA)); err != nil {
				t.Fatal(err)
			}
			plugin := since(counted(t, server), before)
			var packed [255]byte
			n, err := dns.PackDomainName(name, packed[:], 0, nil, false)
			if err != nil {
				t.Fatal(err)
			}
			before = counted(t, server)
			s := searches.Search(netip.MustParseAddr(client), packed[:n])
			if s.Count != nil {
				s.Count.Inc()
			}
			if fast := since(counted(t, server), before); !maps.Equal(fast, plugin) {
				t.Errorf("%s asks for %s: the fast path counts %v, the plugin %v", client, name, fast, plugin)
			}
			p, _ := a.Clients.Find(netip.MustParseAddr(client))
			switch expands := p != nil && p.Base(name) != ""; {
			case !expands && s.List != 0, expands && s.List != p.ID:
				t.Errorf("%s asks for %s: path %d", client, name, s.List)
			case expands && paths[s.List] != "" && paths[s.List] != fmt.Sprint(p.Suffixes):
				t.Errorf("path %d is %v and %v", s.List, p.Suffixes, paths[s.List])
			case expands:
				paths[s.List] = fmt.Sprint(p.Suffixes)
			}
		}
	}
	if len(paths) != 2 {
		t.Errorf("paths %v", paths)
	}
	name := []byte("\x03www\x04shop\x03svc\x07cluster\x05local\x00")
	for _, client := range []string{podIP, bankIP, noIP} {
		from := netip.MustParseAddr(client)
		if n := testing.AllocsPerRun(100, func() { searches.Search(from, name) }); n != 0 {
			t.Errorf("%s: %v allocations", client, n)
		}
	}
}

var _ plugin.Handler = (*names)(nil)
