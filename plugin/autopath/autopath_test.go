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

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/dnstest"
	"github.com/coredns/coredns/plugin/pkg/nonwriter"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist/expand"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
)

// lists is a searchlist.Finder with the lists of addresses; nil is an address of the host network.
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

// names is a plugin that answers some names with an address and others with NXDOMAIN, and records the queried names.
type names struct {
	exist   []string
	queried []string
	before  func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) // called before it answers
}

func (*names) Name() string { return "names" }

func (n *names) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	name := strings.ToLower(r.Question[0].Name)
	n.queried = append(n.queried, name)
	if n.before != nil {
		n.before(ctx, w, r)
	}
	if c := store.PropertiesOf(ctx, r); c != nil {
		c.Expires = validity.Now() + 3600e9
	}
	m := new(dns.Msg).SetReply(r)
	if slices.Contains(n.exist, name) {
		m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: r.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 5}, A: net.IPv4(192, 0, 2, 1)}}
	} else {
		m.Rcode = dns.RcodeNameError
	}
	return dns.RcodeSuccess, w.WriteMsg(m)
}

// newAutopath returns a handler in front of names.
func newAutopath(next *names) *Autopath {
	return &Autopath{
		Expander: expand.Expander{Plugin: pluginName, Next: next, Block: &block.Block{Keyspace: store.Shared.NewKeyspace()}, Metrics: expandMetrics},
		zones:    []string{"cluster.local."},
		lists: lists{
			netip.MustParseAddr(podIP): shop, netip.MustParseAddr(bankIP): bank, netip.MustParseAddr("fd00::1"): shop,
			netip.MustParseAddr(hostIP): nil,
		},
	}
}

// clientWriter writes to a client with an address.
type clientWriter struct {
	test.ResponseWriter
	addr net.Addr
}

func (w *clientWriter) RemoteAddr() net.Addr { return w.addr }

func newWriter(address string) *dnstest.Recorder {
	return dnstest.NewRecorder(&clientWriter{addr: &net.UDPAddr{IP: net.ParseIP(address), Port: 40000}})
}

// counters returns the plugin's metrics of a server that are not 0, by name and labels.
func counters(t *testing.T, server string) map[string]float64 {
	t.Helper()
	families, err := prometheus.DefaultGatherer.Gather()
	kit.Must(t, err)
	all := map[string]float64{}
	for _, f := range families {
		if !strings.Contains(f.GetName(), "_autopath_") {
			continue
		}
		for _, m := range f.GetMetric() {
			key, labelled := f.GetName(), ""
			for _, l := range m.GetLabel() {
				if l.GetName() == "server" {
					labelled = l.GetValue()
				} else {
					key += " " + l.GetValue()
				}
			}
			if labelled == server && m.GetCounter().GetValue() > 0 {
				all[key] = m.GetCounter().GetValue()
			}
		}
	}
	return all
}

