//go:build linux

package cleanup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/cmd/internal/doctor/proc"
	"github.com/nearside-dns/nearside/cmd/internal/subcommand"
	"github.com/nearside-dns/nearside/plugin/nodelocal"
	"github.com/nearside-dns/nearside/plugin/nodelocal/link"
	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

var (
	four = netip.MustParseAddr("169.254.20.10")
	six  = netip.MustParseAddr("fd00::a")
)

func TestWrongFlags(t *testing.T) {
	for _, args := range [][]string{
		{"-nothing"}, {"argument"}, {"-only", "nftables"}, {"-localip", "x"}, {"-interfacename", "lo"}, {"-interfacename", ""}, {"-timeout", "0s"}, {"-dry-run", "now"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			var out, errs bytes.Buffer
			if code := command(args, newNode(host(t)), &out, &errs); code != 2 {
				t.Errorf("exit code %d, want 2", code)
			}
			if text := errs.String(); strings.Count(text, "\n") != 1 || !strings.HasPrefix(text, "nodecache cleanup: ") || out.Len() > 0 {
				t.Errorf("errors %q, output %q; want one line of errors", text, out.String())
			}
		})
	}
}

func TestHelp(t *testing.T) {
	var out, errs bytes.Buffer
	if code := command([]string{"-help"}, newNode(host(t)), &out, &errs); code != 0 || errs.Len() > 0 || !strings.Contains(out.String(), "-dry-run") {
		t.Errorf("exit code %d, errors %q, output %q", code, errs.String(), out.String())
	}
}

// TestErrors prints each of several errors in a line.
func TestErrors(t *testing.T) {
	err := errors.Join(errors.New("a\nb"), errors.Join(errors.New("c")))
	var errs []string
	for _, e := range split(err) {
		var b bytes.Buffer
		subcommand.Print(&b, name, e)
		errs = append(errs, b.String())
	}
	if got := strings.Join(errs, ""); got != "nodecache cleanup: a b\nnodecache cleanup: c\n" {
		t.Errorf("got %q", got)
	}
}

