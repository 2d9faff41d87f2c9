package store

import (
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// Kind is the class of an answer in the metrics of caches.
type Kind uint8

// The kinds of answers.
const (
	Success Kind = iota // data, or a reply without data that is no denial
	Denial              // NXDOMAIN, NODATA, and stored failures
	kinds
)

// String returns the label of metrics.
func (k Kind) String() string {
	if k == Denial {
		return "denial"
	}
	return "success"
}

// Views returns the views of callers that get different answers.
type Views interface {
	// View returns the view of the caller with an address, and with the data of EDNS option 65313 (package caller) or nil.
	// It follows the same rules as the plugins, so that the stored answer of a view equals the plugins' answer.
	View(from netip.Addr, option []byte) View
}

// View is a set of callers that get the same answer. Its strings may be slices of the query.
type View struct {
	// Number is a part of the key of the view's answers.
	Number uint32
	// Node and Zone are a part of the key, too, if Node is not empty: the names of a node without a number, and of its zone.
	// Node has at most caller.MaxNode bytes.
	Node, Zone string
	// Private is set if the view's answers are not stored.
	Private bool
	// Named is set if the option identifies the caller, so that its address does not matter: the answer is right for all
	// queries with this option over a connection.
	Named bool
	// Callers counts the answers to callers of the view; it may be nil.
	Callers Counter
}

// Counter counts events.
type Counter interface{ Inc() }

// ServerCounter counts events by server.
type ServerCounter interface {
	// Counter returns the counter of the server with an address.
	Counter(server string) Counter
}

// Serial returns the present serial number of a zone.
type Serial interface{ Modified() int64 }

// Entry is a packed answer with its validity. Fields are set before Put; after it only the atomic ones change.
type Entry struct {
	// Plain is the answer without compression of names, which CoreDNS sends if it fits the client's limit.
	Plain Answer
	// compressed is the answer with compression, nil if Plain fits every client.
	compressed *Answer
	// Options are those of the OPT record in wire form, such as an extended error (RFC 8914).
	Options []byte
	// AnyCase reports that the answer is right for a question in any case: no other name in it follows the question's case.
	AnyCase bool
	// Waits reports that the answer is negative and that queries wait for the name to exist: it is only for a query that has
	// waited.
	Waits bool
	// Kind is the class in the metrics.
	Kind Kind
	// FixedTTL is set if TTLs are not decremented while the answer is fresh.
	FixedTTL bool
	// Cached is set for entries of plugin cache, which counts them and their hits and limits their number. Other entries
	// are valid by Generations alone, or belong to a view or a search list; only the budget limits them.
	Cached bool
	// Costly is set if the answer is another server's: it is evicted later.
	Costly bool
	// Restored is set if an earlier process has received the answer.
	Restored bool
	// Validity bounds how long the answer may be served. Without Expires, TTLs are not decremented.
	validity.Validity
	// Stored is the time at which the answer was made, since the start of the process.
	Stored time.Duration
	// Gone is the time from which an expired entry is not served stale either, not before Expires; with a Voucher see
	// StaleUntil.
	Gone time.Duration
	// Limit is the expiry of the parts of the answer that no session vouches for, 0 without such parts: TTLs do not
	// exceed the time until Limit.
	Limit time.Duration
	// Views is set if the answer depends on the caller: this entry has no answer, and each view has an entry with a key of
	// its own.
	Views Views
	// Count counts how often the answer is served; it may be nil.
	Count ServerCounter
	// Serial is the present serial number for the SOA record in the authority section, or nil.
	Serial Serial
	// Popularity is set if a popular answer is prefetched before it expires.
	Popularity *Popularity
	// State belongs to the plugin that made the entry; StateSize is its memory in bytes.
	State     any
	StateSize int

	// plainExcess and compressedExcess are the bytes by which dns.Msg.Len overestimates the two forms (text with escapes,
	// signatures): CoreDNS truncates by that length.
	plainExcess, compressedExcess int32

	keyspace *Keyspace
	key      string
	hash     uint64
	size     int64
	credit   atomic.Int32
	hits     atomic.Uint32         // counts lookups for ToCopy; see replacesCopied and neverCopied
	memo     atomic.Uint32         // of Memo; 0 before the first call
	copies   *[]Copy               // guarded by the store's mutex; nil without any
	next     atomic.Pointer[Entry] // in the bucket
	// newer and older are the neighbours in the ring that the clock hand walks, guarded by the store's mutex.
	newer, older *Entry
}

// Popularity counts hits for prefetch as CoreDNS does: a pause longer than Gap resets the count.
type Popularity struct {
	// Amount is the number of hits that make an entry popular, Gap the time without a hit that resets the count, From the
	// time since the start of the process from which a popular entry is prefetched.
	Amount int64
	Gap    time.Duration
	From   time.Duration
	// Refreshing is set while the answer is being prefetched.
	Refreshing atomic.Bool

	hits, last atomic.Int64
}

// Count counts a hit and reports whether the entry is to be prefetched now.
func (p *Popularity) Count(now time.Duration) bool {
	last := time.Duration(p.last.Swap(int64(now)))
	if now-last > p.Gap {
		p.hits.Store(1)
	} else {
		p.hits.Add(1)
	}
	return now >= p.From && p.hits.Load() >= p.Amount
}

// Due reports whether Count would return true for a hit now.
func (p *Popularity) Due(now time.Duration) bool {
	hits := int64(1)
	if now-time.Duration(p.last.Load()) <= p.Gap {
		hits += p.hits.Load()
	}
	return now >= p.From && hits >= p.Amount
}

// Inherit copies the count of the entry that this one replaces.
func (p *Popularity) Inherit(old *Popularity) {
	p.hits.Store(old.hits.Load())
	p.last.Store(old.last.Load())
}

// errUnpackable is the error of Fill for a message without a packed form that can be stored.
var errUnpackable = errors.New("the answer has a code that needs an OPT record")

// Fill packs a reply into the entry. The reply has no OPT record, and its question is in lower case. The message is not
// changed.
func (e *Entry) Fill(m *dns.Msg) error {
	if m.Rcode > wire.MaxRcode {
		return errUnpackable
	}
	compress := m.Compress
	defer func() { m.Compress = compress }()
	m.Compress = false
	b, err := m.Pack()
	if err != nil {
		return err
	}
	if e.Plain, err = readAnswer(b); err != nil {
		return err
	}
	if e.plainExcess = excess(m.Len(), len(b)); e.fits() {
		return nil
	}
	return e.compress(m)
}

// Patch returns the changes to the answer for a time at which it is fresh.
func (e *Entry) Patch(now time.Duration) Patch {
	p := Patch{Options: e.Options}
	if e.Expires != 0 && !e.FixedTTL && now > e.Stored {
		if e.Voucher == nil {
			p.Age = uint32((now - e.Stored) / time.Second) // #nosec G115 -- it has not expired
		} else {
			e.patchVouched(&p, now)
		}
	}
	if e.Serial != nil {
		p.Serial, p.SetSerial = uint32(e.Serial.Modified()), true // #nosec G115 -- serials wrap, RFC 1982
	}
	return p
}

// buffers are buffers of packed answers for Message.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 1<<10); return &b }}

// Shared reports whether all clients, or all of the entry's view, get the answer: the entry was stored, and not as the answer
// found with the search list of the client's address (see AppendKeyList).
func (e *Entry) Shared() bool { return len(e.key) > keyFlags && e.key[keyFlags]&keyList == 0 }

// Message returns the answer to a query as a message without an OPT record, which the writer adds.
func (e *Entry) Message(query []byte, q wire.Query, p *Patch) (*dns.Msg, error) {
	b, _ := buffers.Get().(*[]byte)
	defer buffers.Put(b)
	q.EDNS = false
	*b = e.Plain.AppendReply((*b)[:0], query, &q, p)
	return Unpack(*b)
}

// Memo returns the result of f, which depends on the entry's question alone. It calls f once, or more often if several goroutines
// call Memo at the same time.
func (e *Entry) Memo(f func() bool) bool {
	const no, yes = 1, 2
	known := e.memo.Load()
	if known == 0 {
		known = no
		if f() {
			known = yes
		}
		e.memo.Store(known)
	}
	return known == yes
}