// increase returns the differences of counters that are not 0.
func increase(now, before map[string]float64) map[string]float64 {
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

func unknown(reason string) map[string]float64 {
	return map[string]float64{"nearside_autopath_unknown_clients_total " + reason: 1}
}

func TestServeDNS(t *testing.T) {
	list, _ := searchlist.AppendSuffixes(nil, shop.Suffixes)
	const name = "www.shop.svc.cluster.local."
	all := []string{name, "www.svc.cluster.local.", "www.cluster.local.", "www."}
	tests := map[string]struct {
		from   string
		name   string
		change func(*dns.Msg)
		nested bool
		want   []string // queried names; nil for the name alone
		counts map[string]float64
	}{
		"a pod":                           {podIP, name, nil, false, all, expansions("success", "bare", 3)},
		"over IPv6":                       {"fd00::1", name, nil, false, all, expansions("success", "bare", 3)},
		"as an IPv4-mapped address":       {"::ffff:" + podIP, name, nil, false, all, expansions("success", "bare", 3)},
		"in upper case":                   {podIP, "WWW.Shop.svc.cluster.local.", nil, false, all, expansions("success", "bare", 3)},
		"a missing name":                  {podIP, "no.shop.svc.cluster.local.", nil, false, []string{"no.shop.svc.cluster.local.", "no.svc.cluster.local.", "no.cluster.local.", "no."}, expansions("nxdomain", "none", 0)},
		"the suffix itself":               {podIP, shop.First(), nil, false, nil, nil},
		"below another suffix":            {podIP, "www.svc.cluster.local.", nil, false, nil, nil},
		"below the suffix of another pod": {bankIP, name, nil, false, nil, nil},
		"in no zone of the plugin":        {podIP, "www.example.org.", nil, false, nil, nil},
		"the host network":                {hostIP, name, nil, false, nil, unknown("host_network")},
		"an unknown client":               {noIP, name, nil, false, nil, unknown("no_pod")},
		"an unknown client, another name": {noIP, "cluster.local.", nil, false, nil, unknown("no_pod")},
		"an unknown client, another zone": {noIP, "www.example.org.", nil, false, nil, nil},
		"a candidate":                     {podIP, name, nil, true, nil, nil},
		"an unknown client, a candidate":  {noIP, name, nil, true, nil, nil},
		"with the option of a list":       {podIP, name, func(r *dns.Msg) { *r = *searchlist.WithOption(r, list) }, false, nil, nil},
		"CH":                              {podIP, name, func(r *dns.Msg) { r.Question[0].Qclass = dns.ClassCHAOS }, false, nil, nil},
		"AXFR":                            {podIP, name, func(r *dns.Msg) { r.Question[0].Qtype = dns.TypeAXFR }, false, nil, nil},
		"NOTIFY":                          {podIP, name, func(r *dns.Msg) { r.Opcode = dns.OpcodeNotify }, false, nil, nil},
	}
	for title, tt := range tests {
		t.Run(title, func(t *testing.T) {
			next := &names{exist: []string{"www."}}
			a := newAutopath(next)
			r := new(dns.Msg).SetQuestion(tt.name, dns.TypeA)
			if tt.change != nil {
				tt.change(r)
			}
			ctx := context.Background()
			if tt.nested {
				ctx = nestedIn(t, a)
			}
			before := counters(t, "")
			w := newWriter(tt.from)
			code, err := a.ServeDNS(ctx, w, r)
			if err != nil || code != dns.RcodeSuccess || w.Msg == nil || w.Msg.Id != r.Id || len(w.Msg.Question) != 1 || w.Msg.Question[0] != r.Question[0] {
				t.Fatalf("got %v, %d, %v", w.Msg, code, err)
			}
			want := tt.want
			if want == nil {
				want = []string{strings.ToLower(tt.name)}
			}
			if tt.nested {
				next.queried = next.queried[len(next.queried)-1:]
			}
			if !slices.Equal(next.queried, want) {
				t.Errorf("queried %q, want %q", next.queried, want)
			}
			if counts := increase(counters(t, ""), before); !maps.Equal(counts, tt.counts) {
				t.Errorf("counted %v, want %v", counts, tt.counts)
			}
		})
	}
}

// nestedIn returns the context of a query for a candidate.
func nestedIn(t *testing.T, a *Autopath) (inner context.Context) {
	t.Helper()
	next := a.Next.(*names)
	next.before = func(ctx context.Context, _ dns.ResponseWriter, _ *dns.Msg) { inner = ctx }
	if _, err := a.ServeDNS(context.Background(), newWriter(podIP), new(dns.Msg).SetQuestion("other.shop.svc.cluster.local.", dns.TypeA)); err != nil {
		t.Fatal(err)
	}
	next.before = nil
	return inner
}

// TestListsApart queries the same names repeatedly from two pods and from unknown clients: an answer that is stored for
// one search list is not the answer for another.
func TestListsApart(t *testing.T) {
	next := &names{exist: []string{"www.", "www.bank.svc.cluster.local."}}
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
			next.queried = nil
			w := newWriter(tt.from)
			if _, err := a.ServeDNS(context.Background(), w, new(dns.Msg).SetQuestion(tt.name, dns.TypeA)); err != nil {
				t.Fatal(err)
			}
			got := ""
			if n := len(w.Msg.Answer); n > 0 {
				got = w.Msg.Answer[n-1].Header().Name
			}
			if got != tt.want || (got == "") != (w.Msg.Rcode == dns.RcodeNameError) {
				t.Errorf("round %d: %s queries %s: got %v, want the answer for %q", round, tt.from, tt.name, w.Msg, tt.want)
			}
			if expanded := tt.want == "www."; expanded && round > 0 && len(next.queried) > 0 {
				t.Errorf("round %d: %s queries %s: the answer was not stored", round, tt.from, tt.name)
			}
		}
	}
}

