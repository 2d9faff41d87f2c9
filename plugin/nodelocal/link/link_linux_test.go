package link

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

func addresses(text ...string) (all []netip.Addr) {
	for _, a := range text {
		all = append(all, netip.MustParseAddr(a))
	}
	return all
}

var both = addresses("169.254.20.10", "10.96.0.10", "fd00::a", "fe80::53")

func ensure(t *testing.T, i *Interface, addrs []netip.Addr, exact bool) Repair {
	t.Helper()
	r, err := i.Ensure(addrs, exact)
	kit.Must(t, err)
	return r
}

// state is an interface in the kernel. Its kind is "" if it is missing.
type state struct {
	Kind      string
	Up        bool
	Addresses []netip.Addr
}

func read(t *testing.T, name string) (s state) {
	t.Helper()
	dev, err := netlink.LinkByName(name)
	if missing, e := Missing(name); e != nil || missing != (err != nil) {
		t.Errorf("interface %s: missing %t, %v; want %t", name, missing, e, err != nil)
	}
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return s
	}
	kit.Must(t, err)
	addrs, err := netlink.AddrList(dev, netlink.FAMILY_ALL)
	kit.Must(t, err)
	for _, a := range addrs {
		s.Addresses = append(s.Addresses, address(a))
	}
	slices.SortFunc(s.Addresses, netip.Addr.Compare)
	s.Kind, s.Up = dev.Type(), dev.Attrs().Flags&net.FlagUp != 0
	return s
}

func sorted(addrs []netip.Addr) []netip.Addr {
	return slices.SortedFunc(slices.Values(addrs), netip.Addr.Compare)
}

func TestKernelEnsure(t *testing.T) {
	netns.Enter(t)
	i := New("nodelocaldns")
	r := ensure(t, i, both, true)
	if !r.Created || r.Up || !slices.Equal(r.Added, both) || len(r.Removed) > 0 {
		t.Errorf("the first time: %+v", r)
	}
	s := read(t, "nodelocaldns")
	if i.Kind() != Dummy && i.Kind() != Bridge || s.Kind != string(i.Kind()) || !s.Up {
		t.Errorf("interface %+v, kind %q", s, i.Kind())
	}
	if !slices.Equal(s.Addresses, sorted(both)) {
		t.Errorf("addresses %v, want %v and no other", s.Addresses, both)
	}
	if r := ensure(t, i, both, true); r.Any() {
		t.Errorf("the second time: %+v", r)
	}
	if r := ensure(t, New("nodelocaldns"), both, true); r.Any() {
		t.Errorf("at the next start: %+v", r)
	}
	// An IPv6 address is usable at once.
	if out := netns.Run(t, "ip", "-6", "addr", "show", "dev", "nodelocaldns"); strings.Contains(out, "tentative") {
		t.Errorf("an address is tentative:\n%s", out)
	}
}

// TestKernelRoutes: new addresses have local routes, which the kernel adds a little later than IPv6 addresses.
func TestKernelRoutes(t *testing.T) {
	netns.Enter(t)
	i, all := New("nodelocaldns"), addresses("fd00::a", "fd00::b", "fe80::53")
	h, err := handle()
	kit.Must(t, err)
	defer h.Close()
	for range 20 {
		ensure(t, i, all, true)
		for _, a := range all {
			if local, err := isLocal(h, a); !local {
				t.Fatalf("no local route to %v, error %v", a, err)
			}
		}
		kit.Must(t, Remove("nodelocaldns", all))
	}
}

