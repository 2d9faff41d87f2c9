package resolvconf

import (
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

func TestNameservers(t *testing.T) {
	for _, tc := range []struct {
		name, file, uplinks string
		own                 string
		want                []string
		error               string
	}{
		{"two", "search a.example\nnameserver 10.0.0.2\nnameserver fd00::2\noptions ndots:5\n", "", "", []string{"10.0.0.2", "fd00::2"}, ""},
		{"twice", "nameserver 10.0.0.2\nnameserver 10.0.0.2\n", "", "", []string{"10.0.0.2"}, ""},
		{"zone", "nameserver fe80::1%eth0\n", "", "", []string{"fe80::1%eth0"}, ""},
		{"own address", "nameserver 169.254.20.10\nnameserver 10.0.0.2\n", "", "169.254.20.10", []string{"10.0.0.2"}, ""},
		{"loopback", "nameserver 127.0.0.1\nnameserver ::1\nnameserver 0.0.0.0\nnameserver 10.0.0.2\n", "", "", []string{"10.0.0.2"}, ""},
		{"systemd-resolved", "nameserver 127.0.0.53\n", "nameserver 10.0.0.3\n", "", []string{"10.0.0.3"}, ""},
		{"systemd-resolved that names itself", "nameserver 127.0.0.53\n", "nameserver 127.0.0.53\n", "", nil, "names only 127.0.0.53, which would loop back"},
		{"loopback only", "nameserver 127.0.0.1\nnameserver ::1\n", "", "", nil, "names only 127.0.0.1 and ::1, which would loop back to this node"},
		{"own address only", "nameserver 169.254.20.10\n", "nameserver 10.0.0.3\n", "169.254.20.10", nil, "names only 169.254.20.10"},
		{"none", "search a.example\n", "nameserver 10.0.0.3\n", "", nil, "names no nameserver"},
		{"name only", "nameserver dns.example\n", "", "", nil, "names no nameserver"},
		{"name and address", "nameserver dns.example\nnameserver 10.0.0.2\n", "", "", []string{"10.0.0.2"}, ""},
		{"byte order mark", "\ufeffnameserver 10.0.0.2\n", "", "", []string{"10.0.0.2"}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			directory := t.TempDir()
			file, uplinks := filepath.Join(directory, "resolv.conf"), filepath.Join(directory, "uplinks")
			kit.Write(t, file, tc.file)
			if tc.uplinks != "" {
				kit.Write(t, uplinks, tc.uplinks)
			}
			r := Reader{Uplinks: uplinks}
			if tc.own != "" {
				r.Own = append(r.Own, netip.MustParseAddr(tc.own))
			}
			got, err := r.Nameservers(file)
			if tc.error == "" && err != nil || tc.error != "" && (err == nil || !strings.Contains(err.Error(), tc.error)) {
				t.Fatalf("error %v, want %q", err, tc.error)
			}
			if !slices.Equal(got.Servers, tc.want) {
				t.Errorf("%q, want %q", got.Servers, tc.want)
			}
			if !slices.Contains(got.Files, file) {
				t.Errorf("read %q", got.Files)
			}
			if warned := len(got.Warnings) == 1 && strings.Contains(got.Warnings[0], `nameserver "dns.example" is not an IP address`); warned != strings.Contains(tc.file, "dns.example") {
				t.Errorf("warnings %q", got.Warnings)
			}
		})
	}
	t.Run("missing", func(t *testing.T) {
		if _, err := (Reader{}).Nameservers("/none"); err == nil || !strings.Contains(err.Error(), "/none") {
			t.Errorf("error %v", err)
		}
	})
}
