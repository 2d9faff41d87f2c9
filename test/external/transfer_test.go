package external

import (
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nearside-dns/nearside/test/kit"
)

// compareTransfers compares the zones of both servers, and ours with its answers to queries.
func (c *comparison) compareTransfers(t *testing.T, p *pair, zone string, objs []runtime.Object, where string) {
	t.Helper()
	if c.failures >= maxFailures {
		return
	}
	code, stock, err := p.stock.transfer(zone, 0)
	kit.Must(t, err)
	ourCode, ours, err := p.ours.transfer(zone, 0)
	kit.Must(t, err)
	if code != dns.RcodeSuccess || ourCode != dns.RcodeSuccess {
		c.failures++
		t.Errorf("%s, %s: AXFR of %s: %s from CoreDNS, %s from clusterdns", p.name, where, zone, dns.RcodeToString[code], dns.RcodeToString[ourCode])
		return
	}
	exposed := p.exposed(t, zone, objs)
	for _, missing := range []struct {
		from    string
		records []string
	}{{"CoreDNS", without(lines(stock, true), lines(ours, true))}, {"clusterdns", without(lines(ours, true), lines(stock, true))}} {
		for _, text := range missing.records {
			r := onlyRecord{zone: zone, apex: p.apex, text: text, fromStock: missing.from == p.stock.name, exposed: exposed}
			name := r.explanation()
			c.used[name]++
			if name == "" {
				c.failures++
				t.Errorf("%s, %s: AXFR of %s: only from %s: %s", p.name, where, zone, missing.from, text)
			}
		}
	}
	if once := lines(ours, true); len(once) != len(ours)-1 { // the SOA is the first and the last one
		t.Errorf("%s, %s: AXFR of %s has %d records, %d different ones", p.name, where, zone, len(ours), len(once))
	}
	c.compareAnswers(t, p, zone, ours, where)
	_, lone, err := p.ours.transfer(zone, ours[0].(*dns.SOA).Serial)
	kit.Must(t, err)
	if len(lone) != 1 {
		t.Errorf("%s, %s: IXFR of %s from the present serial has %d records, want the SOA", p.name, where, zone, len(lone))
	}
}

// exposed returns the namespaces that CoreDNS has names for.
func (p *pair) exposed(t *testing.T, zone string, objs []runtime.Object) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for _, o := range objs {
		if n, ok := o.(*corev1.Namespace); ok && !isReverse(zone) {
			m, err := p.stock.ask(question(n.Name+"."+zone, dns.TypeA))
			kit.Must(t, err)
			all[n.Name] = m.Authoritative && m.Rcode == dns.RcodeSuccess
		}
	}
	return all
}

// without returns the lines that others lack.
func without(all, others []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(line string) bool { return slices.Contains(others, line) })
}

// explainedRecord is a record of a transfer that only one server has. The text is in lower case, with a TTL of 0.
type explainedRecord struct {
	name    string
	applies func(r *onlyRecord) bool
}

var explainedRecords = []explainedRecord{
	{"CoreDNS transfers Services in reverse zones, and no PTR records", func(r *onlyRecord) bool {
		return isReverse(r.zone) && r.fromStock != strings.Contains(r.text, " in ptr ")
	}},
	{"CoreDNS transfers one SRV record of each name, and with another weight than in answers", func(r *onlyRecord) bool {
		return strings.Contains(r.text, " in srv ")
	}},
	{"CoreDNS transfers CNAMEs beside other records, or several", func(r *onlyRecord) bool {
		return r.fromStock && strings.Contains(r.text, " in cname ") && !strings.HasSuffix(r.text, " in cname .")
	}},
	{"CoreDNS transfers records of a host that it has no name of", func(r *onlyRecord) bool {
		return r.fromStock && (strings.HasSuffix(r.text, " in aaaa") || strings.HasSuffix(r.text, " in cname ."))
	}},
	{"CoreDNS transfers Services that it denies, in the namespace of the apex name and in those that are not selected", func(r *onlyRecord) bool {
		labels := strings.Split(strings.TrimSuffix(strings.Fields(r.text)[0], "."+r.zone), ".")
		namespace := labels[len(labels)-1]
		return r.fromStock && (namespace == r.apex || !r.exposed[namespace])
	}},
}

// onlyRecord is a record that one of the servers transfers.
type onlyRecord struct {
	zone, apex, text string
	fromStock        bool
	exposed          map[string]bool // the namespaces with names
}

func (r *onlyRecord) explanation() string {
	for _, e := range explainedRecords {
		if e.applies(r) {
			return e.name
		}
	}
	return ""
}

// compareAnswers queries our server for the names of a transfer: the answers have the same records.
func (c *comparison) compareAnswers(t *testing.T, p *pair, zone string, records []dns.RR, where string) {
	t.Helper()
	type key struct {
		name  string
		qtype uint16
	}
	sets := map[key][]dns.RR{}
	for _, rr := range records[:len(records)-1] { // without the second SOA
		k := key{rr.Header().Name, rr.Header().Rrtype}
		sets[k] = append(sets[k], rr)
	}
	for k, set := range sets {
		if p.zoneOf(k.name) != zone || p.cached && p.ofServer(k.name, k.qtype) {
			continue
		}
		m, err := p.ours.ask(question(k.name, k.qtype))
		kit.Must(t, err)
		answer := slices.DeleteFunc(m.Answer, func(rr dns.RR) bool { // that of the host of a load balancer
			return rr.Header().Rrtype != k.qtype || !strings.EqualFold(rr.Header().Name, k.name)
		})
		if got, want := strings.Join(lines(answer, true), "\n"), strings.Join(lines(set, true), "\n"); got != want {
			c.failures++
			t.Errorf("%s, %s: %s %s: transferred:\n%s\nanswered:\n%s", p.name, where, k.name, dns.TypeToString[k.qtype], want, got)
		}
	}
}
