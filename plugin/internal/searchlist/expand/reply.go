package expand

import (
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
)

// status is the status of a candidate by the reply to a query for it.
type status int

const (
	absent  status = iota // NXDOMAIN
	exists                // NODATA
	hasData               // the candidate is the result: it has data, or is an address with data of the other family
	failed
)

// reply is the reply to the query for a candidate, or for a run of candidates: a message of the plugin chain, or an entry
// of a WireHandler.
type reply struct {
	msg    *dns.Msg // nil if no plugin wrote a reply
	packed *packedReply

	status status
	name   string         // of the candidate
	offset int            // of the candidate in the run
	serial answers.Serial // of the zone
	stored bool           // the reply is stored as the answer to the name, by a cache or by the Expander
	waits  bool           // the reply is negative, and queries wait for the name: see answers.Entry.Waits
	// lifetime is the time for which clients may use a reply for which a session vouches, by its TTLs.
	lifetime time.Duration
	err      error
}

// isNone reports whether no plugin wrote a reply.
func (r *reply) isNone() bool { return r.msg == nil && r.packed == nil }

// rcode returns the response code, NOERROR without a reply.
func (r *reply) rcode() int {
	switch {
	case r.msg != nil:
		return r.msg.Rcode
	case r.packed != nil:
		return r.packed.entry.Plain.Rcode()
	}
	return dns.RcodeSuccess
}

// hasAnswer reports whether the reply, which is no error, has records in the answer section.
func (r *reply) hasAnswer() bool {
	if r.packed != nil {
		return r.packed.hasAnswer()
	}
	return r.msg != nil && len(r.msg.Answer) > 0
}

// list returns the data of the search list in the reply's OPT record.
func (r *reply) list() (data []byte, ok bool) {
	if r.packed != nil {
		return r.packed.list, r.packed.list != nil
	}
	return searchlist.OptionOf(r.msg)
}

// message returns the reply as a message, nil if there is none.
func (r *reply) message() *dns.Msg {
	if r.packed != nil {
		r.msg, r.err = r.packed.unpack()
		r.packed = nil
	}
	return r.msg
}

// setName sets the candidate that the reply to a run is for, and removes the alias to it from the reply.
func (r *reply) setName(name string) {
	if strings.EqualFold(r.name, name) {
		return
	}
	r.name = name
	if r.packed != nil {
		r.packed.alias = name
		return
	}
	if len(r.msg.Answer) == 0 {
		return
	}
	if alias, ok := r.msg.Answer[0].(*dns.CNAME); ok && strings.EqualFold(alias.Target, name) {
		own := *r.msg
		own.Answer = own.Answer[1:]
		r.msg = &own
	}
}

// statusOf returns the status of a candidate by the reply.
func (k *walk) statusOf(r *reply) status {
	switch rcode := r.rcode(); {
	case r.isNone():
		return failed
	case r.msg != nil && r.msg.Truncated:
		return hasData
	case rcode == dns.RcodeNameError:
		return absent
	case rcode == dns.RcodeRefused && k.isForeign(k.name()):
		return absent // the client's own query to this server would be refused, too
	case rcode != dns.RcodeSuccess:
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

// join joins the validity of a reply with that of the walk. A reply that no cache stores, and that no Generation counts,
// expires at once: an alias that depends on it has the TTL 0.
func (k *walk) join(r *reply, validity *answers.Validity, forAll bool) {
	v := &k.validity
	switch {
	case r.isNone(), r.msg != nil && r.msg.Truncated, r.rcode() == dns.RcodeRefused, !forAll:
		v.End()
	case !validity.ByGeneration() && validity.Expires == 0:
		k.limit = answers.Now()
		v.Until(k.limit)
	default:
		k.joinLifetime(r, validity)
		v.Join(validity)
	}
}

// joinLifetime joins the time for which clients may use a reply with that of the walk. While a session vouches for the reply,
// it is that of the reply, however long ago that was received.
func (k *walk) joinLifetime(r *reply, validity *answers.Validity) {
	switch {
	case validity.Expires == 0:
	case validity.Vouched(answers.Now()):
		if lifetime := max(1, r.lifetime); k.vouched == 0 || lifetime < k.vouched {
			k.vouched = lifetime
		}
	case k.limit == 0 || validity.Expires < k.limit:
		k.limit = validity.Expires
	}
}
