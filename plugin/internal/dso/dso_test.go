package dso

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/kit"
)

// packet returns the bytes of hexadecimal digits with spaces.
func packet(t testing.TB, digits string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(digits, " ", ""))
	if err != nil {
		t.Fatalf("%q: %v", digits, err)
	}
	return b
}

const none = "0000 0000 0000 0000 " // counts

func TestParse(t *testing.T) {
	tests := map[string]struct {
		message string
		want    Message
		tlvs    []TLV
		err     error
	}{
		"request":                   {"1234 3000 " + none + "f8a0 0001 01", Message{ID: 0x1234}, []TLV{{Session, []byte{1}}}, nil},
		"response":                  {"1234 b000 " + none, Message{ID: 0x1234, Response: true}, nil, nil},
		"error response":            {"1234 b00b " + none, Message{ID: 0x1234, Response: true, Rcode: TypeNI}, nil, nil},
		"unidirectional, empty TLV": {"0000 3000 " + none + "f8a2 0000", Message{}, []TLV{{Invalidate, []byte{}}}, nil},
		"unused bits set": {
			"0001 37f2 " + none + "0002 0001 ff", Message{ID: 1, Rcode: ServerFailure}, []TLV{{RetryDelay, []byte{0xff}}}, nil,
		},
		"unknown additional TLV": {
			"0001 3000 " + none + "f8a0 0001 01 fbff 0002 0102", Message{ID: 1}, []TLV{{Session, []byte{1}}, {0xfbff, []byte{1, 2}}}, nil,
		},
		"question counted":           {"1234 3000 0001 0000 0000 0000 f8a0 0001 01", Message{ID: 0x1234}, nil, ErrCounts},
		"record counted, response":   {"1234 b000 0000 0000 0000 0100", Message{ID: 0x1234, Response: true}, nil, ErrCounts},
		"record counted, no ID":      {"0000 3000 0000 0000 0001 0000", Message{}, nil, ErrCounts},
		"no header":                  {"1234 3000 0000 0000 0000 00", Message{}, nil, ErrMalformed},
		"response without ID":        {"0000 b000 " + none + "f8a0 0000", Message{Response: true}, nil, ErrMalformed},
		"request without TLV":        {"1234 3000 " + none, Message{ID: 0x1234}, nil, ErrMalformed},
		"unidirectional without TLV": {"0000 3000 " + none, Message{}, nil, ErrMalformed},
		"TLV cut in its type":        {"1234 3000 " + none + "f8", Message{ID: 0x1234}, nil, ErrMalformed},
		"TLV cut in its length":      {"1234 3000 " + none + "f8a0 00", Message{ID: 0x1234}, nil, ErrMalformed},
		"TLV cut in its data":        {"1234 3000 " + none + "f8a0 0002 01", Message{ID: 0x1234}, nil, ErrMalformed},
		"second TLV cut":             {"1234 3000 " + none + "f8a0 0001 01 0003 ffff 00", Message{ID: 0x1234}, nil, ErrMalformed},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := packet(t, tt.message)
			m, err := Parse(b)
			if !errors.Is(err, tt.err) {
				t.Fatalf("error %v, want %v", err, tt.err)
			}
			if got := slices.Collect(m.TLVs()); !reflect.DeepEqual(got, tt.tlvs) {
				t.Errorf("TLVs %v, want %v", got, tt.tlvs)
			}
			if m.tlvs = nil; !reflect.DeepEqual(m, tt.want) {
				t.Errorf("%+v, want %+v", m, tt.want)
			}
		})
	}
}

func TestKinds(t *testing.T) {
	tests := map[string]struct {
		m                       Message
		request, unidirectional bool
	}{
		"request":        {Message{ID: 1}, true, false},
		"response":       {Message{ID: 1, Response: true}, false, false},
		"unidirectional": {Message{}, false, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if tt.m.Request() != tt.request || tt.m.Unidirectional() != tt.unidirectional {
				t.Errorf("request %t, unidirectional %t", tt.m.Request(), tt.m.Unidirectional())
			}
		})
	}
}

