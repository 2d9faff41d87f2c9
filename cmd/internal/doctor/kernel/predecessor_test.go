//go:build linux

package kernel

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
			if got := splitWords(line); !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

func TestLegacyRead(t *testing.T) {
	const filter = `-P INPUT DROP
-P FORWARD ACCEPT
-P OUTPUT ACCEPT
-N KUBE-FIREWALL
-A INPUT -j KUBE-FIREWALL
-A INPUT -d 169.254.20.10/32 -p udp -m udp --dport 53 -m comment --comment "NodeLocal DNS Cache: allow DNS traffic" -j ACCEPT
-A INPUT -m comment --comment "something else: NodeLocal DNS Cache:" -j ACCEPT
-A INPUT -s 10.0.0.0/8 -m comment --comment
`
	var l Legacy
	l.read(Table{"ip", "filter"}, "iptables-legacy", filter)
	l.read(Table{"ip", "nat"}, "iptables-legacy", "-P OUTPUT DROP\n-N KUBE-SERVICES\n")
	if !slices.Equal(l.Drops, []string{"ip filter INPUT"}) || !l.Services {
		t.Errorf("got drops %q, services %t", l.Drops, l.Services)
	}
	if len(l.Rules) != 1 {
		t.Fatalf("got %v, want one rule", l.Rules)
	}
	r := l.Rules[0]
	const want = `iptables-legacy -t filter INPUT "NodeLocal DNS Cache: allow DNS traffic" 169.254.20.10`
	if r.String() != want || !r.Legacy() {
		t.Errorf("got %s, want %s", r, want)
	}
	spec := []string{"-d", "169.254.20.10/32", "-p", "udp", "-m", "udp", "--dport", "53", "-m", "comment", "--comment", "NodeLocal DNS Cache: allow DNS traffic", "-j", "ACCEPT"}
	if !slices.Equal(r.spec, spec) {
		t.Errorf("got %q, want %q", r.spec, spec)
	}
}

// Programs of the test's own stand in for iptables: what is installed on this machine does not matter.
func TestLegacyPrograms(t *testing.T) {
	const old = `#!/bin/sh
[ "$1" = -V ] && { echo "iptables v1.6.0"; exit; }
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
		{"program of nftables", "#!/bin/sh\necho 'iptables v1.8.9 (nf_tables)'\n", "raw\n", 0, exec.ErrNotFound},
		{"old program", old, "raw\n", 1, nil},
		{"old program, two tables", old, "raw\nfilter\n", 2, nil},
		{"program fails", "#!/bin/sh\n[ \"$1\" = -V ] && exit\necho no >&2; exit 3\n", "raw\n", 0, errAny},
		{"program hangs", "#!/bin/sh\n[ \"$1\" = -V ] && exit\nexec sleep 60\n", "raw\n", 0, errAny},
	} {
		t.Run(c.name, func(t *testing.T) {
			net, bin := t.TempDir(), t.TempDir()
			if err := os.WriteFile(filepath.Join(net, "ip_tables_names"), []byte(c.tables), 0o644); err != nil {
				t.Fatal(err)
			}
			if c.program != "" {
				if err := os.WriteFile(filepath.Join(bin, "iptables"), []byte(c.program), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			t.Setenv("PATH", bin+":/bin:/usr/bin")
			if _, err := exec.LookPath("iptables-legacy"); err == nil {
				t.Setenv("PATH", bin)
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			l, err := LegacyRules(ctx, net)
			if len(l.Rules) != c.rules || (err != nil) != (c.err != nil) {
				t.Errorf("got %v, %v; want %d rules, error %v", l.Rules, err, c.rules, c.err)
			}
			if c.err != nil && c.err != errAny && !errors.Is(err, c.err) {
				t.Errorf("got error %v, want %v", err, c.err)
			}
		})
	}
}

// errAny stands for any error.
var errAny = errors.New("any")

func TestWithin(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	never := make(chan struct{})
	defer close(never)
	_, err := within(ctx, "wait", func() (int, error) { <-never; return 1, nil })
	if !errors.Is(err, context.DeadlineExceeded) || !strings.HasPrefix(err.Error(), "wait: ") {
		t.Errorf("got %v", err)
	}
	got, err := within(context.Background(), "count", func() (int, error) { return 7, nil })
	if got != 7 || err != nil {
		t.Errorf("got %d, %v", got, err)
	}
}

func TestSteady(t *testing.T) {
	unknown := errors.New("not known")
	for _, c := range []struct {
		name        string
		generations []uint32
		err         error
		lists       int
	}{
		{"nothing changes", []uint32{7, 7}, nil, 1},
		{"one change", []uint32{7, 8, 8, 8}, nil, 2},
		{"always changing", []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, nil, attempts},
		{"not known", nil, unknown, 1},
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

func TestOwn(t *testing.T) {
	for _, c := range []struct {
		table Table
		iface string
		ok    bool
	}{
		{Table{"inet", "nearside-nodelocaldns"}, "nodelocaldns", true},
		{Table{"ip", "nearside-nodelocaldns"}, "nodelocaldns", false},
		{Table{"inet", "filter"}, "filter", false},
	} {
		t.Run(c.table.String(), func(t *testing.T) {
			if iface, ok := c.table.Own(); iface != c.iface || ok != c.ok {
				t.Errorf("got %q, %t; want %q, %t", iface, ok, c.iface, c.ok)
			}
		})
	}
	if got := OwnTable("nodelocaldns"); got != (Table{"inet", "nearside-nodelocaldns"}) {
		t.Errorf("got %v", got)
	}
}

func TestHolds(t *testing.T) {
	l := Link{Name: "lo", Addresses: []Address{{Prefix: netip.MustParsePrefix("169.254.20.10/32")}}}
	if _, ok := l.Holds(netip.MustParseAddr("169.254.20.10")); !ok || !l.Loopback() {
		t.Error("lo does not hold its address")
	}
	if _, ok := l.Holds(netip.MustParseAddr("169.254.20.11")); ok {
		t.Error("lo holds an address that it has not")
	}
}
