package caller

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// options are valid data, in the format of the package's comment.
var options = []struct{ name, data, node, zone string }{
	{"node", "\x01\x02n1", "n1", ""},
	{"node and zone", "\x01\x02n1\x06zone-a", "n1", "zone-a"},
	{"shortest", "\x01\x01n", "n", ""},
	{"shortest of both", "\x01\x01n\x01z", "n", "z"},
	{"longest node", "\x01\xfd" + strings.Repeat("n", 253), strings.Repeat("n", 253), ""},
	{"longest of both", "\x01\xfd" + strings.Repeat("n", 253) + "\x3f" + strings.Repeat("z", 63), strings.Repeat("n", 253), strings.Repeat("z", 63)},
	{"every kind of character", "\x01\x07a-z.0-9\x05_A-Z.", "a-z.0-9", "_A-Z."},
}

// invalidData are data that Parse must refuse.
var invalidData = []struct{ name, data string }{
	{"no data", ""},
	{"version alone", "\x01"},
	{"version 0", "\x00\x02n1"},
	{"version 2", "\x02\x02n1"},
	{"no version", "\x02n1"},
	{"empty node", "\x01\x00"},
	{"empty node before a zone", "\x01\x00\x01z"},
	{"length without a node", "\x01\x02"},
	{"truncated node", "\x01\x03n1"},
	{"node of 254 bytes", "\x01\xfe" + strings.Repeat("n", 254)},
	{"node of 255 bytes", "\x01\xff" + strings.Repeat("n", 255)},
	{"empty zone", "\x01\x02n1\x00"},
	{"length without a zone", "\x01\x02n1\x01"},
	{"truncated zone", "\x01\x02n1\x03ab"},
	{"zone of 64 bytes", "\x01\x02n1\x40" + strings.Repeat("z", 64)},
	{"a byte after the zone", "\x01\x02n1\x01z\x00"},
	{"a line feed in the node", "\x01\x03n\n1"},
	{"a NUL in the node", "\x01\x03n\x001"},
	{"upper case in the node", "\x01\x02N1"},
	{"invalid UTF-8 in the node", "\x01\x02n\xff"},
	{"a terminal escape in the zone", "\x01\x02n1\x03\x1b[3"},
	{"a space in the zone", "\x01\x02n1\x03a b"},
	{"a third name", "\x01\x02n1\x01z\x01r"},
}

func TestParse(t *testing.T) {
	for _, tt := range options {
		t.Run(tt.name, func(t *testing.T) {
			node, zone, ok := Parse([]byte(tt.data))
			if !ok || string(node) != tt.node || string(zone) != tt.zone {
				t.Errorf("got %q, %q, %t, want %q, %q", node, zone, ok, tt.node, tt.zone)
			}
		})
	}
	for _, tt := range invalidData {
		t.Run(tt.name, func(t *testing.T) {
			if node, zone, ok := Parse([]byte(tt.data)); ok || node != nil || zone != nil {
				t.Errorf("got %q, %q, %t", node, zone, ok)
			}
		})
	}
}

func TestAppend(t *testing.T) {
	for _, tt := range options {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := Append([]byte("before"), tt.node, tt.zone)
			if want := "before" + tt.data; !ok || string(got) != want {
				t.Errorf("got %q, %t, want %q", got, ok, want)
			}
			if len(tt.data) > wire.MaxCaller {
				t.Errorf("%d bytes, wire.MaxCaller is %d", len(tt.data), wire.MaxCaller)
			}
		})
	}
	refused := []struct{ name, node, zone string }{
		{"neither", "", ""},
		{"a zone without a node", "", "z"},
		{"node of 254 bytes", strings.Repeat("n", 254), ""},
		{"node of 257 bytes, 1 modulo 256", strings.Repeat("n", 257), ""},
		{"zone of 64 bytes", "n1", strings.Repeat("z", 64)},
		{"zone of 257 bytes", "n1", strings.Repeat("z", 257)},
	}
	for _, tt := range refused {
		t.Run(tt.name, func(t *testing.T) {
			if got, ok := Append([]byte("before"), tt.node, tt.zone); ok || string(got) != "before" {
				t.Errorf("got %q, %t", got, ok)
			}
		})
	}
}

// TestMaxCaller asserts that the longest option has wire.MaxCaller bytes.
func TestMaxCaller(t *testing.T) {
	data, ok := Append(nil, strings.Repeat("n", MaxNode), strings.Repeat("z", MaxZone))
	if !ok || len(data) != wire.MaxCaller {
		t.Errorf("%d bytes, %t, want %d", len(data), ok, wire.MaxCaller)
	}
}

func TestDoesNotAllocate(t *testing.T) {
	data, room := []byte("\x01\x02n1\x06zone-a"), make([]byte, 0, wire.MaxCaller)
	ok := true
	n := testing.AllocsPerRun(100, func() {
		_, _, parsed := Parse(data)
		_, appended := Append(room, "n1", "zone-a")
		ok = ok && parsed && appended
	})
	if n != 0 || !ok {
		t.Errorf("%v allocations, want none; %t", n, ok)
	}
}

// FuzzParse asserts that Append returns the bytes that Parse accepts.
func FuzzParse(f *testing.F) {
	for _, o := range options {
		f.Add([]byte(o.data))
	}
	for _, b := range invalidData {
		f.Add([]byte(b.data))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		was := bytes.Clone(data)
		node, zone, ok := Parse(data)
		if !bytes.Equal(data, was) {
			t.Fatalf("%x was changed to %x", was, data)
		}
		if !ok {
			if node != nil || zone != nil {
				t.Fatalf("refused %x, and returned %q, %q", data, node, zone)
			}
			return
		}
		if again, ok := Append(nil, string(node), string(zone)); !ok || !bytes.Equal(again, data) {
			t.Fatalf("%x: node %q, zone %q; their data are %x, %t", data, node, zone, again, ok)
		}
	})
}

// The names of nodes and zones that are valid.
var (
	validNode = regexp.MustCompile(`^[a-z0-9.-]{1,253}$`)
	validZone = regexp.MustCompile(`^[A-Za-z0-9._-]{0,63}$`)
)

// FuzzAppend asserts that Append accepts valid names alone, and that Parse returns them.
func FuzzAppend(f *testing.F) {
	for _, o := range options {
		f.Add(o.node, o.zone)
	}
	f.Add("", "zone")
	f.Add(strings.Repeat("n", 254), strings.Repeat("z", 64))
	f.Add("0", " ")
	f.Fuzz(func(t *testing.T, node, zone string) {
		data, ok := Append(nil, node, zone)
		if want := validNode.MatchString(node) && validZone.MatchString(zone); ok != want {
			t.Fatalf("node %q, zone %q: %t", node, zone, ok)
		}
		if !ok {
			return
		}
		if n, z, ok := Parse(data); !ok || string(n) != node || string(z) != zone || len(data) > wire.MaxCaller {
			t.Fatalf("node %q, zone %q: data %x, parsed %q, %q, %t", node, zone, data, n, z, ok)
		}
	})
}