// TestRefuse has leftovers that are in use, and others.
func TestRefuse(t *testing.T) {
	const udp = "heading\n  1: 0A14FEA9:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 101 2 0 0\n"
	own := rules.TableName("nodelocaldns")
	for _, c := range []struct {
		name      string
		options   options
		leftovers leftovers
		instances map[string]int
		sockets   string
		want      string // part of the error
	}{
		{"nothing runs", options{}, leftovers{interfaces: []string{"nodelocaldns"}}, nil, "", ""},
		{"an instance", options{}, leftovers{interfaces: []string{"nodelocaldns"}}, map[string]int{"nodelocaldns": 1}, "", "uses interface nodelocaldns"},
		{"an instance of another interface", options{}, leftovers{interfaces: []string{"x"}}, map[string]int{"nodelocaldns": 1}, "", ""},
		{"an instance whose rules these may be", options{}, leftovers{interfaces: []string{"x"}, rules: make([]rules.PredecessorRule, 1)}, map[string]int{"nodelocaldns": 1}, "", "uses interface nodelocaldns"},
		{"only iptables, the instance has a table", options{only: "iptables"}, leftovers{interfaces: []string{"nodelocaldns"}, tables: []string{own}, served: []netip.Addr{four}}, map[string]int{"nodelocaldns": 1}, udp, ""},
		{"only iptables, the instance has none", options{only: "iptables"}, leftovers{interfaces: []string{"nodelocaldns"}}, map[string]int{"nodelocaldns": 1}, "", "uses interface"},
		{"node-local-dns", options{}, leftovers{served: []netip.Addr{four}}, nil, udp, "node-cache (pid 7) listens on 169.254.20.10:53"},
		{"a server on another address", options{}, leftovers{served: []netip.Addr{six}}, nil, udp, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			for name, text := range map[string]string{"net/udp": c.sockets, "net/tcp": "", "7/comm": "node-cache\n"} {
				kit.Must(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755))
				kit.Write(t, filepath.Join(root, name), text)
			}
			kit.Must(t, os.Mkdir(filepath.Join(root, "7/fd"), 0o755))
			kit.Must(t, os.Symlink("socket:[101]", filepath.Join(root, "7/fd/3")))
			fs, err := proc.Open(root)
			kit.Must(t, err)
			n := &node{proc: fs, instances: func(iface string) (int, error) { return c.instances[iface], nil }}
			err = n.refuse(c.options, c.leftovers)
			if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// host is the proc file system of this machine.
func host(t *testing.T) proc.FS {
	t.Helper()
	fs, err := proc.Open("/proc")
	kit.Must(t, err)
	return fs
}

// TestWithin has a step that the kernel does not return from.
func TestWithin(t *testing.T) {
	never := make(chan struct{})
	defer close(never)
	i := item{"table x", func(context.Context) error { <-never; return nil }}
	if err := i.removeWithin(time.Millisecond); !errors.Is(err, context.DeadlineExceeded) || !strings.HasPrefix(err.Error(), "remove table x: ") {
		t.Errorf("got %v", err)
	}
}

// cleanup runs the command and returns its output and its errors.
func cleanup(t *testing.T, code int, args ...string) (output, errors string) {
	t.Helper()
	var out, errs bytes.Buffer
	if got := command(args, newNode(host(t)), &out, &errs); got != code {
		t.Errorf("%q: exit code %d, want %d; output %q, errors %q", args, got, code, out.String(), errs.String())
	}
	return out.String(), errs.String()
}

// ruleset is what nftables, iptables and the interfaces hold.
func ruleset(t *testing.T) string {
	t.Helper()
	return netns.Run(t, "nft", "-s", "list", "ruleset") + netns.Run(t, "ip", "address") +
		netns.Run(t, "iptables-legacy", "-t", "raw", "-S") + netns.Run(t, "ip6tables-legacy", "-t", "filter", "-S")
}

// leave makes what nodecache and node-local-dns leave when they are killed.
func leave(t *testing.T) {
	t.Helper()
	addresses := []netip.Addr{four, six}
	if _, err := link.New("nodelocaldns").Ensure(addresses, true); err != nil {
		t.Fatal(err)
	}
	config := rules.Config{Interface: "nodelocaldns", Addresses: addresses, Port: 53, Health: 8080}
	kit.Must(t, rules.NewNFTables(config).Apply())
	iptables, err := rules.NewIPTables(config)
	if err != nil {
		kit.Lacking(t, "iptables: "+err.Error())
	}
	kit.Must(t, iptables.Apply())
	old := func(program, table, chain string, address netip.Addr, target, comment string) {
		netns.Run(t, program, "-t", table, "-A", chain, "-p", "tcp", "-d", address.String(), "--dport", "53", "-j", target, "-m", "comment", "--comment", "NodeLocal DNS Cache: "+comment)
	}
	old("iptables-legacy", "raw", "PREROUTING", four, "NOTRACK", "skip conntrack")
	old("ip6tables-legacy", "filter", "INPUT", six, "ACCEPT", "allow DNS traffic")
}

func TestNamespaceLeftovers(t *testing.T) {
	if !netns.Inside(t) {
		return
	}
	// Rules and tables of other programs stay.
	netns.Run(t, "iptables-nft", "-t", "raw", "-A", "PREROUTING", "-d", "192.0.2.1", "-j", "NOTRACK")
	netns.Run(t, "iptables-legacy", "-t", "raw", "-A", "PREROUTING", "-d", "192.0.2.1", "-j", "NOTRACK")
	netns.Run(t, "nft", "add table inet nearside; add table ip nearside-nodelocaldns")
	for _, program := range []string{"iptables-nft", "ip6tables-nft"} { // empty chains, as after a removal
		for _, place := range [][2]string{{"raw", "PREROUTING"}, {"raw", "OUTPUT"}, {"filter", "INPUT"}, {"filter", "OUTPUT"}} {
			netns.Run(t, program, "-t", place[0], "-P", place[1], "ACCEPT")
		}
	}
	if out, _ := cleanup(t, 0); out != "nothing to remove\n" {
		t.Errorf("before: got %q", out)
	}
	clean := ruleset(t)
	leave(t)
	left := ruleset(t)

	planned, _ := cleanup(t, 0, "-dry-run")
	if ruleset(t) != left {
		t.Error("-dry-run has changed something")
	}
	done, _ := cleanup(t, 0)
	if want := strings.ReplaceAll(planned, "would remove ", "removed "); done != want {
		t.Errorf("got\n%s\nwant as planned\n%s", done, want)
	}
	for _, want := range []string{
		"removed table inet nearside-nodelocaldns\n",
		`removed rule iptables -t raw PREROUTING "NodeLocal DNS Cache: skip conntrack" 169.254.20.10` + "\n",
		`removed rule ip6tables -t filter INPUT "NodeLocal DNS Cache: allow DNS traffic" fd00::a` + "\n",
		`removed rule iptables-legacy -t raw PREROUTING "NodeLocal DNS Cache: skip conntrack" 169.254.20.10` + "\n",
		`removed rule ip6tables-legacy -t filter INPUT "NodeLocal DNS Cache: allow DNS traffic" fd00::a` + "\n",
		" with 169.254.20.10, fd00::a\n",
	} {
		if !strings.Contains(done, want) {
			t.Errorf("no %q in\n%s", want, done)
		}
	}
	if n := strings.Count(done, "removed rule"); n != 2*12+2 {
		t.Errorf("%d rules, want 12 for each address and 2 of the old iptables", n)
	}
	if after := ruleset(t); after != clean {
		t.Errorf("after\n%s\nwant\n%s", after, clean)
	}
	if out, _ := cleanup(t, 0); out != "nothing to remove\n" {
		t.Errorf("a second time: got %q", out)
	}
}

// TestNamespacePair removes the devices of nodecache's queries to itself, also without the interface, and no device of
// another kind.
func TestNamespacePair(t *testing.T) {
	if !netns.Inside(t) {
		return
	}
	netns.Run(t, "ip", "link", "add", "nodelocaldns-q0", "type", "veth", "peer", "name", "nodelocaldns-q1")
	const want = "interfaces nodelocaldns-q0 and nodelocaldns-q1 (veth)\n"
	if printed, _ := cleanup(t, 0, "-dry-run"); printed != "would remove "+want {
		t.Errorf("dry run printed %q", printed)
	}
	if printed, _ := cleanup(t, 0); printed != "removed "+want {
		t.Errorf("printed %q", printed)
	}
	netns.Run(t, "ip", "link", "add", "nodelocaldns-q1", "type", "bridge")
	if printed, _ := cleanup(t, 0); printed != "nothing to remove\n" {
		t.Errorf("printed %q, and nodecache does not make bridges of this name", printed)
	}
	if left := netns.Run(t, "ip", "-brief", "link"); strings.Contains(left, "q0") || !strings.Contains(left, "q1") {
		t.Errorf("left\n%s", left)
	}
}

func TestNamespaceInUse(t *testing.T) {
	if !netns.Inside(t) {
		return
	}
	leave(t)
	left := ruleset(t)
	refused := func(want string, args ...string) {
		t.Helper()
		out, errs := cleanup(t, 1, args...)
		if out != "" || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, want) {
			t.Errorf("output %q, errors %q; want one line with %q", out, errs, want)
		}
		if ruleset(t) != left {
			t.Error("it has changed something")
		}
	}
	announce := func(name string) (end func()) {
		s, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: "@nearside-nodelocal/nodelocaldns/" + name})
		kit.Must(t, err)
		return func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	end := announce("00000000000000000001-000001-1")
	const running = "nodecache is running and uses interface nodelocaldns: stop it first, or set -force"
	refused(running)
	refused(running, "-dry-run") // the plan is that of the real run
	if out, errs := cleanup(t, 0, "-dry-run", "-force"); strings.Count(out, "would remove ") < 3 || errs != "" || ruleset(t) != left {
		t.Errorf("-dry-run -force: output %q, errors %q", out, errs)
	}
	if out, _ := cleanup(t, 0, "-only", "iptables"); strings.Count(out, "\n") != 26 || strings.Count(out, "removed rule") != 26 {
		t.Errorf("-only iptables: got\n%s", out)
	}
	left = ruleset(t)
	end()

	end = announce("removal")
	refused(nodelocal.ErrClaimed.Error())
	end()

	p, err := net.ListenPacket("udp", "169.254.20.10:53")
	kit.Must(t, err)
	refused(fmt.Sprintf("(pid %d) listens on 169.254.20.10:53", os.Getpid()))
	kit.Must(t, p.Close())

	defer announce("00000000000000000002-000001-1")()
	if out, _ := cleanup(t, 0, "-force"); strings.Count(out, "removed ") != 2 {
		t.Errorf("-force: got\n%s", out)
	}
}

