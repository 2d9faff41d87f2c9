package cache

import (
	"encoding/binary"
	"slices"
	"strings"
	"time"

	"github.com/coredns/coredns/plugin/pkg/response"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// The judgement of replies by package dns and by CoreDNS's package response: the readable version of examine and entryFor.

// slowReply is a reply as a message, with the facts that decide whether and how it is stored.
type slowReply struct {
	facts
	msg     *dns.Msg     // without an OPT record, with the TTLs that clients see
	query   *clientQuery // that it answers
	forAll  bool
	options []dns.EDNS0
	refresh bool
}

// slowClassify returns the class of a reply to one question. A SOA record beside data that does not answer the question means
// that a chain of aliases ends in a name without the type: NODATA, RFC 2308 section 2.2.
func (c *Cache) slowClassify(m *dns.Msg) response.Type {
	class, _ := response.Typify(m, c.wall().UTC())
	if class == response.OtherError && m.Rcode == dns.RcodeNameError && len(m.Question) == 1 {
		// the alias of a nonexistent name, RFC 2308 section 2.1
		if target, ok := slowAlias(m.Answer, m.Question[0].Name, m.Question[0].Qclass); ok && target != "" {
			return response.NameError
		}
	}
	if class == response.NoError && len(m.Answer) > 0 && slowSOA(m) != nil && !slowAnswers(m) {
		return response.NoData
	}
	return class
}

// slowCacheable reports whether a reply of a class may be cached.
func slowCacheable(m *dns.Msg, class response.Type) bool {
	if m.Truncated {
		return false
	}
	switch class {
	case response.NameError:
		return slowSOA(m) != nil // RFC 2308 section 5
	case response.NoError:
		return len(m.Answer) == 0 || slowAnswers(m)
	case response.NoData, response.Delegation, response.ServerError:
		return true
	}
	return false
}

func slowSOA(m *dns.Msg) *dns.SOA {
	for _, rr := range m.Ns {
		if soa, ok := rr.(*dns.SOA); ok {
			return soa
		}
	}
	return nil
}

// slowAnswers reports whether a reply has data of the question's type, at the end of the chain of aliases.
func slowAnswers(m *dns.Msg) bool {
	if m.Rcode != dns.RcodeSuccess || len(m.Question) != 1 {
		return false
	}
	q := m.Question[0]
	switch q.Qtype {
	case dns.TypeANY:
		return slowData(m.Answer, q.Name, q.Qtype, q.Qclass)
	case dns.TypeCNAME:
		target, ok := slowAlias(m.Answer, q.Name, q.Qclass)
		return ok && target != ""
	}
	name := q.Name
	for range maxAliases {
		target, ok := slowAlias(m.Answer, name, q.Qclass)
		if !ok {
			return false
		}
		if target == "" {
			return slowData(m.Answer, name, q.Qtype, q.Qclass)
		}
		name = target
	}
	return false // a loop, RFC 1034 section 3.6.2
}

// slowAlias returns the target of a name's alias, "" without an alias. Several targets are an error.
func slowAlias(answer []dns.RR, name string, class uint16) (target string, ok bool) {
	for _, rr := range answer {
		cname, is := rr.(*dns.CNAME)
		if !is || !slowInClass(rr, class) || !equalNames(cname.Hdr.Name, name) {
			continue
		}
		if target != "" && !equalNames(target, cname.Target) {
			return "", false // RFC 2181 section 10.1
		}
		target = cname.Target
	}
	return target, true
}

func slowData(answer []dns.RR, name string, qtype, class uint16) bool {
	for _, rr := range answer {
		h := rr.Header()
		if (qtype == dns.TypeANY || h.Rrtype == qtype) && slowInClass(rr, class) && equalNames(h.Name, name) {
			return true
		}
	}
	return false
}

func slowInClass(rr dns.RR, class uint16) bool {
	return class == dns.ClassANY || rr.Header().Class == class
}

// equalNames compares names in presentation form, in which all other than ASCII is escaped.
func equalNames(a, b string) bool {
	return len(a) == len(b) && strings.EqualFold(a, b)
}

// slowTTLs sets the TTLs that clients see in a reply, and returns the lifetime of the reply, the minimum of the TTLs.
func (c *Cache) slowTTLs(m *dns.Msg, class response.Type) time.Duration {
	negative := noNegativeTTL
	if soa := slowSOA(m); soa != nil {
		negative = min(soa.Hdr.Ttl, soa.Minttl)
	}
	k, limits, lifetime := c.ttlLimits(class, len(m.Answer)+len(m.Ns)+len(m.Extra), negative)
	lifetime = min(lifetime, k.slowTTLs(m.Answer, limits[0]), k.slowTTLs(m.Ns, limits[1]), k.slowTTLs(m.Extra, limits[2]))
	return c.lifetime(class, lifetime)
}

// slowTTLs gives the records of each RRset in a section one TTL (RFC 2181 section 5.2), and returns the minimum, not more
// than limit. Records of a set are adjacent.
func (k *kindOptions) slowTTLs(records []dns.RR, limit uint32) (lowest uint32) {
	lowest = limit
	for len(records) > 0 {
		n, ttl := 1, records[0].Header().Ttl
		for n < len(records) && slowSameSet(records[0], records[n]) {
			ttl = min(ttl, records[n].Header().Ttl)
			n++
		}
		ttl = min(k.clamp(ttl), limit)
		for _, rr := range records[:n] {
			rr.Header().Ttl = ttl
		}
		lowest, records = min(lowest, ttl), records[n:]
	}
	return lowest
}

func slowSameSet(a, b dns.RR) bool {
	x, y := a.Header(), b.Header()
	if s, ok := a.(*dns.RRSIG); ok {
		if t, ok := b.(*dns.RRSIG); ok && s.TypeCovered != t.TypeCovered { // RFC 4034 section 3
			return false
		}
	}
	return x.Rrtype == y.Rrtype && x.Class == y.Class && equalNames(x.Name, y.Name)
}

// slowScope reports whether a reply is only for clients of a subnet (RFC 7871 section 7.3). A plugin behind the cache may
// have added the subnet to the query.
func slowScope(m *dns.Msg) bool {
	opt := m.IsEdns0()
	return opt != nil && slices.ContainsFunc(opt.Option, func(o dns.EDNS0) bool {
		subnet, ok := o.(*dns.EDNS0_SUBNET)
		return ok && subnet.SourceScope > 0
	})
}

// slowTakeOptions removes the OPT record from a reply, since it concerns one hop (RFC 6891 section 6.2.1), and returns the
// options that belong to the answer: extended errors, and in reply to a query with a search list the option of package
// searchlist.
func (q *clientQuery) slowTakeOptions(m *dns.Msg) (options []dns.EDNS0) {
	rest := m.Extra[:0]
	for _, rr := range m.Extra {
		opt, ok := rr.(*dns.OPT)
		if !ok {
			rest = append(rest, rr)
			continue
		}
		errors := 0
		for _, option := range opt.Option {
			switch o := option.(type) {
			case *dns.EDNS0_EDE:
				if errors++; errors > maxErrors {
					continue
				}
				if len(o.ExtraText) > maxErrorText {
					o.ExtraText = ""
				}
				options = append(options, o)
			case *dns.EDNS0_LOCAL:
				if o.Code == wire.OptionSearchList && q.Search != nil {
					options = append(options, o)
				}
			}
		}
	}
	m.Extra = rest
	return options
}

// slowPackOptions returns options of slowTakeOptions in wire form.
func slowPackOptions(options []dns.EDNS0) (b []byte) {
	for _, option := range options {
		switch o := option.(type) {
		case *dns.EDNS0_EDE:
			b = binary.BigEndian.AppendUint16(b, dns.EDNS0EDE)
			b = binary.BigEndian.AppendUint16(b, uint16(2+len(o.ExtraText))) // #nosec G115 -- limited by maxErrorText
			b = binary.BigEndian.AppendUint16(b, o.InfoCode)
			b = append(b, o.ExtraText...)
		case *dns.EDNS0_LOCAL:
			b = searchlist.AppendOption(b, o.Data)
		}
	}
	return b
}

// slowAnsweredQuery returns the query that a reply with these options answers: q itself, or the query for the name alone if
// the upstream has not tried the search list. It is not valid if the option contradicts the list of the query.
func (c *Cache) slowAnsweredQuery(q *clientQuery, options []dns.EDNS0) (answered *clientQuery, valid bool) {
	if q.Search == nil {
		return q, true
	}
	if i := slices.IndexFunc(options, isSearchList); i >= 0 {
		reply := options[i].(*dns.EDNS0_LOCAL).Data
		return q, !slices.ContainsFunc(options[i+1:], isSearchList) && searchlist.ValidReply(reply, q.Search)
	}
	alone := *q
	alone.Search = nil
	alone.key = c.space.Key(nil, q.packed, &alone.Query)
	return &alone, true
}

func isSearchList(o dns.EDNS0) bool { return o.Option() == wire.OptionSearchList }

// slowStoreDenials stores NXDOMAIN for each candidate of a search list, if a stored reply denies all of them: for clients
// that try the list themselves. A reply that depends on generations does not have those of the single names.
func (c *Cache) slowStoreDenials(r *slowReply) {
	if r.query.Search == nil || r.class != response.NameError || r.properties.ByGeneration() || len(r.msg.Answer) > 0 || len(r.msg.Ns) != 1 {
		return // records besides the SOA record prove the nonexistence of one name only
	}
	if i := slices.IndexFunc(r.options, isSearchList); len(r.options[i].(*dns.EDNS0_LOCAL).Data) > 0 {
		return
	}
	suffixes, ok := searchlist.ParseSuffixes(r.query.Search)
	if !ok || len(suffixes) == 0 {
		return
	}
	base := searchlist.Base(r.query.message().Question[0].Name, suffixes[0])
	if base == "" {
		return
	}
	for _, candidate := range searchlist.Candidates(base, suffixes) {
		if candidate != "" {
			c.slowStoreDenial(candidate, r)
		}
	}
}

// slowStoreDenial stores the denial of a search list as that of one of its candidates.
func (c *Cache) slowStoreDenial(name string, r *slowReply) {
	if !c.Covers(name) || !dns.IsSubDomain(slowSOA(r.msg).Hdr.Name, name) {
		return
	}
	question := r.query.message().Question[0]
	question.Name = name
	query, denial := *searchlist.WithoutOption(r.query.message()), *r.msg
	query.Question, denial.Question = []dns.Question{question}, []dns.Question{question}
	q := &clientQuery{msg: &query, counters: r.query.counters, udp: r.query.udp}
	var ok bool
	if q.packed, ok = store.QueryFromMsg(&q.Query, make([]byte, 0, wire.MaxQuery), &query); !ok {
		return // the name is too long
	}
	q.key = c.space.Key(nil, q.packed, &q.Query)
	single := *r
	single.query, single.msg, single.options = q, &denial, nil
	c.slowStore(&single)
}

// slowLowered returns a message with all occurrences of the question's name in slowLower case; the answer to a query has the case
// of the query. It sets AnyCase of the entry if other names are in slowLower case, too.
func slowLowered(m *dns.Msg, e *store.Entry) *dns.Msg {
	question := m.Question[0].Name
	name := strings.ToLower(question)
	if name != question {
		m = m.Copy() // the present client gets the reply unchanged
		m.Question[0].Name = name
	}
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			h := rr.Header()
			if equalNames(h.Name, name) {
				h.Name = name
			}
			e.AnyCase = e.AnyCase && slowLower(h.Name) && slowLowerNames(rr)
		}
	}
	return m
}

