package rules

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// TestKernelTable applies each table and compares the ruleset in the kernel, as nft lists it, with the golden file.
func TestKernelTable(t *testing.T) {
	for name, c := range configs {
		t.Run(name, func(t *testing.T) {
			netns.Enter(t)
			table := NewNFTables(c)
			kit.Must(t, table.Apply())
			want := kit.Read(t, golden(name))
			if got := list(t); got != want {
				t.Errorf("the kernel has\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// TestGoldenFilesLoad loads each golden file with nft, which must list the same.
func TestGoldenFilesLoad(t *testing.T) {
	for name := range configs {
		t.Run(name, func(t *testing.T) {
			netns.Enter(t)
			want := kit.Read(t, golden(name))
			netns.Run(t, "nft", "-f", golden(name))
			if got := list(t); got != want {
				t.Errorf("nft lists\n%s\nwant\n%s", got, want)
			}
		})
	}
}

func list(t *testing.T) string { return netns.Run(t, "nft", "list", "ruleset") }

// node applies a table in a namespace with its addresses on lo.
func node(t *testing.T, name string) *NFTables {
	t.Helper()
	netns.Enter(t)
	c := configs[name]
	lo, err := netlink.LinkByName("lo")
	kit.Must(t, err)
	for _, a := range c.Addresses {
		n := &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
		kit.Must(t, netlink.AddrAdd(lo, &netlink.Addr{IPNet: n, Flags: unix.IFA_F_NODAD}))
	}
	table := NewNFTables(c)
	kit.Must(t, table.Apply())
	return table
}

// send sends a datagram from an address to its own port 53, and returns whether a rule dropped it.
func send(t *testing.T, to netip.Addr, mark int) (dropped bool) {
	t.Helper()
	family := unix.AF_INET
	if to.Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM, 0)
	kit.Must(t, err)
	defer func() {
		if err := unix.Close(fd); err != nil {
			t.Error(err)
		}
	}()
	kit.Must(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, mark))
	from, target := sockaddr(to, 0), sockaddr(to, 53)
	kit.Must(t, unix.Bind(fd, from))
	err = unix.Sendto(fd, []byte("?"), 0, target)
	if err != nil && !errors.Is(err, unix.EPERM) {
		t.Fatal(err)
	}
	return err != nil
}

func sockaddr(a netip.Addr, port int) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Port: port, Addr: a.As4()}
	}
	return &unix.SockaddrInet6{Port: port, Addr: a.As16()}
}

func leased(t *testing.T, table *NFTables) (all []netip.Addr) {
	t.Helper()
	left, err := Leased(table.config.Interface)
	kit.Must(t, err)
	for a, d := range left {
		if d <= 0 || d > Lease {
			t.Errorf("the lease of %s has %s left", a, d)
		}
		all = append(all, a)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}

func TestKernelLease(t *testing.T) {
	table := node(t, "dual-stack")
	four, six := netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("fd00::a")
	if got := leased(t, table); len(got) != 0 {
		t.Fatalf("leases at the start: %v", got)
	}
	send(t, four, SelfQueryMark)
	send(t, six, SelfQueryMark)
	if got := leased(t, table); len(got) != 0 {
		t.Errorf("a datagram with another mark acquired leases: %v", got)
	}
	if send(t, four, RenewalMark) || send(t, six, RenewalMark) || len(leased(t, table)) != 0 {
		t.Errorf("a renewal without a lease: leases %v", leased(t, table))
	}
	if !send(t, four, AcquireMark) || !send(t, four, RenewalMark) {
		t.Error("the rules have not dropped the datagrams that acquire and renew the lease")
	}
	if got := leased(t, table); !slices.Equal(got, []netip.Addr{four}) {
		t.Errorf("leases %v, want %v", got, four)
	}
	if !send(t, six, AcquireMark) || !send(t, six, RenewalMark) || send(t, six, SelfQueryMark) {
		t.Error("IPv6: the rules have not dropped exactly the datagrams that acquire and renew the lease")
	}
	if got := leased(t, table); !slices.Equal(got, []netip.Addr{four, six}) {
		t.Errorf("leases %v, want both", got)
	}
	kit.Must(t, table.Withdraw())
	if got := leased(t, table); len(got) != 0 {
		t.Errorf("leases after they were withdrawn: %v", got)
	}
	send(t, four, AcquireMark)
	kit.Within(t, 5*time.Second, "the end of the lease", func() bool { return len(leased(t, table)) == 0 })
	if send(t, four, RenewalMark) || len(leased(t, table)) != 0 {
		t.Errorf("a renewal of an expired lease: leases %v", leased(t, table))
	}
}

func TestKernelLeaseWithoutTable(t *testing.T) {
	netns.Enter(t)
	if got, err := Leased("nodelocaldns"); len(got) > 0 || err != nil {
		t.Errorf("without the table: leases %v, error %v; want neither", got, err)
	}
	netns.Run(t, "nft", "add table inet nearside-nodelocaldns; add set inet nearside-nodelocaldns lease4 { type ipv4_addr; flags timeout; }")
	netns.Run(t, "nft", "add element inet nearside-nodelocaldns lease4 { 169.254.20.10 timeout 1m }")
	if got, err := Leased("nodelocaldns"); len(got) != 1 || err != nil {
		t.Errorf("without the set for IPv6: leases %v, error %v; want one lease", got, err)
	}
}

// TestKernelEarlierTable applies a table over an earlier one: rules are replaced, leases stay.
func TestKernelEarlierTable(t *testing.T) {
	old := node(t, "dual-stack")
	four := netip.MustParseAddr("169.254.20.10")
	send(t, four, AcquireMark)
	table := NewNFTables(configs["health"])
	kit.Must(t, table.Apply())
	if got := leased(t, table); !slices.Equal(got, []netip.Addr{four}) {
		t.Errorf("leases %v, want %v", got, four)
	}
	for _, s := range leaseSetNames {
		netns.Run(t, "nft", "flush", "set", "inet", "nearside-nodelocaldns", s)
	}
	want := kit.Read(t, golden("health"))
	if got := list(t); got != want {
		t.Errorf("the kernel has\n%s\nwant\n%s", got, want)
	}
	if ok, err := old.Intact(); ok || err != nil {
		t.Errorf("the old table is intact: %t, %v", ok, err)
	}
}

var leaseSetNames = []string{lease4, lease6}

// TestKernelOtherShape applies a table over one of the same name with other sets and chains.
func TestKernelOtherShape(t *testing.T) {
	netns.Enter(t)
	netns.Run(t, "nft", "add table inet nearside-nodelocaldns; add set inet nearside-nodelocaldns lease4 { type ipv6_addr; }; add chain inet nearside-nodelocaldns output { type filter hook input priority 7; }")
	kit.Must(t, NewNFTables(configs["one-address"]).Apply())
	want := kit.Read(t, golden("one-address"))
	if got := list(t); got != want {
		t.Errorf("the kernel has\n%s\nwant\n%s", got, want)
	}
}

func TestKernelIntact(t *testing.T) {
	for name, damage := range map[string][]string{
		"ruleset flushed":                   {"flush", "ruleset"},
		"table deleted":                     {"delete", "table", "inet", "nearside-nodelocaldns"},
		"chain flushed":                     {"flush", "chain", "inet", "nearside-nodelocaldns", "prerouting"},
		"rule added":                        {"insert", "rule", "inet", "nearside-nodelocaldns", "output", "drop"},
		"policy changed":                    {"add", "chain", "inet", "nearside-nodelocaldns", "prerouting", "{ policy drop; }"},
		"chain added":                       {"add", "chain", "inet", "nearside-nodelocaldns", "another"},
		"chain that drops everything added": {"add", "chain", "inet", "nearside-nodelocaldns", "another", "{ type filter hook input priority 0; policy drop; }"},
	} {
		t.Run(name, func(t *testing.T) {
			netns.Enter(t)
			table := NewNFTables(configs["dual-stack"])
			if ok, err := table.Intact(); ok || err != nil {
				t.Errorf("intact before it was applied: %t, %v", ok, err)
			}
			kit.Must(t, table.Apply())
			before := list(t)
			if ok, err := table.Intact(); !ok || err != nil {
				t.Errorf("intact: %t, %v", ok, err)
			}
			was, err := Generation()
			kit.Must(t, err)
			netns.Run(t, "nft", damage...)
			if ok, err := table.Intact(); ok || err != nil {
				t.Errorf("intact after damage: %t, %v", ok, err)
			}
			if now, err := Generation(); err != nil || now == was {
				t.Errorf("generation %d after damage, was %d: %v", now, was, err)
			}
			kit.Must(t, table.Apply())
			if got := list(t); got != before {
				t.Errorf("after repair the kernel has\n%s\nwant\n%s", got, before)
			}
			if ok, err := table.Intact(); !ok || err != nil {
				t.Errorf("intact after repair: %t, %v", ok, err)
			}
		})
	}
}

func TestKernelRemove(t *testing.T) {
	netns.Enter(t)
	netns.Run(t, "nft", "add", "table", "inet", "other")
	table := NewNFTables(configs["dual-stack"])
	for range 2 { // the second time the table is missing
		kit.Must(t, table.Apply())
		names, err := Tables()
		if err != nil || !slices.Equal(names, []string{"nearside-nodelocaldns"}) {
			t.Errorf("tables %q, %v", names, err)
		}
		for range 2 {
			kit.Must(t, table.Remove())
		}
		if got, want := list(t), "table inet other {\n}\n"; got != want {
			t.Errorf("left: %q, want %q", got, want)
		}
	}
}
