package inkernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/test/kit"
)

// checkSums returns an error unless the lengths and checksums of a frame with a reply are right.
func checkSums(f capturedFrame) error {
	packet := f.data[etherLen:]
	var from, to netip.Addr
	var datagram []byte
	if binary.BigEndian.Uint16(f.data[12:]) == unix.ETH_P_IP {
		if sum := folded(0, packet[:20]); sum != 0xffff {
			return fmt.Errorf("sum of the IP header %#x", sum)
		}
		if n := int(binary.BigEndian.Uint16(packet[2:])); n != len(packet) {
			return fmt.Errorf("total length %d of a packet with %d bytes", n, len(packet))
		}
		from, _ = netip.AddrFromSlice(packet[12:16])
		to, _ = netip.AddrFromSlice(packet[16:20])
		datagram = packet[20:]
	} else {
		if n := int(binary.BigEndian.Uint16(packet[4:])); n != len(packet)-40 {
			return fmt.Errorf("payload length %d of a packet with %d bytes", n, len(packet))
		}
		from, _ = netip.AddrFromSlice(packet[8:24])
		to, _ = netip.AddrFromSlice(packet[24:40])
		datagram = packet[40:]
	}
	if n := int(binary.BigEndian.Uint16(datagram[4:])); n != len(datagram) {
		return fmt.Errorf("UDP length %d of a datagram with %d bytes", n, len(datagram))
	}
	head, check := pseudoSum(from, to, len(datagram)), binary.BigEndian.Uint16(datagram[6:])
	switch {
	case check == 0:
		return errors.New("no UDP checksum")
	case f.partial && check != folded(head, nil):
		return fmt.Errorf("UDP checksum %#x for a device to complete: the sum of the pseudo header is %#x", check, folded(head, nil))
	case !f.partial && folded(head, datagram) != 0xffff:
		return fmt.Errorf("UDP checksum %#x, the sum is %#x", check, folded(head, datagram))
	}
	return nil
}

// offloads are those of a veth.
type offloads struct {
	podSends  bool // the pod's side completes checksums
	hostSends bool
	receive   bool // both sides verify checksums
	groups    bool // GRO at the host's side
}

func (o offloads) String() string {
	var all []string
	for n, enabled := range []bool{o.podSends, o.hostSends, o.receive, o.groups} {
		if enabled {
			all = append(all, []string{"pod tx", "host tx", "rx", "gro"}[n])
		}
	}
	return fmt.Sprintf("%q", strings.Join(all, ", "))
}

func (o offloads) set(t *testing.T, p *pod) {
	t.Helper()
	offload(t, p.Namespace, "eth0", sendChecksum, o.podSends)
	offload(t, p.Namespace, "eth0", receiveChecksum, o.receive)
	offload(t, p.node.Namespace, p.device, sendChecksum, o.hostSends)
	offload(t, p.node.Namespace, p.device, receiveChecksum, o.receive)
	offload(t, p.node.Namespace, p.device, receiveGroups, o.groups)
}

// sumQueries are queries whose answers have odd and even lengths, up to the longest ones of the kernel.
func sumQueries(t *testing.T) (all [][]byte) {
	t.Helper()
	edns := func(m *dns.Msg) { m.SetEdns0(1232, false) }
	secure := func(m *dns.Msg) { m.SetEdns0(1232, true) }
	for _, change := range []func(*dns.Msg){nil, edns, secure} {
		for _, name := range []string{"WEb.test.", "x.flood.test.", "xy.flood.test.", "none.test."} {
			all = append(all, query(t, name, dns.TypeA, change))
		}
	}
	return append(all, query(t, "text.test.", dns.TypeTXT, nil), query(t, "many.test.", dns.TypeA, nil),
		query(t, "many.test.", dns.TypeAAAA, edns), query(t, "long.test.", dns.TypeTXT, edns))
}

