// Package link manages the node-local interface: the device with the addresses that pods query. Input is a
// name and addresses; output is the device and its addresses in the kernel, and a list of repairs. It may
// not import CoreDNS.
package link

import (
	"errors"
	"fmt"
	"net/netip"
)

// Kind is the type of device that has the addresses.
type Kind string

// Kinds in order of preference. node-local-dns uses a dummy device. A kernel without the dummy driver gets
// a bridge without ports, and one without either driver has the addresses on lo.
const (
	Dummy    Kind = "dummy"
	Bridge   Kind = "bridge"
	Loopback Kind = "lo"
)

// Repair lists the changes of one call of Ensure.
type Repair struct {
	Created bool         // the interface was missing, as at the first start
	Up      bool         // the interface was down
	Added   []netip.Addr // missing addresses
	Removed []netip.Addr // surplus addresses
}

// Any returns whether anything was repaired.
func (r Repair) Any() bool {
	return r.Created || r.Up || len(r.Added) > 0 || len(r.Removed) > 0
}

// HeldError is the error if another interface has an address that nodecache needs.
type HeldError struct {
	Address   netip.Addr
	Interface string
}

// ipvsInterface has the addresses of all Services where kube-proxy runs in its mode IPVS.
const ipvsInterface = "kube-ipvs0"

func (e *HeldError) Error() string {
	text := fmt.Sprintf("address %s is held by interface %s", e.Address, e.Interface)
	if e.Interface == ipvsInterface {
		text += ": with kube-proxy in IPVS mode use a link-local address only, and pass it to the kubelet as --cluster-dns"
	}
	return text
}

// KindError is the error if an interface of another kind has the name.
type KindError struct {
	Interface, Kind string

	want string
}

// wantDevice are the kinds of the node-local interface.
const wantDevice = "a dummy or a bridge"

func (e *KindError) Error() string {
	return fmt.Sprintf("interface %s exists and is a %s, not %s: choose another name", e.Interface, e.Kind, e.want)
}

// ErrNoPermission is the error of a process without NET_ADMIN.
var ErrNoPermission = errors.New("changing interfaces needs the capability NET_ADMIN")

// ErrNoIPv6 is the error of adding an IPv6 address to a node with IPv6 disabled.
var ErrNoIPv6 = errors.New("IPv6 is disabled by the sysctl net.ipv6.conf.all.disable_ipv6 or that of the interface: remove the IPv6 address or enable IPv6")