func TestKernelRepair(t *testing.T) {
	for _, tc := range []struct {
		name, damage string
		want         Repair
	}{
		{"address removed", "addr del 10.96.0.10/32 dev nodelocaldns", Repair{Added: addresses("10.96.0.10")}},
		{"IPv6 address removed", "addr del fd00::a/128 dev nodelocaldns", Repair{Added: addresses("fd00::a")}},
		{"address added", "addr add 192.0.2.1/24 dev nodelocaldns", Repair{Removed: addresses("192.0.2.1")}},
		{"interface down", "link set nodelocaldns down", Repair{Up: true, Added: addresses("fd00::a", "fe80::53")}},
		{"interface removed", "link del nodelocaldns", Repair{Created: true, Added: both}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			netns.Enter(t)
			i := New("nodelocaldns")
			ensure(t, i, both, true)
			netns.Run(t, "ip", strings.Fields(tc.damage)...)
			if r := ensure(t, i, both, true); fmt.Sprint(r) != fmt.Sprint(tc.want) {
				t.Errorf("repaired %+v, want %+v", r, tc.want)
			}
			if s := read(t, "nodelocaldns"); !s.Up || !slices.Equal(s.Addresses, sorted(both)) {
				t.Errorf("after repair: %+v", s)
			}
		})
	}
	t.Run("another instance's address stays", func(t *testing.T) {
		netns.Enter(t)
		ensure(t, New("nodelocaldns"), both, true)
		if r := ensure(t, New("nodelocaldns"), both[:1], false); r.Any() {
			t.Errorf("repaired although not exact: %+v", r)
		}
		if r := ensure(t, New("nodelocaldns"), both[:1], true); len(r.Removed) != 3 {
			t.Errorf("exact: %+v", r)
		}
	})
}

// TestKernelFlush removes an address before its local route is awaited, as "ip addr flush" does, which repeats itself until
// no address is left.
func TestKernelFlush(t *testing.T) {
	netns.Enter(t)
	i := New("nodelocaldns")
	ensure(t, i, both, true)
	h, err := handle()
	kit.Must(t, err)
	defer h.Close()
	dev, err := h.LinkByName("nodelocaldns")
	kit.Must(t, err)
	kit.Must(t, removeAddress(h, dev, *i.netlinkAddress(both[1])))
	start := time.Now()
	if err := awaitLocal(h, dev, both); err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took > kernelWait/2 {
		t.Errorf("waited %v for the route of an address that is gone", took)
	}
}

func TestKernelHeld(t *testing.T) {
	for _, tc := range []struct{ name, iface, address, want string }{
		{"IPv4", "eth7", "10.96.0.10/32", "address 10.96.0.10 is held by interface eth7"},
		{"IPv6", "eth7", "fd00::a/64", "address fd00::a is held by interface eth7"},
		{"lo", "lo", "10.96.0.10/32", "address 10.96.0.10 is held by interface lo"},
		{"IPVS", "kube-ipvs0", "10.96.0.10/32", "address 10.96.0.10 is held by interface kube-ipvs0: with kube-proxy in IPVS mode use a link-local address only, and pass it to the kubelet as --cluster-dns"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			netns.Enter(t)
			if tc.iface != "lo" {
				netns.Run(t, "ip", "link", "add", tc.iface, "type", "bridge")
			}
			netns.Run(t, "ip", "addr", "add", tc.address, "dev", tc.iface)
			_, err := New("nodelocaldns").Ensure(both, true)
			if held := (*HeldError)(nil); !errors.As(err, &held) || err.Error() != tc.want {
				t.Errorf("error %v, want %s", err, tc.want)
			}
			if s := read(t, "nodelocaldns"); s.Kind != "" {
				t.Errorf("the interface was created despite the error: %+v", s)
			}
		})
	}
}

func TestKernelWithoutIPv6(t *testing.T) {
	netns.Enter(t)
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0); err != nil {
		kit.Lacking(t, err.Error())
	}
	if _, err := New("nodelocaldns").Ensure(both, true); !errors.Is(err, ErrNoIPv6) {
		t.Errorf("error %v, want %v", err, ErrNoIPv6)
	}
	ensure(t, New("nodelocaldns"), both[:2], true)
}

func TestKernelOtherKind(t *testing.T) {
	netns.Enter(t)
	netns.Run(t, "ip", "link", "add", "nodelocaldns", "type", "veth", "peer", "name", "peer")
	const want = "interface nodelocaldns: interface nodelocaldns exists and is a veth, not a dummy or a bridge: choose another name"
	if _, err := New("nodelocaldns").Ensure(both, true); err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	if err := Remove("nodelocaldns", both); !errors.As(err, new(*KindError)) {
		t.Errorf("removing it: %v", err)
	}
	if s := read(t, "nodelocaldns"); s.Kind != "veth" {
		t.Errorf("after removing: %+v", s)
	}
}