// TestReceivedChecksums verifies the checksums of replies that a pod receives, with the offloads of both sides of its veth on and
// off. A reply has the sum of the pseudo header where a device is to complete it, and the kernel notes that, or else a
// complete checksum.
func TestReceivedChecksums(t *testing.T) {
	n := newNode(t)
	pods := []*pod{n.addPod(t, routed), n.addPod(t, bridged)}
	i := n.start(t, config{kernel: "on"})
	i.waitInterfaces(t, "attached", 1+len(pods))
	i.heat(t, pods[0].Namespace, sumQueries(t), locals...)
	for _, p := range pods {
		w := openPacketSocket(t, p)
		for bits := range 1 << 4 {
			o := offloads{bits&1 != 0, bits&2 != 0, bits&4 != 0, bits&8 != 0}
			t.Run(fmt.Sprintf("%s pod, %v", shape(map[bool]int{true: 1}[p.bridged]), o), func(t *testing.T) {
				o.set(t, p)
				for _, server := range locals {
					c := dial(t, p.Namespace, server)
					var problems []error
					since := i.steady(t, func() {
						problems = nil
						for _, q := range sumQueries(t) {
							problems = append(problems, w.checkExchange(t, c, q, server, o.podSends && o.hostSends))
						}
					})
					if err := errors.Join(problems...); err != nil {
						t.Errorf("%v: %v", server, err)
					}
					if n := since.Sum(answeredTotal); int(n) != len(problems) {
						t.Errorf("%v: the kernel has answered %v of %d queries", server, n, len(problems))
					}
				}
			})
		}
	}
}

// TestWrongChecksum sends queries whose checksums are wrong, missing or ambiguous. The kernel passes them all on, except those
// without a checksum over IPv4, which are valid. The socket drops a datagram with a wrong checksum.
func TestWrongChecksum(t *testing.T) {
	n := newNode(t)
	p := n.addPod(t, routed)
	i := n.start(t, config{kernel: "on"})
	i.waitInterfaces(t, "attached", 2)
	message := query(t, "web.test.", dns.TypeA, nil)
	i.heat(t, p.Namespace, [][]byte{message}, locals...)
	w := openPacketSocket(t, p)
	for _, server := range locals {
		from, to := netip.AddrPortFrom(p.IPv4, 40000), netip.AddrPortFrom(server, 53)
		if server.Is6() {
			from = netip.AddrPortFrom(p.IPv6, 40000)
		}
		packet := func(datagram []byte) []byte {
			if server.Is4() {
				return w.frame(ipv4{}.packet(from.Addr(), server, datagram))
			}
			return w.frame(ipv6{}.packet(from.Addr(), server, datagram))
		}
		reserve(t, p, from)
		ambiguous := udp(from, to, message)
		head := folded(pseudoSum(from.Addr(), server, len(ambiguous)), nil)
		// With this ID, the sum of all but the checksum is the complement of the sum of the pseudo header.
		rest := folded(2*uint64(head), append(ambiguous[:6:6], ambiguous[10:]...))
		binary.BigEndian.PutUint16(ambiguous[8:], ^rest)
		if checksummed(from.Addr(), server, ambiguous); binary.BigEndian.Uint16(ambiguous[6:]) != head {
			t.Fatalf("datagram %x, want the checksum %#x", ambiguous, head)
		}
		for _, tc := range []struct {
			name     string
			datagram []byte
			change   func(datagram []byte)
			kernel   bool
			answered bool
		}{
			{name: "right", kernel: true, answered: true},
			{name: "one bit", change: func(b []byte) { b[7] ^= 1 }},
			{name: "one bit of the message", change: func(b []byte) { b[9] ^= 1 }},
			{name: "swapped bytes", change: func(b []byte) { b[6], b[7] = b[7], b[6] }},
			{name: "none", change: func(b []byte) { b[6], b[7] = 0, 0 }, kernel: server.Is4(), answered: server.Is4()},
			{name: "complement of the sum of the pseudo header", change: func(b []byte) { binary.BigEndian.PutUint16(b[6:], ^head) }},
			{name: "ambiguous", datagram: ambiguous, answered: true},
		} {
			t.Run(fmt.Sprintf("%v, %s", server, tc.name), func(t *testing.T) {
				datagram := tc.datagram
				if datagram == nil {
					datagram = udp(from, to, message)
				}
				if tc.change != nil {
					tc.change(datagram)
				}
				var f capturedFrame
				since := i.steady(t, func() {
					w.send(t, packet(datagram))
					if !tc.answered {
						// The reply to a query that follows arrives later, by the same socket.
						w.send(t, packet(udp(from, to, marker(t))))
					}
					var err error
					if f, err = w.reply(server, time.Now().Add(replyTime)); err != nil {
						t.Fatal(err)
					}
				})
				if err := checkSums(f); err != nil {
					t.Errorf("%v\n%x", err, f.data)
				}
				reply := f.data[len(packet(nil))+8:]
				if got := binary.BigEndian.Uint16(reply); (got == markerID) == tc.answered {
					t.Errorf("reply with the ID %d: %x", got, reply)
				}
				if kernel := since.Sum(answeredTotal) == 1; kernel != tc.kernel {
					t.Errorf("the kernel has answered: %v, want %v", kernel, tc.kernel)
				}
				if passed := since.Sum(passedTotal, "reason", "checksum") == 1; passed == tc.kernel {
					t.Errorf("the kernel has passed the query on because of its checksum: %v, want %v", passed, !tc.kernel)
				}
			})
		}
	}
}