func TestNamespaceForeign(t *testing.T) {
	if !netns.Inside(t) {
		return
	}
	netns.Run(t, "ip", "link", "add", "nodelocaldns", "type", "veth", "peer", "name", "x")
	out, errs := cleanup(t, 1)
	if out != "" || errs != "nodecache cleanup: interface nodelocaldns is a veth, not a dummy or bridge, which nodecache does not make: left as it is\n" {
		t.Errorf("a veth: output %q, errors %q", out, errs)
	}
	netns.Run(t, "ip", "link", "del", "nodelocaldns")
	netns.Run(t, "ip", "link", "add", "nodelocaldns", "type", "bridge")
	netns.Run(t, "ip", "link", "add", "port0", "type", "veth", "peer", "name", "port1")
	netns.Run(t, "ip", "link", "set", "port0", "master", "nodelocaldns")
	// Other leftovers are removed.
	netns.Run(t, "nft", "add table inet nearside-nodelocaldns")
	out, errs = cleanup(t, 1)
	if out != "removed table inet nearside-nodelocaldns\n" || !strings.Contains(errs, "bridge with the port port0") {
		t.Errorf("a bridge in use: output %q, errors %q", out, errs)
	}
}

func TestNamespaceLoopback(t *testing.T) {
	if !netns.Inside(t) {
		return
	}
	add := func(args ...string) {
		netns.Run(t, "ip", append([]string{"address", "add", "dev", "lo"}, args...)...)
	}
	add("169.254.20.10/32", "label", "lo:dns0")
	add("169.254.20.11/32")
	add("fd00::a/128", "nodad")
	add("192.0.2.1/32")
	netns.Run(t, "nft", "add table inet nearside-dns0; add chain inet nearside-dns0 output; add rule inet nearside-dns0 output ip6 daddr fd00::a accept")
	if out, _ := cleanup(t, 0, "-dry-run"); out != "would remove table inet nearside-dns0\nwould remove addresses on lo: fd00::a\nwould remove addresses on lo: 169.254.20.10\n" {
		t.Errorf("planned: got\n%s", out)
	}
	// Other interfaces than that of the flag stay.
	if out, _ := cleanup(t, 0, "-interfacename", "other"); out != "nothing to remove\n" {
		t.Errorf("another interface: got\n%s", out)
	}
	if out, _ := cleanup(t, 0, "-localip", "169.254.20.11"); strings.Count(out, "\n") != 3 {
		t.Errorf("got\n%s", out)
	}
	got := netns.Run(t, "ip", "-br", "address", "show", "dev", "lo")
	if want := "127.0.0.1/8 192.0.2.1/32 ::1/128"; strings.Join(strings.Fields(got)[2:], " ") != want {
		t.Errorf("lo has %s, want %s", got, want)
	}
}

// TestNamespaceTimeout has a program that does not end.
func TestNamespaceTimeout(t *testing.T) {
	if !netns.Inside(t) {
		return
	}
	bin := t.TempDir()
	kit.Must(t, os.WriteFile(filepath.Join(bin, "iptables-legacy"), []byte("#!/bin/sh\nexec sleep 60\n"), 0o755))
	netns.Run(t, "iptables-legacy", "-t", "raw", "-S") // makes the table
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	start := time.Now()
	if _, errs := cleanup(t, 1, "-timeout", "300ms"); !strings.Contains(errs, "iptables-legacy -w 5 -t raw -S") {
		t.Errorf("errors %q", errs)
	}
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("it took %s", took)
	}
}