// slowLowerNames reports whether the names in the data of a record are in slowLower case; false for unknown types.
func slowLowerNames(rr dns.RR) bool {
	switch r := rr.(type) {
	case *dns.A, *dns.AAAA, *dns.TXT, *dns.CAA, *dns.DS, *dns.DNSKEY, *dns.TLSA, *dns.SSHFP, *dns.NSEC3:
		return true
	case *dns.CNAME:
		return slowLower(r.Target)
	case *dns.DNAME:
		return slowLower(r.Target)
	case *dns.NS:
		return slowLower(r.Ns)
	case *dns.PTR:
		return slowLower(r.Ptr)
	case *dns.MX:
		return slowLower(r.Mx)
	case *dns.SRV:
		return slowLower(r.Target)
	case *dns.SOA:
		return slowLower(r.Ns) && slowLower(r.Mbox)
	case *dns.SVCB:
		return slowLower(r.Target)
	case *dns.HTTPS:
		return slowLower(r.Target)
	case *dns.RRSIG:
		return slowLower(r.SignerName)
	case *dns.NSEC:
		return slowLower(r.NextDomain)
	}
	return false
}

func slowLower(name string) bool { return name == strings.ToLower(name) }

// slowStore stores a reply if that is permitted, and returns its entry, or nil.
func (c *Cache) slowStore(r *slowReply) *store.Entry {
	e := c.slowEntry(r)
	if e == nil || !c.put(r.query.key, e, r.refresh) {
		return nil
	}
	return e
}

