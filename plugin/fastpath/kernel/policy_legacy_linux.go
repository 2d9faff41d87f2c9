package kernel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The table of iptables-legacy in which policy engines have chains, and the options of getsockopt that read it: <linux/
// netfilter_ipv4/ip_tables.h> and <linux/netfilter_ipv6/ip6_tables.h> of the kernel.
const (
	legacyTable      = "filter"
	legacyInfo       = 64 // IPT_SO_GET_INFO, IP6T_SO_GET_INFO
	legacyEntries    = 65 // IPT_SO_GET_ENTRIES, IP6T_SO_GET_ENTRIES
	legacyNameLength = 32 // XT_TABLE_MAXNAMELEN
)

// legacyTableInfo is struct ipt_getinfo.
type legacyTableInfo struct {
	name                 [legacyNameLength]byte
	hooks                uint32
	hookEntry, underflow [5]uint32
	entries, size        uint32 // number, bytes
}

var _ [84]byte = [unsafe.Sizeof(legacyTableInfo{})]byte{}

// legacyHeader is the length of struct ipt_get_entries before the entries, in bytes: name and size, with the alignment of a
// counter.
const legacyHeader = 40

// legacyFamily is an address family of iptables-legacy.
type legacyFamily struct {
	name   string // in nft
	domain int    // of the socket
	level  int    // of getsockopt
	names  string // the file with the names of tables
	target int    // offset of target_offset in struct ipt_entry or ip6t_entry; next_offset follows
}

var legacyFamilies = []legacyFamily{
	{"ip", unix.AF_INET, unix.SOL_IP, "ip_tables_names", 88},
	{"ip6", unix.AF_INET6, unix.SOL_IPV6, "ip6_tables_names", 140},
}

// legacyEngine returns the policy engine with chains in iptables-legacy.
func legacyEngine() (Engine, error) {
	for _, family := range legacyFamilies {
		found, err := family.engine()
		if err != nil {
			return Engine{}, &KernelError{"list chains of iptables-legacy, " + family.name, err}
		}
		if found != (Engine{}) {
			return found, nil
		}
	}
	return Engine{}, nil
}

// engine returns the policy engine with chains of a family. A table that does not exist is not read: the kernel would create it.
func (f legacyFamily) engine() (Engine, error) {
	names, err := os.ReadFile(filepath.Join(procNet, f.names))
	switch {
	case errors.Is(err, fs.ErrNotExist): // the kernel does not have the module, or has not loaded it
		return Engine{}, nil
	case err != nil:
		return Engine{}, err
	case !slices.Contains(strings.Fields(string(names)), legacyTable):
		return Engine{}, nil
	}
	entries, err := f.read()
	if err != nil {
		return Engine{}, err
	}
	chains, err := f.chains(entries)
	for _, chain := range chains {
		if found := engineOf(f.name, legacyTable, chain); found != (Engine{}) {
			found.Place += " of iptables-legacy"
			return found, nil
		}
	}
	return Engine{}, err
}

// read returns the entries of the table.
func (f legacyFamily) read() ([]byte, error) {
	socket, err := unix.Socket(f.domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(socket) }() // nothing was sent
	const tries = 5
	for range tries {
		var info legacyTableInfo
		copy(info.name[:], legacyTable)
		if err = getsockopt(socket, f.level, legacyInfo, unsafe.Slice((*byte)(unsafe.Pointer(&info)), unsafe.Sizeof(info))); err != nil {
			return nil, err
		}
		all := make([]byte, legacyHeader+int(info.size))
		copy(all, legacyTable)
		binary.NativeEndian.PutUint32(all[legacyNameLength:], info.size)
		err = getsockopt(socket, f.level, legacyEntries, all)
		if !errors.Is(err, unix.EAGAIN) { // the table has changed its size
			return all[legacyHeader:], err
		}
	}
	return nil, err
}

func getsockopt(socket, level, option int, value []byte) error {
	length := uint32(len(value))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(socket), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&value[0])), uintptr(unsafe.Pointer(&length)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// chains returns the names of the chains in the entries of a table. A chain begins with an entry whose target ERROR has the
// chain's name.
func (f legacyFamily) chains(entries []byte) (names []string, err error) {
	const (
		chainTarget = "ERROR"
		targetName  = 2  // offset in struct xt_entry_target
		nameLength  = 29 // of the target
		chainName   = 32 // offset in struct xt_error_target
		chainLength = 30
	)
	for len(entries) > 0 {
		if len(entries) < f.target+4 {
			return names, fmt.Errorf("entry of %d bytes", len(entries))
		}
		target := int(binary.NativeEndian.Uint16(entries[f.target:]))
		next := int(binary.NativeEndian.Uint16(entries[f.target+2:]))
		if next <= target || next > len(entries) {
			return names, fmt.Errorf("entry with target at %d and end at %d of %d bytes", target, next, len(entries))
		}
		if t := entries[target:next]; len(t) >= chainName+chainLength && text(t[targetName:targetName+nameLength]) == chainTarget {
			names = append(names, text(t[chainName:chainName+chainLength]))
		}
		entries = entries[next:]
	}
	return names, nil
}

// text returns the text before a zero byte.
func text(b []byte) string {
	b, _, _ = bytes.Cut(b, []byte{0})
	return string(b)
}
