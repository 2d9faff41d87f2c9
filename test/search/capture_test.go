//go:build linux

package search

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/test/netns"
)

// capture reads the packets that leave a pod. Its socket receives them while they are sent, so that it has all packets of
// a program that has ended.
type capture struct{ socket int }

// capturePackets captures the packets of a namespace's eth0 until the end of the test.
func capturePackets(t *testing.T, n *netns.Namespace) *capture {
	t.Helper()
	c := &capture{}
	if err := n.Do(func() (err error) { c.socket, err = packetSocket("eth0"); return err }); err != nil {
		t.Fatalf("capture packets of %s: %v", n.Name, err)
	}
	t.Cleanup(func() {
		if err := unix.Close(c.socket); err != nil {
			t.Error(err)
		}
	})
	return c
}

// packetSocket opens a socket for the packets of an interface, from the network layer up.
func packetSocket(device string) (int, error) {
	const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8 // in network byte order
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	i, err := net.InterfaceByName(device)
	if err == nil {
		err = unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20)
	}
	if err == nil {
		err = unix.Bind(socket, &unix.SockaddrLinklayer{Protocol: all, Ifindex: i.Index})
	}
	if err != nil {
		return -1, errors.Join(err, unix.Close(socket))
	}
	return socket, nil
}

// queries returns the queries that were sent since its last call, one for each packet. A packet to port 53 that is not a
// query over UDP is an error.
func (c *capture) queries() (all []query, err error) {
	b := make([]byte, 65536)
	for {
		n, from, err := unix.Recvfrom(c.socket, b, 0)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return all, nil
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return all, err
		}
		if link, ok := from.(*unix.SockaddrLinklayer); !ok || link.Pkttype != unix.PACKET_OUTGOING {
			continue
		}
		protocol, payload := transport(b[:n])
		if len(payload) < 8 || binary.BigEndian.Uint16(payload[2:]) != 53 {
			continue
		}
		if protocol == unix.IPPROTO_TCP && !carriesData(payload) {
			continue // the end of an earlier connection
		}
		if protocol != unix.IPPROTO_UDP {
			return all, fmt.Errorf("packet of protocol %d to port 53", protocol)
		}
		q, err := newQuery("udp", payload[8:])
		if err != nil {
			return all, err
		}
		all = append(all, q)
	}
}

// carriesData reports whether a segment of TCP opens a connection or has data.
func carriesData(segment []byte) bool {
	const syn = 2
	return len(segment) >= 20 && (segment[13]&syn != 0 || len(segment) > int(segment[12]>>4)*4)
}

// discard drops the captured packets.
func (c *capture) discard() error {
	b := make([]byte, 1)
	for {
		switch _, _, err := unix.Recvfrom(c.socket, b, 0); {
		case errors.Is(err, unix.EAGAIN):
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return err
		}
	}
}

// transport returns the protocol and the payload of an IP packet without extension headers or fragments.
func transport(packet []byte) (protocol int, payload []byte) {
	switch {
	case len(packet) >= 20 && packet[0]>>4 == 4:
		if head := int(packet[0]&15) * 4; len(packet) >= head {
			return int(packet[9]), packet[head:]
		}
	case len(packet) >= 40 && packet[0]>>4 == 6:
		return int(packet[6]), packet[40:]
	}
	return 0, nil
}
