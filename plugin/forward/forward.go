// Package forward asks other servers. In go queries that no plugin before it answers; out come the answers
// of upstreams, which are asked over few connections with many queries on each. It is a drop-in for
// CoreDNS's plugin of the same name.
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
)

const pluginName = "forward"

var log = clog.NewWithPlugin(pluginName)

// Errors of queries that no upstream has answered.
var (
	errNoHealthy = errors.New("no healthy upstream")
	errNone      = errors.New("no upstream is known yet")
)

// Forward is the plugin's handler for one stanza.
type Forward struct {
	Next plugin.Handler

	config
	upstreams  atomic.Pointer[[]*upstream]
	concurrent atomic.Int64
	before     []*Forward // the stanzas of the server block that queries come to before
	shared     bool       // another plugin of the block may answer names of the cluster; set at the start

	mu      sync.Mutex // of changing the upstreams
	stopped bool
}

// newForward returns the handler of a stanza, which has no upstreams yet.
func newForward(c config) *Forward {
	f := &Forward{config: c}
	f.upstreams.Store(new([]*upstream))
	return f
}

// use has queries go to these servers. Those that are asked already are kept, with their connections; those
// that are not asked any more are left once they have answered.
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
			now = append(now, newUpstream(&f.config, e))
		}
	}
	f.upstreams.Store(&now)
	for _, u := range before {
		if !slices.Contains(now, u) {
			u.stop()
		}
	}
}

// stop lets queries on their way end, and closes connections after them.
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
	if f.maxConcurrent > 0 {
		defer f.concurrent.Add(-1)
		if f.concurrent.Add(1) > f.maxConcurrent {
			maxConcurrentRejects.Inc()
			return dns.RcodeRefused, fmt.Errorf("concurrent queries exceeded maximum %d", f.maxConcurrent)
		}
	}
	x, err := f.newExchange(&state)
	if err != nil {
		return dns.RcodeFormatError, err
	}
	defer x.release()
	reply, from, err := x.run(ctx)
	if from != nil {
		metadata.SetValueFunc(ctx, "forward/upstream", func() string { return from.address })
	}
	switch {
	case errors.Is(err, proxy.ErrInvalidRequest):
		return dns.RcodeFormatError, err
	case errors.Is(err, proxy.ErrUnsupportedRequest):
		return dns.RcodeNotImplemented, err
	case err != nil:
		return dns.RcodeServerFailure, err
	}
	if f.passesOn(reply) {
		return plugin.NextOrFailure(f.Name(), f.Next, ctx, w, r)
	}
	write := w.WriteMsg
	if t, ok := w.(taker); ok {
		write = t.TakeMsg
	}
	_ = write(reply) // the client is gone, or it is counted where it is written
	return dns.RcodeSuccess, nil
}

// taker is a writer that keeps messages, such as that of cache. It need not copy what is given to it.
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

// passesOn reports whether the next stanza is to answer instead.
func (f *Forward) passesOn(reply *dns.Msg) bool {
	if _, ok := f.Next.(*Forward); !ok {
		return false
	}
	return slices.Contains(f.next, reply.Rcode) || f.nextOnNodata && reply.Rcode == dns.RcodeSuccess && len(reply.Answer) == 0
}
