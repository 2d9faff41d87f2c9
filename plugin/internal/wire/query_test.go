package wire

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/caller"
)

// newQuery returns a packed query, after a change of the message.
func newQuery(t testing.TB, name string, rrtype uint16, change func(*dns.Msg)) []byte {
	t.Helper()
	m := new(dns.Msg)
	m.SetQuestion(name, rrtype)
	if change != nil {
		change(m)
	}
	return packMsg(t, m)
}

// packMsg packs a message.
func packMsg(t testing.TB, m *dns.Msg) []byte {
	t.Helper()
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func edns(size uint16, do bool) func(*dns.Msg) {
	return func(m *dns.Msg) { m.SetEdns0(size, do) }
}

// withCallers adds an OPT record with a caller option for each data.
func withCallers(data ...[]byte) func(*dns.Msg) {
	options := make([]dns.EDNS0, len(data))
	for i, d := range data {
		options[i] = &dns.EDNS0_LOCAL{Code: OptionCaller, Data: d}
	}
	return withOptions(options...)
}

// withSearchLists adds an OPT record with a search list for each data.
func withSearchLists(data ...string) func(*dns.Msg) {
	options := make([]dns.EDNS0, len(data))
	for i, d := range data {
		options[i] = searchList(d)
	}
	return withOptions(options...)
}

func searchList(data string) dns.EDNS0 {
	return &dns.EDNS0_LOCAL{Code: OptionSearchList, Data: []byte(data)}
}

// withOptions adds an OPT record with options.
func withOptions(options ...dns.EDNS0) func(*dns.Msg) {
	return func(m *dns.Msg) {
		m.SetEdns0(1232, false)
		m.IsEdns0().Option = options
	}
}

// longestCaller returns the data of a caller option of the maximum length.
func longestCaller(t testing.TB) []byte {
	t.Helper()
	data, ok := caller.Append(nil, strings.Repeat("n", caller.MaxNode), strings.Repeat("z", caller.MaxZone))
	if !ok {
		t.Fatal("the data are refused")
	}
	return data
}

// longestList is the data of a search list of the maximum length. Parse does not check that they are valid suffixes.
var longestList = strings.Repeat("s", MaxSearchList)

// longest is a name of 255 bytes in wire form, tooLong one of 256.
var (
	longest = strings.Repeat(strings.Repeat("a", 63)+".", 3) + strings.Repeat("b", 61) + "."
	tooLong = strings.Repeat(strings.Repeat("a", 63)+".", 3) + strings.Repeat("b", 62) + "."
)

func TestParse(t *testing.T) {
	tests := map[string]struct {
		query []byte
		want  Query
	}{
		"plain":     {newQuery(t, "svc.example.", dns.TypeA, nil), Query{NameLen: 13, Type: 1, Class: 1, RD: true}},
		"root":      {newQuery(t, ".", dns.TypeNS, nil), Query{NameLen: 1, Type: 2, Class: 1, RD: true}},
		"longest":   {newQuery(t, longest, dns.TypeTXT, nil), Query{NameLen: 255, Type: 16, Class: 1, RD: true}},
		"label":     {newQuery(t, strings.Repeat("a", 63)+".", dns.TypeA, nil), Query{NameLen: 65, Type: 1, Class: 1, RD: true}},
		"upper":     {newQuery(t, "svc.Example.", dns.TypeA, nil), Query{NameLen: 13, Type: 1, Class: 1, RD: true, Upper: true}},
		"A and Z":   {newQuery(t, "A.", dns.TypeA, nil), Query{NameLen: 3, Type: 1, Class: 1, RD: true, Upper: true}},
		"Z":         {newQuery(t, "Z.", dns.TypeA, nil), Query{NameLen: 3, Type: 1, Class: 1, RD: true, Upper: true}},
		"not upper": {newQuery(t, `@[\193\218\000.`, dns.TypeA, nil), Query{NameLen: 7, Type: 1, Class: 1, RD: true}},
		"type 65535": {
			newQuery(t, "a.", 65535, func(m *dns.Msg) { m.RecursionDesired = false }),
			Query{NameLen: 3, Type: 65535, Class: 1},
		},
		"flags": {
			newQuery(t, "a.", dns.TypeA, func(m *dns.Msg) { m.CheckingDisabled, m.AuthenticatedData = true, true }),
			Query{NameLen: 3, Type: 1, Class: 1, RD: true, CD: true, AD: true},
		},
		"EDNS":   {newQuery(t, "a.", 1, edns(1232, false)), Query{NameLen: 3, Type: 1, Class: 1, RD: true, EDNS: true, UDPSize: 1232}},
		"DO":     {newQuery(t, "a.", 1, edns(4096, true)), Query{NameLen: 3, Type: 1, Class: 1, RD: true, EDNS: true, UDPSize: 4096, DO: true}},
		"size 0": {newQuery(t, "a.", 1, edns(0, false)), Query{NameLen: 3, Type: 1, Class: 1, RD: true, EDNS: true}},
		"caller": {
			newQuery(t, "a.", 1, withCallers([]byte{1, 2, 'n', '1'})),
			Query{NameLen: 3, Type: 1, Class: 1, RD: true, EDNS: true, UDPSize: 1232, Caller: 34},
		},
		"caller without data": {
			newQuery(t, "a.", 1, withCallers([]byte{})),
			Query{NameLen: 3, Type: 1, Class: 1, RD: true, EDNS: true, UDPSize: 1232, Caller: 34},
		},
		"longest caller": {
			newQuery(t, longest, 1, withCallers(longestCaller(t))),
			Query{NameLen: 255, Type: 1, Class: 1, RD: true, EDNS: true, UDPSize: 1232, Caller: 286},
		},
		"search list": {
			newQuery(t, "a.", 1, withSearchLists("\x01b\x00\x01c\x00")),
			Query{NameLen: 3, Type: 1, Class: 1, RD: true, EDNS: true, UDPSize: 1232, Search: []byte("\x01b\x00\x01c\x00")},
		},
		"search list without data": {
			newQuery(t, "a.", 1, withSearchLists("")),
			Query{NameLen: 3, Type: 1, Class: 1, RD: true, EDNS: true, UDPSize: 1232, Search: []byte{}},
		},
		"caller and search list": {
			newQuery(t, "a.", 1, withOptions(&dns.EDNS0_LOCAL{Code: OptionCaller, Data: []byte{1, 1, 'n'}}, searchList("\x01b\x00"))),
			Query{NameLen: 3, Type: 1, Class: 1, RD: true, EDNS: true, UDPSize: 1232, Caller: 34, Search: []byte("\x01b\x00")},
		},
		"search list and caller": {
			newQuery(t, "a.", 1, withOptions(searchList("\x01b\x00"), &dns.EDNS0_LOCAL{Code: OptionCaller, Data: []byte{1, 1, 'n'}})),
			Query{NameLen: 3, Type: 1, Class: 1, RD: true, EDNS: true, UDPSize: 1232, Caller: 41, Search: []byte("\x01b\x00")},
		},
		"longest of both": {
			newQuery(t, longest, 1, withOptions(searchList(longestList), &dns.EDNS0_LOCAL{Code: OptionCaller, Data: longestCaller(t)})),
			Query{NameLen: 255, Type: 1, Class: 1, RD: true, EDNS: true, UDPSize: 1232, Caller: 545, Search: []byte(longestList)},
		},
		"every field": {newQuery(t, longest, 1, edns(65535, true)), Query{NameLen: 255, Type: 1, Class: 1, RD: true, EDNS: true, UDPSize: 65535, DO: true}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			q := Query{ // of a previous query
				NameLen: 77, Type: 77, UDPSize: 77, EDNS: true, DO: true, RD: true, CD: true, AD: true, Upper: true, Caller: 77, Search: []byte{77},
			}
			if !q.Parse(tt.query) {
				t.Fatal("refused")
			}
			if !reflect.DeepEqual(q, tt.want) {
				t.Errorf("got %+v, want %+v", q, tt.want)
			}
			checkParse(t, tt.query)
			for n := range tt.query {
				if q.Parse(tt.query[:n:n]) {
					t.Errorf("accepted the first %d bytes of %d", n, len(tt.query))
				}
			}
		})
	}
}

