package searchlist

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// long returns a name with n bytes in wire form, up to 255, and labels of one letter or a few.
func long(c string, n int) string {
	if n%2 == 0 {
		return c + long(c, n-1)
	}
	return strings.Repeat(c+".", (n-1)/2)
}

// testLists are search lists with their data in the option.
var testLists = []struct {
	name, data string
	suffixes   []string
}{
	{"one", "\x02ns\x03svc\x00", []string{"ns.svc."}},
	{"of a pod", "\x02ns\x03svc\x01z\x00\x03svc\x01z\x00\x01z\x00", []string{"ns.svc.z.", "svc.z.", "z."}},
	{"duplicate", "\x01a\x00\x01a\x00", []string{"a.", "a."}},
	{"eight", strings.Repeat("\x01a\x00", 8), slices.Repeat([]string{"a."}, 8)},
	{"longest label", "\x3f" + strings.Repeat("a", 63) + "\x00", []string{strings.Repeat("a", 63) + "."}},
	{"longest name", strings.Repeat("\x01a", 127) + "\x00", []string{long("a", 255)}},
	{"longest data", strings.Repeat("\x01a", 125) + "\x00\x02bb\x00", []string{long("a", 251), "bb."}},
	{"any byte in a label", "\x06a.\x00\xff\\[\x00", []string{`a\.\000\255\\[.`}},
	{"pointer in a label", "\x02\xc0\x00\x00", []string{`\192\000.`}},
}

// invalidData are data that are not a search list.
var invalidData = []struct{ name, data string }{
	{"root", "\x00"},
	{"root after a name", "\x01a\x00\x00"},
	{"root before a name", "\x00\x01a\x00"},
	{"no root label", "\x01a"},
	{"no root label after a name", "\x01a\x00\x01b"},
	{"truncated label", "\x02a"},
	{"label longer than its length", "\x02a\x00"},
	{"label of 64 bytes", "\x40" + strings.Repeat("a", 64) + "\x00"},
	{"pointer", "\x01a\xc0\x00"},
	{"pointer to itself", "\xc0\x00"},
	{"pointer as a length", "\xc0\x02\x01a\x00" + strings.Repeat("a", 188) + "\x00"},
	{"upper case", "\x01a\x02Bb\x00"},
	{"upper case at the end", "\x02aZ\x00"},
	{"nine", strings.Repeat("\x01a\x00", 9)},
	{"256 bytes", strings.Repeat("\x01a", 125) + "\x00\x03bbb\x00"},
}

func TestParseSuffixes(t *testing.T) {
	for _, tt := range testLists {
		t.Run(tt.name, func(t *testing.T) {
			if got, ok := ParseSuffixes([]byte(tt.data)); !ok || !slices.Equal(got, tt.suffixes) {
				t.Errorf("got %q, %t, want %q", got, ok, tt.suffixes)
			}
		})
	}
	for _, tt := range invalidData {
		t.Run(tt.name, func(t *testing.T) {
			if got, ok := ParseSuffixes([]byte(tt.data)); ok || got != nil {
				t.Errorf("got %q, %t", got, ok)
			}
		})
	}
	for _, nothing := range [][]byte{nil, {}} {
		if got, ok := ParseSuffixes(nothing); !ok || got != nil {
			t.Errorf("nothing: got %q, %t", got, ok)
		}
	}
}

func TestAppendSuffixes(t *testing.T) {
	for _, tt := range testLists {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := AppendSuffixes([]byte("before"), tt.suffixes)
			if want := "before" + tt.data; !ok || string(got) != want {
				t.Errorf("got %q, %t, want %q", got, ok, want)
			}
		})
	}
	t.Run("upper case", func(t *testing.T) {
		got, ok := AppendSuffixes(nil, []string{`AZ@[.\066.`})
		if want := "\x04az@[\x01b\x00"; !ok || string(got) != want {
			t.Errorf("got %q, %t, want %q", got, ok, want)
		}
	})
	refused := map[string][]string{
		"no suffix":           nil,
		"empty name":          {""},
		"root":                {"."},
		"root after a name":   {"a.", "."},
		"not fully qualified": {"a.", "b"},
		"two dots":            {"a..b."},
		"leading dot":         {".a."},
		"label of 64 bytes":   {strings.Repeat("a", 64) + "."},
		"name of 256 bytes":   {"a" + long("a", 255)},
		"256 bytes":           {long("a", 251), "bbb."},
		"nine":                slices.Repeat([]string{"a."}, 9),
	}
	for name, suffixes := range refused {
		t.Run(name, func(t *testing.T) {
			if got, ok := AppendSuffixes([]byte("before"), suffixes); ok || string(got) != "before" {
				t.Errorf("got %q, %t", got, ok)
			}
		})
	}
}

