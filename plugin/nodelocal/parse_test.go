package nodelocal

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
)

// controller returns one for a server block with the directive's text.
func controller(text string, keys ...string) *caddy.Controller {
	if len(keys) == 0 {
		keys = []string{"dns://.:53"}
	}
	c := caddy.NewTestController("dns", text)
	c.ServerBlockKeys = keys
	dnsserver.GetConfig(c).Port = "53"
	return c
}

func TestParse(t *testing.T) {
	want := func(change func(*config)) config {
		c := newConfig()
		var err error
		if c.Addresses, err = parseAddresses([]string{"169.254.20.10"}); err != nil {
			t.Fatal(err)
		}
		c.Port, c.zone = 53, "."
		change(&c)
		return c
	}
	for _, tc := range []struct {
		name, text string
		want       config
	}{
		{"defaults", `nodelocal 169.254.20.10`, want(func(*config) {})},
		{"all", `nodelocal 169.254.20.10 {
			interface dns0
			setup interface
			backend nftables
			interval 10s
			keep
			health 8080
			fallback 10.96.0.11 fd96::b except 169.254.20.10
		}`, want(func(c *config) {
			c.Interface, c.setupRules, c.backend, c.interval, c.keep, c.Health = "dns0", false, backendNFTables, 10*time.Second, true, 8080
			c.Fallback, _ = parseAddresses([]string{"10.96.0.11", "fd96::b"})
			c.Services = c.Addresses
		})},
		{"question over lo", "nodelocal 169.254.20.10 {\nquestion lo\n}", want(func(c *config) { c.questionFrom = nil })},
		{"question from another address", "nodelocal 169.254.20.10 {\nquestion from 10.1.0.1\n}", want(func(c *config) { c.questionFrom, _ = parseAddresses([]string{"10.1.0.1", "100:0:0:1::8"}) })},
		{"fallback in two lines", "nodelocal 169.254.20.10 {\nfallback 10.96.0.11\nfallback fd96::b\n}", want(func(c *config) { c.Fallback, _ = parseAddresses([]string{"10.96.0.11", "fd96::b"}) })},
		{"nothing to set up", "nodelocal 169.254.20.10 {\nsetup none\n}", want(func(c *config) { c.setupInterface, c.setupRules = false, false })},
		{"both to set up", "nodelocal 169.254.20.10 {\nsetup rules interface\n}", want(func(*config) {})},
		{"only rules", "nodelocal 169.254.20.10 {\nsetup rules\n}", want(func(c *config) { c.setupInterface = false })},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := parseConfig(controller(tc.text))
			kit.Must(t, err)
			if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", tc.want) {
				t.Errorf("got  %+v\nwant %+v", got, tc.want)
			}
		})
	}
}