func TestLimit(t *testing.T) {
	for size, want := range map[uint16]int{0: 512, 511: 512, 512: 512, 513: 513, 1232: 1232, 65535: 65535} {
		if got := (&Query{UDPSize: size}).Limit(); got != want {
			t.Errorf("size %d: limit %d, want %d", size, got, want)
		}
	}
}

// checkParse asserts that Parse and package dns agree about an accepted query, and that Parse reads nothing after its end.
func checkParse(t *testing.T, b []byte) (accepted bool) {
	t.Helper()
	var q Query
	accepted = q.Parse(append(make([]byte, 0, len(b)), b...))
	for _, garbage := range [][]byte{make([]byte, 300), bytes.Repeat([]byte{0xff}, 300), b} {
		var other Query
		if got := other.Parse(append(b[:len(b):len(b)], garbage...)[:len(b)]); got != accepted || accepted && !reflect.DeepEqual(other, q) {
			t.Fatalf("%x before other bytes: %v %+v, alone: %v %+v", b, got, other, accepted, q)
		}
	}
	if !accepted {
		return false
	}
	m := new(dns.Msg)
	if err := m.Unpack(b); err != nil {
		t.Fatalf("accepted %x, which package dns rejects: %v", b, err)
	}
	want, callerData := slowParse(t, m)
	if !reflect.DeepEqual(q, want) {
		t.Fatalf("%x: got %+v, want %+v", b, q, want)
	}
	if data := q.CallerData(b); (data != nil) != (q.Caller != 0) || !bytes.Equal(data, callerData) {
		t.Fatalf("%x: the caller's data are %x, want %x", b, data, callerData)
	}
	packed, err := m.Pack()
	if err != nil || !bytes.Equal(packed, b) {
		t.Fatalf("%x is %x after unpacking and packing by package dns: %v", b, packed, err)
	}
	if act := dns.DefaultMsgAcceptFunc(dns.Header{
		Bits: binary.BigEndian.Uint16(b[2:]), Qdcount: binary.BigEndian.Uint16(b[4:]), Ancount: binary.BigEndian.Uint16(b[6:]),
		Nscount: binary.BigEndian.Uint16(b[8:]), Arcount: binary.BigEndian.Uint16(b[10:]),
	}); act != dns.MsgAccept {
		t.Fatalf("accepted %x, which a server of package dns refuses: %v", b, act)
	}
	return true
}

