package expand

import (
	"context"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/metrics"
	"github.com/coredns/coredns/plugin/pkg/nonwriter"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/block/wirechain"
	"github.com/nearside-dns/nearside/plugin/internal/explain"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
)

// ServeDNS answers a query that is Expandable.
func (x *Expander) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg, q *Question) (int, error) {
	key := x.key(r, q)
	if e := key.fresh(); e != nil {
		e.Count.Counter(metrics.WithServer(ctx)).Inc()
		p := e.Patch(validity.Now())
		return x.writeStored(w, r, key, e, &p)
	}
	return x.finish(ctx, w, r, key, newWalk(x, q, r.Question[0], x.Block.ZonesOf(ctx)))
}

// Resume answers a query that ServeWire has passed to the plugin chain. It returns false for every other query.
func (x *Expander) Resume(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (ok bool, code int, err error) {
	switch passed := wirechain.Result(ctx, r).(type) {
	case *walk:
		if passed.Expander == x {
			code, err = x.finish(ctx, w, r, x.key(r, &passed.Question), passed)
			return true, code, err
		}
	case *wirechain.StoredResult:
		if count, is := passed.Entry.Count.(*hitCounter); is && count.metrics == x.Metrics {
			code, err = x.writeStored(w, r, x.key(r, &Question{}), passed.Entry, &passed.Patch)
			return true, code, err
		}
	}
	return false, 0, nil
}

// finish queries the rest of the candidates, and answers the query.
func (x *Expander) finish(ctx context.Context, w dns.ResponseWriter, r *dns.Msg, key *key, k *walk) (int, error) {
	nest := Nest(ctx)
	for k.next() {
		k.query(nest, w, r)
	}
	out := k.outcome
	x.Metrics.counter(metrics.WithServer(ctx), out.labels()).Inc()
	if out.reply.isNone() {
		return dns.RcodeServerFailure, out.reply.err
	}
	composed, err := k.compose(out)
	if err != nil {
		return dns.RcodeServerFailure, err
	}
	x.store(key, composed, out)
	m, err := store.Unpack(composed)
	if err != nil {
		return dns.RcodeServerFailure, err
	}
	m.Id, m.RecursionDesired, m.CheckingDisabled = r.Id, r.RecursionDesired, r.CheckingDisabled
	addErrors(r, m, out.reply.errors)
	if err := w.WriteMsg(m); err != nil {
		return dns.RcodeServerFailure, err
	}
	return dns.RcodeSuccess, nil
}

// query sends a query of the walk: the client's query for another name and type.
func (k *walk) query(ctx context.Context, w dns.ResponseWriter, client *dns.Msg) {
	r := client.Copy()
	r.Question[0].Name, r.Question[0].Qtype = k.name(), k.qtype()
	if k.suffixes != nil {
		r = searchlist.WithOption(r, k.suffixes)
	}
	if k.passed != nil {
		ctx = wirechain.WithResult(ctx, r, k.passed)
	}
	ctx, recorded := store.Record(ctx, r)
	m, err := k.exchange(ctx, w, r)
	if trace := explain.From(ctx); trace != nil && m != nil {
		trace.Add(k.Plugin, "candidate %s %s: %s, %d records", k.name(), dns.TypeToString[k.qtype()], dns.RcodeToString[m.Rcode], len(m.Answer))
	}
	stored := k.StoresCandidates && k.suffixes == nil
	if stored && err == nil && m != nil && recorded.ForAll() && k.zones.Serves(k.name()) {
		k.Block.Keyspace.PutReply(r, m, &recorded.Properties)
	}
	received := messageReply(m, r.Question[0], err)
	received.serial, received.stored, received.waits, received.lifetime = recorded.Serial, stored || recorded.Expires != 0, recorded.Waits, recorded.Lifetime
	k.receive(received, &recorded.Validity, recorded.ForAll())
}

// exchange sends a query to the next plugin if the name is this server block's, and to the server otherwise.
func (k *walk) exchange(ctx context.Context, client dns.ResponseWriter, r *dns.Msg) (*dns.Msg, error) {
	w := nonwriter.New(client)
	if k.zones.Serves(r.Question[0].Name) {
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
