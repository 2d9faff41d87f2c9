// Package nodelocal owns what a node needs for pods to reach the cache on it: an interface with the
// node-local addresses, rules that keep those packets out of connection tracking, and the lease by
// which the rules take traffic only while the server answers. In go the directive's words; out come
// the kernel's state, repaired while the server runs, and metrics. Packages link and rules know the
// kernel; this one knows when.
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

// HealthLabel stands in the names that the server asks itself for, before the server block's zone and
// after a label of the asker's choice.
const HealthLabel = "nodelocal-health."

// HealthText is the only string of the TXT record that answers such a name.
const HealthText = "nearside"

// NodeLocal answers the queries that the node asks itself.
type NodeLocal struct {
	Next plugin.Handler

	suffix    string       // of the names of those queries
	addresses []netip.Addr // that such queries come from, beside the loopback addresses
}

// healthSuffix returns what names of queries of the server to itself end in.
func healthSuffix(zone string) string {
	if zone == "." {
		return "." + HealthLabel
	}
	return "." + HealthLabel + zone
}

// Name implements plugin.Handler.
func (n *NodeLocal) Name() string { return pluginName }

// ServeDNS implements plugin.Handler. A query for a health name is answered to the node itself and
// nobody else; it proves that this server reads from its socket and has time to answer.
func (n *NodeLocal) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	state := request.Request{W: w, Req: r}
	if !strings.HasSuffix(state.Name(), n.suffix) || !n.isOwn(state.IP()) {
		if n.Next == nil {
			return dns.RcodeRefused, nil // in a block of its own it answers nothing else
		}
		return plugin.NextOrFailure(pluginName, n.Next, ctx, w, r)
	}
	m := new(dns.Msg)
	m.SetReply(r)
	m.Authoritative = true
	if state.QType() == dns.TypeTXT {
		m.Answer = []dns.RR{&dns.TXT{
			Hdr: dns.RR_Header{Name: state.QName(), Rrtype: dns.TypeTXT, Class: dns.ClassINET},
			Txt: []string{HealthText},
		}}
	}
	return dns.RcodeSuccess, w.WriteMsg(m)
}

// isOwn returns whether a query is from this node: from a loopback address, a node-local one, or the source of
// queries to itself.
func (n *NodeLocal) isOwn(remote string) bool {
	a, err := netip.ParseAddr(remote)
	return err == nil && (a.IsLoopback() || slices.Contains(n.addresses, a.WithZone("")))
}
