package inkernel

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// packetSocket is a packet socket at the interface of a pod. It reads and sends frames as they are.
type packetSocket struct {
	pod     *pod
	fd      int
	index   int // of the interface
	own     net.HardwareAddr
	gateway net.HardwareAddr // destination of frames to the node
}

// capturedFrame is a frame that a packetSocket has read.
type capturedFrame struct {
	data []byte
	// partial is set if the UDP checksum is only the sum of the pseudo header: the sender has left the rest to a device, and the
	// kernel knows that.
	partial bool
	sent    bool // by the pod
}

// openPacketSocket opens the packet socket of a pod, until the end of the test.
func openPacketSocket(t testing.TB, p *pod) *packetSocket {
	t.Helper()
	w := &packetSocket{pod: p}
	kit.Must(t, p.Do(func() error {
		eth0, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		w.own, w.index = eth0.HardwareAddr, eth0.Index
		w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(hton(unix.ETH_P_ALL)))
		return err
	}))
	t.Cleanup(func() {
		if err := unix.Close(w.fd); err != nil {
			t.Error(err)
		}
	})
	err := unix.Bind(w.fd, &unix.SockaddrLinklayer{Protocol: hton(unix.ETH_P_ALL), Ifindex: w.index})
	kit.Must(t, errors.Join(err, unix.SetsockoptInt(w.fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1)))
	device := p.device
	kit.Must(t, p.node.Do(func() error {
		if p.bridged {
			device = "cni0"
		}
		host, err := net.InterfaceByName(device)
		if err == nil {
			w.gateway = host.HardwareAddr
		}
		return err
	}))
	return w
}

func hton(v uint16) uint16 { return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v)) }

// read returns the next frame, or an error if there is none until the end.
func (w *packetSocket) read(end time.Time) (f capturedFrame, err error) {
	data, control := make([]byte, 65536), make([]byte, 256)
	for {
		n, controls, _, from, err := unix.Recvmsg(w.fd, data, control, 0)
		if errors.Is(err, unix.EAGAIN) {
			left := time.Until(end)
			if left <= 0 {
				return f, errors.New("no frame")
			}
			_, err = unix.Poll([]unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
			if err == nil || errors.Is(err, unix.EINTR) {
				continue
			}
		}
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return f, err
		}
		f.data = data[:n]
		if link, ok := from.(*unix.SockaddrLinklayer); ok {
			f.sent = link.Pkttype == unix.PACKET_OUTGOING
		}
		f.partial, err = notReady(control[:controls])
		return f, err
	}
}

// notReady reports whether the status of a frame is TP_STATUS_CSUMNOTREADY.
func notReady(control []byte) (bool, error) {
	messages, err := unix.ParseSocketControlMessage(control)
	for _, m := range messages {
		if m.Header.Level == unix.SOL_PACKET && m.Header.Type == unix.PACKET_AUXDATA && len(m.Data) >= 4 {
			return binary.NativeEndian.Uint32(m.Data)&unix.TP_STATUS_CSUMNOTREADY != 0, err
		}
	}
	return false, errors.Join(err, errors.New("frame without a status"))
}

// reply returns the next UDP datagram that arrives from port 53 of a server, as a frame.
func (w *packetSocket) reply(server netip.Addr, end time.Time) (capturedFrame, error) {
	for {
		f, err := w.read(end)
		if err != nil {
			return f, err
		}
		if from, port, ok := source(f.data); ok && !f.sent && from == server && port == 53 {
			return f, nil
		}
	}
}

// source returns the source of a frame with a UDP datagram without IP options or extension headers.
func source(frame []byte) (address netip.Addr, port uint16, ok bool) {
	if len(frame) < etherLen {
		return address, 0, false
	}
	kind, packet := binary.BigEndian.Uint16(frame[12:]), frame[etherLen:]
	switch {
	case kind == unix.ETH_P_IP && len(packet) >= 28 && packet[0] == 0x45 && packet[9] == unix.IPPROTO_UDP:
		address, _ = netip.AddrFromSlice(packet[12:16])
		return address, binary.BigEndian.Uint16(packet[20:]), true
	case kind == unix.ETH_P_IPV6 && len(packet) >= 48 && packet[6] == unix.IPPROTO_UDP:
		address, _ = netip.AddrFromSlice(packet[8:24])
		return address, binary.BigEndian.Uint16(packet[40:]), true
	}
	return address, 0, false
}

// send sends a frame to the node.
func (w *packetSocket) send(t testing.TB, frame []byte) {
	t.Helper()
	to := &unix.SockaddrLinklayer{Protocol: hton(binary.BigEndian.Uint16(frame[12:])), Ifindex: w.index, Halen: 6}
	copy(to.Addr[:], frame)
	kit.Must(t, unix.Sendto(w.fd, frame, 0, to))
}

const etherLen = 14

