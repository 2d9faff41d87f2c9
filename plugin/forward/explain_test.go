package forward

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/explain"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
)

// TestExplain asserts that an explained query has the command that explains it at cluster DNS, with caller and search list of the query
// there.
func TestExplain(t *testing.T) {
	suffixes := []string{"shop.svc.cluster.local.", "svc.cluster.local."}
	for _, tt := range []struct {
		name, options, question string
		qtype                   uint16
		list                    []string
		want                    string // command, "" for none
	}{
		{"cluster DNS", "caller node-a zone-1", "db.shop.svc.cluster.local.", dns.TypeSRV, nil,
			"clusterdns explain db.shop.svc.cluster.local. -type SRV -node node-a -zone zone-1"},
		{"without a zone", "caller node-a", "db.shop.svc.cluster.local.", dns.TypeA, nil, "clusterdns explain db.shop.svc.cluster.local. -type A -node node-a"},
		{"search list", "caller node-a", "db.shop.svc.cluster.local.", dns.TypeA, suffixes,
			"clusterdns explain db -type A -search shop.svc.cluster.local.,svc.cluster.local. -node node-a"},
		{"characters of a shell", "caller node-a", "$(x)'.example.", dns.TypeA, nil, `clusterdns explain '$\(x\)\'\''.example.' -type A -node node-a`},
		{"other servers", "", "db.shop.svc.cluster.local.", dns.TypeA, nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, _ := forwardTo(t, tt.options, good)
			trace := explain.New(explain.Query{})
			r := new(dns.Msg).SetQuestion(tt.question, tt.qtype)
			if tt.list != nil {
				data, _ := searchlist.AppendSuffixes(nil, tt.list)
				r = searchlist.WithOption(r, data)
			}
			if a := queryWith(explain.With(context.Background(), trace), f, r, false); a.err != nil {
				t.Fatal(a.err)
			}
			steps := trace.Steps()
			at := slices.IndexFunc(steps, func(s explain.Step) bool { return strings.HasPrefix(s.Text, "query to ") })
			if at < 0 {
				t.Fatalf("no step about the query in %v", steps)
			}
			if _, command, _ := strings.Cut(steps[at].Text, "its answer is explained there by: "); command != tt.want {
				t.Errorf("step %q, want the command %q", steps[at].Text, tt.want)
			}
		})
	}
}

func TestExplain_Refused(t *testing.T) {
	f, _ := forwardTo(t, "max_concurrent 1", good)
	f.concurrent.Add(1)
	trace := explain.New(explain.Query{})
	a := queryWith(explain.With(context.Background(), trace), f, question("a.example."), false)
	if steps := trace.Steps(); a.code != dns.RcodeRefused || len(steps) != 1 || steps[0].Text != "refuses the query: concurrent queries exceeded maximum 1" {
		t.Errorf("the code is %d, the steps are %v", a.code, steps)
	}
}