func TestIsDSO(t *testing.T) {
	query := kit.Pack(t, new(dns.Msg).SetQuestion("example.", dns.TypeA))
	if IsDSO(query) || IsDSO(nil) || IsDSO([]byte{0, 0}) || !IsDSO(AppendSessionRequest(nil, 1)) || !IsDSO(AppendErrorResponse(nil, 1, TypeNI)) {
		t.Error("a query is DSO, or a DSO message is not")
	}
}

// TestRoundTrips reads each message that the package appends.
func TestRoundTrips(t *testing.T) {
	tests := map[string]struct {
		message []byte
		want    Message
		primary Type
		read    func(data []byte) (any, bool)
		data    any
	}{
		"session request": {
			AppendSessionRequest(nil, 7), Message{ID: 7}, Session,
			func(d []byte) (any, bool) { return nil, ReadSessionRequest(d) }, nil,
		},
		"session response": {
			AppendSessionResponse(nil, 7, Opening{1 << 63, 12345678901}), Message{ID: 7, Response: true}, Session,
			func(d []byte) (any, bool) { o, ok := ReadOpening(d); return o, ok }, Opening{1 << 63, 12345678901},
		},
		"heartbeat": {
			AppendHeartbeat(nil, 1<<40), Message{}, Heartbeat, func(d []byte) (any, bool) { c, ok := ReadHeartbeat(d); return c, ok }, uint64(1 << 40),
		},
		"invalidation": {
			AppendInvalidate(nil, []uint64{1, 1 << 63}), Message{}, Invalidate,
			func(d []byte) (any, bool) { h, ok := ReadHandles(nil, d); return h, ok }, []uint64{1, 1 << 63},
		},
		"invalidation of all": {
			AppendInvalidate(nil, nil), Message{}, Invalidate, func(d []byte) (any, bool) { h, ok := ReadHandles(nil, d); return h, ok }, []uint64(nil),
		},
		"keepalive": {
			AppendKeepalive(nil, 3, true, Timeouts{15000, MinKeepalive}), Message{ID: 3, Response: true}, Keepalive,
			func(d []byte) (any, bool) { v, ok := ReadKeepalive(d); return v, ok }, Timeouts{15000, MinKeepalive},
		},
		"retry delay": {
			AppendRetryDelay(nil, ServerFailure, 1<<32-1), Message{Rcode: ServerFailure}, RetryDelay,
			func(d []byte) (any, bool) { v, ok := ReadRetryDelay(d); return v, ok }, uint32(1<<32 - 1),
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			m, err := Parse(tt.message)
			kit.Must(t, err)
			primary, ok := m.Primary()
			if !ok || primary.Type != tt.primary {
				t.Fatalf("primary TLV %v", primary)
			}
			if data, ok := tt.read(primary.Data); !ok || !reflect.DeepEqual(data, tt.data) {
				t.Errorf("%v %t, want %v", data, ok, tt.data)
			}
			if m.tlvs = nil; !reflect.DeepEqual(m, tt.want) {
				t.Errorf("%+v, want %+v", m, tt.want)
			}
		})
	}
}

func TestErrorResponse(t *testing.T) {
	m, err := Parse(AppendErrorResponse([]byte("before")[:0], 9, TypeNI))
	if _, has := m.Primary(); err != nil || has || m.ID != 9 || !m.Response || m.Rcode != TypeNI {
		t.Errorf("%+v, %v", m, err)
	}
}

// TestMaxInvalidated checks that a message of the maximum number of handles has a length of two bytes.
func TestMaxInvalidated(t *testing.T) {
	m := AppendInvalidate(nil, make([]uint64, MaxInvalidated))
	parsed, err := Parse(m)
	if err != nil || len(m) > 65535 {
		t.Fatalf("%d bytes, %v", len(m), err)
	}
	primary, _ := parsed.Primary()
	if handles, ok := ReadHandles(nil, primary.Data); !ok || len(handles) != MaxInvalidated {
		t.Errorf("%d handles", len(handles))
	}
}

