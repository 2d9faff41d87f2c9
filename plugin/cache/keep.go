package cache

import (
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/coredns/coredns/plugin/pkg/response"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
)

// keeping is what is known of a reply besides the message.
type keeping struct {
	*asked
	class      response.Type
	lifetime   time.Duration
	properties *answers.Properties
	forAll     bool // whoever asks
	options    []dns.EDNS0
	wildcard   string // record that it was made from
	refreshing bool   // it takes the place of an answer that is still given
}

// kept is the State of an entry.
type kept struct {
	wildcard  string // that the answer was made from, as metadata says
	answering bool   // it is the data that was asked for
	failure   bool   // it says that something went wrong

	refreshing atomic.Bool  // it is being asked for again
	retry      atomic.Int64 // nothing is asked before that time since store's epoch
}

// keep puts a reply into the store if it may be kept, and returns its entry if it is. The reply has no
// OPT record any more, and TTLs as clients see them.
func (c *Cache) keep(m *dns.Msg, k *keeping) *answers.Entry {
	if keepable(m, k.class) && k.lifetime > 0 && !k.matches(m) {
		k.n.drops.Inc()
		return nil
	}
	if !k.q.RD && !k.properties.ByGeneration() {
		return nil // a server may answer a query without RD with a referral or a refusal: no reply to one with RD
	}
	kind := kindOf(k.class)
	if !k.forAll {
		c.forget(k.key)
	}
	if !k.forAll || !keepable(m, k.class) || k.lifetime <= 0 || c.kinds[kind].except.Contains(m.Question[0].Name) {
		if k.properties.ByGeneration() && k.matches(m) && (k.forAll || k.properties.Views != nil) {
			c.space.PutReply(k.msg, m, k.properties) // for as long as they hold: that is no matter of TTLs
		}
		return nil
	}
	e := c.entryOf(m, k)
	if e.Fill(lowered(m, e)) != nil || !c.put(e, k) {
		return nil
	}
	return e
}

// forget removes what is kept for all, where the answer depends on who asks now.
func (c *Cache) forget(key []byte) {
	if old := c.store.Get(key); old != nil && old.Cached {
		c.store.Remove(old)
	}
}

// entryOf returns the entry for a reply, but for the reply.
func (c *Cache) entryOf(m *dns.Msg, k *keeping) *answers.Entry {
	now := c.now()
	state := &kept{wildcard: k.wildcard, failure: k.class == response.ServerError, answering: k.class == response.NoError && answersQuestion(m)}
	e := &answers.Entry{
		Options: packOptions(k.options),
		Kind:    kindOf(k.class),
		Stored:  now, Validity: answers.Validity{Expires: now + k.lifetime, Bounds: k.properties.Bounds}, Gone: now + k.lifetime + c.stale.upTo,
		KeepTTL: c.keepTTL, Serial: k.properties.Serial,
		AnyCase: !k.properties.ByGeneration() || k.properties.AnyCase,
		Cached:  true,
		Costly:  !k.properties.ByGeneration(),
		State:   state, StateSize: int(unsafe.Sizeof(*state)) + len(state.wildcard),
	}
	if state.failure || k.properties.ByGeneration() {
		e.Gone = e.Expires // neither is ever given once it is known to be over
	}
	if c.prefetch.amount > 0 {
		seconds := int64(k.lifetime / time.Second)
		left := (seconds*int64(c.prefetch.percent) + 99) / 100
		e.Popularity = &answers.Popularity{
			Amount: c.prefetch.amount, Gap: c.prefetch.gap, From: now + time.Duration(seconds-left)*time.Second,
		}
		e.StateSize += int(unsafe.Sizeof(*e.Popularity))
	}
	return e
}

// put puts an entry into the store, unless what is there is better.
func (c *Cache) put(e *answers.Entry, k *keeping) bool {
	c.keeping.Lock()
	defer c.keeping.Unlock()
	old := c.store.Get(k.key)
	if stateOf(old, c.now()) != useless {
		if c.prefers(old, e) {
			return false
		}
		if k.refreshing && old.Popularity != nil && e.Popularity != nil {
			e.Popularity.Inherit(old.Popularity)
		}
	}
	c.store.Put(c.space, k.key, e)
	return true
}

// prefers reports whether an answer that is of use is better than what has come after it.
func (c *Cache) prefers(old, e *answers.Entry) bool {
	was, is := old.State.(*kept), e.State.(*kept)
	if is.failure {
		return !was.failure
	}
	return c.preferPositive && c.stale.upTo > 0 && was.answering && !is.answering
}

// lowered returns a message with the question's name in lower case, wherever it stands: the case of a
// query is put there when the answer is given. It notes in the entry whether other names follow it.
func lowered(m *dns.Msg, e *answers.Entry) *dns.Msg {
	asked := m.Question[0].Name
	name := strings.ToLower(asked)
	if name != asked {
		m = m.Copy() // the one who asked gets the reply as it came
		m.Question[0].Name = name
	}
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			h := rr.Header()
			if equalNames(h.Name, name) {
				h.Name = name
			}
			e.AnyCase = e.AnyCase && lower(h.Name) && hasLowerNames(rr)
		}
	}
	return m
}

// hasLowerNames reports whether it is known that no name in the data of a record has upper-case letters.
func hasLowerNames(rr dns.RR) bool {
	switch r := rr.(type) {
	case *dns.A, *dns.AAAA, *dns.TXT, *dns.CAA, *dns.DS, *dns.DNSKEY, *dns.TLSA, *dns.SSHFP, *dns.NSEC3:
		return true
	case *dns.CNAME:
		return lower(r.Target)
	case *dns.DNAME:
		return lower(r.Target)
	case *dns.NS:
		return lower(r.Ns)
	case *dns.PTR:
		return lower(r.Ptr)
	case *dns.MX:
		return lower(r.Mx)
	case *dns.SRV:
		return lower(r.Target)
	case *dns.SOA:
		return lower(r.Ns) && lower(r.Mbox)
	case *dns.SVCB:
		return lower(r.Target)
	case *dns.HTTPS:
		return lower(r.Target)
	case *dns.RRSIG:
		return lower(r.SignerName)
	case *dns.NSEC:
		return lower(r.NextDomain)
	}
	return false
}

func lower(name string) bool {
	for i := range len(name) {
		if name[i]-'A' < 26 {
			return false
		}
	}
	return true
}
