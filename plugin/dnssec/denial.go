package dnssec

import (
	"fmt"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// Types that NSEC records list: those that CoreDNS lists, in ascending order. The plugin does not know which of them a name
// has, so that it denies the type of the question only. For the same reason a name that does not exist becomes one without
// records of that type (draft-valsorda-dnsop-black-lies).
var (
	nameTypes = []uint16{
		dns.TypeA, dns.TypeHINFO, dns.TypeTXT, dns.TypeAAAA, dns.TypeLOC, dns.TypeSRV, dns.TypeCERT, dns.TypeSSHFP, dns.TypeRRSIG,
		dns.TypeNSEC, dns.TypeTLSA, dns.TypeHIP, dns.TypeOPENPGPKEY, dns.TypeSPF,
	}
	delegationTypes = with(nameTypes, dns.TypeNS)
	apexTypes       = with(nameTypes, dns.TypeNS, dns.TypeSOA, dns.TypeMX, dns.TypeDNSKEY)
)

func with(types []uint16, more ...uint16) []uint16 {
	all := slices.Concat(types, more)
	slices.Sort(all)
	return all
}

// without returns the types for a reply that has no records of a type. A query for the type NSEC is answered with the NSEC record
// itself, which exists and so is not denied.
func without(types []uint16, denied uint16) []uint16 {
	if denied == dns.TypeNSEC {
		return types
	}
	return slices.DeleteFunc(slices.Clone(types), func(t uint16) bool { return t == denied })
}

// deny signs a reply without records of the question: the SOA record, its only record, and an NSEC record of the name.
func (w *writer) deny(m *dns.Msg, zone string) error {
	q := m.Question[0]
	types := nameTypes
	switch {
	case strings.EqualFold(q.Name, zone):
		types = apexTypes
	case q.Qtype == dns.TypeDS: // a resolver queries for DS records at a delegation, which the bit NS shows
		types = delegationTypes
	}
	denial, err := w.newNSEC(q.Name, below(q.Name), m.Ns[0].Header().Ttl, without(types, q.Qtype), zone)
	if err != nil {
		return err
	}
	m.Rcode = dns.RcodeSuccess
	if q.Qtype == dns.TypeNSEC {
		m.Answer, m.Ns = denial, nil
		return nil
	}
	soa, err := w.withSignatures(m.Ns)
	m.Ns = append(soa, denial...)
	return err
}

// withDelegation returns the authority section of a delegation with signatures of its DS records, or with an NSEC record that
// denies them. Both belong to the zone above.
func (w *writer) withDelegation(section []dns.RR) ([]dns.RR, error) {
	var ds []dns.RR
	var ns *dns.RR_Header
	for _, rr := range section {
		switch h := rr.Header(); h.Rrtype {
		case dns.TypeDS:
			ds = append(ds, rr)
		case dns.TypeNS:
			ns = h
		}
	}
	parent, _ := dns.NextLabel(ns.Name, 0)
	zone := w.zones.Matches(dns.Fqdn(ns.Name[parent:]))
	if zone == "" {
		return section, nil
	}
	if len(ds) > 0 {
		signatures, err := w.signatures(ds, zone, w.server)
		return slices.Concat(section, signatures), err
	}
	// Names below the delegation belong to another zone, so the next name of this zone is behind all of them.
	denial, err := w.newNSEC(ns.Name, behind(ns.Name), ns.Ttl, delegationTypes, zone)
	return slices.Concat(section, denial), err
}

// maxNameLength is the maximum length of a name in wire form, in octets (RFC 1035, section 2.3.4).
const maxNameLength = 255

// newNSEC returns an NSEC record and its signatures. It returns an error if the next name is longer than names may be.
func (w *writer) newNSEC(name, next string, ttl uint32, types []uint16, zone string) ([]dns.RR, error) {
	if _, err := dns.PackDomainName(next, make([]byte, maxNameLength), 0, nil, false); err != nil {
		return nil, fmt.Errorf("next name of %s: %w", name, err)
	}
	nsec := &dns.NSEC{
		Hdr:        dns.RR_Header{Name: name, Rrtype: dns.TypeNSEC, Class: dns.ClassINET, Ttl: ttl},
		NextDomain: next,
		TypeBitMap: types,
	}
	signatures, err := w.signatures([]dns.RR{nsec}, zone, w.server)
	return append(signatures, nsec), err
}

// below returns the name that follows a name in canonical order (RFC 4034, section 6.1): its first descendant. It is in lower
// case, so that all spellings of a name have the same signature.
func below(name string) string {
	if name == "." {
		return `\000.`
	}
	return `\000.` + strings.ToLower(name)
}

// behind returns a name that follows a name and all of its descendants.
func behind(name string) string {
	end, _ := dns.NextLabel(name, 0) // for a name of one label, its length
	return strings.ToLower(name[:end-1]) + `\000.` + strings.ToLower(name[end:])
}
