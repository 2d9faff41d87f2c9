package searchpath

import (
	"slices"
	"strings"
	"testing"

	"github.com/coredns/caddy"

	"github.com/nearside-dns/nearside/test/kit"
)

// hostConf is the resolv.conf of a host.
const hostConf = "nameserver 192.0.2.53\nsearch eu.Example.com example.com. . shop.svc.cluster.local local a.ap.k8s.io cluster.local\n"

// controller returns a controller that reads a directive of a server block with keys, by default for all names.
func controller(corefile string, keys ...string) *caddy.Controller {
	c := caddy.NewTestController("dns", corefile)
	if c.ServerBlockKeys = keys; len(keys) == 0 {
		c.ServerBlockKeys = []string{"dns://.:53"}
	}
	return c
}

func TestParse(t *testing.T) {
	file := kit.File(t, "resolv.conf", hostConf)
	for _, c := range []struct {
		corefile string
		keys     []string
		suffix   string
		zones    []string
		host     []string
	}{
		{"searchpath {\nzone cluster.local\nhost-searches off\n}", nil, "ap.k8s.io.", []string{"cluster.local."}, nil},
		{"searchpath {\nzone cluster.local\nhost-searches off\n}", []string{"dns://ap.k8s.io:53"}, "ap.k8s.io.", []string{"cluster.local."}, nil},
		{"searchpath {\nzone cluster.local\nhost-searches off\n}", []string{"cluster.local:53", "K8S.io:53"}, "ap.k8s.io.", []string{"cluster.local."}, nil},
		{"searchpath Search.Internal. {\nhost-searches off\nzone Cluster.LOCAL. k8s.example.com\n}", nil, "search.internal.", []string{"cluster.local.", "k8s.example.com."}, nil},
		{"searchpath ap.cluster.local {\nzone cluster.local local\nhost-searches off\nschema v1\n}", nil, "ap.cluster.local.", []string{"cluster.local.", "local."}, nil},
		{"searchpath {\nzone cluster.local\nresolv_conf " + file + "\n}", nil, "ap.k8s.io.", []string{"cluster.local."}, []string{"eu.example.com.", "example.com.", "local."}},
		{"searchpath {\nresolv_conf " + file + "\nzone local\nhost-searches on\n}", nil, "ap.k8s.io.", []string{"local."}, []string{"eu.example.com.", "example.com."}},
		{"searchpath internal {\nresolv_conf " + kit.File(t, "resolv.conf", "search a b c\nsearch x.org internal\n") + "\nzone local\n}", nil, "internal.", []string{"local."}, []string{"x.org."}},
		{"searchpath {\nresolv_conf " + kit.File(t, "resolv.conf", "") + "\nzone local\n}", nil, "ap.k8s.io.", []string{"local."}, nil},
	} {
		t.Run(c.corefile, func(t *testing.T) {
			s, err := parse(controller(c.corefile, c.keys...))
			kit.Must(t, err)
			if s.grammar.suffix != c.suffix || !slices.Equal(s.grammar.zones, c.zones) || !slices.Equal(s.host, c.host) {
				t.Errorf("suffix %s, zones %q, host %q; want %s, %q, %q", s.grammar.suffix, s.grammar.zones, s.host, c.suffix, c.zones, c.host)
			}
			if len(s.grammar.schemas) != len(schemas) {
				t.Errorf("schemas %s", versions(s.grammar.schemas))
			}
		})
	}
}

