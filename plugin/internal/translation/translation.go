// Package translation corrects CoreDNS's plugin dns64: with translate_all, a name without A records is answered with its AAAA
// records. Input: a plugin of a server block; output: the plugin in its place. The package imports nothing of this project.
package translation

import (
	"context"
	"errors"
	"slices"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/dns64"
	"github.com/coredns/coredns/plugin/pkg/nonwriter"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"
)

// Handler corrects CoreDNS's handler with the option translate_all, which replaces AAAA records by translated A records also
// if the name has no A records: the answer would be empty.
type Handler struct{ *dns64.DNS64 }

// Correct returns a plugin with a Handler in place of CoreDNS's handler with translate_all. Other plugins are returned as they are.
func Correct(p plugin.Plugin) plugin.Plugin {
	return func(next plugin.Handler) plugin.Handler {
		h := p(next)
		if d, ok := h.(*dns64.DNS64); ok && d.TranslateAll {
			return Handler{d}
		}
		return h
	}
}

// ServeDNS implements plugin.Handler.
func (h Handler) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	q := query{DNS64: h.DNS64}
	d := *h.DNS64
	d.Next, d.Upstream = plugin.HandlerFunc(q.next), &q
	code, err := d.ServeDNS(ctx, w, r)
	if errors.Is(err, errNoAddress) {
		return dns.RcodeSuccess, w.WriteMsg(q.native.Msg)
	}
	return code, err
}

// errNoAddress is the error of a lookup of A records for which the AAAA records are the answer.
var errNoAddress = errors.New("no A record to translate")

// query is a query in progress.
type query struct {
	*dns64.DNS64
	native *nonwriter.Writer // records the reply of the next plugins; nil if CoreDNS's handler does not examine the reply
}

// next calls the next plugins, and notes where CoreDNS's handler receives their reply.
func (q *query) next(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	q.native, _ = w.(*nonwriter.Writer)
	return plugin.NextOrFailure(q.Name(), q.Next, ctx, w, r)
}

// Lookup implements dns64.UpstreamInt. Only a complete reply shows that there is no A record: errors and truncated replies are
// left to CoreDNS's handler.
func (q *query) Lookup(ctx context.Context, state request.Request, name string, qtype uint16) (*dns.Msg, error) {
	reply, err := q.Upstream.Lookup(ctx, state, name, qtype)
	if err != nil || reply == nil || reply.Truncated || reply.Rcode != dns.RcodeSuccess && reply.Rcode != dns.RcodeNameError {
		return reply, err
	}
	if q.native != nil && answers(q.native.Msg, dns.TypeAAAA) && !answers(reply, dns.TypeA) {
		return nil, errNoAddress
	}
	return reply, nil
}

// answers reports whether the answer of a reply has a record of a type.
func answers(reply *dns.Msg, qtype uint16) bool {
	return slices.ContainsFunc(reply.Answer, func(rr dns.RR) bool { return rr.Header().Rrtype == qtype })
}
