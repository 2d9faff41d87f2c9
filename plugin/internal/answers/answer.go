package answers

import (
	"encoding/binary"
	"errors"

	"github.com/miekg/dns"
)

// Answer is a packed answer without an OPT record, and where in it something has to be patched.
type Answer struct {
	packed  []byte
	ttls    []uint16  // where each record's TTL stands
	owners  []uint16  // where the question's name stands again as a record's owner, spelled out
	serial  uint16    // where the serial of the SOA record in the authority section stands, 0 without one
	rotates addresses // the addresses of the answer section that may change places
	glue    uint16    // where the addresses of the additional section begin, if they may change places: they are last
	glues   uint16    // how many they are, 0 if they stay
	ordered bool      // CoreDNS's loadbalance gives the records orders that Shuffle does not
}

// addresses are records of one RRset of addresses that follow each other.
type addresses struct {
	first  uint16 // where the data of the first stands
	stride uint16 // from the data of one to that of the next
	size   uint8  // of an address in bytes
	count  uint16
}

// Errors of NewAnswer.
var (
	errMalformed = errors.New("malformed answer")
	errNotKept   = errors.New("an answer of this form is not kept")
)

// NewAnswer looks through a packed answer to one question, which has no OPT record. The answer keeps the
// bytes.
func NewAnswer(packed []byte) (Answer, error) {
	a := Answer{packed: packed}
	if len(packed) < HeaderLen || len(packed) > dns.MaxMsgSize-OptLen || binary.BigEndian.Uint16(packed[4:]) != 1 {
		return Answer{}, errMalformed
	}
	var q Query
	if !q.parseName(packed) { // spelled out, since the name of a query is put over it
		return Answer{}, errMalformed
	}
	question := HeaderLen + q.NameLen
	at := question + 4
	var sections [3]places
	if at > len(packed) {
		return Answer{}, errMalformed
	}
	for section, countAt := range []int{6, 8, 10} {
		for range binary.BigEndian.Uint16(packed[countAt:]) {
			r, ok := readRecord(packed, at)
			if !ok {
				return Answer{}, errMalformed
			}
			if r.rrtype == dns.TypeOPT || r.rrtype == dns.TypeTSIG {
				return Answer{}, errNotKept
			}
			a.note(r, section, packed[HeaderLen:question])
			sections[section].note(packed, r)
			at = r.end
		}
	}
	if at != len(packed) {
		return Answer{}, errMalformed
	}
	if a.Rcode() != dns.RcodeSuccess || a.rotates.count < 2 { // loadbalance leaves errors as they are
		a.rotates = addresses{}
	}
	if a.Rcode() == dns.RcodeSuccess {
		a.balance(&sections)
	}
	return a, nil
}

// balance compares what Shuffle can do with what CoreDNS's loadbalance does in each section: CNAMEs first, then other
// records, then addresses, then MX; the addresses change places, and so do the MX records.
func (a *Answer) balance(sections *[3]places) {
	answer, authority, additional := &sections[sectionAnswer], &sections[sectionAuthority], &sections[sectionAdditional]
	if additional.addresses > 1 && additional.addresses <= maxGlue && additional.movable && additional.mx == 0 && !additional.unsorted {
		a.glue, a.glues = uint16(additional.first), uint16(additional.addresses) // #nosec G115 -- a message is shorter than 64 KiB
	}
	a.ordered = answer.addresses > 1 && answer.addresses != int(a.rotates.count) || authority.addresses > 1 ||
		additional.addresses > 1 && a.glues == 0
	for i := range sections {
		a.ordered = a.ordered || sections[i].unsorted || sections[i].mx > 1
	}
}

// maxGlue is the number of addresses in the additional section up to which Shuffle moves them.
const maxGlue = 256

// places are where the records of a section stand.
type places struct {
	addresses int
	first     int // of the addresses
	mx        int
	rank      int
	unsorted  bool
	movable   bool // each address can stand in the place of each other: no owner name points to one of them
}

// note takes in the next record of the section.
func (p *places) note(b []byte, r record) {
	rank := 1
	switch r.rrtype {
	case dns.TypeCNAME:
		rank = 0
	case dns.TypeA, dns.TypeAAAA:
		rank = 2
		if p.addresses == 0 {
			p.first, p.movable = r.owner, true
		}
		p.addresses++
		p.movable = p.movable && pointsBefore(b, r.owner, p.first)
	case dns.TypeMX:
		rank = 3
		p.mx++
	}
	p.unsorted = p.unsorted || rank < p.rank
	p.rank = rank
}