// TestAlias has a later plugin query the target of an alias, as kubernetes does for a Service of type ExternalName. The
// target is not from a resolver: it is not expanded for any client, since the answer is stored for all clients.
func TestAlias(t *testing.T) {
	const target = "www.shop.svc.cluster.local."
	for _, alias := range []string{"alias.shop.svc.cluster.local.", "alias.bank.svc.cluster.local.", "alias.example.org."} {
		next := &names{exist: []string{alias, "www."}}
		a := newAutopath(next)
		var found *dns.Msg
		next.before = func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) {
			if strings.HasPrefix(r.Question[0].Name, "alias.") {
				lookup := nonwriter.New(w)
				if _, err := a.ServeDNS(ctx, lookup, new(dns.Msg).SetQuestion(target, dns.TypeA)); err != nil {
					t.Fatal(err)
				}
				found = lookup.Msg
			}
		}
		for _, client := range []string{podIP, bankIP, noIP} {
			if _, err := a.ServeDNS(context.Background(), newWriter(client), new(dns.Msg).SetQuestion(alias, dns.TypeA)); err != nil {
				t.Fatal(err)
			}
			if found == nil || found.Rcode != dns.RcodeNameError {
				t.Errorf("%s queries %s, whose target does not exist: got %v", client, alias, found)
			}
		}
	}
}

// TestSearches asserts that Searches, for the fast path, and ServeDNS agree: on the search list of each query, and on the
// counters of an answer to the first name.
func TestSearches(t *testing.T) {
	next := &names{exist: []string{"www.shop.svc.cluster.local.", "www.bank.svc.cluster.local.", "www.cluster.local."}}
	a := newAutopath(next)
	if !slices.Equal(a.SearchZones(), a.zones) {
		t.Errorf("zones %q", a.SearchZones())
	}
	const server = "dns://:53"
	searches := a.ServerSearches(server)
	ctx := context.WithValue(context.Background(), dnsserver.Key{}, &dnsserver.Server{Addr: server})
	lists := map[uint32]string{} // suffixes by ID
	for _, client := range []string{podIP, bankIP, hostIP, noIP, "fd00::1"} {
		for _, name := range []string{
			"www.shop.svc.cluster.local.", "www.bank.svc.cluster.local.", "shop.svc.cluster.local.", "www.cluster.local.", "cluster.local.",
		} {
			before := counters(t, server)
			w := newWriter(client)
			if _, err := a.ServeDNS(ctx, w, new(dns.Msg).SetQuestion(name, dns.TypeA)); err != nil {
				t.Fatal(err)
			}
			plugin := increase(counters(t, server), before)
			var packed [255]byte
			n, err := dns.PackDomainName(name, packed[:], 0, nil, false)
			if err != nil {
				t.Fatal(err)
			}
			before = counters(t, server)
			s := searches.Search(netip.MustParseAddr(client), packed[:n])
			if s.Count != nil {
				s.Count.Inc()
			}
			if fast := increase(counters(t, server), before); !maps.Equal(fast, plugin) {
				t.Errorf("%s queries %s: the fast path counts %v, the plugin %v", client, name, fast, plugin)
			}
			list, _ := a.lists.Find(netip.MustParseAddr(client))
			switch expands := list != nil && list.Base(name) != ""; {
			case !expands && s.List != 0, expands && s.List != list.ID:
				t.Errorf("%s queries %s: list %d", client, name, s.List)
			case expands && lists[s.List] != "" && lists[s.List] != fmt.Sprint(list.Suffixes):
				t.Errorf("list %d is %v and %v", s.List, list.Suffixes, lists[s.List])
			case expands:
				lists[s.List] = fmt.Sprint(list.Suffixes)
			}
		}
	}
	if len(lists) != 2 {
		t.Errorf("lists %v", lists)
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

// podLists are lists whose clients are pods with ndots:1.
type podLists struct{ lists }

func (podLists) NdotsOf(netip.Addr) int { return 1 }

// TestSearchListOf has the option ndots of the pod, and the default for other lists.
func TestSearchListOf(t *testing.T) {
	for want, l := range map[int]searchlist.Finder{1: podLists{}, searchlist.DefaultNdots: lists{}} {
		if _, got, _ := (&Autopath{lists: l}).SearchListOf(netip.Addr{}); got != want {
			t.Errorf("ndots %d, want %d", got, want)
		}
	}
}
