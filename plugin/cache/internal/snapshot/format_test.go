package snapshot

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"
)

var testHeader = Header{Config: [32]byte{1, 31: 2}, Written: time.Unix(1700000000, 5)}

var testRecords = []Record{
	{Age: 0, Reply: []byte("first")},
	{Age: 90 * time.Second, DO: true, CD: true, Reply: []byte{}},
	{Age: math.MaxInt64, CD: true, Reply: bytes.Repeat([]byte{7}, math.MaxUint16)},
}

// content returns the content of a file.
func content(t testing.TB, h Header, records ...Record) []byte {
	t.Helper()
	var b bytes.Buffer
	n, err := write(&b, h, math.MaxInt64, slices.Values(records), func() error { return nil })
	if err != nil || n != len(records) {
		t.Fatalf("%d records written, %v", n, err)
	}
	return b.Bytes()
}

// summed replaces the checksum of a content.
func summed(b []byte) []byte {
	end := len(b) - sumLen
	return binary.BigEndian.AppendUint32(slices.Clone(b[:end]), crc32.Checksum(b[:end], castagnoli))
}

// changed returns a content with other bytes at an offset, and a valid checksum.
func changed(b []byte, at int, bytes ...byte) []byte {
	b = slices.Clone(b)
	copy(b[at:], bytes)
	return summed(b)
}

func TestParse(t *testing.T) {
	whole := content(t, testHeader, testRecords...)
	s, err := Parse(whole)
	kit.Must(t, err)
	if s.Config != testHeader.Config || !s.Written.Equal(testHeader.Written) {
		t.Errorf("header %+v, want %+v", s.Header, testHeader)
	}
	if got := slices.Collect(s.Records()); !reflect.DeepEqual(got, testRecords) {
		t.Errorf("records %+v", got)
	}
	for range s.Records() {
		break // a loop may end early
	}
	empty, err := Parse(content(t, testHeader))
	if err != nil || len(slices.Collect(empty.Records())) != 0 {
		t.Errorf("without records: %v", err)
	}
}

func TestParseRefused(t *testing.T) {
	one := content(t, testHeader, testRecords[0])
	flags := headerLen + 8
	for name, tt := range map[string]struct {
		content []byte
		want    string
	}{
		"empty":             {nil, errForeign.Error()},
		"another file":      {[]byte("package snapshot\n\nimport ("), errForeign.Error()},
		"the magic alone":   {[]byte(magic), errCorrupt.Error()},
		"another version":   {changed(one, len(magic), 0, 0, 0, 2), "format version 2: want 1"},
		"a changed byte":    {append(slices.Clone(one[:headerLen+12]), append([]byte{one[headerLen+12] ^ 1}, one[headerLen+13:]...)...), errCorrupt.Error()},
		"a byte more":       {append(slices.Clone(one), 0), errCorrupt.Error()},
		"an unknown flag":   {changed(one, flags, 4), errRecords.Error()},
		"a negative age":    {changed(one, headerLen, 0x80), errRecords.Error()},
		"a length too long": {changed(one, flags+1, 0, 6), errRecords.Error()},
		"a rest":            {changed(one, flags+1, 0, 4), errRecords.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			if s, err := Parse(tt.content); err == nil || err.Error() != tt.want || len(slices.Collect(s.Records())) != 0 {
				t.Errorf("error %v, want %s", err, tt.want)
			}
		})
	}
	t.Run("truncated", func(t *testing.T) {
		for n := range one {
			if _, err := Parse(one[:n]); err == nil {
				t.Errorf("the first %d bytes are accepted", n)
			}
		}
	})
	t.Run("a bit flipped", func(t *testing.T) {
		for i := range 8 * len(one) {
			flipped := slices.Clone(one)
			flipped[i/8] ^= 1 << (i % 8)
			if _, err := Parse(flipped); err == nil {
				t.Errorf("with bit %d flipped it is accepted", i)
			}
		}
	})
}

// FuzzParse checks that an accepted content equals that written for its header and records. The checksum is replaced by that of the
// content, which a fuzzer does not find.
func FuzzParse(f *testing.F) {
	f.Add(content(f, testHeader, testRecords[:2]...))
	f.Add(content(f, testHeader))
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= sumLen {
			b = summed(b)
		}
		s, err := Parse(b)
		if err != nil {
			return
		}
		if again := content(t, s.Header, slices.Collect(s.Records())...); !bytes.Equal(again, b) {
			t.Errorf("content\n%x, but its records are written as\n%x", b, again)
		}
	})
}
