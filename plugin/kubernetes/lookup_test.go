package kubernetes

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/coredns/coredns/plugin/pkg/dnstest"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"
)

// lookup is a query and its expected reply. The order of the records does not matter. The SOA in the authority section
// of NODATA, NXDOMAIN and SERVFAIL is implied.
type lookup struct {
	name          string // of the case
	ask           string // owner and type
	rcode         int
	answer, extra []string // an answer of data alone has the owner and the type of the query, and the TTL 5
}

// answers returns the texts of the expected records.
func (l *lookup) answers() (all []string) {
	owner, qtype, _ := strings.Cut(l.ask, " ")
	for _, r := range l.answer {
		if !strings.Contains(r, " IN ") {
			r = dns.Fqdn(owner) + " 5 IN " + qtype + " " + r
		}
		all = append(all, r)
	}
	return all
}

func check(t *testing.T, k *Kubernetes, lookups ...lookup) {
	t.Helper()
	for _, l := range lookups {
		t.Run(l.name, func(t *testing.T) {
			t.Helper()
			m := ask(t, k, l.ask)
			if m.Rcode != l.rcode {
				t.Errorf("%s: rcode is %s, want %s", l.ask, dns.RcodeToString[m.Rcode], dns.RcodeToString[l.rcode])
			}
			sameRecords(t, l.ask+": answer", m.Answer, l.answers())
			sameRecords(t, l.ask+": additional section", m.Extra, l.extra)
		})
	}
}

// ask returns the reply to a query in the form "owner TYPE". It checks the properties of every reply.
func ask(t testing.TB, k *Kubernetes, question string) *dns.Msg {
	t.Helper()
	owner, qtype, _ := strings.Cut(question, " ")
	if _, ok := dns.StringToType[qtype]; !ok {
		t.Fatalf("%q has no type", question)
	}
	return askMsg(t, k, test.Case{Qname: owner, Qtype: dns.StringToType[qtype]}.Msg())
}

func askMsg(t testing.TB, k *Kubernetes, r *dns.Msg) *dns.Msg {
	t.Helper()
	w := dnstest.NewRecorder(&test.ResponseWriter{})
	rcode, err := k.ServeDNS(context.Background(), w, r)
	if err != nil || rcode != dns.RcodeSuccess {
		t.Fatalf("%v: ServeDNS returned %s and error %v", r.Question, dns.RcodeToString[rcode], err)
	}
	m := w.Msg
	if m == nil {
		t.Fatalf("%v: no reply", r.Question)
	}
	if !m.Response || !m.Authoritative || m.Id != r.Id || !slices.Equal(m.Question, r.Question) {
		t.Errorf("%v: the reply's header or question does not belong to it:\n%v", r.Question, m)
	}
	switch {
	case len(m.Answer) > 0:
		if len(m.Ns) > 0 {
			t.Errorf("%v: authority section beside an answer: %v", r.Question, m.Ns)
		}
	case len(m.Ns) != 1 || m.Ns[0].Header().Rrtype != dns.TypeSOA:
		t.Errorf("%v: authority section of an empty answer is %v, want one SOA", r.Question, m.Ns)
	}
	if _, err := m.Pack(); err != nil {
		t.Errorf("%v: the reply does not pack: %v\n%v", r.Question, err, m)
	}
	return m
}

func sameRecords(t testing.TB, what string, got []dns.RR, want []string) {
	t.Helper()
	g, w := texts(got), slices.Clone(want)
	slices.Sort(g)
	slices.Sort(w)
	if !slices.Equal(g, w) {
		t.Errorf("%s is\n\t%s\nwant\n\t%s", what, strings.Join(g, "\n\t"), strings.Join(w, "\n\t"))
	}
}

func texts(records []dns.RR) (all []string) {
	for _, r := range records {
		all = append(all, text(r))
	}
	return all
}

// text returns a record on one line with single spaces.
func text(r dns.RR) string { return strings.Join(strings.Fields(r.String()), " ") }
