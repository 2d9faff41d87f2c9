package store

import (
	"encoding/binary"
	"errors"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// Answer is a packed reply without an OPT record, with the offsets of the fields that AppendReply patches.
type Answer struct {
	packed    []byte     // the reply; the offsets below are behind it in the same allocation
	ttls      offsets    // of the TTLs
	owners    offsets    // of owner names equal to the question's name and not compressed
	serial    uint16     // offset of the serial of the SOA record in the authority section, 0 without one
	shuffled  addressRun // the addresses of the answer section that Patch.Shuffle permutes
	glue      uint16     // offset of the address records that end the additional section
	glueCount uint16     // number of these records; 0 if Patch.Shuffle does not permute them
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

// newAnswer returns the Answer of a packed reply with one question and without an OPT record. It copies the bytes, to one
// allocation with all offsets.
func newAnswer(body *wire.Body) (Answer, error) {
	n, records := len(body.Bytes), len(body.Records)
	question := wire.QuestionEnd(body.Bytes) // without compression of its name, which AppendReply overwrites with the query's
	if question == 0 || n > wire.MaxMessage-wire.OPTLen {
		return Answer{}, errMalformed
	}
	b := make([]byte, n+2*2*records)
	copy(b, body.Bytes)
	ttls := n + 2*records
	a := Answer{packed: b[:n:n], ttls: b[n:n:ttls], owners: b[ttls:ttls]}
	if err := a.setRecords(body, b[wire.HeaderLen:question-wire.TypeClassLen]); err != nil {
		return Answer{}, err
	}
	return a, nil
}

// readAnswer is newAnswer for a message whose records were not read.
func readAnswer(packed []byte) (Answer, error) {
	var buf [16]wire.Record
	body, ok := wire.ReadBody(buf[:0], packed)
	if !ok {
		return Answer{}, errMalformed
	}
	return newAnswer(&body)
}

// setRecords sets the fields other than packed. name is the question's.
func (a *Answer) setRecords(body *wire.Body, name []byte) error {
	var orders [wire.Sections]sectionOrder
	for s := range wire.Sections {
		for _, r := range body.Records[body.First[s]:body.First[s+1]] {
			if r.Type == dns.TypeOPT || r.Type == dns.TypeTSIG {
				return errUnstorable
			}
			a.addOffsets(r, s, name)
			orders[s].add(a.packed, r)
		}
	}
	if a.Rcode() != dns.RcodeSuccess || a.shuffled.count < 2 { // loadbalance does not change errors
		a.shuffled = addressRun{}
	}
	if a.Rcode() == dns.RcodeSuccess {
		a.setOrder(&orders)
	}
	return nil
}

// setOrder sets glue, glueCount and ordered. In each section, CoreDNS's loadbalance sorts records (CNAMEs, others,
// addresses, MX) and shuffles the addresses and the MX records.
func (a *Answer) setOrder(sections *[wire.Sections]sectionOrder) {
	answer, authority, additional := &sections[wire.Answer], &sections[wire.Authority], &sections[wire.Additional]
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
func (p *sectionOrder) add(b []byte, r wire.Record) {
	rank := 1
	switch r.Type {
	case dns.TypeCNAME:
		rank = 0
	case dns.TypeA, dns.TypeAAAA:
		rank = 2
		if p.addresses == 0 {
			p.first, p.movable = int(r.Owner), true
		}
		p.addresses++
		p.movable = p.movable && pointsBefore(b, int(r.Owner), p.first)
	case dns.TypeMX:
		rank = 3
		p.mx++
	}
	p.unsorted = p.unsorted || rank < p.rank
	p.rank = rank
}

// pointsBefore reports whether a name has no compression pointer, or one to an offset before a limit. The name is valid.
func pointsBefore(b []byte, at, limit int) bool {
	if wire.NameEnd(b, at) > 0 {
		return true
	}
	return int(binary.BigEndian.Uint16(b[wire.SkipName(b, at)-2:])&0x3fff) < limit
}

// addOffsets adds the offsets of a record's fields that AppendReply patches. name is the question's.
func (a *Answer) addOffsets(r wire.Record, section wire.Section, name []byte) {
	owner, end := int(r.Owner), int(r.End)
	a.ttls = a.ttls.add(r.TTLAt())
	if wire.EqualNames(a.packed[owner:min(owner+len(name), len(a.packed))], name) {
		a.owners = a.owners.add(owner)
	}
	// The serial is the first of five numbers at the end, RFC 1035 section 3.3.13.
	if section == wire.Authority && r.Type == dns.TypeSOA && end-int(r.Data) >= 20 {
		a.serial = uint16(end - 20) // #nosec G115
	}
	if section == wire.Answer {
		a.shuffled.add(a.packed, r)
	}
}

// add adds the next record of the answer section. A run is at the end of the section, and its records differ only in the
// address, so that Shuffle exchanges addresses instead of records; other records have a significant order.
func (s *addressRun) add(b []byte, r wire.Record) {
	owner, data, size := int(r.Owner), int(r.Data), int(r.End-r.Data)
	if r.Type == dns.TypeA && size == 4 || r.Type == dns.TypeAAAA && size == 16 {
		stride := int(r.End) - owner
		if previous := owner - stride; s.count > 0 && int(s.size) == size && int(s.stride) == stride &&
			previous == int(s.first)+(int(s.count)-1)*stride-(data-owner) && // adjacent and of the same length
			string(b[previous:previous+data-owner]) == string(b[owner:data]) {
			s.count++
			return
		}
		*s = addressRun{first: uint16(r.Data), stride: uint16(stride), size: uint8(size), count: 1} // #nosec G115
		return
	}
	*s = addressRun{}
}

// Bytes returns the reply without an OPT record.
func (a *Answer) Bytes() []byte { return a.packed }

// Len returns the length of the answer in bytes, without an OPT record.
func (a *Answer) Len() int { return len(a.packed) }

// Rcode returns the response code, RFC 1035 section 4.1.1.
func (a *Answer) Rcode() int { return int(a.packed[3] & wire.RcodeMask) }

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
func (a *Answer) ReplyLen(q *wire.Query, p *Patch) int {
	if q.EDNS {
		return len(a.packed) + wire.OPTLen + len(p.Options)
	}
	return len(a.packed)
}

// AppendReply appends the reply to a query to dst. The query's name, type and class are the answer's. It allocates
// nothing if dst has room for twice the reply.
func (a *Answer) AppendReply(dst, query []byte, q *wire.Query, p *Patch) []byte {
	start := len(dst)
	dst = append(dst, a.packed...)
	m := dst[start:]
	m[0], m[1] = query[0], query[1]
	m[2] = wire.QR | m[2]&wire.AA | wire.Flag(q.RD, wire.RD)
	ad := m[3] & wire.AD
	if !q.DO && !q.AD { // RFC 6840 section 5.7
		ad = 0
	}
	m[3] = m[3]&(wire.RA|wire.RcodeMask) | ad | wire.Flag(q.CD, wire.CD)
	name := q.Name(query)
	copy(m[wire.HeaderLen:], name)
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
		dst = q.AppendOPT(dst, p.Options)
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
	limit := p.Max - 1 // 0 wraps around to no limit
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
		r, _ := wire.ReadRecord(before, at)
		at = int(r.End)
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
