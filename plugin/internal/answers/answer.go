package answers

import (
	"encoding/binary"
	"errors"

	"github.com/miekg/dns"
)

// Answer is a packed reply without an OPT record, with the offsets of the fields that AppendReply patches.
type Answer struct {
	packed    []byte     // the reply; the offsets below are behind it in the same allocation
	ttls      offsets    // of the TTLs
	owners    offsets    // of owner names equal to the question's name and not compressed
	serial    uint16     // offset of the serial of the SOA record in the authority section, 0 without one
	shuffled  addressRun // the addresses of the answer section that Patch.Shuffle permutes
	glue      uint16     // offset of the addresses that end the additional section
	glueCount uint16     // number of these addresses; 0 if Patch.Shuffle does not permute them
	ordered   bool       // CoreDNS's loadbalance gives the records orders that Patch.Shuffle does not
}

// offsets are offsets of two bytes each.
type offsets []byte

func (o offsets) add(at int) offsets {
	return binary.BigEndian.AppendUint16(o, uint16(at)) // #nosec G115 -- a message is shorter than 64 KiB
}

// addressRun is a run of adjacent address records of one RRset.
type addressRun struct {
	first  uint16 // offset of the first address
	stride uint16 // length of a record in bytes
	size   uint8  // length of an address in bytes
	count  uint16
}

// Errors of newAnswer.
var (
	errMalformed  = errors.New("malformed answer")
	errUnstorable = errors.New("answer with an OPT or TSIG record")
)

// minRecordLen is the length of a record of the root without data, RFC 1035 section 4.1.3.
const minRecordLen = 1 + 10

// newAnswer returns the Answer of a packed reply with one question and without an OPT record. It copies the bytes, to one
// allocation with all offsets.
func newAnswer(packed []byte) (Answer, error) {
	n := len(packed)
	if n < HeaderLen || n > dns.MaxMsgSize-OptLen || binary.BigEndian.Uint16(packed[4:]) != 1 {
		return Answer{}, errMalformed
	}
	records := 0
	for _, countAt := range sectionCounts {
		records += int(binary.BigEndian.Uint16(packed[countAt:]))
	}
	if records > n/minRecordLen {
		return Answer{}, errMalformed
	}
	b := make([]byte, n+2*2*records)
	copy(b, packed)
	ttls := n + 2*records
	a := Answer{packed: b[:n:n], ttls: b[n:n:ttls], owners: b[ttls:ttls]}
	if err := a.parse(); err != nil {
		return Answer{}, err
	}
	return a, nil
}

// sectionCounts are the offsets of the numbers of records, RFC 1035 section 4.1.1.
var sectionCounts = [3]int{sectionAnswer: 6, sectionAuthority: 8, sectionAdditional: 10}

// parse sets the fields other than packed.
func (a *Answer) parse() error {
	packed := a.packed
	var q Query
	if !q.parseName(packed) { // without compression, since AppendReply overwrites it with the query's name
		return errMalformed
	}
	question := HeaderLen + q.NameLen
	at := question + 4
	var sections [3]sectionOrder
	if at > len(packed) {
		return errMalformed
	}
	for section, countAt := range sectionCounts {
		for range binary.BigEndian.Uint16(packed[countAt:]) {
			r, ok := readRecord(packed, at)
			if !ok {
				return errMalformed
			}
			if r.rrtype == dns.TypeOPT || r.rrtype == dns.TypeTSIG {
				return errUnstorable
			}
			a.addOffsets(r, section, packed[HeaderLen:question])
			sections[section].add(packed, r)
			at = r.end
		}
	}
	if at != len(packed) {
		return errMalformed
	}
	if a.Rcode() != dns.RcodeSuccess || a.shuffled.count < 2 { // loadbalance does not change errors
		a.shuffled = addressRun{}
	}
	if a.Rcode() == dns.RcodeSuccess {
		a.setOrder(&sections)
	}
	return nil
}

// setOrder sets glue, glueCount and ordered. In each section, CoreDNS's loadbalance sorts records (CNAMEs, others,
// addresses, MX) and shuffles the addresses and the MX records.
func (a *Answer) setOrder(sections *[3]sectionOrder) {
	answer, authority, additional := &sections[sectionAnswer], &sections[sectionAuthority], &sections[sectionAdditional]
	if additional.addresses > 1 && additional.addresses <= maxGlue && additional.movable && additional.mx == 0 && !additional.unsorted {
		a.glue, a.glueCount = uint16(additional.first), uint16(additional.addresses) // #nosec G115 -- a message is shorter than 64 KiB
	}
	a.ordered = answer.addresses > 1 && answer.addresses != int(a.shuffled.count) || authority.addresses > 1 ||
		additional.addresses > 1 && a.glueCount == 0
	for i := range sections {
		a.ordered = a.ordered || sections[i].unsorted || sections[i].mx > 1
	}
}

