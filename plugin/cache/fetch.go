package cache

import (
	"context"
	"fmt"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/metadata"
	"github.com/coredns/coredns/plugin/pkg/response"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
)

// fetch answers a query that there is no answer to: with the reply of the next plugin, or with that to
// another query for the same.
func (c *Cache) fetch(ctx context.Context, w dns.ResponseWriter, a *asked) (int, error) {
	if nested(ctx) || !c.sharable(a) {
		return c.fetchAlone(ctx, w, a)
	}
	for {
		flying, leader := c.flights.join(a, c.now())
		if leader {
			out := c.fly(ctx, recording(w), a, flying, false)
			return c.deliver(ctx, w, a, &out)
		}
		select {
		case <-flying.done:
		case <-ctx.Done():
			return dns.RcodeServerFailure, ctx.Err()
		}
		switch {
		case a.shares(flying):
			a.n.coalesced.Inc()
			return c.share(ctx, w, a, flying)
		case !flying.out.abandoned: // then another of those who wait asks for the rest
			return c.fetchAlone(ctx, w, a)
		}
	}
}

// sharable reports whether queries may wait for each other's reply. Where nothing is kept, they get what
// is made for them. And plugin loop has to see each of its questions, which are HINFO: if they come back
// from the upstream, it is a loop.
func (c *Cache) sharable(a *asked) bool {
	return a.q.Type != dns.TypeHINFO && !c.kinds[answers.Success].except.Contains(a.msg.Question[0].Name)
}

// askedKey is in the context of what the next plugin is asked.
type askedKey struct{}

// nested reports whether a query comes from a plugin that a cache has asked, such as for where an alias
// leads. It waits for no other: the other may be waiting for it.
func nested(ctx context.Context) bool { return ctx.Value(askedKey{}) != nil }

func (c *Cache) fetchAlone(ctx context.Context, w dns.ResponseWriter, a *asked) (int, error) {
	out := c.ask(ctx, recording(w), a, false)
	return c.deliver(ctx, w, a, &out)
}

// deliver gives an outcome to the client that it was asked for.
func (c *Cache) deliver(ctx context.Context, w dns.ResponseWriter, a *asked, out *outcome) (int, error) {
	if out.reply == nil {
		if out.entry != nil && out.err == nil { // it came just before
			return c.give(ctx, w, a.msg, a.query, a.q, out.entry, out.entry.Patch(c.now()))
		}
		return out.code, out.err
	}
	out.fillIn(ctx, a.msg)
	a.adapt(out.reply, out.options)
	if _, err := write(w, out.reply); err != nil {
		return dns.RcodeServerFailure, err
	}
	return out.code, out.err
}

// fly asks for everyone who waits. Whatever happens, they are not left waiting.
func (c *Cache) fly(ctx context.Context, w *recorder, a *asked, flying *flight, refreshing bool) (out outcome) {
	out = outcome{code: dns.RcodeServerFailure, err: fmt.Errorf("plugin/%s: %w", pluginName, errPanicked)}
	defer func() { c.flights.land(flying, out) }()
	if e, state := c.find(a.key, a.query, &a.q, c.now()); !refreshing && state == fresh {
		out = outcome{entry: e, renews: true} // another flight has landed since this query looked
		return out
	}
	out = c.ask(ctx, w, a, refreshing)
	return out
}

// ask asks the next plugin, and keeps what it says.
func (c *Cache) ask(ctx context.Context, w *recorder, a *asked, refreshing bool) outcome {
	r := a.forNext()
	ctx, recorded := answers.Record(context.WithValue(ctx, askedKey{}, true), r)
	code, err := plugin.NextOrFailure(c.Name(), c.Next, ctx, w, r)
	out := outcome{reply: w.reply, code: code, err: err}
	if out.reply == nil {
		out.abandoned = ctx.Err() != nil
		if err != nil && code == dns.RcodeServerFailure && !out.abandoned && c.servfail > 0 {
			out.entry = c.keepFailure(a)
		}
		return out
	}
	scoped := hasScope(out.reply) // before takeOpt
	class := c.classify(out.reply)
	out.options = a.takeOpt(out.reply)
	answered, sound := c.answered(a, out.options)
	if !sound {
		class = response.OtherError
	}
	lifetime := c.setTTLs(out.reply, class)
	out.renews = c.renews(a, out.reply, class)
	k := keeping{
		asked: answered, class: class, lifetime: lifetime, properties: &recorded.Properties, forAll: recorded.ForAll() && !scoped,
		options: out.options, refreshing: refreshing,
	}
	if f := metadata.ValueFunc(ctx, wildcardLabel); f != nil {
		k.wildcard = f()
	}
	out.entry, out.properties = c.keep(out.reply, &k), k.properties
	if out.entry != nil {
		c.keepDenials(out.reply, &k)
	}
	if !k.forAll {
		answers.MarkPrivate(ctx) // and so is what comes of it, in front of this cache
	}
	out.private = out.entry == nil && (recorded.ByGeneration() || !k.forAll)
	return out
}

// keepFailure keeps that there was no reply, so that the next plugin is left alone for a moment.
func (c *Cache) keepFailure(a *asked) *answers.Entry {
	m := new(dns.Msg)
	m.SetRcode(a.msg, dns.RcodeServerFailure)
	alone, _ := c.answered(a, nil)
	return c.keep(m, &keeping{
		asked: alone, class: response.ServerError, lifetime: c.servfail, properties: new(answers.Properties), forAll: true,
	})
}

// renews reports whether a reply takes the place of an answer that has expired, RFC 8767 section 4: a
// failure does not.
func (c *Cache) renews(a *asked, m *dns.Msg, class response.Type) bool {
	if !a.matches(m) {
		return false
	}
	if c.preferPositive {
		return !m.Truncated && class == response.NoError && answersQuestion(m)
	}
	if m.Truncated {
		return c.stale.failure // the client asks again over TCP
	}
	switch m.Rcode {
	case dns.RcodeSuccess: // signatures that have expired make it class OtherError
		return c.stale.failure || class != response.OtherError
	case dns.RcodeNameError:
		return true
	}
	return false
}
