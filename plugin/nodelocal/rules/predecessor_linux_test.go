package rules

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables/expr"

	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

func TestSplitWords(t *testing.T) {
	for line, want := range map[string][]string{
		"":                                     nil,
		"-P INPUT DROP":                        {"-P", "INPUT", "DROP"},
		`-A X -m comment --comment "a b" -j Y`: {"-A", "X", "-m", "comment", "--comment", "a b", "-j", "Y"},
		`--comment "a \"b\" c"`:                {"--comment", `a "b" c`},
		`--comment ""  -j X`:                   {"--comment", "", "-j", "X"},
		`"open`:                                {"open"},
	} {
		t.Run(line, func(t *testing.T) {
			if got := SplitWords(line); !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

// TestLegacyPrograms uses scripts as iptables, instead of the programs on this machine.
func TestLegacyPrograms(t *testing.T) {
	const old = `#!/bin/sh
[ "$1" = -V ] && { echo "iptables v1.6.0"; exit; }
[ "$*" = "-w 5 -t raw -S PREROUTING" ] || [ "$*" = "-w 5 -t filter -S INPUT" ] || exit 0
echo '-A PREROUTING -d 169.254.20.10/32 -m comment --comment "NodeLocal DNS Cache: skip conntrack" -j NOTRACK'
`
	for _, c := range []struct {
		name    string
		program string // of the name iptables
		tables  string
		rules   int
		err     error
	}{
		{"no tables", "", "", 0, nil},
		{"no program", "", "raw\n", 0, exec.ErrNotFound},
		{"program for nftables", "#!/bin/sh\necho 'iptables v1.8.9 (nf_tables)'\n", "raw\n", 0, exec.ErrNotFound},
		{"old program", old, "raw\n", 1, nil},
		{"old program, two tables", old, "raw\nfilter\n", 2, nil},
		{"program fails", "#!/bin/sh\n[ \"$1\" = -V ] && exit\necho no >&2; exit 3\n", "raw\n", 0, errAny},
		{"the lock is held", "#!/bin/sh\n[ \"$1\" = -V ] && exit\nexit 4\n", "raw\n", 0, ErrLocked},
		{"program hangs", "#!/bin/sh\n[ \"$1\" = -V ] && exit\nexec sleep 60\n", "raw\n", 0, errAny},
	} {
		t.Run(c.name, func(t *testing.T) {
			net, bin := t.TempDir(), t.TempDir()
			kit.Write(t, filepath.Join(net, "ip_tables_names"), c.tables)
			if c.program != "" {
				kit.Must(t, os.WriteFile(filepath.Join(bin, "iptables"), []byte(c.program), 0o755))
			}
			t.Setenv("PATH", bin+":/bin:/usr/bin")
			if _, err := exec.LookPath("iptables-legacy"); err == nil {
				t.Setenv("PATH", bin)
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			found, err := legacyPredecessors(ctx, net)
			if len(found) != c.rules || (err != nil) != (c.err != nil) {
				t.Errorf("got %v, %v; want %d rules, error %v", found, err, c.rules, c.err)
			}
			if c.err != nil && c.err != errAny && !errors.Is(err, c.err) {
				t.Errorf("got error %v, want %v", err, c.err)
			}
		})
	}
}

// errAny stands for any error.
var errAny = errors.New("any")

func TestSteady(t *testing.T) {
	unknown := errors.New("unknown")
	for _, c := range []struct {
		name        string
		generations []uint32
		err         error
		lists       int
	}{
		{"nothing changes", []uint32{7, 7}, nil, 1},
		{"one change", []uint32{7, 8, 8, 8}, nil, 2},
		{"always changing", []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, nil, maxListings},
		{"unknown generation", nil, unknown, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			lists, left := 0, c.generations
			got, err := steady(func() (uint32, error) {
				if len(left) == 0 {
					return 0, c.err
				}
				next := left[0]
				left = left[1:]
				return next, nil
			}, func() (int, error) { lists++; return lists, nil })
			if got != c.lists || lists != c.lists || err != nil || len(left) > 0 {
				t.Errorf("got list %d of %d, %v, %d generations left; want list %d", got, lists, err, len(left), c.lists)
			}
		})
	}
}

func TestLegacyRules(t *testing.T) {
	const raw = `-P PREROUTING ACCEPT
-A PREROUTING -j KUBE-ROUTER
-A PREROUTING -d 169.254.20.10/32 -p udp -m udp --dport 53 -m comment --comment "NodeLocal DNS Cache: skip conntrack" -j NOTRACK
-A PREROUTING ! -d 169.254.20.10/32 -s 169.254.20.0/24 -m comment --comment "NodeLocal DNS Cache: skip conntrack" -j NOTRACK
-A PREROUTING -m comment --comment "something else: NodeLocal DNS Cache:" -j NOTRACK
-A PREROUTING -s 10.0.0.0/8 -m comment --comment
`
	found := Legacy{Family: "ip", program: "iptables-legacy"}.predecessors("raw", raw)
	if len(found) != 2 {
		t.Fatalf("got %v, want two rules", found)
	}
	r := found[0]
	const want = `iptables-legacy -t raw PREROUTING "NodeLocal DNS Cache: skip conntrack" 169.254.20.10`
	if r.String() != want || !r.Legacy() || !r.Untracks() {
		t.Errorf("got %s, want %s", r, want)
	}
	spec := []string{"-d", "169.254.20.10/32", "-p", "udp", "-m", "udp", "--dport", "53", "-m", "comment", "--comment", "NodeLocal DNS Cache: skip conntrack", "-j", "NOTRACK"}
	if !slices.Equal(r.spec, spec) {
		t.Errorf("got %q, want %q", r.spec, spec)
	}
	if a := found[1].Addresses; len(a) > 0 {
		t.Errorf("%s: matches no single address", found[1])
	}
}

func TestCommentIn(t *testing.T) {
	for _, c := range []struct{ name, data, want string }{
		{"nothing", "", ""},
		{"a comment", "\x00\x03ab\x00", "ab"},
		{"a comment after other data", "\x01\x02xx\x00\x01a", "a"},
		{"other data with the same bytes", "\x01\x02a\x00", ""},
		{"longer than the data", "\x00\x09ab", ""},
		{"one byte", "\x00", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := commentIn([]byte(c.data)); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestMatchedAddresses(t *testing.T) {
	four := netip.MustParseAddr("169.254.20.10")
	address := &expr.Payload{Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4, DestRegister: 1}
	equal := func(op expr.CmpOp) expr.Any { return &expr.Cmp{Op: op, Data: four.AsSlice()} }
	for _, c := range []struct {
		name        string
		expressions []expr.Any
		want        int
	}{
		{"an address", []expr.Any{address, equal(expr.CmpOpEq)}, 1},
		{"any other address", []expr.Any{address, equal(expr.CmpOpNeq)}, 0},
		{"a network", []expr.Any{address, &expr.Bitwise{}, equal(expr.CmpOpEq)}, 0},
		{"a hash of it", []expr.Any{address, nil, equal(expr.CmpOpEq)}, 0},
		{"four bytes of another header", []expr.Any{&expr.Payload{Base: expr.PayloadBaseTransportHeader, Len: 4, DestRegister: 1}, equal(expr.CmpOpEq)}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := matchedAddresses(c.expressions); len(got) != c.want || c.want > 0 && got[0] != four {
				t.Errorf("got %v, want %d", got, c.want)
			}
		})
	}
}

// predecessors returns the predecessors' rules for addresses.
func predecessors(t *testing.T, addrs ...netip.Addr) []PredecessorRule {
	t.Helper()
	found, err := Predecessors(context.Background(), addrs)
	kit.Must(t, err)
	return found
}

// removePredecessors removes rules twice: the second time they are missing.
func removePredecessors(t *testing.T, all []PredecessorRule) {
	t.Helper()
	for _, want := range []int{len(all), 0} {
		if n, err := RemovePredecessors(context.Background(), all); n != want || err != nil {
			t.Errorf("removed %d, %v; want %d", n, err, want)
		}
	}
}

// TestKernelPredecessors needs no iptables: the rules of iptables-nft are those of nft.
func TestKernelPredecessors(t *testing.T) {
	netns.Enter(t)
	if found := predecessors(t); len(found) > 0 {
		t.Errorf("in an empty namespace: got %v", found)
	}
	four, six := netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("fd00::a")
	const comment = ` comment "NodeLocal DNS Cache: skip conntrack"`
	add := func(family, chain, rule string) {
		netns.Run(t, "nft", "add table "+family+" raw; add chain "+family+" raw "+chain+"; add rule "+family+" raw "+chain+" "+rule)
	}
	for _, rule := range []string{
		"ip daddr 169.254.20.10 udp dport 53 notrack", // no comment
		`ip daddr 169.254.20.10 notrack comment "not NodeLocal DNS Cache: mine"`,
		"ct original ip daddr 169.254.20.10 accept", // which google/nftables can't read
		"ip daddr 192.0.2.53 notrack" + comment,     // another address
		"ip daddr != 169.254.20.10 notrack" + comment,
		"ip daddr 169.254.0.0/16 notrack" + comment,
	} {
		add("ip", "PREROUTING", rule)
	}
	add("ip", "other", "ip daddr 169.254.20.10 notrack"+comment)
	before := netns.Run(t, "nft", "list", "table", "ip", "raw")
	for range 2 { // duplicates
		add("ip", "PREROUTING", "ip daddr 169.254.20.10 udp dport 53 notrack"+comment)
		add("ip6", "OUTPUT", "ip6 saddr fd00::a udp sport 53 notrack"+comment)
	}
	add("ip", "OUTPUT", "ip saddr 169.254.20.10 udp sport 53 notrack"+comment)

	found := predecessors(t, four, six)
	if len(found) != 5 {
		t.Fatalf("got %v, want 5 rules", found)
	}
	if only := predecessors(t, six); len(only) != 2 || only[0].Family != "ip6" || !slices.Equal(only[0].Addresses, []netip.Addr{six}) {
		t.Errorf("of one address: got %v", only)
	}
	if all := predecessors(t); len(all) != 8 {
		t.Errorf("of all addresses: got %v, want 8 rules", all)
	}
	for _, r := range found {
		if r.Legacy() || !r.Untracks() {
			t.Errorf("%s: legacy %t, untracks %t", r, r.Legacy(), r.Untracks())
		}
	}
	removePredecessors(t, found)
	netns.Run(t, "nft", "delete chain ip raw OUTPUT; delete chain ip6 raw OUTPUT") // both empty
	if after := netns.Run(t, "nft", "list", "table", "ip", "raw"); after != before {
		t.Errorf("after\n%s\nwant\n%s", after, before)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Predecessors(ended, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of the context: got %v", err)
	}
}

// foreign returns rules of other programs, as arguments of iptables. Some are similar to those of predecessors.
func foreign(address, network, other string) [][]string {
	comment := []string{"-j", "NOTRACK", "-m", "comment", "--comment", "NodeLocal DNS Cache: skip conntrack"}
	raw := func(spec ...string) []string { return append([]string{"-t", "raw", "-A", "PREROUTING"}, spec...) }
	filter := func(spec ...string) []string { return append([]string{"-t", "filter", "-A", "INPUT"}, spec...) }
	return [][]string{
		raw("-d", address, "-p", "udp", "--dport", "53", "-j", "NOTRACK"),
		raw("-d", address, "-j", "NOTRACK", "-m", "comment", "--comment", "not NodeLocal DNS Cache: mine"),
		raw(append([]string{"-d", other}, comment...)...),
		raw(append([]string{"!", "-d", address}, comment...)...),
		raw(append([]string{"-d", network}, comment...)...),
		filter("-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", "-j", "ACCEPT"),
		filter("-m", "addrtype", "--dst-type", "LOCAL", "-p", "tcp", "-m", "multiport", "--dports", "22,80", "-j", "ACCEPT"),
		filter("-m", "limit", "--limit", "1/s", "-m", "comment", "--comment", "a \"quoted\" one", "-j", "DROP"),
	}
}

func TestKernelIPTablesPredecessors(t *testing.T) {
	for _, c := range []struct{ program, address, network, other string }{
		{"iptables-nft", "169.254.20.10", "169.254.16.0/21", "192.0.2.53"},
		{"iptables-legacy", "169.254.20.10", "169.254.16.0/21", "192.0.2.53"},
		{"ip6tables-nft", "fd00::a", "fd00::/9", "2001:db8::53"},
		{"ip6tables-legacy", "fd00::a", "fd00::/9", "2001:db8::53"},
	} {
		t.Run(c.program, func(t *testing.T) {
			netns.Enter(t)
			legacy := strings.HasSuffix(c.program, "legacy")
			if found := predecessors(t); len(found) > 0 {
				t.Errorf("in an empty namespace: got %v", found)
			}
			for _, name := range []string{"ip_tables_names", "ip6_tables_names"} {
				if names, err := os.ReadFile(filepath.Join(procNet, name)); err == nil && len(names) > 0 {
					t.Errorf("%s: reading has created %s", name, names)
				}
			}
			for _, rule := range foreign(c.address, c.network, c.other) {
				netns.Run(t, c.program, rule...)
			}
			before := netns.Run(t, c.program, "-t", "raw", "-S") + netns.Run(t, c.program, "-t", "filter", "-S")
			address := netip.MustParseAddr(c.address)
			left := Config{Addresses: []netip.Addr{address}, Port: 53, Health: 8080}.ipRules()
			left = append(left, left[0], left[1], left[1]) // duplicates
			for _, r := range left {
				netns.Run(t, c.program, append([]string{"-t", r.table, "-I", r.chain}, r.spec...)...)
			}
			if found := predecessors(t, netip.MustParseAddr("192.0.2.1")); len(found) > 0 {
				t.Errorf("of another address: got %v", found)
			}
			found := predecessors(t, address)
			if len(found) != len(left) {
				t.Fatalf("%d rules, want %d:\n%v", len(found), len(left), found)
			}
			for _, r := range found {
				if r.Legacy() != legacy || r.Untracks() != (r.Comment == commentSkip) || !slices.Equal(r.Addresses, []netip.Addr{address}) {
					t.Errorf("got %s", r)
				}
			}
			removePredecessors(t, found)
			after := netns.Run(t, c.program, "-t", "raw", "-S") + netns.Run(t, c.program, "-t", "filter", "-S")
			if after != before {
				t.Errorf("after\n%s\nwant\n%s", after, before)
			}
		})
	}
}