// FuzzParse asserts that AppendSuffixes returns the bytes that ParseSuffixes accepts, and that suffixes are valid names.
func FuzzParse(f *testing.F) {
	for _, l := range testLists {
		f.Add([]byte(l.data))
	}
	for _, b := range invalidData {
		f.Add([]byte(b.data))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		was := bytes.Clone(data)
		suffixes, ok := ParseSuffixes(data)
		if !bytes.Equal(data, was) {
			t.Fatalf("%x became %x", was, data)
		}
		if !ok {
			if suffixes != nil {
				t.Fatalf("refused %x, and returned %q", data, suffixes)
			}
			return
		}
		for _, s := range suffixes {
			if _, is := dns.IsDomainName(s); !is || !dns.IsFqdn(s) || s == "." || s != strings.ToLower(s) {
				t.Fatalf("%x: %q is not a name in lower case", data, s)
			}
		}
		if again, ok := AppendSuffixes(nil, suffixes); ok != (len(data) > 0) || !bytes.Equal(again, data) {
			t.Fatalf("%x are %q; their data are %x, %t", data, suffixes, again, ok)
		}
	})
}

// FuzzAppend asserts that AppendSuffixes accepts every list of names, and that ParseSuffixes accepts the data.
func FuzzAppend(f *testing.F) {
	for _, l := range testLists {
		f.Add(strings.Join(l.suffixes, " "))
	}
	f.Add("a. B. c")
	f.Add("a. .")
	f.Fuzz(func(t *testing.T, text string) {
		suffixes := strings.Split(text, " ")
		data, ok := AppendSuffixes(nil, suffixes)
		var want []byte
		names := len(suffixes) <= MaxSuffixes
		for _, s := range suffixes {
			var name [255]byte
			n, err := dns.PackDomainName(s, name[:], 0, nil, false)
			if err != nil || n < 2 {
				names = false
				break
			}
			for _, c := range name[:n] {
				if 'A' <= c && c <= 'Z' {
					c += 'a' - 'A'
				}
				want = append(want, c)
			}
		}
		if names = names && len(want) <= wire.MaxSearchList; ok != names {
			t.Fatalf("%q: %t, want %t", suffixes, ok, names)
		}
		if !ok {
			return
		}
		parsed, ok := ParseSuffixes(data)
		if !ok || len(parsed) != len(suffixes) || !bytes.Equal(data, want) {
			t.Fatalf("%q: data %x, want %x; parsed %q, %t", suffixes, data, want, parsed, ok)
		}
	})
}

func local(code uint16, data string) dns.EDNS0 {
	return &dns.EDNS0_LOCAL{Code: code, Data: []byte(data)}
}

// query returns a query with options, without an OPT record if options is nil.
func query(options ...dns.EDNS0) *dns.Msg {
	m := new(dns.Msg)
	m.SetQuestion("a.org.", dns.TypeA)
	if options != nil {
		m.SetEdns0(4096, true)
		m.IsEdns0().Option = options
	}
	return m
}

func TestOptionOf(t *testing.T) {
	cookie := &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0011223344556677"}
	tests := map[string]struct {
		m       *dns.Msg
		has, ok bool
		data    string
	}{
		"no OPT record":    {query(), false, false, ""},
		"no option":        {query([]dns.EDNS0{}...), false, false, ""},
		"others":           {query(cookie, local(wire.OptionSearchList-1, "n"), local(wire.OptionSearchList+1, "n")), false, false, ""},
		"one list":         {query(local(wire.OptionSearchList, "\x01a\x00")), true, true, "\x01a\x00"},
		"among others":     {query(cookie, local(wire.OptionSearchList, "x"), local(wire.OptionSearchList-1, "n")), true, true, "x"},
		"empty":            {query(local(wire.OptionSearchList, "")), true, true, ""},
		"without data":     {query(&dns.EDNS0_LOCAL{Code: wire.OptionSearchList}), true, true, ""},
		"two":              {query(local(wire.OptionSearchList, "x"), local(wire.OptionSearchList, "x")), true, false, ""},
		"two without data": {query(&dns.EDNS0_LOCAL{Code: wire.OptionSearchList}, local(wire.OptionSearchList, "")), true, false, ""},
		"several":          {query(local(wire.OptionSearchList, "x"), cookie, local(wire.OptionSearchList, "y"), local(wire.OptionSearchList, "z")), true, false, ""},
		"the OPT is empty": {func() *dns.Msg { m := query(); m.SetEdns0(1232, false); return m }(), false, false, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			data, ok := OptionOf(tt.m)
			if ok != tt.ok || string(data) != tt.data || (data != nil) != ok {
				t.Errorf("got %#v, %t", data, ok)
			}
			if has := HasOption(tt.m); has != tt.has {
				t.Errorf("HasOption is %t", has)
			}
		})
	}
}

