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

// kind is what came of asking for a candidate.
type kind int

const (
	absent  kind = iota // the name does not exist
	exists              // it does, and has no data of the kind asked for
	hasData             // it is the one: it has data, or being an address it has the other kind
	failed
)

// answer is what came of asking for a candidate, or for several.
type answer struct {
	kind   kind
	asked  string // the name
	offset int    // of several, which of them it is
	reply  *dns.Msg
	serial answers.Serial // of the zone, where it changes while the answer does not
	plain  bool           // it is kept as the answer to the name, whoever asks
	err    error
}

// one asks for a candidate.
func (k *walk) one(i int) answer {
	return k.settle(i, k.ask(k.names[i], k.r.Question[0].Qtype, nil))
}

// several asks one server for the candidates from a place on. matched is the suffix of the one that the answer is
// of; tried tells whether the server has tried them at all: if not, the answer is that of the first alone.
func (k *walk) several(i int, suffixes []byte) (a answer, matched string, tried bool) {
	a = k.ask(k.names[i], k.r.Question[0].Qtype, suffixes)
	if a.kind == failed {
		return a, "", false // the others get their chance
	}
	data, ok := searchlist.OptionOf(a.reply)
	names, legible := searchlist.ParseSuffixes(data)
	switch {
	case !ok || !legible || len(names) > 1:
		return a, "", false
	case !searchlist.Answers(data, suffixes), len(names) == 0 && a.kind == hasData, len(names) > 0 && a.kind == absent:
		a.kind = failed // it is not said what of, or can't be right
	case len(names) > 0:
		a.kind, a.plain, matched = hasData, false, names[0]
	}
	return a, matched, true
}

// leadFrom makes of the answer to several names that to the one that was found: without the alias that leads there.
func (a *answer) leadFrom(name string) {
	if strings.EqualFold(a.asked, name) {
		return
	}
	a.asked = name
	if len(a.reply.Answer) == 0 {
		return
	}
	if alias, ok := a.reply.Answer[0].(*dns.CNAME); ok && strings.EqualFold(alias.Target, name) {
		own := *a.reply
		own.Answer = own.Answer[1:]
		a.reply = &own
	}
}

// settle decides about a candidate that exists and has no data of the type asked for. Of an address the other family
// counts as well, and of how to connect to one (RFC 9460) both: otherwise what belongs together would be of two names.
// Resolvers that ask for both families end their search there, too. If it is the last candidate and none has failed,
// it is the answer anyway.
func (k *walk) settle(i int, a answer) answer {
	if a.kind != exists || i == len(k.names)-1 && k.failed == nil {
		return a
	}
	for _, other := range searchlist.RelatedTypes[k.r.Question[0].Qtype] {
		if kind := k.ask(k.names[i], other, nil).kind; kind == hasData || kind == failed {
			a.kind = kind
			return a
		}
	}
	return a
}

// ask asks for a name: the plugins that come next, if it is this server block's, or else the server.
func (k *walk) ask(name string, qtype uint16, suffixes []byte) answer {
	r := k.r.Copy()
	r.Question[0].Name, r.Question[0].Qtype = name, qtype
	if suffixes != nil {
		r = searchlist.WithOption(r, suffixes)
	}
	ctx, recorded := answers.Record(k.ctx, r)
	reply, err := k.exchange(ctx, r)
	a := answer{kind: k.kindOf(name, reply), asked: name, reply: reply, serial: recorded.Serial, err: err}
	a.plain = recorded.Expires != 0 || k.KeepsPlain && suffixes == nil
	dependOn(&k.validity, reply, recorded)
	if k.KeepsPlain && err == nil && reply != nil && suffixes == nil && recorded.ForAll() && k.Block.Serves(k.ctx, name) {
		k.Block.Keyspace.PutReply(r, reply, &recorded.Properties)
	}
	return a
}

func (k *walk) exchange(ctx context.Context, r *dns.Msg) (*dns.Msg, error) {
	w := nonwriter.New(k.w)
	if k.Block.Serves(ctx, r.Question[0].Name) {
		code, err := plugin.NextOrFailure(k.Plugin, k.Next, ctx, w, r)
		if w.Msg == nil && err == nil && !plugin.ClientWrite(code) {
			w.Msg = new(dns.Msg).SetRcode(r, code) // as the server would
		}
		return w.Msg, err
	}
	if server, ok := ctx.Value(dnsserver.Key{}).(*dnsserver.Server); ok { // without one, all is this block's
		server.ServeDNS(ctx, w, r)
	}
	return w.Msg, nil
}

// kindOf returns what a reply says of a name.
func (k *walk) kindOf(name string, reply *dns.Msg) kind {
	switch {
	case reply == nil:
		return failed
	case reply.Truncated:
		return hasData
	case reply.Rcode == dns.RcodeNameError:
		return absent
	case reply.Rcode == dns.RcodeRefused && k.isForeign(name):
		return absent // the client would get no more from this server
	case reply.Rcode != dns.RcodeSuccess:
		return failed
	case len(reply.Answer) > 0:
		return hasData
	}
	return exists
}

// isForeign reports whether no server block is for a name, so that the server refuses it.
func (k *walk) isForeign(name string) bool {
	return !k.Block.Serves(k.ctx, name) && k.Block.ZoneOf(k.ctx, name) == ""
}