// frame returns an IP packet as a frame to the node, with VLAN tags.
func (w *packetSocket) frame(packet []byte, tags ...uint16) []byte {
	f := append(append([]byte{}, w.gateway...), w.own...)
	for _, tag := range tags {
		f = binary.BigEndian.AppendUint16(append(f, 0x81, 0), tag)
	}
	if packet[0]>>4 == 4 {
		return append(append(f, 8, 0), packet...)
	}
	return append(append(f, 0x86, 0xdd), packet...)
}

// udp returns a datagram with a complete checksum.
func udp(from, to netip.AddrPort, message []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, from.Port())
	b = binary.BigEndian.AppendUint16(b, to.Port())
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(message)))
	b = append(append(b, 0, 0), message...)
	return checksummed(from.Addr(), to.Addr(), b)
}

// checksummed sets the checksum of a datagram.
func checksummed(from, to netip.Addr, b []byte) []byte {
	b[6], b[7] = 0, 0
	check := ^folded(pseudoSum(from, to, len(b)), b)
	if check == 0 {
		check = 0xffff
	}
	binary.BigEndian.PutUint16(b[6:], check)
	return b
}

// ipv4 is the header of an IPv4 packet.
type ipv4 struct {
	options  []byte // a multiple of 4 bytes
	fragment uint16 // flags and offset
	tos      byte
	excess   int // by which the total length is too large
}

// packet returns a packet with a payload.
func (h ipv4) packet(from, to netip.Addr, payload []byte) []byte {
	length := 20 + len(h.options)
	p := append(make([]byte, 0, length+len(payload)), 0x40|byte(length/4), h.tos)
	p = binary.BigEndian.AppendUint16(p, uint16(length+len(payload)+h.excess))
	p = append(p, 0x12, 0x34)
	p = binary.BigEndian.AppendUint16(p, h.fragment)
	p = append(p, 64, unix.IPPROTO_UDP, 0, 0)
	p = append(append(append(p, from.AsSlice()...), to.AsSlice()...), h.options...)
	binary.BigEndian.PutUint16(p[10:], ^folded(0, p))
	return append(p, payload...)
}

// ipv6 is the header of an IPv6 packet.
type ipv6 struct {
	next       byte   // header behind it, 0 for UDP
	extensions []byte // headers
	class      byte   // upper four bits of the traffic class
	excess     int    // by which the payload length is too large
	hopByHop   bool   // the first extension is header 0
}

// packet returns a packet with a payload.
func (h ipv6) packet(from, to netip.Addr, payload []byte) []byte {
	next := h.next
	if next == 0 && !h.hopByHop {
		next = unix.IPPROTO_UDP
	}
	p := append(make([]byte, 0, 40+len(h.extensions)+len(payload)), 0x60|h.class, 0, 0, 0)
	p = binary.BigEndian.AppendUint16(p, uint16(len(h.extensions)+len(payload)+h.excess))
	p = append(p, next, 64)
	p = append(append(append(p, from.AsSlice()...), to.AsSlice()...), h.extensions...)
	return append(p, payload...)
}

// pseudoSum returns the sum of the pseudo header of UDP.
func pseudoSum(a, b netip.Addr, length int) uint64 {
	sum := uint64(unix.IPPROTO_UDP + length)
	for _, address := range []netip.Addr{a, b} {
		sum += uint64(folded(0, address.AsSlice()))
	}
	return sum
}

// folded returns the sum in ones' complement of a sum and some bytes.
func folded(sum uint64, b []byte) uint16 {
	for ; len(b) >= 2; b = b[2:] {
		sum += uint64(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint64(b[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

// Commands of SIOCETHTOOL that set an offload. The command before each one returns it.
const (
	receiveChecksum = 0x15 // ETHTOOL_SRXCSUM
	sendChecksum    = 0x17 // ETHTOOL_STXCSUM
	receiveGroups   = 0x2c // ETHTOOL_SGRO
)

// offload turns an offload of an interface on or off.
func offload(t testing.TB, in *netns.Namespace, device string, set uint32, enabled bool) {
	t.Helper()
	value := struct{ command, data uint32 }{command: set}
	if enabled {
		value.data = 1
	}
	want := value.data
	if err := in.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		request := struct {
			name [unix.IFNAMSIZ]byte
			data unsafe.Pointer
			_    [16]byte
		}{data: unsafe.Pointer(&value)}
		copy(request.name[:], device)
		call := func() error {
			if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); e != 0 {
				return e
			}
			return nil
		}
		err = call()
		value.command = set - 1
		return errors.Join(err, call(), unix.Close(fd))
	}); err != nil {
		t.Fatalf("offload %#x of %s: %v", set, device, err)
	}
	if (value.data != 0) != (want != 0) {
		t.Fatalf("offload %#x of %s is %d, want %d", set, device, value.data, want)
	}
}