// TestWrongData reads data of a wrong length or version.
func TestWrongData(t *testing.T) {
	tests := map[string]struct {
		read func(data []byte) bool
		good []int // lengths that are accepted
	}{
		"opening":         {func(d []byte) bool { _, ok := ReadOpening(d); return ok }, []int{17, 18, 19, 20}},
		"session request": {ReadSessionRequest, seq(1, 20)},
		"heartbeat":       {func(d []byte) bool { _, ok := ReadHeartbeat(d); return ok }, seq(8, 20)},
		"handles":         {func(d []byte) bool { _, ok := ReadHandles(nil, d); return ok }, []int{0, 8, 16}},
		"keepalive":       {func(d []byte) bool { _, ok := ReadKeepalive(d); return ok }, []int{8}},
		"retry delay":     {func(d []byte) bool { _, ok := ReadRetryDelay(d); return ok }, []int{4}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for n := range 21 {
				data := bytes.Repeat([]byte{Version}, n)
				if got, want := tt.read(data), slices.Contains(tt.good, n); got != want {
					t.Errorf("%d bytes: %t, want %t", n, got, want)
				}
			}
		})
	}
	t.Run("version", func(t *testing.T) {
		if _, ok := ReadOpening(append([]byte{Version + 1}, make([]byte, 16)...)); ok || ReadSessionRequest([]byte{0}) || ReadSessionRequest([]byte{Version + 1}) {
			t.Error("another version is accepted")
		}
	})
}

func seq(from, to int) (all []int) {
	for n := from; n <= to; n++ {
		all = append(all, n)
	}
	return all
}

// TestReadme compares the example of the README with the messages that the package appends.
func TestReadme(t *testing.T) {
	text := kit.Read(t, "README.md")
	_, example, _ := strings.Cut(text, "```\n")
	example, _, _ = strings.Cut(example, "```")
	want := [][]byte{
		AppendSessionRequest(nil, 0x1234), AppendSessionResponse(nil, 0x1234, Opening{0xdeadbeef, 1_000_000}),
		AppendHeartbeat(nil, 1_250_120), AppendInvalidate(nil, []uint64{7}), AppendInvalidate(nil, nil),
	}
	lines := strings.Split(strings.TrimSpace(example), "\n")
	if len(lines) != len(want) {
		t.Fatalf("%d messages, want %d", len(lines), len(want))
	}
	for i, line := range lines {
		if got := packet(t, line); !bytes.Equal(got, want[i]) {
			t.Errorf("%x, want %x", got, want[i])
		}
	}
}

func TestNoAllocations(t *testing.T) {
	buffer, handles := make([]byte, 0, 256), make([]uint64, 0, MaxHandles)
	if n := testing.AllocsPerRun(100, func() {
		m, err := Parse(AppendInvalidate(buffer, []uint64{1, 2, 3}))
		primary, _ := m.Primary()
		if _, ok := ReadHandles(handles, primary.Data); !ok || err != nil {
			t.Error("not read")
		}
		if m, err = Parse(AppendHeartbeat(buffer, 1)); err != nil {
			t.Error(err)
		}
		_ = AppendSessionResponse(buffer, 1, Opening{1, 2})
	}); n != 0 {
		t.Errorf("%.0f allocations", n)
	}
}

