package inkernel

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/netns"
)

// lookups are questions of the clients.
var lookups = []struct {
	name, qtype string
	long        bool // the answer has more than 512 bytes
	huge        bool // the answer has more than 1,232 bytes
}{
	{name: "web.test", qtype: "A"}, {name: "web.test", qtype: "AAAA"}, {name: "WeB.TeSt", qtype: "A"},
	{name: "alias.test", qtype: "AAAA"}, {name: "text.test", qtype: "TXT"}, {name: "many.test", qtype: "A"},
	{name: "many.test", qtype: "AAAA", long: true},
	{name: "empty.test", qtype: "A"}, {name: "none.test", qtype: "A"}, {name: "long.test", qtype: "TXT", long: true},
	{name: "huge.test", qtype: "TXT", long: true, huge: true},
}

// command is a program that looks names up, and the number of its queries that the kernel is to answer.
type command struct {
	name  string
	args  []string
	want  int
	parse func(out string) string // returns what is to be equal without answers in the kernel
}

// digs returns commands of dig to a server.
func digs(server netip.Addr) (all []command) {
	for _, v := range []struct {
		options  string
		kernel   bool // the kernel answers queries of this form
		limit512 bool // only with answers of up to 512 bytes
	}{
		{options: ""}, // with a cookie
		{options: "+nocookie", kernel: true},
		{options: "+noedns", kernel: true, limit512: true},
		{options: "+noedns +noadflag +norecurse", kernel: true, limit512: true},
		{options: "+nocookie +dnssec", kernel: true},
		{options: "+nocookie +dnssec +cdflag", kernel: true},
		{options: "+nocookie +bufsize=4096", kernel: true},
		{options: "+nocookie +bufsize=512", kernel: true, limit512: true},
		{options: "+nocookie +nsid"},
		{options: "+nocookie +tcp"},
	} {
		c := command{name: "dig " + v.options, args: []string{"dig", "+tries=1", "+time=10", "@" + server.String()}, parse: parseDig}
		c.args = append(c.args, strings.Fields(v.options)...)
		for _, l := range lookups {
			c.args = append(c.args, l.name, l.qtype)
			if v.kernel && !l.huge && (!l.long || !v.limit512) {
				c.want++
			}
		}
		all = append(all, c)
	}
	return all
}

var (
	digVolatile = regexp.MustCompile(`(?m)^;; (Query time|WHEN).*\n|^; COOKIE.*\n|, id: \d+|[\t ]+`)
	digTTL      = regexp.MustCompile(`(?m)^([^;\s]\S*) (\d+) IN `)
)

// parseDig returns the output of dig without IDs, times and blanks, and with the TTLs that may have been decremented by a minute
// replaced.
func parseDig(out string) string {
	out = digVolatile.ReplaceAllStringFunc(out, func(s string) string {
		if strings.TrimSpace(s) == "" {
			return " "
		}
		return ""
	})
	return digTTL.ReplaceAllStringFunc(out, func(s string) string {
		parts := digTTL.FindStringSubmatch(s)
		var seconds int
		if _, err := fmt.Sscan(parts[2], &seconds); err != nil || seconds > ttl || seconds < ttl-300 {
			return s
		}
		return parts[1] + " TTL IN "
	})
}

// libraries are the programs that resolve names by a library, by the name of the library.
type libraries map[string]string

// buildLibraries builds the programs, until the end of the test.
func buildLibraries(t *testing.T) libraries {
	t.Helper()
	netns.Require(t, "gcc", "musl-gcc")
	all := libraries{}
	for name, args := range map[string][]string{
		"glibc": {"gcc", "-O1", "-o", "", "../search/testdata/lookup.c"},
		"musl":  {"musl-gcc", "-O1", "-static", "-o", "", "../search/testdata/lookup.c"},
		"go":    {"go", "build", "-o", "", "../search/golookup"},
	} {
		all[name] = filepath.Join(t.TempDir(), name)
		args[slices.Index(args, "")] = all[name]
		c := exec.Command(args[0], args[1:]...)
		c.Env = append(os.Environ(), "CGO_ENABLED=0")
		kit.Output(t, c)
	}
	return all
}

// commands returns the lookups of the libraries. With kernel, the kernel answers queries of the form of resolv.conf.
func (l libraries) commands(kernel bool) (all []command) {
	for library, path := range l {
		for _, l := range []struct {
			family, name string
			queries      int
		}{
			{"any", "web.test", 2}, {"4", "web.test", 1}, {"6", "WEB.test.", 1}, {"any", "alias.test", 2}, {"any", "four.test", 2},
			{"6", "empty.test.", 1}, {"any", "none.test.", 2},
		} {
			c := command{name: library + " " + l.family + " " + l.name, args: []string{path, l.family, l.name}, parse: strings.TrimSpace}
			if kernel {
				c.want = l.queries
			}
			all = append(all, c)
		}
	}
	return all
}

// outputs runs each command, and returns the outputs.
func outputs(t *testing.T, from *netns.Namespace, all []command) map[string]string {
	t.Helper()
	by := map[string]string{}
	for _, c := range all {
		by[c.name] = c.parse(from.Run(t, c.args[0], c.args[1:]...))
	}
	return by
}

