// Package link holds the node-local interface: the device that has the addresses that pods ask. In go
// a name and addresses; out come the device and addresses in the kernel, and what had to be repaired.
// It may not import CoreDNS.
package link

import (
	"errors"
	"fmt"
	"net/netip"
)

// Kind is what carries the addresses.
type Kind string

// Kinds, the best first. A dummy device is what node-local-dns uses. A bridge without ports does the
// same where the kernel has no dummy driver, and lo takes the addresses where it has neither.
const (
	Dummy    Kind = "dummy"
	Bridge   Kind = "bridge"
	Loopback Kind = "lo"
)

// Repair says what Ensure found wrong and put right.
type Repair struct {
	// Created is whether there was no interface. At the first start that is no damage.
	Created bool
	// Up is whether it had to be set up.
	Up bool
	// Added are the addresses that it lacked, Removed those that it should not have.
	Added, Removed []netip.Addr
}

// Any returns whether anything was repaired.
func (r Repair) Any() bool {
	return r.Created || r.Up || len(r.Added) > 0 || len(r.Removed) > 0
}

// HeldError says that another interface has an address that nodecache is to answer on.
type HeldError struct {
	Address   netip.Addr
	Interface string
}

// ipvsInterface is where kube-proxy puts every Service's address in its IPVS mode.
const ipvsInterface = "kube-ipvs0"

func (e *HeldError) Error() string {
	text := fmt.Sprintf("address %s is held by interface %s", e.Address, e.Interface)
	if e.Interface == ipvsInterface {
		text += ": with kube-proxy in IPVS mode use a link-local address only, and give it to the kubelet as --cluster-dns"
	}
	return text
}

// KindError says that an interface of the name is there and is not ours.
type KindError struct {
	Interface, Kind string

	want string // "" is a dummy or a bridge
}

func (e *KindError) Error() string {
	want := e.want
	if want == "" {
		want = "a dummy or a bridge"
	}
	return fmt.Sprintf("interface %s is there and is a %s, not %s: choose another name", e.Interface, e.Kind, want)
}

// ErrNoPermission says that the process may not change interfaces.
var ErrNoPermission = errors.New("changing interfaces needs the capability NET_ADMIN")

// ErrNoIPv6 says that the node has IPv6 switched off.
var ErrNoIPv6 = errors.New("IPv6 is switched off by the sysctl net.ipv6.conf.all.disable_ipv6 or that of the interface: leave out the IPv6 address or switch it on")