// TestKernelLoopback puts the addresses on lo, as on a kernel that has neither dummy nor bridge.
func TestKernelLoopback(t *testing.T) {
	netns.Enter(t)
	netns.Run(t, "ip", "addr", "add", "192.0.2.7/32", "dev", "lo")
	i := &Interface{name: "nodelocaldns", kind: Loopback}
	if r := ensure(t, i, both, true); !slices.Equal(r.Added, both) {
		t.Errorf("the first time: %+v", r)
	}
	if r := ensure(t, &Interface{name: "nodelocaldns", kind: Loopback}, both, true); r.Any() {
		t.Errorf("the second time: %+v", r)
	}
	if r := ensure(t, i, append(addresses("169.254.20.10"), both[2:]...), true); fmt.Sprint(r.Removed) != "[10.96.0.10]" {
		t.Errorf("with one less: %+v", r)
	}
	if err := Remove("nodelocaldns", both[2:]); err != nil {
		t.Error(err)
	}
	if s := read(t, "lo"); !slices.Equal(s.Addresses, addresses("127.0.0.1", "192.0.2.7", "::1")) {
		t.Errorf("left on lo: %v", s.Addresses)
	}
}

func TestKernelRemove(t *testing.T) {
	netns.Enter(t)
	if err := Remove("nodelocaldns", both); err != nil {
		t.Errorf("without the interface: %v", err)
	}
	ensure(t, New("nodelocaldns"), both, true)
	if err := Remove("nodelocaldns", both); err != nil {
		t.Error(err)
	}
	if s := read(t, "nodelocaldns"); s.Kind != "" {
		t.Errorf("left: %+v", s)
	}
}

func TestKernelWatch(t *testing.T) {
	netns.Enter(t)
	i := New("nodelocaldns")
	ensure(t, i, both, true)
	done, changed := make(chan struct{}), make(chan struct{}, 100)
	kit.Must(t, i.Watch(both, done, func() { changed <- struct{}{} }, func(error) {}))
	defer close(done)
	dev, err := netlink.LinkByName("nodelocaldns")
	kit.Must(t, err)
	for name, damage := range map[string]func() error{
		"address removed":   func() error { return netlink.AddrDel(dev, i.netlinkAddress(both[0])) },
		"interface down":    func() error { return netlink.LinkSetDown(dev) },
		"interface removed": func() error { return netlink.LinkDel(dev) },
	} {
		ensure(t, i, both, true)
		time.Sleep(100 * time.Millisecond) // the changes of Ensure itself are reported too
		for len(changed) > 0 {
			<-changed
		}
		if dev, err = netlink.LinkByName("nodelocaldns"); err != nil {
			t.Fatal(err)
		}
		kit.Must(t, damage())
		select {
		case <-changed:
		case <-time.After(5 * time.Second):
			t.Errorf("%s: not reported", name)
		}
	}

	// The addresses of an interface of a pod are removed with it. Notifications have the order of the changes, so that
	// one of the first would arrive before that of the last.
	ensure(t, i, both, true)
	other := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "pod0"}, PeerName: "pod1"}
	kit.Must(t, errors.Join(netlink.LinkAdd(other), netlink.LinkSetUp(other)))
	time.Sleep(100 * time.Millisecond)
	for len(changed) > 0 {
		<-changed
	}
	for _, address := range []string{"10.244.0.1/32", "fd00::244/128"} {
		a, err := netlink.ParseAddr(address)
		kit.Must(t, err)
		kit.Must(t, errors.Join(netlink.AddrAdd(other, a), netlink.AddrDel(other, a)))
	}
	kit.Must(t, netlink.LinkDel(other))
	if dev, err = netlink.LinkByName("nodelocaldns"); err != nil {
		t.Fatal(err)
	}
	kit.Must(t, netlink.AddrDel(dev, i.netlinkAddress(both[0])))
	select {
	case <-changed:
	case <-time.After(5 * time.Second):
		t.Fatal("address removed: not reported")
	}
	time.Sleep(100 * time.Millisecond)
	if n := len(changed); n > 0 {
		t.Errorf("%d verifications more than one: the removal of a pod's interface must cause none", n)
	}
}