// slowParse parses a message byte by byte, as RFC 8490 section 5.4 describes it.
func slowParse(message []byte) (m Message, tlvs []TLV, err error) {
	rest := message
	next := func() (b byte) {
		if len(rest) == 0 {
			err = ErrMalformed
			return 0
		}
		b, rest = rest[0], rest[1:]
		return b
	}
	two := func() int { return int(next())<<8 | int(next()) }
	id := two()
	flags := two()
	counts := two() | two() | two() | two()
	if err != nil {
		return Message{}, nil, err
	}
	m = Message{ID: uint16(id), Response: flags>>15 == 1, Rcode: flags & 15} // #nosec G115 -- two bytes
	switch {
	case counts != 0:
		return m, nil, ErrCounts
	case m.Response && m.ID == 0:
		return m, nil, ErrMalformed
	case !m.Response && len(rest) == 0:
		return m, nil, ErrMalformed
	}
	for len(rest) > 0 && err == nil {
		tlv := TLV{Type: Type(two()), Data: []byte{}} // #nosec G115 -- two bytes
		for range two() {
			tlv.Data = append(tlv.Data, next())
		}
		tlvs = append(tlvs, tlv)
	}
	if err != nil {
		return m, nil, err
	}
	return m, tlvs, nil
}

// FuzzParse compares Parse with slowParse, and the header with that of miekg/dns. What the package reads is never outside of
// the message.
func FuzzParse(f *testing.F) {
	for _, seed := range [][]byte{
		AppendSessionRequest(nil, 1), AppendSessionResponse(nil, 1, Opening{1, 2}), AppendHeartbeat(nil, 3), AppendInvalidate(nil, []uint64{1, 2}),
		AppendInvalidate(nil, nil), AppendKeepalive(nil, 5, false, Timeouts{1, 2}), AppendRetryDelay(nil, Refused, 1), AppendErrorResponse(nil, 1, TypeNI),
		AppendTLV(AppendSessionRequest(nil, 1), Padding, 0, 0, 0), {}, {0, 0, 0x30}, packet(f, "0001 3000 0001 0000 0000 0000"),
	} {
		f.Add(seed)
		f.Add(seed[:len(seed)*2/3])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if !IsDSO(b) {
			return
		}
		m, err := Parse(b)
		want, tlvs, wantErr := slowParse(b)
		if !errors.Is(err, wantErr) {
			t.Fatalf("error %v, want %v", err, wantErr)
		}
		got := slices.Collect(m.TLVs())
		if len(got) != len(tlvs) || len(got) > 0 && !reflect.DeepEqual(got, tlvs) {
			t.Fatalf("TLVs %v, want %v", got, tlvs)
		}
		if primary, ok := m.Primary(); ok != (len(tlvs) > 0) || ok && !reflect.DeepEqual(primary, tlvs[0]) {
			t.Fatalf("primary %v", primary)
		}
		if m.tlvs = nil; !reflect.DeepEqual(m, want) {
			t.Fatalf("%+v, want %+v", m, want)
		}
		for _, tlv := range got {
			readAll(t, tlv.Data)
		}
		compareHeader(t, b, m, err)
	})
}

// readAll reads data as those of each TLV.
func readAll(t *testing.T, data []byte) {
	if handles, ok := ReadHandles(nil, data); ok && !bytes.Equal(AppendHandles(nil, handles), data) {
		t.Fatalf("handles %v of %x", handles, data)
	}
	if clock, ok := ReadHeartbeat(data); ok && clock != binary.BigEndian.Uint64(data) {
		t.Fatalf("clock %d of %x", clock, data)
	}
	_, _ = ReadOpening(data)
	_, _ = ReadKeepalive(data)
	_, _ = ReadRetryDelay(data)
}

func compareHeader(t *testing.T, b []byte, m Message, err error) {
	var peer dns.Msg
	peerErr := peer.Unpack(b)
	if len(b) < headerLen {
		if peerErr == nil {
			t.Fatal("miekg/dns reads a header that is cut")
		}
		return
	}
	if errors.Is(err, ErrCounts) && peerErr != nil {
		return // records that are none
	}
	if peer.Id != m.ID || peer.Response != m.Response || peer.Rcode&0xF != m.Rcode || peer.Opcode != Opcode {
		t.Fatalf("%+v, miekg/dns has %+v", m, peer.MsgHdr)
	}
	if hasRecords := len(peer.Question)+len(peer.Answer)+len(peer.Ns)+len(peer.Extra) > 0; hasRecords && !errors.Is(err, ErrCounts) {
		t.Fatalf("records, and error %v", err)
	}
}