// pointsBefore reports whether the pointer of a name, if it has one, points before a place. The name has been read.
func pointsBefore(b []byte, at, limit int) bool {
	for b[at] != 0 {
		if b[at]&0xc0 == 0xc0 {
			return int(binary.BigEndian.Uint16(b[at:])&0x3fff) < limit
		}
		at += 1 + int(b[at])
	}
	return true
}

// record is where the parts of a resource record stand.
type record struct {
	owner, ttl, data, end int
	rrtype                uint16
}

func readRecord(b []byte, at int) (r record, ok bool) {
	r.owner = at
	if at, ok = skipName(b, at); !ok || at+10 > len(b) {
		return r, false
	}
	r.rrtype, r.ttl, r.data = binary.BigEndian.Uint16(b[at:]), at+4, at+10
	r.end = r.data + int(binary.BigEndian.Uint16(b[at+8:]))
	return r, r.end <= len(b)
}

// skipName returns where the name at a place ends; a pointer ends it.
func skipName(b []byte, at int) (end int, ok bool) {
	for at < len(b) {
		switch n := int(b[at]); {
		case n == 0:
			return at + 1, true
		case n&0xc0 == 0xc0:
			return at + 2, at+2 <= len(b)
		case n > maxLabelLen:
			return 0, false
		default:
			at += 1 + n
		}
	}
	return 0, false
}

const (
	sectionAnswer     = 0
	sectionAuthority  = 1
	sectionAdditional = 2
)

// note takes down what of a record may be patched. The name is the question's.
func (a *Answer) note(r record, section int, name []byte) {
	a.ttls = append(a.ttls, uint16(r.ttl)) // #nosec G115 -- a message is shorter than 64 KiB
	if owner := a.packed[r.owner:min(r.owner+len(name), len(a.packed))]; equalFold(owner, name) {
		a.owners = append(a.owners, uint16(r.owner)) // #nosec G115
	}
	// The serial is the first of five numbers at the end, RFC 1035 section 3.3.13.
	if section == sectionAuthority && r.rrtype == dns.TypeSOA && r.end-r.data >= 20 {
		a.serial = uint16(r.end - 20) // #nosec G115
	}
	if section == sectionAnswer {
		a.rotates.note(a.packed, r)
	}
}

// note takes in a record of the answer section. Only addresses that are last and alike but for the
// address may change places: others have an order that means something, or need records to move.
func (s *addresses) note(b []byte, r record) {
	size := r.end - r.data
	if r.rrtype == dns.TypeA && size == 4 || r.rrtype == dns.TypeAAAA && size == 16 {
		stride := r.end - r.owner
		if previous := r.owner - stride; s.count > 0 && int(s.size) == size && int(s.stride) == stride &&
			previous == int(s.first)+(int(s.count)-1)*stride-(r.data-r.owner) && // of the same length, right before
			string(b[previous:previous+r.data-r.owner]) == string(b[r.owner:r.data]) {
			s.count++
			return
		}
		*s = addresses{first: uint16(r.data), stride: uint16(stride), size: uint8(size), count: 1} // #nosec G115
		return
	}
	*s = addresses{}
}

func equalFold(a, b []byte) bool {
	if len(a) != len(b) {
		return false
	}
	for i, c := range a {
		if lower(c) != lower(b[i]) {
			return false
		}
	}
	return true
}

// Len returns the length of the answer in bytes, without an OPT record.
func (a *Answer) Len() int { return len(a.packed) }

// Rcode returns the response code, RFC 1035 section 4.1.1.
func (a *Answer) Rcode() int { return int(a.packed[3] & rcodeMask) }

// HasData reports whether it has what was asked for: an alias to a name that does not exist has not.
func (a *Answer) HasData() bool {
	return a.Rcode() == dns.RcodeSuccess && (a.packed[6] != 0 || a.packed[7] != 0)
}

// Ordered reports whether CoreDNS's loadbalance gives records of the answer an order that Shuffle does not.
func (a *Answer) Ordered() bool { return a.ordered }

// HasSerial reports whether there is a SOA record in the authority section.
func (a *Answer) HasSerial() bool { return a.serial != 0 }

// Size returns the memory that the answer takes in bytes.
func (a *Answer) Size() int { return cap(a.packed) + 2*cap(a.ttls) + 2*cap(a.owners) }

// Patch says how an answer is to be given.
type Patch struct {
	// Age is by how much TTLs have gone down, in seconds.
	Age uint32
	// TTL takes the place of every TTL if FixedTTL is set, in seconds.
	TTL      uint32
	FixedTTL bool
	// Serial takes the place of the serial in the authority section if SetSerial is set.
	Serial    uint32
	SetSerial bool
	// Options are the options of the OPT record, in wire form; only a query with EDNS gets them.
	Options []byte
	// Shuffle is a random number that says how addresses change places; 0 leaves them.
	Shuffle uint64
}

