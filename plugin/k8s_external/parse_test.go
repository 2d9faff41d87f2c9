package external

import (
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/coredns/caddy"
)

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       External // apart from fallthrough
		falls      []string // names that are passed to the next plugin
		err        string   // a part of the error
	}{
		{name: "zones of the server block", text: "k8s_external", want: External{Zones: []string{"example.com."}, apex: "dns", ttl: 5}},
		{name: "zones", text: "k8s_external Example.ORG 192.0.2.0/24", want: External{Zones: []string{"example.org.", "2.0.192.in-addr.arpa."}, apex: "dns", ttl: 5}},
		{name: "all options", text: "k8s_external example.org {\napex Edge\nttl 3600\nheadless\nfallthrough\n}",
			want: External{Zones: []string{"example.org."}, apex: "edge", ttl: 3600, headless: true}, falls: []string{"www.example.org.", "www.example.net."}},
		{name: "fallthrough of a zone", text: "k8s_external example.org example.net {\nfallthrough example.net\n}",
			want: External{Zones: []string{"example.org.", "example.net."}, apex: "dns", ttl: 5}, falls: []string{"www.example.net."}},
		{name: "ttl 0", text: "k8s_external example.org {\nttl 0\n}", want: External{Zones: []string{"example.org."}, apex: "dns"}},
		{name: "apex of two labels", text: "k8s_external example.org {\napex a.b.\n}", want: External{Zones: []string{"example.org."}, apex: "a.b", ttl: 5}},
		{name: "ttl too long", text: "k8s_external example.org {\nttl 3601\n}", err: `invalid ttl "3601": want seconds, 0 to 3600`},
		{name: "negative ttl", text: "k8s_external example.org {\nttl -1\n}", err: `invalid ttl "-1"`},
		{name: "ttl that is no number", text: "k8s_external example.org {\nttl 5s\n}", err: `invalid ttl "5s"`},
		{name: "ttl without a number", text: "k8s_external example.org {\nttl\n}", err: "invalid ttl: want seconds, 0 to 3600"},
		{name: "no apex", text: "k8s_external example.org {\napex\n}", err: "invalid apex: want a name below the zone such as dns"},
		{name: "the root as apex", text: "k8s_external example.org {\napex .\n}", err: `invalid apex "."`},
		{name: "apex that is no name", text: "k8s_external example.org {\napex a..b\n}", err: `invalid apex "a..b"`},
		{name: "headless with an argument", text: "k8s_external example.org {\nheadless yes\n}", err: `invalid headless "yes": want no argument`},
		{name: "unknown option", text: "k8s_external example.org {\nupstream\n}", err: `unknown option "upstream": want one of apex, fallthrough, headless, ttl`},
		{name: "twice", text: "k8s_external example.org\nk8s_external example.net", err: "duplicate k8s_external: want one in a server block"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := caddy.NewTestController("dns", tc.text)
			c.ServerBlockKeys = []string{"example.com"}
			e, err := parse(c)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("error %v, want one with %q", err, tc.err)
				}
				return
			}
			kit.Must(t, err)
			if !slices.Equal(e.Zones, tc.want.Zones) || e.apex != tc.want.apex || e.ttl != tc.want.ttl || e.headless != tc.want.headless {
				t.Errorf("%+v, want %+v", e, tc.want)
			}
			for _, name := range []string{"www.example.org.", "www.example.net."} {
				if got := e.Fall.Through(name); got != slices.Contains(tc.falls, name) {
					t.Errorf("fallthrough of %s is %t", name, got)
				}
			}
		})
	}
}