func TestParseErrors(t *testing.T) {
	file := kit.File(t, "resolv.conf", hostConf)
	const options = "want one of host-searches, resolv_conf, schema, zone"
	for _, c := range []struct{ corefile, want string }{
		{"searchpath", "1 - Error during parsing: missing zone of a cluster: want an option such as zone cluster.local"},
		{"searchpath {\nhost-searches off\n}", "1 - Error during parsing: missing zone of a cluster"},
		{"searchpath a.org b.org", `1 - Error during parsing: invalid searchpath "a.org" "b.org": want one suffix or none`},
		{"searchpath .", `1 - Error during parsing: invalid searchpath ".": want a name of letters, digits and hyphens, such as ap.k8s.io`},
		{"searchpath a..b", `invalid searchpath "a..b.": want a name of letters, digits and hyphens, such as ap.k8s.io`},
		{"searchpath ap_k8s.io", `invalid searchpath "ap_k8s.io.": want a name`},
		{"searchpath *.k8s.io", `invalid searchpath "*.k8s.io.": want a name`},
		{"searchpath {\n\nzones cluster.local\n}", `3 - Error during parsing: unknown option "zones": ` + options},
		{"searchpath {\nzone\n}", "2 - Error during parsing: invalid zone: want zones of clusters, of letters, digits and hyphens, such as cluster.local"},
		{"searchpath {\nzone .\n}", `2 - Error during parsing: invalid zone ".": want zones of clusters, of letters`},
		{"searchpath {\nzone cluster.local cluster..local\n}", `invalid zone "cluster..local": want zones`},
		{"searchpath {\nzone cluster.local in-addr.arpa\n}", `invalid zone "in-addr.arpa": reverse zone: want zones`},
		{"searchpath {\nzone 10.in-addr.ARPA\n}", `invalid zone "10.in-addr.ARPA": reverse zone`},
		{"searchpath {\nzone cluster.local Cluster.local.\n}", `invalid zone "Cluster.local.": duplicate`},
		{"searchpath {\nzone cluster.local\nzone example.org\n}", "3 - Error during parsing: duplicate option zone"},
		{"searchpath local {\nhost-searches off\nzone example.org cluster.local\n}", `3 - Error during parsing: invalid zone "cluster.local.": want one that is not under the suffix "local."`},
		{"searchpath cluster.local {\nzone cluster.local\n}", `invalid zone "cluster.local.": want one that is not under the suffix "cluster.local."`},
		{"searchpath {\nzone cluster.local\nschema\n}", "3 - Error during parsing: invalid schema: want versions of the search path, of v1"},
		{"searchpath {\nzone cluster.local\nschema v1 v2\n}", `3 - Error during parsing: invalid schema "v2": want versions of the search path, of v1`},
		{"searchpath {\nzone cluster.local\nschema V1\n}", `invalid schema "V1"`},
		{"searchpath {\nzone cluster.local\nschema v1 v1\n}", `invalid schema "v1": duplicate`},
		{"searchpath {\nzone cluster.local\nhost-searches\n}", "3 - Error during parsing: invalid host-searches: want on or off"},
		{"searchpath {\nzone cluster.local\nhost-searches yes\n}", `3 - Error during parsing: invalid host-searches "yes": want on or off`},
		{"searchpath {\nzone cluster.local\nhost-searches on off\n}", `invalid host-searches "on" "off": want on or off`},
		{"searchpath {\nzone cluster.local\nhost-searches off\nhost-searches off\n}", "4 - Error during parsing: duplicate option host-searches"},
		{"searchpath {\nzone cluster.local\nresolv_conf\n}", "3 - Error during parsing: invalid resolv_conf: want a file in the form of resolv.conf(5)"},
		{"searchpath {\nzone cluster.local\nresolv_conf /nonexistent\n}", "3 - Error during parsing: search list of the host: open /nonexistent: no such file"},
		{"searchpath {\nzone cluster.local\nresolv_conf " + kit.File(t, "resolv.conf", "nameserver\n") + "\n}", "3 - Error during parsing: search list of the host: "},
		{"searchpath {\nresolv_conf " + file + "\nzone cluster.local\nhost-searches off\n}", "2 - Error during parsing: resolv_conf and host-searches off cannot both be set: the file is for the search list of the host"},
		{"searchpath {\nzone cluster.local\n}\nsearchpath {\nzone cluster.local\n}", "4 - Error during parsing: duplicate searchpath: want one in a server block"},
	} {
		t.Run(c.corefile, func(t *testing.T) {
			s, err := parse(controller(c.corefile))
			if err == nil || !strings.HasPrefix(err.Error(), "Testfile:") || !strings.Contains(err.Error(), c.want) || s != nil {
				t.Errorf("error\n got %v\nwant %s", err, c.want)
			}
		})
	}
}

func TestHostSearch(t *testing.T) {
	g := testGrammar()
	file := kit.File(t, "resolv.conf", hostConf)
	for _, c := range []struct {
		o        options
		required bool
		want     []string
		fails    bool
	}{
		{options{host: true, resolvConf: file}, true, []string{"eu.example.com.", "example.com."}, false},
		{options{host: true, resolvConf: file}, false, []string{"eu.example.com.", "example.com."}, false},
		{options{host: false, resolvConf: file}, false, nil, false},
		{options{host: true, resolvConf: "/nonexistent"}, false, nil, false},
		{options{host: true, resolvConf: "/nonexistent"}, true, nil, true},
		{options{host: true, resolvConf: kit.File(t, "resolv.conf", "nameserver\n")}, false, nil, true},
		{options{host: true, resolvConf: kit.File(t, "resolv.conf", "search . a..b "+strings.Repeat("x", 64)+" c.\n")}, false, []string{"c."}, false},
	} {
		got, err := c.o.hostSearch(g, c.required)
		if !slices.Equal(got, c.want) || (err != nil) != c.fails {
			t.Errorf("%+v, required %t: %q, %v; want %q", c.o, c.required, got, err, c.want)
		}
	}
}

// TestOtherBlock has the most likely mistake: the server block does not receive queries for the suffix.
func TestOtherBlock(t *testing.T) {
	const want = `Testfile:1 - Error during parsing: invalid searchpath "ap.k8s.io": the server block is for ["cluster.local." "10.in-addr.arpa."] and receives no query for names under it: add ap.k8s.io to its zones, or move the directive to a server block for ap.k8s.io:53`
	_, err := parse(controller("searchpath {\nzone cluster.local\n}", "dns://cluster.local:53", "dns://10.0.0.0/8:53"))
	if err == nil || err.Error() != want {
		t.Errorf("error\n got %v\nwant %s", err, want)
	}
}

func FuzzCorefile(f *testing.F) {
	for name := range parsers {
		for _, args := range []string{"", " a", " v1", " on", " a b c", " .", " {\n", ` ""`, " cluster.local", ` "\200"`} {
			f.Add("{\nzone x.org\n" + name + args + "\n}")
			f.Add("ap.example {\n" + name + args + "\n}")
		}
	}
	f.Add("{\nzone cluster.local local\nhost-searches off\n}\nsearchpath {\nzone c.local\n}")
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, "resolv_conf") && strings.Contains(text, "/") {
			t.Skip("a file outside of the test, which may block")
		}
		s, err := parse(controller("searchpath " + text))
		switch {
		case err != nil && s != nil:
			t.Errorf("error %v and a handler", err)
		case err != nil && !strings.HasPrefix(err.Error(), "Testfile:"):
			t.Errorf("the error names no file: %v", err)
		case err == nil && s == nil:
			t.Error("neither an error nor a handler")
		case err == nil:
			name := "web.v1.search.shop." + s.grammar.zones[0] + s.grammar.suffix
			if n, kind := s.grammar.parse(name); kind != search || n.base != "web." && n.zone == s.grammar.zones[0] {
				t.Errorf("accepted %+v, with which %s is %s", s.grammar, name, kinds[kind])
			}
		}
	})
}
