// Package nodelocal sets up a node so that the queries of its pods reach the cache on it: an interface with the
// node-local addresses, rules that exclude packets to them from connection tracking, and the lease, without which the
// rules have no effect and cluster DNS answers. Input is the directive's options; output is the kernel's state,
// repaired while the server runs, and metrics. Packages link and rules change the kernel; this package decides when. It
// imports no other plugin.
package nodelocal

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"
)

// healthLabel is a label of the names in self-queries, the queries of the server to itself: after a label that is
// different in each query, before the server block's zone.
const healthLabel = "nodelocal-health."

// healthText is the only string of the TXT record that answers such a name.
const healthText = "nearside"

// NodeLocal answers self-queries.
type NodeLocal struct {
	Next plugin.Handler

	suffix    string       // of the names in self-queries
	addresses []netip.Addr // sources of self-queries, besides the loopback addresses
}

// healthSuffix returns the suffix of the names in self-queries.
func healthSuffix(zone string) string {
	if zone == "." {
		return "." + healthLabel
	}
	return "." + healthLabel + zone
}

// Name implements plugin.Handler.
func (n *NodeLocal) Name() string { return pluginName }

// OwnZones implements block.ZoneOwner: self-queries do not wait for queries to upstreams.
func (n *NodeLocal) OwnZones() []string { return []string{n.suffix[1:]} }

// ServeDNS implements plugin.Handler. It answers self-queries from this node only; the answer proves that this server
// reads from its socket and has time to answer.
func (n *NodeLocal) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	state := request.Request{W: w, Req: r}
	if !strings.HasSuffix(state.Name(), n.suffix) || !n.isOwn(state.IP()) {
		if n.Next == nil {
			return dns.RcodeRefused, nil // a server block with this plugin alone answers nothing else
		}
		return plugin.NextOrFailure(pluginName, n.Next, ctx, w, r)
	}
	m := new(dns.Msg)
	m.SetReply(r)
	m.Authoritative = true
	if state.QType() == dns.TypeTXT {
		m.Answer = []dns.RR{&dns.TXT{
			Hdr: dns.RR_Header{Name: state.QName(), Rrtype: dns.TypeTXT, Class: dns.ClassINET},
			Txt: []string{healthText},
		}}
	}
	return dns.RcodeSuccess, w.WriteMsg(m)
}

// healthy returns whether a reply is the answer to a self-query.
func healthy(r *dns.Msg) bool {
	if r.Rcode != dns.RcodeSuccess || len(r.Answer) != 1 {
		return false
	}
	txt, ok := r.Answer[0].(*dns.TXT)
	return ok && len(txt.Txt) == 1 && txt.Txt[0] == healthText
}

// isOwn returns whether a query is from this node: from a loopback address, a node-local address, or the source of
// self-queries.
func (n *NodeLocal) isOwn(remote string) bool {
	a, err := netip.ParseAddr(remote)
	return err == nil && (a.IsLoopback() || slices.Contains(n.addresses, a.WithZone("")))
}