// slowParse is the oracle of Parse. It also returns the data of the caller option.
func slowParse(t *testing.T, m *dns.Msg) (q Query, callerData []byte) {
	t.Helper()
	if m.Response || m.Opcode != dns.OpcodeQuery || m.Authoritative || m.Truncated || m.RecursionAvailable || m.Zero || m.Rcode != 0 ||
		len(m.Question) != 1 || len(m.Answer) != 0 || len(m.Ns) != 0 || len(m.Extra) > 1 {
		t.Fatalf("accepted %v", m)
	}
	question := m.Question[0]
	if question.Qclass != dns.ClassINET {
		t.Fatalf("accepted class %d", question.Qclass)
	}
	var name [MaxName]byte
	n, err := dns.PackDomainName(question.Name, name[:], 0, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	q = Query{
		NameLen: n, Type: question.Qtype, Class: question.Qclass,
		RD: m.RecursionDesired, CD: m.CheckingDisabled, AD: m.AuthenticatedData,
		Upper: strings.ContainsAny(question.Name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
	}
	if len(m.Extra) == 0 {
		return q, nil
	}
	opt := m.IsEdns0()
	if opt == nil || opt.Hdr.Name != "." || opt.Version() != 0 || opt.ExtendedRcode() != 0 || opt.Hdr.Ttl&^0x8000 != 0 || len(opt.Option) > 2 {
		t.Fatalf("accepted the additional record %v", m.Extra[0])
	}
	q.EDNS, q.UDPSize, q.DO = true, opt.UDPSize(), opt.Do()
	at := HeaderLen + n + 4 + OPTLen
	for _, option := range opt.Option {
		local, ok := option.(*dns.EDNS0_LOCAL)
		switch {
		case ok && local.Code == OptionCaller && q.Caller == 0:
			q.Caller, callerData = at+4, local.Data
		case ok && local.Code == OptionSearchList && q.Search == nil && len(local.Data) <= MaxSearchList:
			q.Search = append([]byte{}, local.Data...)
		default:
			t.Fatalf("accepted the options %v", opt.Option)
		}
		at += 4 + len(local.Data)
	}
	return q, callerData
}

// malformed has the files of packets that Parse must refuse, named after the defect, and whether package dns rejects
// them, too. CoreDNS's plugin chain answers the others.
var malformed = map[string]bool{
	"empty": true, "truncated-header": true, "header-alone": false,
	"label-too-long": true, "label-type-reserved": true, "label-past-the-end": true,
	"name-too-long": true, "name-one-byte-too-long": true, "name-without-end": true,
	"pointer-to-itself": true, "pointer-in-question": false, "pointer-past-the-end": true, "pointer-cut-off": true,
	"question-without-type": false, "question-without-class": false,
	"no-question": false, "question-not-counted": false, "two-questions": false, "257-questions-counted": true,
	"answer-in-query": false, "authority-in-query": false, "additional-not-opt": false, "additional-missing": false,
	"opt-not-counted": false, "opt-version-1": false, "opt-extended-rcode": false, "opt-unknown-flag": false,
	"opt-caller-twice": false, "opt-caller-past-the-end": true, "opt-caller-and-another": false, "opt-caller-head-cut-off": true, "opt-caller-and-a-byte": false,
	"opt-search-twice": false, "opt-search-past-the-end": true, "opt-search-and-another": false, "opt-search-too-long": false, "opt-search-past-the-caller": true,
	"opt-with-option": false, "opt-option-past-the-end": true, "opt-data-missing": true, "opt-cut-off": true,
	"opt-not-root": false, "opt-owner-pointer": false, "opt-owner-a-label": true, "opt-twice": false, "opt-and-a-byte": false,
	"qr-set": false, "opcode-status": false, "opcode-update": false, "aa-set": false, "tc-set": false,
	"ra-set": false, "z-bit-set": false, "rcode-set": false,
	"trailing-byte": false, "longer-than-any-query": false, "class-chaos": false, "class-any": false,
}

func malformedFiles(t testing.TB) map[string][]byte {
	t.Helper()
	names, err := filepath.Glob("testdata/malformed/*.bin")
	if err != nil || len(names) == 0 {
		t.Fatal("no files", err)
	}
	files := map[string][]byte{}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimSuffix(filepath.Base(name), ".bin")] = b
	}
	return files
}

