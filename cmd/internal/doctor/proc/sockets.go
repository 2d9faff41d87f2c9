package proc

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Socket is a socket that waits for packets from anyone.
type Socket struct {
	// Network is "udp" or "tcp".
	Network string
	// Local is the address that it is bound to; an unspecified one is every address.
	Local netip.AddrPort
	// Inode is its number in the file system of sockets: the name of a process's descriptor has it.
	Inode uint64
	// Drops counts the datagrams that were lost because its buffer was full; UDP only.
	Drops uint64
}

// These are the states of a TCP socket that listens and of a UDP socket that is not connected, as
// /proc/net/tcp and /proc/net/udp print them.
const (
	stateListen      = "0A"
	stateUnconnected = "07"
)

// Listeners returns the sockets that are bound to a port, UDP first. Without IPv6 in the kernel,
// those of IPv4.
func (r Root) Listeners(port uint16) ([]Socket, error) {
	var all []Socket
	for _, table := range []struct{ file, network, state string }{
		{"udp", "udp", stateUnconnected},
		{"udp6", "udp", stateUnconnected},
		{"tcp", "tcp", stateListen},
		{"tcp6", "tcp", stateListen},
	} {
		text, err := os.ReadFile(filepath.Join(r.Proc, "net", table.file))
		if errors.Is(err, fs.ErrNotExist) && strings.HasSuffix(table.file, "6") {
			continue
		}
		if err != nil {
			return nil, err
		}
		sockets, err := parseSockets(string(text), table.network, table.state)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", table.file, err)
		}
		for _, s := range sockets {
			if s.Local.Port() == port {
				all = append(all, s)
			}
		}
	}
	return all, nil
}

// parseSockets reads a table of sockets and returns those in a state.
func parseSockets(text, network, state string) ([]Socket, error) {
	var sockets []Socket
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 10 || fields[3] != state {
			continue // the heading, or a connection
		}
		local, err := parseAddrPort(fields[1])
		if err != nil {
			return nil, err
		}
		s := Socket{Network: network, Local: local}
		if s.Inode, err = strconv.ParseUint(fields[9], 10, 64); err != nil {
			return nil, fmt.Errorf("inode %q: %w", fields[9], err)
		}
		if network == "udp" && len(fields) > 12 {
			if s.Drops, err = strconv.ParseUint(fields[12], 10, 64); err != nil {
				return nil, fmt.Errorf("drops %q: %w", fields[12], err)
			}
		}
		sockets = append(sockets, s)
	}
	return sockets, nil
}

// parseAddrPort reads an address as the kernel prints it: words of 32 bits in the machine's order,
// in hexadecimal.
func parseAddrPort(text string) (netip.AddrPort, error) {
	host, port, found := strings.Cut(text, ":")
	raw, err := hex.DecodeString(host)
	if err != nil || !found || len(raw) != 4 && len(raw) != 16 {
		return netip.AddrPort{}, fmt.Errorf("%q is no address and port", text)
	}
	for i := 0; i < len(raw); i += 4 {
		binary.NativeEndian.PutUint32(raw[i:], binary.BigEndian.Uint32(raw[i:]))
	}
	number, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("port %q: %w", port, err)
	}
	address, _ := netip.AddrFromSlice(raw) // the length is that of an address
	return netip.AddrPortFrom(address, uint16(number)), nil
}
