package sockets

import "golang.org/x/sys/unix"

// SkipPathMTUDiscovery lets routers fragment the datagrams that a UDP socket sends over IPv4. Path MTU discovery depends on ICMP
// messages, which firewalls drop if the connection is not tracked, and which can be forged. Over IPv6 only the sender fragments,
// so that the messages are necessary there.
func SkipPathMTUDiscovery(fd int) {
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_OMIT) // an error leaves the kernel's default
}
