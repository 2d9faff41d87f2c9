package cache

import (
	"github.com/coredns/coredns/plugin/pkg/response"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// deniesList reports whether a reply denies all candidates of a query's search list with its SOA record alone: further records
// prove the nonexistence of one name only.
func (r *upstreamReply) deniesList(o *replyOptions) bool {
	if !o.tried || !o.allDenied || r.class != response.NameError || len(r.Records(wire.Answer)) > 0 || len(r.Records(wire.Authority)) != 1 {
		return false
	}
	n := 0
	for rest := r.query.Search; len(rest) > 0; n++ {
		var ok bool
		if _, rest, ok = searchlist.CutSuffix(rest); !ok {
			return false
		}
	}
	return n > 0 && n <= searchlist.MaxSuffixes
}

// storeDenials stores the denial of a search list as the denial of each candidate, for clients that query the candidates one by one.
func (c *Cache) storeDenials(r *upstreamReply, denial *store.Entry) {
	q := r.query
	first, _, _ := searchlist.CutSuffix(q.Search)
	base := baseOf(q.Name(q.packed), first)
	if len(base) == 0 {
		return
	}
	m := wire.NewReply()
	defer m.Release()
	for rest := q.Search; len(rest) > 0; {
		var suffix []byte
		suffix, rest, _ = searchlist.CutSuffix(rest)
		if len(base)+len(suffix) > wire.MaxName {
			continue // no resolver queries this candidate
		}
		var buf [2 * wire.MaxName]byte
		name := append(append(buf[:0], base...), suffix...)
		if m.ParseRenamed(denial.Plain.Bytes(), name) {
			c.storeDenial(r, m)
		}
	}
}

// baseOf returns the part of a name in wire form before a suffix, nil unless the name is below the suffix.
func baseOf(name, suffix []byte) []byte {
	for at := 0; name[at] != 0; at += 1 + int(name[at]) {
		if wire.EqualNames(name[at:], suffix) {
			return name[:at]
		}
	}
	return nil
}

// storeDenial stores the denial of a search list as the denial of one candidate. m is the reply for the candidate.
func (c *Cache) storeDenial(r *upstreamReply, m *wire.Reply) {
	if !c.coversName(m.Name()) || c.isDisabled(r.class, m.Name()) {
		return
	}
	soa, _ := soaOf(m)
	if owner := m.Owner(soa); len(owner) > 1 && !wire.EqualNames(owner, m.Name()) && len(baseOf(m.Name(), owner)) == 0 {
		return // the zone of the SOA record does not have the candidate
	}
	e := c.newEntry(&r.facts, nil)
	if !fill(e, m) {
		return
	}
	var packed [wire.HeaderLen + wire.MaxName]byte
	var keyBuf [store.MaxKey]byte
	copy(packed[wire.HeaderLen:], m.Name())
	single := r.query.Query
	single.NameLen, single.Upper, single.Search = len(m.Name()), false, nil
	c.put(c.space.Key(keyBuf[:0], packed[:], &single), e, r.refresh)
}

// coversName is Covers for a name in wire form.
func (c *Cache) coversName(name []byte) bool {
	if len(c.bypass) == 0 && len(c.Zones) == 1 && c.Zones[0] == "." {
		return true
	}
	text, _, err := dns.UnpackDomainName(name, 0)
	return err == nil && c.Covers(text)
}

// isDisabled reports whether replies of a class for a name in wire form are not stored, as the option disable specifies.
func (c *Cache) isDisabled(class response.Type, name []byte) bool {
	disabled := c.kinds[kindOf(class)].disabled
	if len(disabled) == 0 {
		return false
	}
	text, _, err := dns.UnpackDomainName(name, 0)
	return err != nil || disabled.Contains(text)
}