// maxGlue is the maximum number of addresses in the additional section that Patch.Shuffle permutes.
const maxGlue = 256

// sectionOrder summarizes the order of the records of a section.
type sectionOrder struct {
	addresses int // number of address records
	first     int // offset of the first address record
	mx        int // number of MX records
	rank      int // of the last record, in loadbalance's order
	unsorted  bool
	movable   bool // no owner name of an address record points to another address record
}

// add adds the next record of the section.
func (p *sectionOrder) add(b []byte, r record) {
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

// pointsBefore reports whether a name has no compression pointer, or one to an offset before a limit. The name is valid.
func pointsBefore(b []byte, at, limit int) bool {
	for b[at] != 0 {
		if b[at]&0xc0 == 0xc0 {
			return int(binary.BigEndian.Uint16(b[at:])&0x3fff) < limit
		}
		at += 1 + int(b[at])
	}
	return true
}

// record has the offsets of the parts of a resource record.
type record struct {
	owner, ttl, data, end int
	rrtype                uint16
}

func readRecord(b []byte, at int) (r record, ok bool) {
	r.owner = at
	if at, ok = SkipName(b, at); !ok || at+10 > len(b) {
		return r, false
	}
	r.rrtype, r.ttl, r.data = binary.BigEndian.Uint16(b[at:]), at+4, at+10
	r.end = r.data + int(binary.BigEndian.Uint16(b[at+8:]))
	return r, r.end <= len(b)
}

// SkipName returns the end of the name at an offset of a message. A compression pointer ends a name.
func SkipName(b []byte, at int) (end int, ok bool) {
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

// addOffsets adds the offsets of a record's fields that AppendReply patches. name is the question's.
func (a *Answer) addOffsets(r record, section int, name []byte) {
	a.ttls = a.ttls.add(r.ttl)
	if owner := a.packed[r.owner:min(r.owner+len(name), len(a.packed))]; equalFold(owner, name) {
		a.owners = a.owners.add(r.owner)
	}
	// The serial is the first of five numbers at the end, RFC 1035 section 3.3.13.
	if section == sectionAuthority && r.rrtype == dns.TypeSOA && r.end-r.data >= 20 {
		a.serial = uint16(r.end - 20) // #nosec G115
	}
	if section == sectionAnswer {
		a.shuffled.add(a.packed, r)
	}
}

// add adds the next record of the answer section. A run is at the end of the section, and its records differ only in the
// address, so that Shuffle exchanges addresses instead of records; other records have a significant order.
func (s *addressRun) add(b []byte, r record) {
	size := r.end - r.data
	if r.rrtype == dns.TypeA && size == 4 || r.rrtype == dns.TypeAAAA && size == 16 {
		stride := r.end - r.owner
		if previous := r.owner - stride; s.count > 0 && int(s.size) == size && int(s.stride) == stride &&
			previous == int(s.first)+(int(s.count)-1)*stride-(r.data-r.owner) && // adjacent and of the same length
			string(b[previous:previous+r.data-r.owner]) == string(b[r.owner:r.data]) {
			s.count++
			return
		}
		*s = addressRun{first: uint16(r.data), stride: uint16(stride), size: uint8(size), count: 1} // #nosec G115
		return
	}
	*s = addressRun{}
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

// Unpacks reports whether Unpack can unpack the answer. Package dns also unpacks records that end before their last fields, such
// as an SOA with one name, and packs some of these in a form that it does not read itself.
func (a *Answer) Unpacks() bool {
	_, err := Unpack(a.packed)
	return err == nil
}

// Rcode returns the response code, RFC 1035 section 4.1.1.
func (a *Answer) Rcode() int { return int(a.packed[3] & rcodeMask) }

// HasData reports whether the reply is NOERROR with records in the answer section. An alias to a name that does not exist
// is NXDOMAIN.
func (a *Answer) HasData() bool { return a.Rcode() == dns.RcodeSuccess && a.HasAnswers() }

// HasAnswers reports whether the answer section has records.
func (a *Answer) HasAnswers() bool { return a.packed[6] != 0 || a.packed[7] != 0 }

// HasType reports whether the answer section has a record of a type.
func (a *Answer) HasType(qtype uint16) bool {
	const fromTTL = 4 // bytes from the type to the TTL
	records := int(binary.BigEndian.Uint16(a.packed[6:]))
	for at := range min(records, len(a.ttls)/2) {
		ttl := binary.BigEndian.Uint16(a.ttls[2*at:])
		if binary.BigEndian.Uint16(a.packed[ttl-fromTTL:]) == qtype {
			return true
		}
	}
	return false
}

// Ordered reports whether CoreDNS's loadbalance gives the records orders that Patch.Shuffle does not.
func (a *Answer) Ordered() bool { return a.ordered }

// Size returns the memory of the answer in bytes.
func (a *Answer) Size() int { return len(a.packed) + cap(a.ttls) + cap(a.owners) }

// Patch is the set of changes to a stored answer for one reply.
type Patch struct {
	// Age is subtracted from every TTL, in seconds.
	Age uint32
	// TTL replaces every TTL if FixedTTL is set, in seconds.
	TTL      uint32
	FixedTTL bool
	// Serial replaces the serial in the authority section if SetSerial is set.
	Serial    uint32
	SetSerial bool
	// Max is the maximum of the TTLs after Age is subtracted, in seconds; 0 for none.
	Max uint32
	// Options are the options of the OPT record in wire form, for queries with EDNS.
	Options []byte
	// Shuffle is the random number that selects a permutation of the addresses; 0 is their stored order.
	Shuffle uint64
}

// ReplyLen returns the length of the reply to a query in bytes.
func (a *Answer) ReplyLen(q *Query, p *Patch) int {
	if q.EDNS {
		return len(a.packed) + OptLen + len(p.Options)
	}
	return len(a.packed)
}

// AppendReply appends the reply to a query to dst. The query's name, type and class are the answer's. It allocates
// nothing if dst has room for twice the reply.
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
		for rest := a.owners; len(rest) >= 2; rest = rest[2:] {
			copy(m[binary.BigEndian.Uint16(rest):], name)
		}
	}
	a.setTTLs(m, p)
	if p.SetSerial && a.serial != 0 {
		binary.BigEndian.PutUint32(m[a.serial:], p.Serial)
	}
	if p.Shuffle != 0 {
		if a.shuffled.count > 1 {
			a.shuffled.shuffle(m, p.Shuffle)
		}
		if a.glueCount > 0 {
			dst = a.shuffleGlue(dst, start, ^p.Shuffle)
		}
	}
	if q.EDNS {
		count := dst[start+10:] // shuffleGlue may have moved the message, so that m is a copy
		binary.BigEndian.PutUint16(count, binary.BigEndian.Uint16(count)+1)
		dst = appendOpt(dst, q, p.Options)
	}
	return dst
}

func (a *Answer) setTTLs(m []byte, p *Patch) {
	if p.FixedTTL {
		for rest := a.ttls; len(rest) >= 2; rest = rest[2:] {
			binary.BigEndian.PutUint32(m[binary.BigEndian.Uint16(rest):], p.TTL)
		}
		return
	}
	if p.Age == 0 && p.Max == 0 {
		return
	}
	limit := p.Max - 1 // so that 0 is none
	for rest := a.ttls; len(rest) >= 2; rest = rest[2:] {
		field := m[binary.BigEndian.Uint16(rest):]
		ttl := binary.BigEndian.Uint32(field)
		ttl -= min(ttl, p.Age)
		if ttl > limit {
			ttl = p.Max
		}
		binary.BigEndian.PutUint32(field, ttl)
	}
}

// shuffle permutes the addresses. Permutations are equally probable, within 64 bits of randomness.
func (s *addressRun) shuffle(m []byte, random uint64) {
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

// shuffleGlue permutes the address records at the end of the message like shuffle. Their lengths differ, so it moves whole
// records, from a temporary copy after the message.
func (a *Answer) shuffleGlue(dst []byte, start int, random uint64) []byte {
	var starts [maxGlue + 1]uint16
	var order [maxGlue]uint8
	count, end := int(a.glueCount), len(dst)
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

// draw returns the next random state and a number from 0 to i. The order of addresses is no secret, so that a linear
// congruential generator is enough.
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
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(options))) // #nosec G115 -- stored options are short
	return append(dst, options...)
}