// checkExchange sends a query from a socket, and returns an error unless the checksums of the frame with the reply are right. It
// fails if there is no reply.
func (w *packetSocket) checkExchange(t *testing.T, c *client, query []byte, server netip.Addr, partial bool) error {
	t.Helper()
	reply, err := c.exchange(query)
	if err != nil {
		t.Fatalf("%x to %v: %v", query, server, err)
	}
	f, err := w.reply(server, time.Now().Add(replyTime))
	kit.Must(t, err)
	if string(f.data[len(f.data)-len(reply):]) != string(reply) {
		t.Fatalf("frame %x, want that of the reply %x", f.data, reply)
	}
	if err := checkSums(f); err != nil {
		return fmt.Errorf("%x: %w\n%x", query, err, f.data)
	}
	if f.partial != partial {
		return fmt.Errorf("%x: a device is to complete the checksum: %v, want %v", query, f.partial, partial)
	}
	return nil
}

// markerID is the ID of marker.
const markerID = 99

// marker returns a query that the kernel passes on, and that has a reply.
func marker(t *testing.T) []byte {
	t.Helper()
	return query(t, "web.test.", dns.TypeA, func(m *dns.Msg) { m.Id, m.Opcode = markerID, dns.OpcodeStatus })
}

// TestFalsePartialChecksum sends a query whose checksum is the sum of the pseudo header, although no device is to complete it.
// The kernel cannot know that, and answers. The pod drops the reply, which has the same defect; without answers in the kernel,
// the node drops the query.
func TestFalsePartialChecksum(t *testing.T) {
	n := newNode(t)
	p := n.addPod(t, routed)
	w := openPacketSocket(t, p)
	for _, kernel := range []string{"off", "on"} {
		i := n.start(t, config{kernel: kernel})
		if kernel == "on" {
			i.waitInterfaces(t, "attached", 2)
		}
		message := query(t, "web.test.", dns.TypeA, nil)
		for _, server := range locals {
			if kernel == "on" {
				i.heat(t, p.Namespace, [][]byte{message}, server)
			}
			from, to := netip.AddrPortFrom(p.IPv4, 40000), netip.AddrPortFrom(server, 53)
			if server.Is6() {
				from = netip.AddrPortFrom(p.IPv6, 40000)
			}
			c := reserve(t, p, from)
			send := func(datagram []byte) {
				if server.Is4() {
					w.send(t, w.frame(ipv4{}.packet(from.Addr(), server, datagram)))
				} else {
					w.send(t, w.frame(ipv6{}.packet(from.Addr(), server, datagram)))
				}
			}
			datagram := udp(from, to, message)
			binary.BigEndian.PutUint16(datagram[6:], folded(pseudoSum(from.Addr(), server, len(datagram)), nil))
			send(datagram)
			send(udp(from, to, marker(t)))
			reply := make([]byte, dns.MaxMsgSize)
			kit.Must(t, c.SetReadDeadline(time.Now().Add(replyTime)))
			if length, err := c.Read(reply); err != nil || length < 2 || binary.BigEndian.Uint16(reply) != markerID {
				t.Errorf("kernel %s, %v: reply %x, %v", kernel, server, reply[:length], err)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
		i.Stop(t)
	}
}

// reserve binds a UDP socket, until the end of the test, so that the pod sends no ICMP messages.
func reserve(t *testing.T, p *pod, address netip.AddrPort) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	kit.Must(t, p.Do(func() (err error) {
		c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(address))
		return err
	}))
	t.Cleanup(func() { _ = c.Close() }) // the test may have closed it
	return c
}
