//go:build linux

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
)

// nearlyFull is the share of a limit, in percent, from which on a check warns.
const nearlyFull = 80

// defaultBuffer is the kernel's default of net.core.rmem_default and rmem_max, in bytes: about 270 small
// DNS queries, of 768 bytes each in the buffer.
const defaultBuffer = 212992

// checkSysctls reports the limits of the node that DNS can reach.
func (n *node) checkSysctls(context.Context) []Line {
	return append([]Line{
		n.checkConntrack(),
		n.checkBuffer("net.core.rmem_default"),
		n.checkBuffer("net.core.rmem_max"),
		n.checkUDPMemory(),
		n.checkReversePath("net.ipv4.conf.all.rp_filter"),
		n.checkReversePath("net.ipv4.conf.default.rp_filter"),
		n.checkMigrate(),
	}, n.checkPodReversePath()...)
}

// numbers returns a sysctl of count numbers.
func (n *node) numbers(name string, count int) ([]int, error) {
	v, err := n.proc.SysctlInts(name)
	if err == nil && len(v) != count {
		err = fmt.Errorf("%d numbers, not %d", len(v), count)
	}
	return v, err
}

// sysctl returns a sysctl of one number, or -1 if it cannot be read.
func (n *node) sysctl(name string) int {
	v, err := n.numbers(name, 1)
	if err != nil {
		return -1
	}
	return v[0]
}

// unread is the line of a sysctl that cannot be read. Some sysctls are visible only in the node's network
// namespace.
func unread(name string, err error) Line {
	if errors.Is(err, fs.ErrNotExist) {
		return Line{name, "not seen in this network namespace", Skip, "run it in the node's network namespace"}
	}
	return skipped(name, err)[0]
}

// checkConntrack compares the entries of connection tracking with their limit: once it is reached,
// every new connection of the node is dropped, those to cluster DNS too.
func (n *node) checkConntrack() Line {
	const name = "net.netfilter.nf_conntrack_max"
	limit, count := n.sysctl(name), n.sysctl("net.netfilter.nf_conntrack_count")
	switch {
	case limit < 0 || count < 0:
		return Line{name, "connection tracking is not loaded", OK, ""}
	case limit == 0:
		return Line{name, fmt.Sprintf("no limit, %d in use", count), OK, ""}
	}
	percent := count * 100 / limit
	line := Line{name, fmt.Sprintf("%d, %d in use (%d %%)", limit, count, percent), OK, ""}
	if percent >= nearlyFull {
		line.Verdict = Warn
		line.Advice = fmt.Sprintf("when it is full, new connections are dropped: sysctl -w %s=%d, or kube-proxy --conntrack-max-per-core", name, 2*limit)
	}
	if count >= limit {
		line.Verdict = Fail
	}
	return line
}

// checkBuffer checks the receive buffer of a UDP socket. A server's socket has the default.
func (n *node) checkBuffer(name string) Line {
	v, err := n.numbers(name, 1)
	if err != nil {
		return unread(name, err)
	}
	line := Line{name, fmt.Sprintf("%d bytes", v[0]), OK, ""}
	if v[0] < defaultBuffer {
		line.Verdict = Warn
		line.Advice = fmt.Sprintf("less than the kernel's own %d: bursts of queries are lost: sysctl -w %s=1048576", defaultBuffer, name)
	}
	return line
}

// checkUDPMemory compares the memory of all UDP sockets with its limit: min, pressure and max, in pages.
func (n *node) checkUDPMemory() Line {
	const name = "net.ipv4.udp_mem"
	v, err := n.numbers(name, 3)
	if err != nil {
		return unread(name, err)
	}
	used, err := n.udpPages()
	if err != nil {
		return skipped(name, err)[0]
	}
	line := Line{name, fmt.Sprintf("%d pages, %d in use", v[2], used), OK, ""}
	if used*100 >= v[2]*nearlyFull {
		line.Verdict = Warn
		line.Advice = fmt.Sprintf("datagrams are dropped when it is reached: find the socket that is not read (ss -uanm), or sysctl -w %s=\"%d %d %d\"",
			name, 2*v[0], 2*v[1], 2*v[2])
	}
	return line
}

// udpPages returns the number of pages in the buffers of all UDP sockets.
func (n *node) udpPages() (int, error) {
	stat, err := n.proc.NetSockstat()
	if err != nil {
		return 0, err
	}
	for _, p := range stat.Protocols {
		if p.Protocol == "UDP" && p.Mem != nil {
			return *p.Mem, nil
		}
	}
	return 0, errors.New("sockstat has no memory of UDP")
}

// strict is the value of rp_filter with which a packet is dropped unless its source is routed to the
// interface that received it.
const strict = 1

func (n *node) checkReversePath(name string) Line {
	v, err := n.numbers(name, 1)
	if err != nil {
		return unread(name, err)
	}
	meaning := map[int]string{0: "off", strict: "strict", 2: "loose"}[v[0]]
	line := Line{name, fmt.Sprintf("%d (%s)", v[0], meaning), OK, ""}
	if v[0] != strict {
		return line
	}
	if dropped := n.reversePathDrops(); dropped > 0 {
		line.Value += fmt.Sprintf(", %.0f packets dropped", dropped)
		line.Verdict = Warn
		line.Advice = "packets whose way back is another interface are dropped; if pods of this node are among them: sysctl -w " + name + "=2"
		return line
	}
	line.Value += ", nothing dropped so far"
	return line
}

// reversePathDrops returns the number of packets that rp_filter has dropped, 0 if it is not known.
func (n *node) reversePathDrops() float64 {
	self, err := n.proc.Self()
	if err != nil {
		return 0
	}
	stat, err := self.Netstat()
	if err != nil || stat.IPReversePathFilter == nil {
		return 0
	}
	return *stat.IPReversePathFilter
}

// checkMigrate reports whether TCP connections that wait to be accepted are lost when their instance
// ends beside another one, as in an upgrade with surge (Linux, ip-sysctl.rst).
func (n *node) checkMigrate() Line {
	const name = "net.ipv4.tcp_migrate_req"
	v, err := n.numbers(name, 1)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Line{name, "not in this kernel: an upgrade with surge may reset new TCP connections", OK, ""}
	case err != nil:
		return unread(name, err)
	case v[0] == 0:
		return Line{name, "0: an upgrade with surge may reset new TCP connections; 1 moves them to the new instance", OK, ""}
	}
	return Line{name, fmt.Sprintf("%d: in an upgrade with surge new TCP connections move to the new instance", v[0]), OK, ""}
}
