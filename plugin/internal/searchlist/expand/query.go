package expand

import (
	"context"
	"strings"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/nonwriter"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
)

// status is the status of a candidate by the reply to a query for it.
type status int

const (
	absent  status = iota // NXDOMAIN
	exists                // NODATA
	hasData               // the candidate is the result: it has data, or is an address with data of the other family
	failed
)

// candidateReply is the reply to the query for a candidate, or for a run of candidates.
type candidateReply struct {
	status status
	name   string // of the candidate
	offset int    // of the candidate in the run
	reply  *dns.Msg
	serial answers.Serial // of the zone
	stored bool           // the reply is stored as the answer to the name, by a cache or by the Expander
	err    error
}

// queryOne queries a candidate.
func (k *walk) queryOne(i int) candidateReply {
	return k.checkOtherTypes(i, k.query(k.names[i], k.r.Question[0].Qtype, nil))
}

// queryRun queries a run of candidates from i with one query. matched is the suffix of the candidate with data. tried
// reports whether the server supports the option: otherwise the reply is the one for the first candidate.
func (k *walk) queryRun(i int, suffixes []byte) (c candidateReply, matched string, tried bool) {
	c = k.query(k.names[i], k.r.Question[0].Qtype, suffixes)
	if c.status == failed {
		return c, "", false // the other candidates are queried one by one
	}
	data, ok := searchlist.OptionOf(c.reply)
	names, valid := searchlist.ParseSuffixes(data)
	switch {
	case !ok || !valid || len(names) > 1:
		return c, "", false
	case !searchlist.ValidReply(data, suffixes), len(names) == 0 && c.status == hasData, len(names) > 0 && c.status == absent:
		c.status = failed // the option contradicts the query or the reply
	case len(names) > 0:
		c.status, c.stored, matched = hasData, false, names[0]
	}
	return c, matched, true
}

// setName sets the candidate that the reply to a run is for, and removes the alias to it from the reply.
func (c *candidateReply) setName(name string) {
	if strings.EqualFold(c.name, name) {
		return
	}
	c.name = name
	if len(c.reply.Answer) == 0 {
		return
	}
	if alias, ok := c.reply.Answer[0].(*dns.CNAME); ok && strings.EqualFold(alias.Target, name) {
		own := *c.reply
		own.Answer = own.Answer[1:]
		c.reply = &own
	}
}

// checkOtherTypes queries a candidate that exists without data for the related types: with data of one of them, the
// candidate is the result. The last candidate is the result anyway if none has failed.
func (k *walk) checkOtherTypes(i int, c candidateReply) candidateReply {
	if c.status != exists || i == len(k.names)-1 && k.failed == nil {
		return c
	}
	for _, related := range searchlist.RelatedTypes[k.r.Question[0].Qtype] {
		if status := k.query(k.names[i], related, nil).status; status == hasData || status == failed {
			c.status = status
			return c
		}
	}
	return c
}

// query sends the client's query for another name and type, and joins the validity of the reply.
func (k *walk) query(name string, qtype uint16, suffixes []byte) candidateReply {
	r := k.r.Copy()
	r.Question[0].Name, r.Question[0].Qtype = name, qtype
	if suffixes != nil {
		r = searchlist.WithOption(r, suffixes)
	}
	ctx, recorded := answers.Record(k.ctx, r)
	reply, err := k.exchange(ctx, r)
	c := candidateReply{status: k.statusOf(name, reply), name: name, reply: reply, serial: recorded.Serial, err: err}
	c.stored = recorded.Expires != 0 || k.StoresCandidates && suffixes == nil
	joinReply(&k.validity, reply, recorded)
	if k.StoresCandidates && err == nil && reply != nil && suffixes == nil && recorded.ForAll() && k.Block.Serves(k.ctx, name) {
		k.Block.Keyspace.PutReply(r, reply, &recorded.Properties)
	}
	return c
}

// exchange sends a query to the next plugin if the name is this server block's, and to the server otherwise.
func (k *walk) exchange(ctx context.Context, r *dns.Msg) (*dns.Msg, error) {
	w := nonwriter.New(k.w)
	if k.Block.Serves(ctx, r.Question[0].Name) {
		code, err := plugin.NextOrFailure(k.Plugin, k.Next, ctx, w, r)
		if w.Msg == nil && err == nil && !plugin.ClientWrite(code) {
			w.Msg = new(dns.Msg).SetRcode(r, code) // like CoreDNS's server
		}
		return w.Msg, err
	}
	if server, ok := ctx.Value(dnsserver.Key{}).(*dnsserver.Server); ok { // without a server, the block serves every name
		server.ServeDNS(ctx, w, r)
	}
	return w.Msg, nil
}

// statusOf returns the status of a name by a reply.
func (k *walk) statusOf(name string, reply *dns.Msg) status {
	switch {
	case reply == nil:
		return failed
	case reply.Truncated:
		return hasData
	case reply.Rcode == dns.RcodeNameError:
		return absent
	case reply.Rcode == dns.RcodeRefused && k.isForeign(name):
		return absent // the client's own query to this server would be refused, too
	case reply.Rcode != dns.RcodeSuccess:
		return failed
	case len(reply.Answer) > 0:
		return hasData
	}
	return exists
}

// isForeign reports whether no server block has a zone of the name, so that the server refuses it.
func (k *walk) isForeign(name string) bool {
	return !k.Block.Serves(k.ctx, name) && k.Block.ZoneOf(k.ctx, name) == ""
}
