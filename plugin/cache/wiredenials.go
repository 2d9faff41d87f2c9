package cache

import (
	"github.com/coredns/coredns/plugin/pkg/response"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// deniesAlone reports whether a reply denies names with its SOA record alone. Further records prove the nonexistence of one
// name only.
func deniesAlone(m *wire.Reply, class response.Type) bool {
	return class == response.NameError && len(m.Records(wire.Answer)) == 0 && len(m.Records(wire.Authority)) == 1
}

// ordinaryDenial reports whether storeWireDenials stores the denial of a search list as storeListDenials does: the reply has
// no record of the question's name and nothing in the additional section, and the list is valid and has names without
// escapes.
func ordinaryDenial(m *wire.Reply, search []byte) bool {
	soa, ok := soaOfWire(m)
	if !ok || wire.EqualNames(m.Owner(soa), m.Name()) || len(m.Records(wire.Additional)) > 0 {
		return false
	}
	n := 0
	for len(search) > 0 {
		var suffix []byte
		if suffix, search, ok = searchlist.CutSuffix(search); !ok || !wire.IsPlain(suffix) {
			return false
		}
		n++
	}
	return n > 0 && n <= searchlist.MaxSuffixes
}

// storeWireDenials is storeListDenials for a reply in wire form.
func (c *Cache) storeWireDenials(q *answers.Query, packed []byte, r *wireReply, refresh bool) {
	first, _, _ := searchlist.CutSuffix(q.Search)
	base := baseOf(packed[wire.HeaderLen:wire.HeaderLen+q.NameLen], first)
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
		c.storeWireDenial(q, m, name, r, refresh)
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

// storeWireDenial stores the denial of a search list as that of one of its candidates, which it parses into m.
func (c *Cache) storeWireDenial(q *answers.Query, m *wire.Reply, name []byte, r *wireReply, refresh bool) {
	if !m.ParseRenamed(r.entry.Plain.Bytes(), name) || !c.coversWire(m.Name()) {
		return
	}
	soa, _ := soaOfWire(m)
	if owner := m.Owner(soa); len(owner) > 1 && !wire.EqualNames(owner, m.Name()) && len(baseOf(m.Name(), owner)) == 0 {
		return // the zone of the SOA record does not have the candidate
	}
	e := c.newEntry(&facts{class: r.class, lifetime: r.lifetime, properties: &noProperties, voucher: r.entry.Voucher}, nil)
	if !e.FillReply(m) {
		return
	}
	var packed [wire.HeaderLen + wire.MaxName]byte
	var keyBuf [answers.MaxKey]byte
	copy(packed[wire.HeaderLen:], m.Name())
	single := *q
	single.NameLen, single.Upper, single.Search = len(name), false, nil
	c.put(c.space.Key(keyBuf[:0], packed[:], &single), e, refresh)
}

// coversWire is Covers for a name in wire form without escapes.
func (c *Cache) coversWire(name []byte) bool {
	if len(c.bypass) == 0 && len(c.Zones) == 1 && c.Zones[0] == "." {
		return true
	}
	var buf [wire.MaxName]byte
	text := buf[:0]
	for name[0] != 0 {
		next := 1 + int(name[0])
		text = append(append(text, name[1:next]...), '.')
		name = name[next:]
	}
	return c.Covers(string(text))
}
