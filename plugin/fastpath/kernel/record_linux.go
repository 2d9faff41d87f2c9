//go:build amd64 || arm64

package kernel

import (
	"encoding/binary"
	"errors"
	"math"
	"net/netip"
	"time"
	"unsafe"

	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/vouch"
)

// The limits of answer.c, and maxEntries: the index has four slots for each entry.
const (
	maxName      = 128
	shortName    = 64
	maxAnswer    = 1232
	maxOptions   = 64
	maxTTLs      = 96
	maxOwners    = 32
	maxAddresses = 64
	maxRecord    = 4096
	granule      = 128
	maxEntries   = slots / 4
	slots        = 16384
	probes       = 8
	versionBits  = 26
	granuleBits  = 14
	tagShift     = versionBits + granuleBits
	maxListeners = 32
	maxClients   = 1024
	maxSessions  = 64
	maxPorts     = 4

	flagDO, flagCD = 1, 2

	recordAnyCase, recordShuffle, recordFixed = 1, 2, 4

	// Answers are counted by these properties.
	countEDNS, countIPv6, countBeyond, countKinds = 1, 2, 4, 8
)

// arenaLen is the number of bytes of all records.
const arenaLen = int(unsafe.Sizeof(answerArena{}))

// recordHead is the length of a record without data.
const recordHead = int(unsafe.Sizeof(answerRecord{}))

// errUnfit is the reason why an entry has no copy in the kernel.
var errUnfit = errors.New("entry without a form for the kernel")

// Question is the part of an entry's key that does not depend on the server.
type Question struct {
	Name   []byte // wire form, lower case
	Type   uint16
	DO, CD bool
	List   uint32 // the client's search list; 0 if the name is not expanded
}

// keyOf returns the key of a question to a listener, false if the name is too long.
func keyOf(q *Question, listener int) (k answerKey, ok bool) {
	if len(q.Name) > maxName || listener < 0 || listener >= maxListeners {
		return k, false
	}
	copy(k.Name[:], q.Name)
	k.List, k.Listener = q.List, uint8(listener)
	k.Type = bigEndian(q.Type)
	if q.DO {
		k.Flags |= flagDO
	}
	if q.CD {
		k.Flags |= flagCD
	}
	return k, true
}

// hash returns the hash of a key whose name has nameLen bytes, as answer.c does.
func (k *answerKey) hash(seed uint64, nameLen int) uint64 {
	hash, end := seed, shortName
	if nameLen > shortName {
		end = maxName
	}
	for i := 0; i < end; i += 8 {
		hash = mix(hash, binary.LittleEndian.Uint64(k.Name[i:]))
	}
	return mix(hash, uint64(k.List)<<32|uint64(k.Type)<<16|uint64(k.Flags)<<8|uint64(k.Listener))
}

// mix returns a hash of a hash and a word.
func mix(hash, word uint64) uint64 {
	hash = (hash ^ word) * 0x9e3779b97f4a7c15
	return hash ^ hash>>32
}

// bigEndian returns the number whose bytes in memory are those of v in network order. Both machines of nearside are little
// endian, and so is the object of answer.c.
func bigEndian(v uint16) uint16 { return v<<8 | v>>8 }

