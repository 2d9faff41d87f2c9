package kubernetes

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/caller"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

// topologyClients are callers on nodes and unknown ones, with and without a trusted address.
var topologyClients = []client{
	{"10.1.0.1", 1480},             // may be an endpoint
	{"10.1.0.2", 1480},             // and in a node's range
	{"2001:db8::1", 1220},          // may be an endpoint
	{"10.240.1.5", 1480},           // in the range of n1
	{"10.240.1.200", 1480},         // and in a range of n2 that is part of it
	{"2001:db8:1::5", 1220},        // in the range of n1
	{"2001:db8:1:0:8000::5", 1220}, // and in one of n2
	{"10.9.0.1", 1480},             // may be a pod
	{"192.0.2.9", 1480},            // in the range that one of the blocks trusts
	{"192.0.2.70", 1480},           // and in the range of n3
	{"203.0.113.5", 1480},          // unknown
	{"2001:db8:99::1", 1220},       // unknown
	{"10.99.0.1", 1480},            // unknown, in a private range
	{"fd00::9", 1220},              // the same
}

// nodeRanges are the ranges that pods of a node may have.
var nodeRanges = map[string][]netip.Prefix{
	"n1": prefixes("10.1.0.2/31", "10.240.1.0/24", "2001:db8:1::/64"),
	"n2": prefixes("10.240.1.128/25", "2001:db8:1:0:8000::/65"),
	"n3": prefixes("192.0.2.64/26"),
}

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

var (
	nodeNames     = []string{"n1", "n2", "n3"}
	endpointNodes = []string{"n1", "n1", "n2", "n2", "n3", "n4", ""} // n4 has no record
	zoneNames     = []string{"east", "east", "west.example", "west.example", "north"}
)

const keyRack = "example.org/rack"

// nameCaller draws the caller option: of a node that may exist or not, or an invalid one.
func nameCaller(r *rand.Rand, m *dns.Msg) {
	if r.IntN(3) == 0 {
		return
	}
	valid := func(node, zone string) []byte {
		data, ok := caller.Append(nil, node, zone)
		if !ok {
			panic("no data for " + node)
		}
		return data
	}
	var all [][]byte
	switch r.IntN(8) {
	default:
		all = [][]byte{valid(pick(r, nodeNames), pick(r, []string{"", "east", "north"}))}
	case 0:
		all = [][]byte{valid(pick(r, []string{"n4", "gone"}), "")}
	case 1:
		all = [][]byte{valid(pick(r, []string{"n4", "gone"}), pick(r, zoneNames))}
	case 2:
		all = [][]byte{pick(r, [][]byte{{}, {1}, {2, 2, 'n', '1'}, {1, 0}, {1, 3, 'n', '1'}, {1, 2, 'n', '1', 0}, {1, 2, 'n', '1', 4, 'e'},
			{1, 2, 'n', '1', 4, 'e', 'a', 's', 't', 0}})}
	case 3:
		all = [][]byte{valid("n1", ""), valid("n2", "")}
	}
	opt := m.IsEdns0()
	if opt == nil {
		m.SetEdns0(1232, false)
		opt = m.IsEdns0()
	}
	for _, data := range all {
		opt.Option = append(opt.Option, &dns.EDNS0_LOCAL{Code: wire.OptionCaller, Data: data})
	}
}

