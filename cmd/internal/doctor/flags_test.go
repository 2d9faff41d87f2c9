//go:build linux

package doctor

import (
	"bytes"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

func TestParse(t *testing.T) {
	o, err := parse([]string{"-localip", "169.254.20.10,fd00::a", "-upstream", "192.0.2.1,192.0.2.2:54,[2001:db8::1]:55", "-domain", "Example.Com",
		"-dns.port=5353", "-health-port", "8080", "-o", "json"}, io.Discard)
	kit.Must(t, err)
	if want := []netip.Addr{netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("fd00::a")}; !slices.Equal(o.addresses, want) {
		t.Errorf("addresses: got %v, want %v", o.addresses, want)
	}
	want := []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:53"), netip.MustParseAddrPort("192.0.2.2:54"), netip.MustParseAddrPort("[2001:db8::1]:55")}
	if !slices.Equal(o.upstreams, want) {
		t.Errorf("upstreams: got %v, want %v", o.upstreams, want)
	}
	if o.domain != "example.com." || o.port != 5353 || o.health != 8080 || o.format != "json" {
		t.Errorf("got %+v", o)
	}
}

func TestWrongFlags(t *testing.T) {
	for _, args := range [][]string{
		{"-nothing"},
		{"argument"},
		{"-localip", "169.254.20"},
		{"-localip", "169.254.20.10:53"},
		{"-clusterdns", "kube-dns"},
		{"-upstream", "1.1.1.1,x"},
		{"-domain", "."},
		{"-domain", "a..b"},
		{"-dns.port", "0"},
		{"-dns.port", "65536"},
		{"-dns.port", "-1"},
		{"-health-port", "70000"},
		{"-o", "yaml"},
		{"-timeout", "0s"},
		{"-timeout", "2"},
		{"-o"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			var out, complaints bytes.Buffer
			if code := command(args, t.TempDir(), &out, &complaints); code != 2 {
				t.Errorf("exit code %d, want 2", code)
			}
			if text := complaints.String(); strings.Count(text, "\n") != 1 || !strings.HasPrefix(text, "nodecache doctor: ") {
				t.Errorf("printed %q, want one line", text)
			}
			if out.Len() > 0 {
				t.Errorf("printed %q", out.String())
			}
		})
	}
}

func TestHelp(t *testing.T) {
	var out, complaints bytes.Buffer
	if code := command([]string{"-help"}, "/proc", &out, &complaints); code != 0 || complaints.Len() > 0 {
		t.Errorf("exit code %d, printed %q", code, complaints.String())
	}
	for _, want := range []string{"-localip", "-timeout", "changes nothing"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("help has no %q:\n%s", want, out.String())
		}
	}
}
