package expand

import (
	"context"
	"testing"

	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
)

// TestWaits has queries wait for a candidate: the negative answer of the list is stored for those that have waited, and has the
// TTL 0 for other caches, whichever candidate's reply it is.
func TestWaits(t *testing.T) {
	g := &generation{}
	for name, tt := range map[string]struct {
		waits string // a candidate
		facts map[string]replyKind
		want  bool
	}{
		"the first candidate":          {first, nil, true},
		"a later candidate":            {third, nil, true},
		"another name exists":          {first, map[string]replyKind{third: replyNODATA}, true},
		"another name has the records": {first, map[string]replyKind{third: replyData}, false},
		"none":                         {"", nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			x := newExpander(nil)
			x.Next = plugin.HandlerFunc(func(ctx context.Context, rw dns.ResponseWriter, r *dns.Msg) (int, error) {
				c, name := store.PropertiesOf(ctx, r), r.Question[0].Name
				c.Bounds[0], c.Waits = validity.Bound{Generation: g}, name == tt.waits
				return dns.RcodeSuccess, rw.WriteMsg(replyOf(r, name, fact{replyKind: tt.facts[name], ttl: 5}))
			})
			r := query(first, dns.TypeA)
			m := send(t, x, r, &podQuestion)
			if e := x.key(r, &podQuestion).fresh(); e == nil || e.Waits != tt.want {
				t.Errorf("stored: %v, want an entry with Waits %t", e, tt.want)
			}
			for _, rr := range m.Ns {
				if soa, ok := rr.(*dns.SOA); ok && tt.want != (soa.Hdr.Ttl == 0 && soa.Minttl == 0) {
					t.Errorf("%v; queries wait for a candidate: %t", soa, tt.want)
				}
			}
		})
	}
}
