// Package inside has tests that run only in the machine of test/kernel, as root, with the kernel to themselves and
// nodecache in their PATH. Input is the kernel's state and a Corefile; the checked results are the kernel's state and
// replies of nodecache's sockets. It imports none of nodecache's packages.
package inside

import (
	"flag"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/test/kernel"
	"github.com/nearside-dns/nearside/test/kit"
)

// addresses are the node-local addresses, of both families.
var addresses = []netip.Addr{netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("fd00::a")}

// carrier is the kind of interface for the addresses that the machine's kernel supports.
var carrier = flag.String("carrier", "dummy", "`kind` of the interface that is to have the addresses: dummy, bridge or lo")

// needsMachine skips the test outside of a machine.
func needsMachine(t *testing.T) {
	t.Helper()
	if os.Getenv(kernel.InsideVariable) != "1" {
		t.Skip("runs in the machine that the tests of test/kernel boot")
	}
}

// addressesOf returns the interface's addresses, without those that the kernel itself adds: a link-local IPv6 address,
// or the loopback addresses. It fails the test if an address has a network prefix or is not usable.
func addressesOf(t *testing.T, link netlink.Link) (all []netip.Addr) {
	t.Helper()
	list, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	kit.Must(t, err)
	for _, a := range list {
		ip, ok := netip.AddrFromSlice(a.IP)
		if !ok {
			t.Fatalf("address %v", a)
		}
		ip = ip.Unmap()
		if ip.IsLinkLocalUnicast() && ip.Is6() || ip.IsLoopback() {
			continue
		}
		if ones, _ := a.Mask.Size(); ones != ip.BitLen() {
			t.Errorf("%v has a network of %d bits", ip, ones)
		}
		if a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0 {
			t.Errorf("%v is tentative", ip)
		}
		all = append(all, ip)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}

// TestDummy makes a dummy interface and reads it back.
func TestDummy(t *testing.T) {
	needsMachine(t)
	const name = "here"
	kit.Must(t, netlink.LinkAdd(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: name}}))
	link, err := netlink.LinkByName(name)
	kit.Must(t, err)
	if link.Type() != "dummy" {
		t.Errorf("the interface is a %s", link.Type())
	}
	kit.Must(t, netlink.LinkSetUp(link))
	for _, a := range addresses {
		n := &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
		kit.Must(t, netlink.AddrAdd(link, &netlink.Addr{IPNet: n, Flags: unix.IFA_F_NODAD}))
	}
	if got := addressesOf(t, link); !slices.Equal(got, addresses) {
		t.Errorf("addresses %v, want %v", got, addresses)
	}
	kit.Must(t, netlink.LinkDel(link))
	if _, err := netlink.LinkByName(name); err == nil {
		t.Error("the interface exists after its deletion")
	}
}