// ReplyLen returns the length of the reply to a query in bytes.
func (a *Answer) ReplyLen(q *Query, p *Patch) int {
	if q.EDNS {
		return len(a.packed) + OptLen + len(p.Options)
	}
	return len(a.packed)
}

// AppendReply appends to dst the reply to a query for the name, type and class that the answer is kept
// under. It allocates nothing if dst has room for twice the reply.
func (a *Answer) AppendReply(dst, query []byte, q *Query, p *Patch) []byte {
	start := len(dst)
	dst = append(dst, a.packed...)
	m := dst[start:]
	m[0], m[1] = query[0], query[1]
	m[2] = bitQR | m[2]&bitAA | flag(q.RD, bitRD)
	ad := m[3] & bitAD
	if !q.DO && !q.AD { // RFC 6840 section 5.7
		ad = 0
	}
	m[3] = m[3]&(bitRA|rcodeMask) | ad | flag(q.CD, bitCD)
	name := query[HeaderLen : HeaderLen+q.NameLen]
	copy(m[HeaderLen:], name)
	if q.Upper {
		for _, at := range a.owners {
			copy(m[at:], name)
		}
	}
	a.setTTLs(m, p)
	if p.SetSerial && a.serial != 0 {
		binary.BigEndian.PutUint32(m[a.serial:], p.Serial)
	}
	if p.Shuffle != 0 {
		if a.rotates.count > 1 {
			a.rotates.shuffle(m, p.Shuffle)
		}
		if a.glues > 0 {
			dst = a.shuffleGlue(dst, start, ^p.Shuffle)
		}
	}
	if q.EDNS {
		binary.BigEndian.PutUint16(m[10:], binary.BigEndian.Uint16(m[10:])+1)
		dst = appendOpt(dst, q, p.Options)
	}
	return dst
}

func (a *Answer) setTTLs(m []byte, p *Patch) {
	if p.FixedTTL {
		for _, at := range a.ttls {
			binary.BigEndian.PutUint32(m[at:], p.TTL)
		}
		return
	}
	if p.Age == 0 {
		return
	}
	for _, at := range a.ttls {
		ttl := binary.BigEndian.Uint32(m[at:])
		binary.BigEndian.PutUint32(m[at:], ttl-min(ttl, p.Age))
	}
}

// shuffle gives each of the orders the same chance, as far as 64 bits go.
func (s *addresses) shuffle(m []byte, random uint64) {
	size := int(s.size)
	var spare [16]byte
	for i := int(s.count) - 1; i > 0; i-- {
		var j int
		random, j = draw(random, i)
		x := m[int(s.first)+i*int(s.stride):][:size]
		y := m[int(s.first)+j*int(s.stride):][:size]
		copy(spare[:], x)
		copy(x, y)
		copy(y, spare[:size])
	}
}

// shuffleGlue gives each of the orders of the addresses in the additional section the same chance, as far as 64 bits go.
// They are records of different lengths at the end of the message; their copy stands behind it meanwhile.
func (a *Answer) shuffleGlue(dst []byte, start int, random uint64) []byte {
	var starts [maxGlue + 1]uint16
	var order [maxGlue]uint8
	count, end := int(a.glues), len(dst)
	dst = append(dst, dst[start+int(a.glue):]...)
	before, at := dst[end:], 0
	for i := range count {
		order[i] = uint8(i) // #nosec G115 -- below maxGlue
		r, _ := readRecord(before, at)
		at = r.end
		starts[i+1] = uint16(at) // #nosec G115 -- a message is shorter than 64 KiB
	}
	for i := count - 1; i > 0; i-- {
		var j int
		random, j = draw(random, i)
		order[i], order[j] = order[j], order[i]
	}
	at = start + int(a.glue)
	for _, i := range order[:count] {
		at += copy(dst[at:], before[starts[i]:starts[int(i)+1]])
	}
	return dst[:end]
}

// draw returns the next random number, and one from 0 to i. Lehmer's generator is good enough for which record is first.
func draw(random uint64, i int) (next uint64, j int) {
	random = random*0xda942042e4dd58b5 + 0x9e3779b97f4a7c15
	return random, int((random >> 32) * uint64(i+1) >> 32) // #nosec G115 -- at most i
}

func appendOpt(dst []byte, q *Query, options []byte) []byte {
	dst = append(dst, 0)
	dst = binary.BigEndian.AppendUint16(dst, dns.TypeOPT)
	dst = binary.BigEndian.AppendUint16(dst, q.UDPSize)
	var flags uint32
	if q.DO {
		flags = doFlag
	}
	dst = binary.BigEndian.AppendUint32(dst, flags)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(options))) // #nosec G115 -- those that are kept are short
	return append(dst, options...)
}
