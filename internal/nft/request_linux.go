package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// wait is the max. time for each part of the kernel's reply.
const wait = 5 * time.Second

// headerLen is the length of struct nfgenmsg, which is in front of the attributes.
const headerLen = 4

// buffers receive the parts of replies: the kernel sends at most 32 KiB at once.
var buffers = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// Request sends a request to a subsystem of netfilter, such as NFNL_SUBSYS_NFTABLES, and calls read, unless it is nil, for each
// message of the reply as it arrives: a list of all flows would need too much memory. An error of the kernel is a unix.Errno.
func Request(ctx context.Context, subsystem, kind int, flags netlink.HeaderFlags, family byte, attributes []byte, read func(family byte, a *netlink.AttributeDecoder) error) (err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	timeout := unix.NsecToTimeval(int64(wait))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	data := slices.Concat([]byte{family, unix.NFNETLINK_V0, 0, 0}, attributes)
	message, err := netlink.Message{
		Header: netlink.Header{
			Length: uint32(unix.NLMSG_HDRLEN + len(data)), // #nosec G115 -- short
			Type:   netlink.HeaderType(subsystem<<8 | kind), Flags: netlink.Request | flags,
		},
		Data: data,
	}.MarshalBinary()
	if err != nil {
		return err
	}
	if err := unix.Sendto(fd, message, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	buffer, _ := buffers.Get().(*[32 << 10]byte)
	defer buffers.Put(buffer)
	for ended := false; !ended; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, _, err := unix.Recvfrom(fd, buffer[:], unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return os.NewSyscallError("recvfrom", err)
		case n > len(buffer):
			return fmt.Errorf("reply of %d bytes", n)
		}
		if ended, err = readPart(buffer[:n], read); err != nil {
			return err
		}
	}
	return nil
}

// readPart reads the messages of a part of a reply, and reports whether it is the last one.
func readPart(b []byte, read func(family byte, a *netlink.AttributeDecoder) error) (last bool, err error) {
	messages, err := syscall.ParseNetlinkMessage(b)
	for _, m := range messages {
		if len(m.Data) < headerLen {
			return true, fmt.Errorf("message of %d bytes", len(m.Data))
		}
		if m.Header.Type == unix.NLMSG_ERROR || m.Header.Type == unix.NLMSG_DONE {
			if code := int32(binary.NativeEndian.Uint32(m.Data)); code < 0 { // #nosec G115 -- the bits
				return true, unix.Errno(-code)
			}
			return true, nil
		}
		last = m.Header.Flags&unix.NLM_F_MULTI == 0
		if read == nil {
			continue
		}
		a, err := netlink.NewAttributeDecoder(m.Data[headerLen:])
		if err != nil {
			return true, err
		}
		a.ByteOrder = binary.BigEndian
		if err := errors.Join(read(m.Data[0], a), a.Err()); err != nil {
			return true, err
		}
	}
	return last, err
}
