package searchlist

import (
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

func TestBaseBelowSuffix(t *testing.T) {
	for _, c := range []struct{ name, suffix, want string }{
		{"web.ns.svc.cluster.local.", "ns.svc.cluster.local.", "web."},
		{"Web.Example.NS.svc.cluster.local.", "ns.svc.cluster.local.", "Web.Example."},
		{"_http._tcp.web.svc.", "svc.", "_http._tcp.web."},
		{"ns.svc.cluster.local.", "ns.svc.cluster.local.", ""},
		{".svc.", "svc.", ""},
		{"svc.", "ns.svc.", ""},
		{"other.example.", "svc.", ""},
		{"othersvc.", "svc.", ""},
		{`web\.svc.`, "svc.", ""},
		{`web\\.svc.`, "svc.", `web\\.`},
		{`web\\\.svc.`, "svc.", ""},
		{"web.", ".", ""},
		{".", ".", ""},
		{"", "svc.", ""},
	} {
		t.Run(c.name+" "+c.suffix, func(t *testing.T) {
			if got := Base(c.name, c.suffix); got != c.want {
				t.Errorf("base %q, want %q", got, c.want)
			}
		})
	}
}

func TestCandidates(t *testing.T) {
	label := strings.Repeat("a", 63)
	long := label + "." + label + "." + label + "." + strings.Repeat("b", 57) + "." // 250 bytes without the root label
	for _, c := range []struct {
		name, base string
		suffixes   []string
		want       []string
	}{
		{"none", "web.", nil, nil},
		{"in order", "Web.", []string{"ns.svc.", "svc.", "example."}, []string{"Web.ns.svc.", "Web.svc.", "Web.example."}},
		{"root", "web.", []string{"svc.", "."}, []string{"web.svc.", "web."}},
		{"equal suffixes", "web.", []string{"svc.", "svc."}, []string{"web.svc.", "web.svc."}},
		{"longest name", long, []string{"svc."}, []string{long + "svc."}},
		{"too long", long, []string{"svcs.", "svc."}, []string{"", long + "svc."}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Candidates(c.base, c.suffixes); !slices.Equal(got, c.want) {
				t.Errorf("candidates %q, want %q", got, c.want)
			}
		})
	}
}

func TestInZone(t *testing.T) {
	names := []string{".", "local.", "cluster.local.", "CLUSTER.local.", "acluster.local.", `a\.cluster.local.`, `a\\.cluster.local.`, `\.local.`, "www.cluster.local.", "w.x.cluster.local.", "org."}
	for _, zone := range names {
		for _, name := range names {
			if got, want := InZone(name, zone), dns.IsSubDomain(zone, name); got != want {
				t.Errorf("%s in %s: %t, want %t", name, zone, got, want)
			}
		}
	}
}