// withoutTopology returns a block without its topology options.
func withoutTopology(block string) string {
	var lines []string
	for line := range strings.SplitSeq(block, "\n") {
		if !strings.HasPrefix(line, "topology") && !strings.HasPrefix(line, "trust") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

// changes returns random changes of the handler's cluster. With topology a model follows them.
func (s *storing) changes(seed uint64) *changes {
	c := newChanges(seed, s.k)
	if !s.k.source.Topology {
		return c
	}
	s.model = c.ix.model
	for _, key := range s.k.topologyKeys {
		s.model.defaults = append(s.model.defaults, key.String())
	}
	s.model.trusts = func(a netip.Addr) bool { return a.IsPrivate() }
	if s.k.trust != nil {
		trusted := netip.MustParsePrefix("192.0.2.0/24")
		s.model.trusts = trusted.Contains
	}
	return c
}

// changeTopology changes a record that decides which endpoints callers get.
func (c *changes) changeTopology(namespace, service string) string {
	old := c.ix.ServiceRecord(namespace, service)
	if old == nil || c.IntN(2) == 0 {
		return c.changeNode()
	}
	if c.IntN(2) == 0 {
		s := *old
		s.Topology = c.topology()
		c.ix.PutService(&s)
		return fmt.Sprintf("PutService %s.%s of kind %d, topology %+v", s.Name, s.Namespace, s.Kind, s.Topology)
	}
	return c.hint(func(s index.Slice) bool { return s.Namespace == namespace && s.Service == service })
}

// hint adds hints to some endpoints of these EndpointSlices, or removes all.
func (c *changes) hint(selects func(index.Slice) bool) string {
	zones, nodes, share := c.IntN(3) > 0, c.IntN(2) == 0, pick(c.Rand, []int{0, 8, 10, 10, 10})
	names := slices.SortedFunc(maps.Keys(c.ix.model.slices), func(a, b index.Name) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	for _, name := range names {
		s := c.ix.model.slices[name]
		if !selects(s) {
			continue
		}
		s.Endpoints = slices.Collect(s.All())
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			e.Hints = nil
			if (!zones && !nodes) || c.IntN(10) >= share {
				continue
			}
			e.Hints = &index.Hints{}
			if zones {
				e.Hints.Zones = []index.Symbol{index.NewSymbol(pick(c.Rand, zoneNames)), index.NewSymbol(pick(c.Rand, zoneNames))}
			}
			if nodes {
				e.Hints.Nodes = []index.Symbol{index.NewSymbol(pick(c.Rand, nodeNames))}
			}
		}
		c.ix.PutSlice(&s)
	}
	return fmt.Sprintf("hints for zones %t, for nodes %t, share of endpoints %d of 10", zones, nodes, share)
}

// changeNode changes one node or several.
func (c *changes) changeNode() string {
	name := pick(c.Rand, nodeNames)
	symbol := index.NewSymbol(name)
	switch c.IntN(10) {
	case 0, 1:
		c.ix.DeleteNode(symbol)
		return "DeleteNode " + name
	case 2:
		n := c.node(name)
		n.UID++
		c.ix.DeleteNode(symbol)
		c.ix.PutNode(n)
		return fmt.Sprintf("DeleteNode and PutNode %s %v", name, c.ix.model.nodes[name])
	case 3, 4:
		ranges := c.ranges(name)
		c.ix.SetNodeCIDRs(symbol, c.ix.model.nodes[name].uid, ranges)
		return fmt.Sprint("SetNodeCIDRs ", name, ranges)
	case 5:
		var left []*index.Node
		for _, name := range nodeNames {
			if c.IntN(3) > 0 {
				left = append(left, c.node(name))
			}
		}
		c.ix.ReplaceNodes(left)
		return fmt.Sprint("ReplaceNodes ", c.ix.model.nodes)
	default:
		c.ix.PutNode(c.node(name))
		return fmt.Sprintf("PutNode %s %v", name, c.ix.model.nodes[name])
	}
}

// ranges draws the ranges of a node: none is not the same as unknown.
func (c *changes) ranges(node string) []netip.Prefix {
	some := []netip.Prefix{}
	for _, p := range nodeRanges[node] {
		if c.IntN(3) > 0 {
			some = append(some, p)
		}
	}
	return some
}

// node draws a record: the current one with one label altered, or a new one.
func (c *changes) node(name string) *index.Node {
	n := &index.Node{Name: index.NewSymbol(name), UID: index.NewUID(name)}
	labels := map[string]string{keyHostname: name, keyZone: pick(c.Rand, zoneNames), keyRack: pick(c.Rand, []string{"", "r1", "r2"})}
	if old, ok := c.ix.model.nodes[name]; ok {
		n.UID, labels = old.uid, maps.Clone(old.labels)
	}
	key := pick(c.Rand, []string{keyHostname, keyZone, keyRack, keyRack})
	labels[key] = map[string]string{
		keyHostname: pick(c.Rand, []string{name, name, name, "n1"}),
		keyZone:     pick(c.Rand, zoneNames),
		keyRack:     pick(c.Rand, []string{"", "r1", "r2"}),
	}[key]
	if c.IntN(5) == 0 {
		delete(labels, key)
	}
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		n.Labels = append(n.Labels, index.Label{Key: index.NewSymbol(key), Value: index.NewSymbol(labels[key])})
	}
	if c.IntN(2) == 0 {
		n.CIDRs = c.ranges(name)
	}
	return n
}

// topology draws the topology settings of a Service.
func (c *changes) topology() *index.Topology {
	t := &index.Topology{}
	switch c.IntN(9) {
	case 0:
		return nil
	case 1, 2, 3:
		for key := range strings.FieldsSeq(pick(c.Rand, []string{
			keyHostname, keyHostname + " *", keyZone, keyZone + " *", keyRack, "*",
			keyHostname + " " + keyZone + " *", keyRack + " " + keyZone, "example.org/none " + keyRack + " *",
		})) {
			t.Keys = append(t.Keys, index.NewSymbol(key))
		}
	case 4, 5:
		t.Local = true
	case 6:
		t.Auto = true
	case 7:
		t.Distribution = index.PreferSameZone
	case 8:
		t.Distribution = index.PreferSameNode
	}
	if c.IntN(3) == 0 { // settings of lower precedence
		t.Local, t.Auto = t.Local || c.IntN(3) == 0, t.Auto || c.IntN(3) == 0
		t.Distribution = pick(c.Rand, []index.Distribution{index.NoDistribution, index.PreferSameZone, index.PreferSameNode})
	}
	return t
}

// filtered draws a query whose answer may depend on the caller.
func (c *changes) filtered() dns.Question {
	name := pick(c.Rand, c.services) + "." + pick(c.Rand, c.namespaces) + ".svc.cluster.local."
	qtype := pick(c.Rand, []uint16{dns.TypeA, dns.TypeA, dns.TypeA, dns.TypeAAAA, dns.TypeSRV})
	if c.IntN(6) == 0 {
		name = pick(c.Rand, []string{"_http._tcp.", "_dns._udp."}) + name
	}
	return dns.Question{Name: name, Qtype: qtype}
}

// place draws the node of a pod.
func (c *changes) place(p *index.Pod) {
	p.Node = index.NewSymbol(pick(c.Rand, endpointNodes))
	if c.IntN(2) == 0 {
		p.IPs[0] = netip.MustParseAddr("10.9.0.1")
	}
}

// spread has many endpoints on all nodes.
func (c *changes) spread(all []index.Endpoint) {
	for i := range all {
		all[i].Node = index.NewSymbol(endpointNodes[i%len(endpointNodes)])
		all[i].Zone = index.NewSymbol(zoneNames[i%len(zoneNames)])
	}
}

// topologyKinds are what a test of a block with topology has to compare.
var topologyKinds = []string{"model: all", "model: fewer", "model: none", "model: the same for all",
	"caller: unknown", "caller: on a node", "caller: on a node that is not there", "stored for another"}

// checkModel compares an answer with the model's, and with the answer without topology: that is the
// same without filtering, and has the same name with filtering.
func (s *storing) checkModel(query, answer []byte, from client, counts seen) error {
	unfiltered, err := packedReply(s.unfiltered, query, from)
	if err != nil {
		return err
	}
	var asked, got, all dns.Msg
	for m, b := range map[*dns.Msg][]byte{&asked: query, &got: answer, &all: unfiltered} {
		if err := m.Unpack(b); err != nil {
			return err
		}
	}
	who := s.model.caller(&asked, netip.MustParseAddr(from.address))
	want, addresses, depends := s.model.records(asked.Question[0], who)
	if !depends {
		counts["model: the same for all"]++
		if err := same(answer, unfiltered); err != nil {
			return fmt.Errorf("with topology and without: %w", err)
		}
		return nil
	}
	if got.Rcode != all.Rcode {
		return fmt.Errorf("the code is %s, and %s without topology", dns.RcodeToString[got.Rcode], dns.RcodeToString[all.Rcode])
	}
	if err := sees(&got, want, addresses); err != nil {
		return fmt.Errorf("model: %s from %s, known as %+v: %w", asked.Question[0].String(), from.address, who, err)
	}
	countModel(counts, s.model, who, &got, &all)
	return nil
}

func countModel(counts seen, m *model, who modelCaller, got, all *dns.Msg) {
	switch _, known := m.nodes[who.node]; {
	case who.node == "":
		counts["caller: unknown"]++
	case known:
		counts["caller: on a node"]++
	default:
		counts["caller: on a node that is not there"]++
	}
	switch n := len(all.Answer); {
	case n == 0:
		return
	case len(got.Answer) == n:
		counts["model: all"]++
	case len(got.Answer) > 0:
		counts["model: fewer"]++
	default:
		counts["model: none"]++
	}
	if all.Answer[0].Header().Rrtype == dns.TypeCNAME {
		counts["model: an alias"]++
	}
}

// sees returns an error unless the answer has the wanted records and no others. A truncated one may have
// fewer.
func sees(m *dns.Msg, want map[string]bool, addresses map[netip.Addr]bool) error {
	got := map[string]bool{}
	for _, rr := range m.Answer {
		switch rr := rr.(type) {
		case *dns.A:
			got[rr.A.String()] = true
		case *dns.AAAA:
			got[rr.AAAA.String()] = true
		case *dns.SRV:
			got[fmt.Sprintf("%s %d", strings.ToLower(rr.Target), rr.Port)] = true
		case *dns.CNAME:
		default:
			return fmt.Errorf("%v is no record of a Service", rr)
		}
	}
	for text := range got {
		if !want[text] {
			return fmt.Errorf("%s is given, which is not to be seen; this is: %v", text, slices.Sorted(maps.Keys(want)))
		}
	}
	if len(got) < len(want) && !m.Truncated {
		return fmt.Errorf("given are %v, want %v", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}
	for _, rr := range m.Extra {
		var a netip.Addr
		switch rr := rr.(type) {
		case *dns.A:
			a, _ = netip.AddrFromSlice(rr.A.To4())
		case *dns.AAAA:
			a, _ = netip.AddrFromSlice(rr.AAAA)
		default:
			continue
		}
		if !addresses[a] {
			return fmt.Errorf("%v is in the additional section, which is not to be seen", rr)
		}
	}
	if len(m.Answer) == 0 && (len(m.Ns) != 1 || m.Ns[0].Header().Rrtype != dns.TypeSOA) {
		return fmt.Errorf("NODATA with %v in the authority section", m.Ns)
	}
	return nil
}

// compareOthers compares the stored answers for other callers, immediately after the query of one: none of them may
// get that answer.
func (s *storing) compareOthers(r *rand.Rand, asked dns.Question, counts seen) error {
	if asked.Qtype != dns.TypeA && asked.Qtype != dns.TypeAAAA && asked.Qtype != dns.TypeSRV {
		return nil
	}
	for range 2 {
		query, err := s.queryOf(r, asked.Name, asked.Qtype)
		if err != nil {
			return err
		}
		from := pick(r, s.clients)
		if s.stored(query, from) == nil {
			continue
		}
		counts["stored for another"]++
		if err := s.compare(query, from, counts); err != nil {
			return fmt.Errorf("stored, when another asks: %w", err)
		}
	}
	return nil
}
