package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The addresses of the network of a node with one pod.
var (
	localAddress  = netip.MustParseAddrPort("169.254.20.10:53") // of the server
	localAddress6 = netip.MustParseAddrPort("[fd00:53::a]:53")

	hostPrefix, podPrefix   = netip.MustParsePrefix("10.244.1.1/24"), netip.MustParsePrefix("10.244.1.7/24")
	hostPrefix6, podPrefix6 = netip.MustParsePrefix("fd00:10::1/64"), netip.MustParsePrefix("fd00:10::7/64")
)

// namespace is a network namespace. It ends when it is closed and its processes have ended.
type namespace struct{ *os.File }

// newNamespace makes a namespace, with lo up.
func newNamespace() (n namespace, err error) {
	made := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends, and leaves the namespace
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = loopbackUp()
		}
		if err == nil {
			n.File, err = os.Open("/proc/thread-self/ns/net")
		}
		made <- err
	}()
	if err := <-made; err != nil {
		return n, fmt.Errorf("make a network namespace: %w", err)
	}
	return n, nil
}

// do calls f on a thread in the namespace, to which processes that f starts and sockets that it opens belong.
func (n namespace) do(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		own, err := os.Open("/proc/thread-self/ns/net")
		if err == nil {
			err = unix.Setns(int(n.Fd()), unix.CLONE_NEWNET)
		}
		if err != nil {
			done <- fmt.Errorf("enter a network namespace: %w", err)
			return
		}
		err = f()
		if unix.Setns(int(own.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread() // otherwise the thread ends
		}
		done <- errors.Join(err, own.Close())
	}()
	return <-done
}

// network is a node and one pod, joined by a veth.
type network struct {
	node, pod namespace
	device    int // index of the node's end of the veth
}

// newNetwork makes a network. With peer, the node has the addresses of the server and rules that exclude them from connection
// tracking, as node-local-dns makes them; otherwise the server makes its own.
func newNetwork(peer bool) (n *network, err error) {
	n = &network{}
	if n.node, err = newNamespace(); err != nil {
		return nil, err
	}
	if n.pod, err = newNamespace(); err != nil {
		return nil, errors.Join(err, n.node.Close())
	}
	var pod net.HardwareAddr
	err = n.node.do(func() (err error) {
		pod, err = n.makeNode(peer)
		return err
	})
	if err == nil {
		err = n.pod.do(n.makePod)
	}
	if err == nil {
		err = n.node.do(func() error { return n.neighbours(n.device, pod, podPrefix, podPrefix6) })
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("network of a pod: %w", err), n.close())
	}
	return n, nil
}

func (n *network) close() error { return errors.Join(n.pod.Close(), n.node.Close()) }

// makeNode makes the node's end of the veth, its addresses and rules, and returns the hardware address of the pod's end.
func (n *network) makeNode(peer bool) (pod net.HardwareAddr, err error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "pod0"
	pod = net.HardwareAddr{2, 0, 0, 0, 0, 7}
	veth := &netlink.Veth{
		LinkAttrs: attrs, PeerName: "eth0", PeerHardwareAddr: pod,
		PeerNamespace: netlink.NsFd(n.pod.Fd()), // #nosec G115 -- a descriptor
	}
	if err := netlink.LinkAdd(veth); err != nil {
		return nil, fmt.Errorf("veth: %w", err)
	}
	if n.device, err = up("pod0", hostPrefix, hostPrefix6); err != nil {
		return nil, err
	}
	if peer {
		one := func(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
		if _, err := up("lo", one(localAddress.Addr()), one(localAddress6.Addr())); err != nil {
			return nil, err
		}
	}
	return pod, rules(peer)
}

// makePod makes the pod's addresses and routes.
func (n *network) makePod() error {
	device, err := up("eth0", podPrefix, podPrefix6)
	if err != nil {
		return err
	}
	for _, via := range []netip.Prefix{hostPrefix, hostPrefix6} {
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: device, Gw: via.Addr().AsSlice()}); err != nil {
			return fmt.Errorf("route via %v: %w", via.Addr(), err)
		}
	}
	var host net.HardwareAddr
	if err := n.node.do(func() error {
		l, err := netlink.LinkByIndex(n.device)
		if err == nil {
			host = l.Attrs().HardwareAddr
		}
		return err
	}); err != nil {
		return err
	}
	return n.neighbours(device, host, hostPrefix, hostPrefix6)
}

// neighbours adds permanent neighbours, so that programs at the veth may drop every packet.
func (n *network) neighbours(device int, at net.HardwareAddr, all ...netip.Prefix) error {
	for _, p := range all {
		neighbour := netlink.Neigh{LinkIndex: device, State: netlink.NUD_PERMANENT, IP: p.Addr().AsSlice(), HardwareAddr: at}
		if err := netlink.NeighSet(&neighbour); err != nil {
			return fmt.Errorf("neighbour %v: %w", p.Addr(), err)
		}
	}
	return nil
}

// up adds addresses to an interface, without duplicate address detection, and returns its index.
func up(name string, addresses ...netip.Prefix) (int, error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return 0, fmt.Errorf("interface %s: %w", name, err)
	}
	for _, a := range addresses {
		prefix := &net.IPNet{IP: a.Addr().AsSlice(), Mask: net.CIDRMask(a.Bits(), a.Addr().BitLen())}
		if err := netlink.AddrAdd(l, &netlink.Addr{IPNet: prefix, Flags: unix.IFA_F_NODAD}); err != nil {
			return 0, fmt.Errorf("address %v of interface %s: %w", a, name, err)
		}
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return 0, fmt.Errorf("interface %s: %w", name, err)
	}
	return l.Attrs().Index, nil
}

// trackRules has the kernel track connections, as on a node with kube-proxy.
const trackRules = `table inet tracked {
	chain in { type filter hook prerouting priority 0; ct state new counter; }
	chain out { type filter hook output priority 0; ct state new counter; }
}
`

// untrackRules are those of node-local-dns. Arguments: the IPv4 and the IPv6 address.
const untrackRules = `table inet untracked {
	chain in {
		type filter hook prerouting priority -300
		ip daddr %[1]s udp dport 53 notrack
		ip6 daddr %[2]s udp dport 53 notrack
	}
	chain out {
		type filter hook output priority -300
		ip saddr %[1]s udp sport 53 notrack
		ip6 saddr %[2]s udp sport 53 notrack
	}
}
`

// rules sets the rules of a node.
func rules(peer bool) error {
	nft, err := program("nft")
	if err != nil {
		return err
	}
	text := trackRules
	if peer {
		text += fmt.Sprintf(untrackRules, localAddress.Addr(), localAddress6.Addr())
	}
	cmd := exec.Command(nft, "-f", "-")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// client returns an HTTP client with connections from the namespace.
func (n namespace) client() *http.Client {
	dial := func(ctx context.Context, network, address string) (c net.Conn, err error) {
		err = n.do(func() error {
			c, err = new(net.Dialer).DialContext(ctx, network, address)
			return err
		})
		return c, err
	}
	return &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
}
