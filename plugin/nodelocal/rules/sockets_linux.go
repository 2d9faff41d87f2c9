package rules

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/prometheus/procfs"
)

// socketTries is the number of sockets of [SocketTargets]: each may be connected to another replica.
const socketTries = 8

// SocketTargets returns the servers to which the kernel connects UDP sockets of this process for an address: the address
// itself, or replicas of the Service if a program of the control group translates sockets, as Cilium's replacement of
// kube-proxy does. Then packets that were not sent by such sockets are not translated. It sends nothing. It reads the
// servers from the kernel's list of sockets, since getpeername may be translated as well.
func SocketTargets(to netip.AddrPort) (targets []netip.AddrPort, err error) {
	local := map[netip.AddrPort]bool{}
	for range socketTries {
		c, err := net.Dial("udp", to.String())
		if err != nil {
			return nil, err
		}
		defer func() { _ = c.Close() }() // nothing is written
		local[c.LocalAddr().(*net.UDPAddr).AddrPort()] = true
	}
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return nil, err
	}
	list := fs.NetUDP
	if to.Addr().Is6() {
		list = fs.NetUDP6
	}
	sockets, err := list()
	if err != nil {
		return nil, fmt.Errorf("list sockets: %w", err)
	}
	for _, s := range sockets {
		if local[addrPort(s.LocalAddr, s.LocalPort)] {
			targets = append(targets, addrPort(s.RemAddr, s.RemPort))
		}
	}
	if len(targets) == 0 {
		return nil, errors.New("list sockets: own sockets are missing")
	}
	return targets, nil
}

// SocketsTranslated returns whether the kernel connects sockets for an address to another server.
func SocketsTranslated(to netip.AddrPort) bool {
	targets, err := SocketTargets(to)
	return err == nil && targets[0].Addr() != to.Addr()
}

func addrPort(ip net.IP, port uint64) netip.AddrPort {
	a, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(a, uint16(port))
}
