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

// usualBuffer is the kernel's own default of net.core.rmem_default and rmem_max, in bytes: about 270
// small DNS queries, each of which takes 768 bytes.
const usualBuffer = 212992

// checkSysctls says how the limits stand that DNS on a node runs into.
func (n *node) checkSysctls(context.Context) []Line {
	lines := []Line{n.checkConntrack()}
	for _, name := range []string{"net.core.rmem_default", "net.core.rmem_max"} {
		lines = append(lines, n.checkBuffer(name))
	}
	lines = append(lines, n.checkUDPMemory())
	for _, name := range []string{"net.ipv4.conf.all.rp_filter", "net.ipv4.conf.default.rp_filter"} {
		lines = append(lines, n.checkReversePath(name))
	}
	lines = append(lines, n.checkMigrate(), n.checkNonlocalBind("net.ipv4.ip_nonlocal_bind"))
	for _, a := range n.setup().addresses {
		if a.Is6() {
			return append(lines, n.checkNonlocalBind("net.ipv6.ip_nonlocal_bind"))
		}
	}
	return lines
}

// unread says why a sysctl is not known. Some are not shown in a network namespace of its own.
func unread(name string, err error) Line {
	if errors.Is(err, fs.ErrNotExist) {
		return Line{name, "not seen in this network namespace", Skip, "run it in the node's network namespace"}
	}
	return skipped(name, err, adviceFor(err))[0]
}

// checkConntrack compares the entries of connection tracking with their limit: once it is reached,
// every new connection of the node is dropped, those to cluster DNS too.
func (n *node) checkConntrack() Line {
	const name = "net.netfilter.nf_conntrack_max"
	limit, err := n.root.Sysctl(name)
	count, err2 := n.root.Sysctl("net.netfilter.nf_conntrack_count")
	if err != nil || err2 != nil {
		return Line{name, "connection tracking is not loaded", OK, ""}
	}
	if limit[0] <= 0 {
		return Line{name, fmt.Sprintf("no limit, %d in use", count[0]), OK, ""}
	}
	percent := count[0] * 100 / limit[0]
	line := Line{name, fmt.Sprintf("%d, %d in use (%d %%)", limit[0], count[0], percent), OK, ""}
	if percent >= nearlyFull {
		line.Verdict = Warn
		line.Advice = fmt.Sprintf("when it is full, new connections are dropped: sysctl -w %s=%d, or kube-proxy --conntrack-max-per-core", name, 2*limit[0])
	}
	if count[0] >= limit[0] {
		line.Verdict = Fail
	}
	return line
}

// checkBuffer looks at the receive buffer of a UDP socket. A server's socket has the default.
func (n *node) checkBuffer(name string) Line {
	v, err := n.root.Sysctl(name)
	if err != nil {
		return unread(name, err)
	}
	line := Line{name, fmt.Sprintf("%d bytes", v[0]), OK, ""}
	if v[0] < usualBuffer {
		line.Verdict = Warn
		line.Advice = fmt.Sprintf("less than the kernel's own %d: bursts of queries are lost: sysctl -w %s=1048576", usualBuffer, name)
	}
	return line
}

// checkUDPMemory compares the memory of all UDP sockets with its limit: min, pressure and max, in
// pages.
func (n *node) checkUDPMemory() Line {
	const name = "net.ipv4.udp_mem"
	v, err := n.root.Sysctl(name)
	if err == nil && len(v) != 3 {
		err = fmt.Errorf("%d numbers, not 3", len(v))
	}
	if err != nil {
		return unread(name, err)
	}
	used, err := n.root.SocketMemory()
	if err != nil {
		return skipped(name, err, adviceFor(err))[0]
	}
	line := Line{name, fmt.Sprintf("%d pages, %d in use", v[2], used), OK, ""}
	if used*100 >= v[2]*nearlyFull {
		line.Verdict = Warn
		line.Advice = fmt.Sprintf("datagrams are dropped when it is reached: find the socket that is not read (ss -uanm), or sysctl -w %s=\"%d %d %d\"",
			name, 2*v[0], 2*v[1], 2*v[2])
	}
	return line
}

// strict is the value of rp_filter with which a packet is dropped unless its source is reached through
// the interface that it came in by.
const strict = 1

func (n *node) checkReversePath(name string) Line {
	v, err := n.root.Sysctl(name)
	if err != nil {
		return unread(name, err)
	}
	meaning := map[int64]string{0: "off", strict: "strict", 2: "loose"}[v[0]]
	line := Line{name, fmt.Sprintf("%d (%s)", v[0], meaning), OK, ""}
	if v[0] != strict {
		return line
	}
	dropped, err := n.root.Counter("netstat", "TcpExt", "IPReversePathFilter")
	if err != nil || dropped == 0 {
		line.Value += ", nothing dropped so far"
		return line
	}
	line.Value += fmt.Sprintf(", %d packets dropped", dropped)
	line.Verdict = Warn
	line.Advice = "packets whose way back is another interface are dropped; if pods of this node are among them: sysctl -w " + name + "=2"
	return line
}

// checkNonlocalBind tells when a server can bind an address that is not there: a lost interface is
// then not seen in its log.
func (n *node) checkNonlocalBind(name string) Line {
	v, err := n.root.Sysctl(name)
	if err != nil {
		return unread(name, err)
	}
	if v[0] == 0 {
		return Line{name, "0", OK, ""}
	}
	return Line{name, "1: a server can bind an address that is on no interface", OK, ""}
}

// checkMigrate tells what becomes of TCP connections that wait to be accepted when the instance that
// they came to ends beside another one, as in an upgrade with surge (Linux, ip-sysctl.rst).
func (n *node) checkMigrate() Line {
	const name = "net.ipv4.tcp_migrate_req"
	v, err := n.root.Sysctl(name)
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