// check runs each command until the kernel answers its queries, and once more. It compares the outputs with others.
func (i *instance) check(t *testing.T, from *netns.Namespace, all []command, want map[string]string) {
	t.Helper()
	for _, c := range all {
		var out string
		run := func() int {
			return settled(i.steady(t, func() { out = c.parse(from.Run(t, c.args[0], c.args[1:]...)) }))
		}
		i.eventually(t, "answers of the kernel to "+c.name, func() error {
			if n := run(); n < c.want {
				return fmt.Errorf("%d answers, want %d", n, c.want)
			}
			return nil
		})
		n := run()
		if out != want[c.name] {
			t.Errorf("%s in %s: with answers in the kernel\n%s\nwithout\n%s", c.name, from.Name, out, want[c.name])
		}
		if n != c.want {
			t.Errorf("%s in %s: the kernel has answered %d queries, want %d", c.name, from.Name, n, c.want)
		}
	}
}

// places returns the namespaces in which programs query: one pod of each shape, and the node itself, whose queries arrive on lo.
func (n *node) places(t *testing.T) []*netns.Namespace {
	t.Helper()
	all := []*netns.Namespace{n.Namespace}
	for _, s := range shapes {
		all = append(all, n.addPod(t, s).Namespace)
	}
	return all
}

// TestDig compares the output of dig in pods and on the node with that of a nodecache without answers in the kernel.
func TestDig(t *testing.T) {
	netns.Require(t, "dig")
	n := newNode(t)
	places := n.places(t)
	type at struct {
		place  *netns.Namespace
		server netip.Addr
	}
	want := map[at]map[string]string{}
	off := n.start(t, config{})
	for _, server := range locals {
		outputs(t, places[0], digs(server)) // store the answers
		for _, place := range places {
			want[at{place, server}] = outputs(t, place, digs(server))
		}
	}
	off.Stop(t)
	i := n.start(t, config{kernel: "on"})
	i.waitInterfaces(t, "attached", len(places))
	for _, place := range places {
		for _, server := range locals {
			i.check(t, place, digs(server), want[at{place, server}])
		}
	}
}

// TestLibraries compares the lookups by glibc, musl and Go in pods and on the node with those of a nodecache without answers in
// the kernel.
func TestLibraries(t *testing.T) {
	programs := buildLibraries(t)
	n := newNode(t)
	places := n.places(t)
	want := map[string]map[string]string{}
	off := n.start(t, config{})
	for _, place := range places {
		place.Etc(t, "nsswitch.conf", "hosts: dns\n")
		place.Etc(t, "resolv.conf", fmt.Sprintf("nameserver %v\n", local4))
		outputs(t, place, programs.commands(false)) // store the answers
		want[place.Name] = outputs(t, place, programs.commands(false))
	}
	off.Stop(t)
	i := n.start(t, config{kernel: "on"})
	i.waitInterfaces(t, "attached", len(places))
	for _, place := range places {
		for _, server := range locals {
			place.Etc(t, "resolv.conf", fmt.Sprintf("nameserver %v\n", server))
			i.check(t, place, programs.commands(true), want[place.Name])
		}
	}
	place := places[1]
	for _, tc := range []struct {
		options string
		kernel  bool
	}{{"edns0", true}, {"edns0 trust-ad", true}, {"use-vc", false}} {
		t.Run(tc.options, func(t *testing.T) {
			place.Etc(t, "resolv.conf", fmt.Sprintf("nameserver %v\noptions %s\n", local6, tc.options))
			glibc := libraries{"glibc": programs["glibc"]}
			i.check(t, place, glibc.commands(tc.kernel), want[place.Name])
		})
	}
}

// TestRandomOrder counts how often each address is at each place, with the plugin loadbalance.
func TestRandomOrder(t *testing.T) {
	n := newNode(t)
	p := n.addPod(t, routed)
	i := n.start(t, config{kernel: "on", plugins: []string{"loadbalance"}})
	i.waitInterfaces(t, "attached", 2)
	const each = 400 // queries with an address at a place
	const queries = each * manyAddresses
	const deviation = 7 * 20 // seven standard deviations
	for _, server := range locals {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
			message := query(t, "many.test.", qtype, func(m *dns.Msg) { m.SetEdns0(1232, false) })
			i.heat(t, p.Namespace, [][]byte{message}, server)
			c, places := dial(t, p.Namespace, server), map[string]*[manyAddresses]int{}
			since := i.steady(t, func() {
				clear(places)
				for range queries {
					reply, err := c.exchange(message)
					kit.Must(t, err)
					var m dns.Msg
					if err := m.Unpack(reply); err != nil || len(m.Answer) != manyAddresses {
						t.Fatalf("reply %v: %v", &m, err)
					}
					for i, rr := range m.Answer {
						_, address, _ := strings.Cut(rr.String(), "\tIN\t")
						if places[address] == nil {
							places[address] = new([manyAddresses]int)
						}
						places[address][i]++
					}
				}
			})
			if answered := since.Sum(answeredTotal); answered != queries {
				t.Errorf("the kernel has answered %v queries, want %d", answered, queries)
			}
			if len(places) != manyAddresses {
				t.Errorf("%d addresses, want %d", len(places), manyAddresses)
			}
			for address, numbers := range places {
				for i, number := range numbers {
					if number < each-deviation || number > each+deviation {
						t.Errorf("%s is at place %d %d times, want %d to %d", address, i, number, each-deviation, each+deviation)
					}
				}
			}
		}
	}
}
