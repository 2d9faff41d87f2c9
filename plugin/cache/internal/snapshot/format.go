// Package snapshot reads and writes files of cached replies. Input of a file is replies in wire form with their ages; output are
// the same replies, as bytes that the caller parses like those of an upstream. It imports nothing of the project and no package for
// DNS.
package snapshot

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"iter"
	"math"
	"time"
)

// Header describes a file.
type Header struct {
	// Config is a digest of the configuration of the cache.
	Config [32]byte
	// Written is the time of the wall clock at which ages were taken.
	Written time.Time
}

// Record is a cached reply.
type Record struct {
	// Age is the time since the receipt of the reply, at Header.Written.
	Age time.Duration
	// DO and CD are the flags of the query.
	DO, CD bool
	// Reply is a message with the TTLs of the receipt, of at most 65535 bytes.
	Reply []byte
}

// A file has the magic, the version, the header, the records, and the CRC-32C of all of that. Numbers are big endian.
const (
	magic      = "nearside cache\n"
	version    = 1
	headerLen  = len(magic) + 4 + 32 + 8 // magic, version, digest, time in nanoseconds since 1970
	recordHead = 8 + 1 + 2               // age in nanoseconds, flags, length of the reply
	sumLen     = 4
)

// Flags of a record.
const (
	flagDO = 1
	flagCD = 2
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Errors of Parse.
var (
	errForeign = errors.New("not a snapshot of a cache")
	errCorrupt = errors.New("truncated or corrupt: wrong checksum")
	errRecords = errors.New("invalid record")
)

// Len returns the length of the record in a file, in bytes.
func (r *Record) Len() int { return recordHead + len(r.Reply) }

func appendHeader(b []byte, h *Header) []byte {
	b = binary.BigEndian.AppendUint32(append(b, magic...), version)
	return binary.BigEndian.AppendUint64(append(b, h.Config[:]...), uint64(h.Written.UnixNano())) // #nosec G115 -- the bits
}

func appendRecord(b []byte, r *Record) []byte {
	var flags byte
	if r.DO {
		flags |= flagDO
	}
	if r.CD {
		flags |= flagCD
	}
	b = append(binary.BigEndian.AppendUint64(b, uint64(max(r.Age, 0))), flags) // #nosec G115 -- not negative
	b = binary.BigEndian.AppendUint16(b, uint16(len(r.Reply)))                 // #nosec G115 -- at most 65535
	return append(b, r.Reply...)
}

// Snapshot is the parsed content of a file.
type Snapshot struct {
	Header
	records []byte
}

// Parse parses the content of a file, and checks the form of all records, but not their replies.
func Parse(b []byte) (s Snapshot, err error) {
	if !bytes.HasPrefix(b, []byte(magic)) {
		return Snapshot{}, errForeign
	}
	if len(b) < headerLen+sumLen {
		return Snapshot{}, errCorrupt
	}
	at := len(magic)
	if v := binary.BigEndian.Uint32(b[at:]); v != version {
		return Snapshot{}, fmt.Errorf("format version %d: want %d", v, version)
	}
	end := len(b) - sumLen
	if crc32.Checksum(b[:end], castagnoli) != binary.BigEndian.Uint32(b[end:]) {
		return Snapshot{}, errCorrupt
	}
	at += 4 + copy(s.Config[:], b[at+4:])
	s.Written = time.Unix(0, int64(binary.BigEndian.Uint64(b[at:]))) // #nosec G115 -- the bits
	s.records = b[headerLen:end]
	for rest := s.records; len(rest) > 0; {
		var ok bool
		if _, rest, ok = cutRecord(rest); !ok {
			return Snapshot{}, errRecords
		}
	}
	return s, nil
}

// Records yields the records. Their replies are slices of the parsed content.
func (s *Snapshot) Records() iter.Seq[Record] {
	return func(yield func(Record) bool) {
		for rest := s.records; len(rest) > 0; {
			var r Record
			if r, rest, _ = cutRecord(rest); !yield(r) {
				return
			}
		}
	}
}

func cutRecord(b []byte) (r Record, rest []byte, ok bool) {
	if len(b) < recordHead {
		return Record{}, nil, false
	}
	age, flags, end := binary.BigEndian.Uint64(b), b[8], recordHead+int(binary.BigEndian.Uint16(b[9:]))
	if age > math.MaxInt64 || flags&^(flagDO|flagCD) != 0 || end > len(b) {
		return Record{}, nil, false
	}
	return Record{time.Duration(age), flags&flagDO != 0, flags&flagCD != 0, b[recordHead:end:end]}, b[end:], true
}
