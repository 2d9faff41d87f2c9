// Package forward forwards queries to upstream servers, over few connections with many queries on each. Input: queries that
// no earlier plugin answers; output: the answers of upstreams. It is a drop-in replacement for CoreDNS's plugin of the same
// name.
package forward

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/metadata"
	clog "github.com/coredns/coredns/plugin/pkg/log"
	"github.com/coredns/coredns/plugin/pkg/proxy"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/forward/transport"
	"github.com/nearside-dns/nearside/plugin/internal/explain"
)

const pluginName = "forward"

var log = clog.NewWithPlugin(pluginName)

// Errors of queries without an answer.
var (
	errNoHealthy = errors.New("no healthy upstream")
	errNone      = errors.New("no upstream found yet")
)

// Forward is the handler of one stanza.
type Forward struct {
	Next plugin.Handler

	config
	zone       zone   // from, in wire form
	excepted   []zone // except, in wire form
	names      *names // that should not be forwarded; nil if the upstreams may receive all names
	upstreams  atomic.Pointer[[]*upstream]
	concurrent atomic.Int64
	before     []*Forward // earlier stanzas of the server block
	shared     bool       // another plugin of the server block may answer names of the cluster; set at the start
	lost       transport.LostSessions

	mu      sync.Mutex // for changes of the upstreams
	stopped bool
}

// newForward returns the handler of a stanza, without upstreams.
func newForward(c config) *Forward {
	f := &Forward{config: c, zone: newZone(c.from), names: newNames(&c, nil, nil)}
	for _, name := range c.except {
		f.excepted = append(f.excepted, newZone(name))
	}
	f.upstreams.Store(new([]*upstream))
	return f
}

// use changes the upstreams. Connections of upstreams that remain stay open; those of the others are closed after the
// queries in flight.
func (f *Forward) use(endpoints []endpoint) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stopped {
		return
	}
	before := *f.upstreams.Load()
	now := make([]*upstream, 0, len(endpoints))
	for _, e := range endpoints {
		i := slices.IndexFunc(before, func(u *upstream) bool { return u.endpoint == e })
		if i >= 0 {
			now = append(now, before[i])
		} else {
			u := newUpstream(&f.config, &f.lost, e)
			u.openSession()
			now = append(now, u)
		}
	}
	f.upstreams.Store(&now)
	for _, u := range before {
		if !slices.Contains(now, u) {
			u.stop()
		}
	}
}

// stop closes connections after the queries in flight.
func (f *Forward) stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stopped = true
	for _, u := range *f.upstreams.Load() {
		u.stop()
	}
}

// Name implements plugin.Handler.
func (f *Forward) Name() string { return pluginName }

// ServeDNS implements plugin.Handler.
func (f *Forward) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	state := request.Request{W: w, Req: r}
	if !f.matches(state.Name()) {
		return plugin.NextOrFailure(f.Name(), f.Next, ctx, w, r)
	}
	trace := explain.From(ctx)
	if z := f.localZoneOf(r); z != nil {
		trace.Add(pluginName, "answers the name itself, and forwards no such names (private_names)")
		write(w, z.reply(r, f.private))
		return dns.RcodeSuccess, nil
	}
	if err := f.admit(); err != nil {
		if trace != nil {
			trace.Add(pluginName, "refuses the query: %v", err)
		}
		return dns.RcodeRefused, err
	}
	defer f.dismiss()
	reply, err := f.forwardMessage(ctx, &state, trace)
	if reply.from != nil {
		metadata.SetValueFunc(ctx, "forward/upstream", func() string { return reply.from.address })
	}
	if trace != nil {
		explainReply(trace, reply, err)
	}
	if err != nil {
		return failureCode(err), err
	}
	if f.passesOn(reply.Rcode, len(reply.Answer)) {
		return plugin.NextOrFailure(f.Name(), f.Next, withoutVoucher(ctx), w, r)
	}
	setVoucher(ctx, r, reply.voucher)
	write(w, reply.Msg)
	return dns.RcodeSuccess, nil
}

// write writes a reply, which it does not use again.
func write(w dns.ResponseWriter, reply *dns.Msg) {
	writeMsg := w.WriteMsg
	if t, ok := w.(taker); ok {
		writeMsg = t.TakeMsg
	}
	_ = writeMsg(reply) // the client is gone, or the writer counts the error
}

// admit counts a query in progress, or returns an error above max_concurrent.
func (f *Forward) admit() error {
	if f.maxConcurrent == 0 || f.concurrent.Add(1) <= int64(f.maxConcurrent) {
		return nil
	}
	f.dismiss()
	maxConcurrentRejects.Inc()
	return fmt.Errorf("concurrent queries exceeded maximum %d", f.maxConcurrent)
}

// dismiss ends the count of a query that was admitted. Without max_concurrent nothing is counted: processors would contend.
func (f *Forward) dismiss() {
	if f.maxConcurrent > 0 {
		f.concurrent.Add(-1)
	}
}

// failureCode returns the response code for a query without a reply.
func failureCode(err error) int {
	var invalid invalidQuery
	switch {
	case errors.As(err, &invalid), errors.Is(err, proxy.ErrInvalidRequest):
		return dns.RcodeFormatError
	case errors.Is(err, proxy.ErrUnsupportedRequest):
		return dns.RcodeNotImplemented
	}
	return dns.RcodeServerFailure
}

// taker is a writer that may modify and store the message, such as the writer of cache: this saves a copy.
type taker interface {
	TakeMsg(*dns.Msg) error
}

// matches reports whether queries for a name, in lower case, are forwarded.
func (f *Forward) matches(name string) bool {
	if !plugin.Name(f.from).Matches(name) {
		return false
	}
	return name == f.from || !slices.ContainsFunc(f.except, func(zone string) bool { return plugin.Name(zone).Matches(name) })
}

// passesOn reports whether the next stanza gets the query, by the options next and next_on_nodata.
func (f *Forward) passesOn(rcode, answers int) bool {
	if _, ok := f.Next.(*Forward); !ok {
		return false
	}
	return slices.Contains(f.next, rcode) || f.nextOnNodata && rcode == dns.RcodeSuccess && answers == 0
}
