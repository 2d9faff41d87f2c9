package wire

import "encoding/binary"

// classIN is the class of the Internet, RFC 1035 section 3.2.4.
const classIN = 1

// Record has the offsets of the parts of a resource record in its message, RFC 1035 section 4.1.3. They have 32 bits, since a
// message without compression of names may be longer than MaxMessage.
type Record struct {
	Type             uint16
	Owner, Data, End uint32
}

// TTLAt returns the offset of the TTL.
func (r Record) TTLAt() int { return int(r.Data) - 6 }

// ReadRecord returns the record at an offset of a message, false if it is malformed. Its data are not examined.
func ReadRecord(b []byte, at int) (r Record, ok bool) {
	data := SkipName(b, at)
	if data == 0 || data+RecordLen > len(b) {
		return r, false
	}
	end := data + RecordLen + int(binary.BigEndian.Uint16(b[data+8:]))
	if end > len(b) {
		return r, false
	}
	return Record{binary.BigEndian.Uint16(b[data:]), uint32(at), uint32(data + RecordLen), uint32(end)}, true // #nosec G115 -- within the message
}

// Reader reads the records of a message one after the other. Their data are not examined.
type Reader struct {
	Record
	Section Section

	b    []byte
	next int // offset of the next record, 0 if it is malformed, beyond the message if the message ends within the record
	left int // number of records in the section
}

// Records returns a reader for a message.
func Records(b []byte) Reader {
	r := Reader{b: b, Section: Answer - 1}
	if len(b) < HeaderLen {
		r.next = len(b) + 1
		return r
	}
	r.next = HeaderLen
	for range Count(b, QDCountAt) {
		if r.next = SkipName(b, r.next); r.next == 0 {
			break
		}
		r.next += TypeClassLen
	}
	return r
}

// Next reads the next record, and returns false behind the last one and after an error.
func (r *Reader) Next() bool {
	if r.next == 0 || r.next > len(r.b) {
		return false
	}
	for r.left == 0 {
		if r.Section == Additional {
			return false
		}
		r.Section++
		r.left = Count(r.b, r.Section.CountAt())
	}
	var ok bool
	if r.Record, ok = ReadRecord(r.b, r.next); !ok {
		if r.next = SkipName(r.b, r.next); r.next > 0 {
			r.next = len(r.b) + 1
		}
		return false
	}
	r.left--
	r.next = int(r.Record.End)
	return true
}

// IsComplete reports whether Next has read all records.
func (r *Reader) IsComplete() bool {
	return r.Section == Additional && r.left == 0 && r.next > 0 && r.next <= len(r.b)
}

// IsCut reports whether the message ends before the end of the record that Next could not read.
func (r *Reader) IsCut() bool { return r.next > len(r.b) }

// isWhole reports whether Next has read all records, and the message ends with the last one.
func (r *Reader) isWhole() bool { return r.IsComplete() && r.next == len(r.b) }

// Body is a message with its records by section.
type Body struct {
	Bytes   []byte
	Records []Record
	First   [Sections + 1]int // indices of the first record of each section, and the number of records
}

// ReadBody returns a message with its records, which it appends to records[:0]. It returns false for a message that does not end
// with its last record.
func ReadBody(records []Record, b []byte) (body Body, ok bool) {
	body = Body{Bytes: b, Records: records[:0]}
	r := Records(b)
	for r.Next() {
		body.Records = append(body.Records, r.Record)
		for s := r.Section + 1; s <= Sections; s++ {
			body.First[s] = len(body.Records)
		}
	}
	return body, r.isWhole()
}