func TestParseErrors(t *testing.T) {
	inBlock := func(line string) string { return "nodelocal 169.254.20.10 {\n" + line + "\n}" }
	for _, tc := range []struct{ name, text, want string }{
		{"no address", "nodelocal", ":1 - Error during parsing: missing address: want those that pods query, such as 169.254.20.10"},
		{"not an address", "nodelocal kube-dns", `invalid address "kube-dns": not an IP address`},
		{"prefix", "nodelocal 169.254.20.10/32", `invalid address "169.254.20.10/32": not an IP address`},
		{"twice", "nodelocal fd00::a 10.0.0.1 fd00:0::a", "duplicate address fd00::a"},
		{"loopback", "nodelocal 127.0.0.1", `invalid address "127.0.0.1": not an address that pods can query`},
		{"IPv6 loopback", "nodelocal ::1", `invalid address "::1": not an address that pods can query`},
		{"mapped", "nodelocal ::ffff:10.0.0.1", "not an address that pods can query"},
		{"multicast", "nodelocal 224.0.0.251", "not an address that pods can query"},
		{"broadcast", "nodelocal 255.255.255.255", "not an address that pods can query"},
		{"unspecified", "nodelocal 0.0.0.0", "not an address that pods can query"},
		{"zone", "nodelocal fe80::1%eth0", `invalid address "fe80::1%eth0": address with a zone`},
		{"too many", "nodelocal" + strings.Repeat(" 10.0.0.1", 17), "17 addresses: want 1-16"},
		{"directive twice", "nodelocal 10.0.0.1\nnodelocal 10.0.0.2", ":2 - Error during parsing: duplicate nodelocal: want one in a server block"},
		{"unknown option", inBlock("iface x"), `:2 - Error during parsing: unknown option "iface": want one of backend, fallback, health, interface, interval, keep, question, setup`},
		{"interface", inBlock("interface"), "invalid interface: want the name of the interface"},
		{"long interface", inBlock("interface nodelocaldns-long"), `invalid interface "nodelocaldns-long": want the name of the interface, at most 15 bytes`},
		{"lo", inBlock("interface lo"), `invalid interface "lo": want the name`},
		{"path", inBlock("interface a/b"), `invalid interface "a/b": want the name`},
		{"setup", inBlock("setup everything"), `invalid setup "everything": want interface and rules, one of them, or none`},
		{"setup twice", inBlock("setup rules rules"), `invalid setup "rules": duplicate`},
		{"setup none and more", inBlock("setup none rules"), `invalid setup "none"`},
		{"backend", inBlock("backend ipvs"), `invalid backend "ipvs": want nftables, iptables, none or auto`},
		{"interval", inBlock("interval often"), `invalid interval "often": want a duration of at least 1s`},
		{"short interval", inBlock("interval 10ms"), `invalid interval "10ms": want`},
		{"keep", inBlock("keep it"), `invalid keep "it": want nothing`},
		{"health", inBlock("health 0"), `invalid health "0": want a port, 1-65535`},
		{"health too large", inBlock("health 65536"), `invalid health "65536": want a port`},
		{"question", inBlock("question 10.1.0.1"), `invalid question "10.1.0.1": want lo, or from and addresses, at most one per family`},
		{"question from nowhere", inBlock("question from"), `invalid question "from": want`},
		{"question from two", inBlock("question from 10.1.0.1 10.1.0.2"), `invalid question "10.1.0.2": second address of its family`},
		{"question from a link", inBlock("question from fe80::1"), `invalid question "fe80::1": link-local`},
		{"question from itself", inBlock("question from 169.254.20.10"), "invalid address 169.254.20.10: the server's queries to itself use it; see the option question"},
		{"address of the question", "nodelocal 192.0.0.8", "invalid address 192.0.0.8"},
		{"fallback", inBlock("fallback"), "invalid fallback: want addresses"},
		{"fallback name", inBlock("fallback kube-dns"), `invalid fallback "kube-dns": not an IP address`},
		{"fallback family", inBlock("fallback 10.0.0.1 10.0.0.2"), `invalid fallback "10.0.0.2": second address of its family`},
		{"fallback except nothing", inBlock("fallback 10.0.0.1 except"), `invalid fallback "except": not between addresses`},
		{"fallback except first", inBlock("fallback except 10.0.0.1"), `invalid fallback "except": not between addresses`},
		{"fallback except another", inBlock("fallback 10.0.0.1 except 10.0.0.2"), `invalid fallback "10.0.0.2": not one of the node-local addresses`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := parseConfig(controller(tc.text))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %s", err, tc.want)
			}
		})
	}
	t.Run("not plain DNS", func(t *testing.T) {
		_, err := parseConfig(controller("nodelocal 10.0.0.1", "tls://.:853"))
		if err == nil || !strings.Contains(err.Error(), ": want plain DNS, which pods query") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("no port", func(t *testing.T) {
		c := controller("nodelocal 10.0.0.1")
		dnsserver.GetConfig(c).Port = "0"
		_, err := parseConfig(c)
		if err == nil || !strings.Contains(err.Error(), `invalid port "0" of the server block ".:53": want 1-65535`) {
			t.Errorf("error %v", err)
		}
	})
}
