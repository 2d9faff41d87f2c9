// Package store holds packed answers of the whole process in one budget of bytes. In go answers with the
// conditions under which they hold; they are read without a lock and without allocating. It knows
// neither plugins nor the cluster: whoever puts an answer in says what it hangs on.
package answers

import (
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

// Kind is the class of an answer as metrics of caches have it.
type Kind uint8

// The kinds of answers.
const (
	Success Kind = iota // data, or a reply without any that says nothing of denial
	Denial              // NXDOMAIN, NODATA, and failures that are kept
	kinds
)

// String returns the name that metrics use.
func (k Kind) String() string {
	if k == Denial {
		return "denial"
	}
	return "success"
}

// Views tells callers apart to whom the answer is not the same.
type Views interface {
	// View returns the view that a caller has, given the address and the data of the EDNS option that names
	// it, or nil. The answer for it is the one that the plugins would give now.
	View(from netip.Addr, option []byte) View
}

// View is what a caller sees.
type View struct {
	// Number is what answers for the view are kept under; Private is set if none are.
	Number  uint32
	Private bool
	// Callers counts an answer.
	Callers Counter
}

// Counter counts what it is asked to.
type Counter interface{ Inc() }

// ServerCounter counts what it is asked to for each server apart.
type ServerCounter interface {
	// On returns what counts for a server, given its address.
	On(server string) Counter
}

// Serial tells the present serial number of a zone.
type Serial interface{ Modified() int64 }

// Entry is an answer and until when it holds. All but what is atomic is set before Put and never
// changes after it.
type Entry struct {
	// Plain is the answer without compression of names, as CoreDNS gives it to a client that has room.
	Plain Answer
	// Compressed is the other form. It is there if Plain is too long for a client without EDNS.
	Compressed *Answer
	// Options are those of the OPT record in wire form, such as an extended error (RFC 8914).
	Options []byte
	// AnyCase tells that Plain holds for a question in other case as well, since names in it that are not
	// the question's do not follow its case.
	AnyCase bool
	// Kind is what metrics count it as.
	Kind Kind
	// Validity bounds how long the answer may be served. Without Expires, TTLs are not decremented.
	Validity
	// Stored is the time at which the answer was made, since the start of the process.
	Stored time.Duration
	// Gone is when an expired entry is of no use any more, not before Expires.
	Gone time.Duration
	// KeepTTL tells that TTLs do not go down while the answer holds.
	KeepTTL bool
	// Views is there if the answer depends on who asks: there is none in this entry, but one for each view
	// under a key of its own.
	Views Views
	// Count is there if somebody counts how often the answer is given.
	Count ServerCounter
	// Serial is the present serial number for the SOA record in the authority section, or nil.
	Serial Serial
	// Cached tells that a cache keeps it, counts it and its hits, and limits the number of such entries; if not, it is
	// kept by its Bounds alone, or for a view or a search list, and only the budget limits it.
	Cached bool
	// Popularity is there if the entry is to be fetched again before it expires.
	Popularity *Popularity
	// Costly tells that the answer came from another server, so that it is evicted later.
	Costly bool
	// State is for who has made the entry; StateSize is the memory that it takes in bytes.
	State     any
	StateSize int

	// plainExcess and compressedExcess are by how many bytes package dns takes the two forms for longer
	// than they are (text with escapes, signatures): CoreDNS shortens by what it takes them for.
	plainExcess, compressedExcess int

	keyspace *Keyspace
	key      string
	hash     uint64
	size     int64
	credit   atomic.Int32
	next     atomic.Pointer[Entry] // in the bucket
	// newer and older are the neighbours in the ring of the hand, guarded by the store's mutex.
	newer, older *Entry
}

// Popularity counts hits, as CoreDNS does for its prefetch: those without a gap.
type Popularity struct {
	// Amount is the number of hits that make an entry popular, Gap the time without one that ends the
	// count, From the time since Epoch from which a popular entry is to be fetched again.
	Amount int64
	Gap    time.Duration
	From   time.Duration
	// Refreshing is set while it is fetched.
	Refreshing atomic.Bool

	hits, last atomic.Int64
}

// Count takes in a hit and reports whether the entry is to be fetched again now.
func (p *Popularity) Count(now time.Duration) bool {
	last := time.Duration(p.last.Swap(int64(now)))
	if now-last > p.Gap {
		p.hits.Store(1)
	} else {
		p.hits.Add(1)
	}
	return now >= p.From && p.hits.Load() >= p.Amount
}

// Inherit takes over the hits of the entry that this one replaces.
func (p *Popularity) Inherit(old *Popularity) {
	p.hits.Store(old.hits.Load())
	p.last.Store(old.last.Load())
}

// errUnpackable is what Fill says of a message that has no packed form that is kept.
var errUnpackable = errors.New("the answer has a code that needs an OPT record")

// plainLimit is the longest answer that every client has room for, RFC 1035 section 4.2.1.
const plainLimit = dns.MinMsgSize - OptLen

// Fill packs a reply into the entry. The reply has no OPT record; its question is in lower case. The
// message is as before in the end.
func (e *Entry) Fill(m *dns.Msg) error {
	if m.Rcode > 0xf {
		return errUnpackable
	}
	compress := m.Compress
	defer func() { m.Compress = compress }()
	m.Compress = false
	plain, err := pack(m)
	if err != nil {
		return err
	}
	e.Plain, e.plainExcess = plain, m.Len()-plain.Len()
	if m.Len()+len(e.Options) <= plainLimit {
		return nil
	}
	m.Compress = true
	compressed, err := pack(m)
	if err != nil {
		return err
	}
	e.Compressed, e.compressedExcess = &compressed, m.Len()-compressed.Len()
	return nil
}

func pack(m *dns.Msg) (Answer, error) {
	b, err := m.Pack()
	if err != nil {
		return Answer{}, err
	}
	// Packing reserves more than it fills.
	return NewAnswer(append(make([]byte, 0, len(b)), b...))
}

// Patch returns how the answer is to be given at a time at which it holds.
func (e *Entry) Patch(now time.Duration) Patch {
	p := Patch{Options: e.Options}
	if e.Expires != 0 && !e.KeepTTL && now > e.Stored {
		p.Age = uint32((now - e.Stored) / time.Second) // #nosec G115 -- it has not expired
	}
	if e.Serial != nil {
		p.Serial, p.SetSerial = uint32(e.Serial.Modified()), true // #nosec G115 -- serials wrap, RFC 1982
	}
	return p
}

// buffers are for answers between their packed form and a message.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 1<<10); return &b }}

// Message returns the answer to a query as a message, without an OPT record: who writes it adds that.
func (e *Entry) Message(query []byte, q Query, p *Patch) (*dns.Msg, error) {
	b, _ := buffers.Get().(*[]byte)
	defer buffers.Put(b)
	q.EDNS = false
	*b = e.Plain.AppendReply((*b)[:0], query, &q, p)
	m := new(dns.Msg)
	return m, m.Unpack(*b)
}

// CountedLen returns the length of the answer in bytes as package dns takes it, which CoreDNS counts.
func (e *Entry) CountedLen() int { return e.Plain.Len() + e.plainExcess }

// Form returns the form of the answer that the server gives to a query, given the length that it may
// have in bytes, or nil if it has to be shortened. Plain is not asked for by those it does not fit.
func (e *Entry) Form(q *Query, p *Patch, limit, fragments int) *Answer {
	if n := e.Plain.ReplyLen(q, p) + e.plainExcess; n <= limit && n <= fragments {
		return &e.Plain
	}
	if e.Compressed == nil || q.Upper || e.Compressed.ReplyLen(q, p)+e.compressedExcess > limit {
		return nil
	}
	return e.Compressed
}