// TestWithOption asserts the results of WithOption and WithoutOption, and that neither changes its argument.
func TestWithOption(t *testing.T) {
	other, signature := local(wire.OptionSearchList-1, "n"), &dns.TSIG{Hdr: dns.RR_Header{Name: "key.", Rrtype: dns.TypeTSIG, Class: dns.ClassANY}}
	tests := map[string]struct {
		options []dns.EDNS0 // nil: no OPT record
		left    []dns.EDNS0
		added   bool
	}{
		"no OPT record": {nil, nil, true},
		"no option":     {[]dns.EDNS0{}, nil, false},
		"another":       {[]dns.EDNS0{other}, []dns.EDNS0{other}, false},
		"one":           {[]dns.EDNS0{local(wire.OptionSearchList, "x")}, nil, false},
		"two":           {[]dns.EDNS0{local(wire.OptionSearchList, "x"), other, local(wire.OptionSearchList, "y")}, []dns.EDNS0{other}, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			m := query(tt.options...)
			m.Extra = append(m.Extra, signature)
			before, text := slices.Clone(m.Extra), m.String()

			with, without := WithOption(m, []byte("data")), WithoutOption(m)
			if !slices.Equal(m.Extra, before) || m.String() != text {
				t.Fatalf("the argument was changed from %s to %v", text, m)
			}
			if data, ok := OptionOf(with); !ok || string(data) != "data" {
				t.Errorf("the data are %q, %t", data, ok)
			}
			opt := with.IsEdns0()
			if got := opt.Option[:len(opt.Option)-1]; !slices.Equal(got, tt.left) {
				t.Errorf("the other options are %v, want %v", got, tt.left)
			}
			wantSize, wantExtra := uint16(4096), len(before)
			if tt.added {
				wantSize, wantExtra = 1232, len(before)+1
			}
			if opt.UDPSize() != wantSize || opt.Do() == tt.added || len(with.Extra) != wantExtra || !slices.Contains(with.Extra, dns.RR(signature)) {
				t.Errorf("got %v", with)
			}
			if with.Id != m.Id || &with.Question[0] != &m.Question[0] {
				t.Error("a part other than the OPT record was copied")
			}

			if has := HasOption(m); HasOption(without) || has == (without == m) {
				t.Errorf("HasOption was %t, the same message: %t, HasOption is %t", has, without == m, HasOption(without))
			}
			if opt := without.IsEdns0(); (opt != nil) == tt.added || opt != nil && (!slices.Equal(opt.Option, tt.left) || opt.UDPSize() != 4096 || !opt.Do()) {
				t.Errorf("without: %v", without)
			}
			if len(without.Extra) != len(before) || !slices.Contains(without.Extra, dns.RR(signature)) {
				t.Errorf("without: %v", without)
			}
		})
	}
}

// TestAppendOption asserts that package dns and InOptions find the appended option.
func TestAppendOption(t *testing.T) {
	options := binary.BigEndian.AppendUint16(nil, dns.EDNS0EDE)
	options = append(options, 0, 2, 0, 3)
	if InOptions(nil) || InOptions(options) {
		t.Error("found in other options")
	}
	for _, data := range []string{"", "\x01a\x00", strings.Repeat("a", wire.MaxSearchList)} {
		b := AppendOption(bytes.Clone(options), []byte(data))
		if !bytes.HasPrefix(b, options) || !InOptions(b) || !InOptions(b[len(options):]) {
			t.Errorf("%x: not found", b)
		}
		packed, err := query([]dns.EDNS0{}...).Pack()
		kit.Must(t, err)
		binary.BigEndian.PutUint16(packed[len(packed)-2:], uint16(len(b)))
		m := new(dns.Msg)
		kit.Must(t, m.Unpack(append(packed, b...)))
		if got, ok := OptionOf(m); !ok || string(got) != data || len(m.IsEdns0().Option) != 2 {
			t.Errorf("got %q, %t, want %q", got, ok, data)
		}
	}
	for n := range 4 { // a truncated header of an option
		if InOptions(append(bytes.Clone(options), AppendOption(nil, nil)[:n]...)) {
			t.Errorf("found in %d bytes", n)
		}
	}
	if inside := append([]byte{0, 15, 0, 6}, AppendOption(nil, []byte("xx"))...); InOptions(inside) {
		t.Error("found in the data of another option")
	}
}

func TestCutSuffix(t *testing.T) {
	for _, tt := range []struct {
		data, suffix, rest string
		ok                 bool
	}{
		{"\x01a\x00", "\x01a\x00", "", true},
		{"\x01a\x01b\x00\x01c\x00", "\x01a\x01b\x00", "\x01c\x00", true},
		{"\x01a\x00\x01C\x00", "\x01a\x00", "\x01C\x00", true}, // the rest is not checked
		{"", "", "", false},
		{"\x00", "", "", false},
		{"\x01A\x00", "", "", false},
		{"\x02a\x00", "", "", false},
		{"\x01a", "", "", false},
		{"\xc0\x00", "", "", false},
		{strings.Repeat("\x01a\x00", wire.MaxSearchList/3+1), "", "", false},
	} {
		suffix, rest, ok := CutSuffix([]byte(tt.data))
		if string(suffix) != tt.suffix || string(rest) != tt.rest || ok != tt.ok {
			t.Errorf("%q: got %q, %q, %v", tt.data, suffix, rest, ok)
		}
	}
}
