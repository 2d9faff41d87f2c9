package memory

import (
	"slices"
	"strings"
	"testing"
)

func TestCleanMappings(t *testing.T) {
	const program = "/usr/bin/a program"
	entry := func(line, anonymous string) string {
		return line + "\nSize: 8 kB\nRss: 8 kB\nAnonymous: " + anonymous + " kB\nAnonHugePages: 0 kB\nVmFlags: rd ex mr\n"
	}
	for _, tc := range []struct {
		name, smaps string
		want        []mapping
		invalid     bool
	}{
		{name: "code", smaps: entry("1000-3000 r-xp 00000000 fe:00 7 "+program, "0"), want: []mapping{{0x1000, 0x3000}}},
		{name: "tables", smaps: entry("1000-3000 r--p 00000000 fe:00 7 "+program, "0"), want: []mapping{{0x1000, 0x3000}}},
		{name: "changed page", smaps: entry("1000-3000 r--p 00000000 fe:00 7 "+program, "4")},
		{name: "data", smaps: entry("1000-3000 rw-p 00000000 fe:00 7 "+program, "0")},
		{name: "another file", smaps: entry("1000-3000 r-xp 00000000 fe:00 7 /lib/libc.so", "0")},
		{name: "no file", smaps: entry("1000-3000 r--p 00000000 00:00 0", "0") + entry("3000-4000 r-xp 00000000 00:00 0 [vdso]", "0")},
		{
			name: "after another mapping",
			smaps: entry("1000-3000 r-xp 00000000 fe:00 7 /lib/libc.so", "0") + entry("3000-4000 r-xp 00000000 fe:00 7 "+program, "0") +
				entry("4000-5000 rw-p 00000000 fe:00 7 "+program, "0"),
			want: []mapping{{0x3000, 0x4000}},
		},
		{name: "no address", smaps: entry("x-3000 r-xp 00000000 fe:00 7 "+program, "0"), invalid: true},
		{name: "empty"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := cleanMappings(strings.NewReader(tc.smaps), program)
			if (err != nil) != tc.invalid || !slices.Equal(got, tc.want) {
				t.Errorf("%v, %v, want %v", got, err, tc.want)
			}
		})
	}
}
