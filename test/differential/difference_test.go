package differential

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// difference is a question with different answers, or one to examine.
type difference struct {
	*pair
	c           *cluster
	q           question
	stock, ours answer
	nested      bool // the question was asked to explain another difference
	depth       int  // of aliases on the way to this question
}

// ask queries both.
func (p *pair) ask(c *cluster, q question) *difference {
	d := &difference{pair: p, c: c, q: q}
	wait := patient
	if p.unpackable(c, q) {
		wait = hopeless
	}
	d.stock, d.ours = newAnswer(p.stock.ask(q, wait)), p.askOurs(c, q)
	return d
}

// settling is the maximum time for which CoreDNS may answer from before an update whose markers it has shown.
const settling = 2 * time.Second

// settles queries CoreDNS again, and reports whether its answer becomes that of our server. On a busy machine it has
// denied a Service for a moment, although all markers existed. Our server must be right at once.
func (d *difference) settles() bool {
	for end := time.Now().Add(settling); time.Now().Before(end); time.Sleep(settling / 50) {
		if d.stock = newAnswer(d.pair.stock.ask(d.q, patient)); d.same() {
			return true
		}
	}
	return false
}

// askOurs queries our server alone.
func (p *pair) askOurs(c *cluster, q question) answer {
	wait := patient
	if p.twins && p.unpackable(c, q) {
		wait = hopeless
	}
	return newAnswer(p.ours.ask(q, wait))
}

// again queries another name for the explanation of this difference.
func (d *difference) again(name string, qtype uint16) *difference {
	other := d.ask(d.c, question{name: name, qtype: qtype, tcp: d.q.tcp})
	other.nested = true
	return other
}

// same reports whether the answers are equal.
func (d *difference) same() bool { return d.stock.equal(d.ours) }

func (d *difference) describe() string {
	return fmt.Sprintf("question: %v\n\nCoreDNS:\n%s\nclusterdns:\n%s\nobjects:\n%s", d.q, d.stock.dig(), d.ours.dig(), d.objects())
}

// denied reports whether an answer to this question denies the name, or is the outside resolver's answer if the name
// falls through then.
func (d *difference) denied(a answer) bool {
	if !d.fallsThrough(d.q.name) {
		return a.negative(dns.RcodeNameError)
	}
	return a.sections == newAnswer(outsideReply(d.q.message())).sections
}

// labels returns the labels of the question left of the zone, the last first, in lower case.
func (d *difference) labels() []string { return labelsBelow(d.zoneOf(d.q.name), d.q.name) }

func labelsBelow(zone, name string) []string {
	labels := dns.SplitDomainName(strings.ToLower(name))
	slices.Reverse(labels)
	return labels[dns.CountLabel(zone):]
}

// is reports whether the question is for that name below the zone; without labels, for the zone.
func (d *difference) is(labels ...string) bool {
	slices.Reverse(labels)
	return slices.Equal(d.labels(), labels)
}

// header returns a record header with the variant's TTL.
func (d *difference) header(name string, t uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: t, Class: dns.ClassINET, Ttl: d.ttl}
}

// address returns the record of an address.
func (d *difference) address(name string, ip netip.Addr) dns.RR {
	if ip.Is4() {
		return &dns.A{Hdr: d.header(name, dns.TypeA), A: ip.AsSlice()}
	}
	return &dns.AAAA{Hdr: d.header(name, dns.TypeAAAA), AAAA: ip.AsSlice()}
}