// slowEntry returns the entry for a reply of an upstream, nil if the reply may not be stored as the answer for all callers.
func (c *Cache) slowEntry(r *slowReply) *store.Entry {
	storable := slowCacheable(r.msg, r.class) && r.lifetime > 0 && r.query.slowMatches(r.msg) && r.query.RD && r.forAll
	if !storable || c.kinds[kindOf(r.class)].disabled.Contains(r.msg.Question[0].Name) {
		return nil
	}
	e := c.newEntry(&r.facts, slowPackOptions(r.options))
	if e.Fill(slowLowered(r.msg, e)) != nil {
		return nil
	}
	if _, err := store.Unpack(e.Plain.Bytes()); err != nil {
		return nil
	}
	return e
}

// slowForOnce reports whether a reply is a denial with the TTL 0: it ends the answer before it, and is only for the queries that are
// under way (RFC 1035 section 3.2.1).
func (r *slowReply) slowForOnce() bool {
	return r.lifetime == 0 && r.class != response.ServerError && kindOf(r.class) == store.Denial && slowCacheable(r.msg, r.class)
}

// slowExamine sets the TTLs that clients see in a reply, removes its OPT record, and returns the reply with the facts that
// decide whether it is stored.
func (c *Cache) slowExamine(q *clientQuery, m *dns.Msg, recorded *store.Recorded) slowReply {
	scoped := slowScope(m) // before slowTakeOptions removes it
	class := c.slowClassify(m)
	options := q.slowTakeOptions(m)
	answered, valid := c.slowAnsweredQuery(q, options)
	if !valid {
		class = response.OtherError
	}
	return slowReply{
		msg: m, query: answered, options: options, forAll: recorded.ForAll() && !scoped,
		facts: facts{
			class: class, positive: class == response.NoError && slowAnswers(m), lifetime: c.slowLifetime(m, class, recorded),
			properties: &recorded.Properties, voucher: recorded.Voucher,
		},
	}
}

