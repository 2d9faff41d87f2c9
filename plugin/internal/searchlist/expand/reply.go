package expand

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/block/wirechain"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// status is the status of a candidate by the reply to a query for it.
type status int

const (
	absent  status = iota // NXDOMAIN
	exists                // NODATA
	hasData               // the candidate is the result: it has data of the queried or of a related type, or its reply is truncated
	failed
)

// reply is the reply to the query for a candidate, or for a run of candidates.
type reply struct {
	packed []byte // without compression of names and without an OPT record; nil if no plugin wrote a reply
	rcode  int    // NOERROR without a reply
	list   []byte // the data of the search list option, nil unless there is exactly one
	errors []byte // the extended errors (RFC 8914), as EDNS options

	status status
	name   string       // of the candidate
	alias  string       // target of a leading CNAME record that is not a part of the reply, "" for none
	offset int          // of the candidate in the run
	serial store.Serial // of the zone
	stored bool         // the reply is stored as the answer to the name, by a cache or by the Expander
	waits  bool         // the reply is negative, and queries wait for the name: see store.Entry.Waits
	// lifetime is the time by the TTLs for which clients may use the reply while a session vouches for it.
	lifetime time.Duration
	err      error
}

// entryReply returns the reply of a wire handler to a query.
func entryReply(e *store.Entry, p *store.Patch, q *wirechain.Request) *reply {
	patch, flags := *p, q.Query
	patch.Options, flags.EDNS = nil, false
	r := &reply{
		packed: e.Plain.AppendReply(make([]byte, 0, e.Plain.Len()), q.Packed, &flags, &patch),
		rcode:  e.Plain.Rcode(), serial: e.Serial, stored: e.Expires != 0, lifetime: e.Lifetime(validity.Now()),
	}
	if q.EDNS {
		r.setOptions(p.Options)
	}
	return r
}

// messageReply returns the reply of the plugin chain to a question; m is nil if no plugin wrote one. A reply that cannot be
// packed is a failure, like a missing reply.
func messageReply(m *dns.Msg, question dns.Question, err error) *reply {
	if m == nil {
		return &reply{err: err}
	}
	plain := *m
	plain.Compress, plain.Extra = false, slices.DeleteFunc(slices.Clone(m.Extra), isOPT)
	if len(m.Question) != 1 {
		plain.Question, plain.AuthenticatedData = []dns.Question{question}, false
	}
	if m.Rcode > wire.MaxRcode {
		plain.Rcode = dns.RcodeServerFailure
	}
	packed, problem := plain.Pack()
	if _, whole := wire.ReadBody(nil, packed); problem == nil && (!whole || wire.QuestionEnd(packed) == 0) {
		problem = errMalformed
	}
	if problem != nil {
		return &reply{err: problem}
	}
	r := &reply{packed: packed, rcode: m.Rcode, err: err}
	if opt := m.IsEdns0(); opt != nil {
		r.list, _ = searchlist.OptionOf(m)
		for _, o := range opt.Option {
			if e, is := o.(*dns.EDNS0_EDE); is {
				r.errors = wire.AppendOption(r.errors, dns.EDNS0EDE, append(binary.BigEndian.AppendUint16(nil, e.InfoCode), e.ExtraText...))
			}
		}
	}
	return r
}

// errMalformed is the error of a reply that package dns packs and does not unpack, such as one with a name of more than 255 bytes.
var errMalformed = errors.New("malformed reply")

func isOPT(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeOPT }

// setOptions sets the search list and the extended errors to those of an OPT record.
func (r *reply) setOptions(options []byte) {
	for lists := 0; len(options) > 0; {
		code, data, rest, ok := wire.CutOption(options)
		switch {
		case !ok:
			return
		case code == dns.EDNS0EDE:
			r.errors = append(r.errors, options[:len(options)-len(rest)]...)
		case code == wire.OptionSearchList:
			if lists++; lists > 1 {
				r.list = nil
			} else {
				r.list = append([]byte{}, data...)
			}
		}
		options = rest
	}
}

// isNone reports whether no plugin wrote a reply.
func (r *reply) isNone() bool { return r.packed == nil }

// isTruncated reports whether the reply has the flag TC.
func (r *reply) isTruncated() bool { return !r.isNone() && r.packed[wire.FlagsAt]&wire.TC != 0 }

// answers returns the number of records in the answer section, and the records of all sections, both without the
// CNAME record to alias.
func (r *reply) answers() (count int, records []byte) {
	if r.isNone() {
		return 0, nil
	}
	count, records = wire.Count(r.packed, wire.ANCountAt), r.packed[wire.QuestionEnd(r.packed):]
	if r.alias == "" || count == 0 {
		return count, records
	}
	first, ok := wire.ReadRecord(records, 0)
	if !ok || first.Type != dns.TypeCNAME {
		return count, records
	}
	if target, _, err := dns.UnpackDomainName(records[first.Data:first.End], 0); err == nil && strings.EqualFold(target, r.alias) {
		return count - 1, records[first.End:]
	}
	return count, records
}

// hasAnswer reports whether the reply, which is no error, has records in the answer section.
func (r *reply) hasAnswer() bool {
	count, _ := r.answers()
	return count > 0
}

// setName sets the candidate that the reply to a run is for. If it is not the first of the run, a leading CNAME
// record to it is no longer a part of the reply.
func (r *reply) setName(name string) {
	if !strings.EqualFold(r.name, name) {
		r.name, r.alias = name, name
	}
}

// statusOf returns the status of a candidate by the reply.
func (k *walk) statusOf(r *reply) status {
	switch {
	case r.isNone():
		return failed
	case r.isTruncated():
		return hasData
	case r.rcode == dns.RcodeNameError:
		return absent
	case r.rcode == dns.RcodeRefused && k.isForeign(k.name()):
		return absent // the client's own query to this server would be refused, too
	case r.rcode != dns.RcodeSuccess:
		return failed
	case r.hasAnswer():
		return hasData
	}
	return exists
}

// isForeign reports whether no server block has a zone of the name, so that the server refuses it.
func (k *walk) isForeign(name string) bool {
	return !k.zones.Serves(name) && k.zones.ZoneOf(name) == ""
}

// join joins own, the validity of a reply, with that of the walk. A reply that no cache has stored, and that depends on no
// Generation, expires at once: an alias that depends on it has the TTL 0.
func (k *walk) join(r *reply, own *validity.Validity, forAll bool) {
	v := &k.validity
	switch {
	case r.isNone(), r.isTruncated(), r.rcode == dns.RcodeRefused, !forAll:
		v.End()
	case !own.ByGeneration() && own.Expires == 0:
		k.limit = validity.Now()
		v.Until(k.limit)
	default:
		k.joinLifetime(r, own)
		v.Join(own)
	}
}

// joinLifetime joins the time for which clients may use a reply with that of the walk: the whole lifetime of the reply while
// a session vouches for it, however long ago it was received, and otherwise the time until it expires.
func (k *walk) joinLifetime(r *reply, own *validity.Validity) {
	switch {
	case own.Expires == 0:
	case own.Vouched(validity.Now()):
		if lifetime := max(1, r.lifetime); k.vouched == 0 || lifetime < k.vouched {
			k.vouched = lifetime
		}
	case k.limit == 0 || own.Expires < k.limit:
		k.limit = own.Expires
	}
}