// addressKey returns an address as a key of maps: IPv4 addresses are mapped.
func addressKey(a netip.Addr) (words [4]uint32) {
	b := a.As16()
	for i := range words {
		words[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	return words
}

// source has the data of a record.
type source struct {
	entry   *store.Entry
	key     answerKey
	name    int // length of the question's name
	shuffle bool
	clock   clock
	session func(*vouch.Session) (int, bool) // number of a session in the kernel, false if there is no room
}

// Fits reports whether an entry may have a form for the kernel: its answer ends by time or with a session, and is the same for all
// clients.
func Fits(e *store.Entry) bool {
	return e.Views == nil && !e.Waits && e.Serial == nil && e.Expires != 0 && !e.ByGeneration() && len(e.Options) <= maxOptions
}

// encode appends the record of an entry, with version 0, to buf, which is empty.
func (s *source) encode(buf []byte) ([]byte, error) {
	e := s.entry
	if !Fits(e) {
		return nil, errUnfit
	}
	var r answerRecord
	r.NameLen = uint8(s.name) // #nosec G115 -- at most maxName
	r.Expires, r.Stored = s.clock.kernel(e.Expires), s.clock.kernel(e.Stored)
	r.Until = r.Expires
	if e.Popularity != nil { // from then on, a reader of the store counts hits and has the answer fetched again
		r.Until = s.clock.kernel(min(e.Expires, e.Popularity.From))
	}
	if e.Limit != 0 {
		r.Limit = s.clock.kernel(e.Limit)
	}
	if e.Voucher != nil {
		session, limit, ok := e.Voucher.Session()
		if !ok {
			return nil, errUnfit
		}
		n, ok := s.session(session)
		if !ok {
			return nil, errFull
		}
		r.Session = uint16(n) // #nosec G115 -- below maxSessions
		if limit != 0 {
			r.VouchedUntil = s.clock.kernel(limit)
		}
	}
	r.List, r.Type, r.KeyFlags, r.Listener = s.key.List, s.key.Type, s.key.Flags, s.key.Listener
	if e.AnyCase {
		r.Flags |= recordAnyCase
	}
	if e.FixedTTL {
		r.Flags |= recordFixed
	}
	if s.shuffle {
		r.Flags |= recordShuffle
	}
	buf = append(buf[:0], make([]byte, recordHead)...)
	r.OptionsAt, r.Options = uint16(len(buf)), uint16(len(e.Options)) // #nosec G115 -- at most maxRecord
	buf = append(buf, e.Options...)
	plain, compressed := e.Parts()
	var err error
	if buf, err = s.encodeForm(buf, &r, 0, plain); err != nil {
		return nil, err
	}
	if compressed.Packed != nil {
		if buf, err = s.encodeForm(buf, &r, 1, compressed); err != nil {
			return nil, err
		}
	}
	if len(plain.Packed) > maxAnswer && r.Forms[1].At == 0 {
		return nil, errUnfit // every query would be passed on
	}
	for _, at := range []uint16{r.OptionsAt, r.Forms[0].OwnersAt, r.Forms[0].At, r.Forms[1].OwnersAt, r.Forms[1].At} {
		if at >= maxRecord/2 {
			return nil, errUnfit // the program reads only data that begins below
		}
	}
	copy(buf, unsafe.Slice((*byte)(unsafe.Pointer(&r)), recordHead))
	return buf, nil
}

// encodeForm appends a form of the answer. A form that is too long has its length only: queries that need it are passed on.
func (s *source) encodeForm(buf []byte, r *answerRecord, i int, p store.Parts) ([]byte, error) {
	if len(p.Packed) > math.MaxUint16 || p.Excess < 0 || p.Excess > math.MaxUint16 {
		return nil, errUnfit
	}
	f := &r.Forms[i]
	f.Len, f.Excess = uint16(len(p.Packed)), uint16(p.Excess) // #nosec G115 -- checked
	if len(p.Packed) > maxAnswer {
		return buf, nil
	}
	if len(p.TTLs)/2 > maxTTLs || s.shuffle && (p.Glue || p.Ordered || p.Count > maxAddresses) {
		return nil, errUnfit
	}
	if i == 0 && len(p.Owners)/2 > maxOwners {
		r.Flags &^= recordAnyCase
		p.Owners = nil
	}
	f.Ttls, f.TtlsAt = uint16(len(p.TTLs)/2), uint16(len(buf)) // #nosec G115 -- at most maxRecord
	buf = appendOffsets(buf, p.TTLs)
	f.Owners, f.OwnersAt = uint16(len(p.Owners)/2), uint16(len(buf)) // #nosec G115
	buf = appendOffsets(buf, p.Owners)
	f.First, f.Stride, f.Size, f.Count = uint16(p.First), uint16(p.Stride), uint16(p.Size), uint16(p.Count) // #nosec G115 -- within Packed
	f.At = uint16(len(buf))                                                                                 // #nosec G115
	return append(buf, p.Packed...), nil
}

// appendOffsets appends big-endian offsets as the kernel reads them.
func appendOffsets(buf, offsets []byte) []byte {
	for ; len(offsets) >= 2; offsets = offsets[2:] {
		buf = binary.LittleEndian.AppendUint16(buf, binary.BigEndian.Uint16(offsets))
	}
	return buf
}

// Answered are answers of the kernel from one record that have the same properties.
type Answered struct {
	Number     uint64
	IPv6, EDNS bool
	Beyond     bool          // the TTL has passed, a session vouches for the answer
	Took       time.Duration // mean time of the program for one answer
}