// slowRenews reports whether a reply replaces a stale answer for the client: a failure does not, RFC 8767 section 4.
func (c *Cache) slowRenews(q *clientQuery, m *dns.Msg, class response.Type) bool {
	if !q.slowMatches(m) {
		return false
	}
	if m.Truncated {
		return !c.preferPositive && c.stale.onFailure // the client retries over TCP
	}
	return c.slowRenewsStale(m.Rcode, class, class == response.NoError && slowAnswers(m))
}

// slowLifetime is the lifetime of a reply, whose TTLs it sets.
func (c *Cache) slowLifetime(m *dns.Msg, class response.Type, recorded *store.Recorded) time.Duration {
	if recorded.Waits {
		return 0
	}
	return c.slowTTLs(m, class)
}

// slowMatches is matches for a message.
func (q *clientQuery) slowMatches(m *dns.Msg) bool {
	if len(m.Question) != 1 || !m.Response {
		return false
	}
	got, want := m.Question[0], q.message().Question[0]
	return got.Qtype == want.Qtype && got.Qclass == want.Qclass && equalNames(got.Name, want.Name)
}

// slowRenewsStale is slowRenews for a complete reply to the query's question.
func (c *Cache) slowRenewsStale(rcode int, class response.Type, positive bool) bool {
	if c.preferPositive {
		return positive
	}
	switch rcode {
	case dns.RcodeSuccess:
		return c.stale.onFailure || class != response.OtherError
	case dns.RcodeNameError:
		return true
	}
	return false
}