func TestMalformed(t *testing.T) {
	files := malformedFiles(t)
	for name, rejected := range malformed {
		t.Run(name, func(t *testing.T) {
			b, ok := files[name]
			if !ok {
				t.Fatal("no such file")
			}
			if checkParse(t, b) {
				t.Error("accepted")
			}
			if err := new(dns.Msg).Unpack(b); (err != nil) != rejected {
				t.Errorf("error of package dns: %v", err)
			}
		})
	}
	for name := range files {
		if _, ok := malformed[name]; !ok {
			t.Errorf("%s.bin is not in the table", name)
		}
	}
}

// addQueries adds malformed and valid queries to a corpus.
func addQueries(f *testing.F) {
	for _, b := range malformedFiles(f) {
		f.Add(b)
	}
	f.Add(newQuery(f, "svc.Example.", dns.TypeA, nil))
	f.Add(newQuery(f, longest, dns.TypeSRV, edns(1232, true)))
	f.Add(newQuery(f, longest, dns.TypeSRV, withCallers(longestCaller(f))))
	f.Add(newQuery(f, "a.", dns.TypeSRV, withCallers(longestCaller(f), []byte{1, 1, 'n'})))
	f.Add(newQuery(f, longest, dns.TypeSRV, withSearchLists(longestList)))
	f.Add(newQuery(f, "a.", dns.TypeSRV, withOptions(searchList("\x01b\x00"), &dns.EDNS0_LOCAL{Code: OptionCaller, Data: []byte{1, 1, 'n'}})))
	f.Add(newQuery(f, "a.", dns.TypeSRV, withOptions(&dns.EDNS0_LOCAL{Code: OptionCaller}, searchList(""))))
}

func FuzzParse(f *testing.F) {
	addQueries(f)
	f.Fuzz(func(t *testing.T, b []byte) { checkParse(t, b) })
}

func TestParseAllocatesNothing(t *testing.T) {
	for name, b := range map[string][]byte{
		"plain":   newQuery(t, "svc.example.", dns.TypeA, nil),
		"upper":   newQuery(t, "Svc.Example.", dns.TypeA, edns(1232, true)),
		"long":    newQuery(t, longest, dns.TypeA, edns(1232, true)),
		"options": newQuery(t, longest, dns.TypeA, withOptions(searchList(longestList), &dns.EDNS0_LOCAL{Code: OptionCaller, Data: longestCaller(t)})),
	} {
		t.Run(name, func(t *testing.T) {
			var q Query
			if n := testing.AllocsPerRun(1000, func() {
				if !q.Parse(b) {
					t.Error("refused")
				}
			}); n != 0 {
				t.Errorf("%v allocations", n)
			}
		})
	}
}

// TestHasOtherVersion compares with package dns, for malformed and truncated queries.
func TestHasOtherVersion(t *testing.T) {
	query := func(version uint8, options ...dns.EDNS0) []byte {
		m := new(dns.Msg).SetQuestion("www.example.org.", dns.TypeA).SetEdns0(1232, true)
		m.IsEdns0().SetVersion(version)
		m.IsEdns0().Option = options
		return packMsg(t, m)
	}
	cases := malformedFiles(t)
	cases["version 0"], cases["version 1"], cases["version 255"] = query(0), query(1), query(255)
	other := 0
	for name, b := range cases {
		for end := range len(b) + 1 {
			m := new(dns.Msg)
			want := m.Unpack(b[:end]) == nil && len(m.Extra) == 1 && m.IsEdns0() != nil && m.IsEdns0().Version() != 0 && len(m.IsEdns0().Option) == 0 &&
				end == len(b) // package dns ignores bytes after the message
			if got := HasOtherVersion(b[:end]); got != want && !(got && end < len(b)) {
				t.Errorf("%s, %d bytes: %t, want %t", name, end, got, want)
			}
			if want {
				other++
			}
		}
	}
	if other < 3 {
		t.Errorf("%d messages of another version", other)
	}
	if HasOtherVersion(query(1, &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0102030405060708"})) {
		t.Error("true for an OPT record with an option")
	}
}
