package inkernel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// packetPort is the port from which the packets are sent.
const packetPort = 40000

// exotic is a query in an unusual form.
type exotic struct {
	name string
	// frames returns the frames of a query with an ID.
	frames func(s *sender, id uint16) [][]byte
	kernel bool // the kernel answers it
	silent bool // it has no reply, with the option and without
}

// sender makes the frames of a pod's queries to a server.
type sender struct {
	testing.TB
	*packetSocket
	from, to netip.AddrPort
}

// message returns a query for web.test. with an ID, changed by a function that may be nil.
func (s *sender) message(id uint16, change func(*dns.Msg)) []byte {
	b := query(s, "web.test.", dns.TypeA, change)
	binary.BigEndian.PutUint16(b, id)
	return b
}

// datagram returns a valid UDP datagram.
func (s *sender) datagram(message []byte) []byte { return udp(s.from, s.to, message) }

// ip returns an IP packet without options.
func (s *sender) ip(payload []byte) []byte {
	if s.to.Addr().Is4() {
		return ipv4{}.packet(s.from.Addr(), s.to.Addr(), payload)
	}
	return ipv6{}.packet(s.from.Addr(), s.to.Addr(), payload)
}

// plain returns the frame of a message.
func (s *sender) plain(message []byte) [][]byte { return [][]byte{s.frame(s.ip(s.datagram(message)))} }

// four returns frames of IPv4 packets.
func (s *sender) four(h ipv4, payload []byte) [][]byte {
	return [][]byte{s.frame(h.packet(s.from.Addr(), s.to.Addr(), payload))}
}

// six returns frames of IPv6 packets.
func (s *sender) six(h ipv6, payload []byte) [][]byte {
	return [][]byte{s.frame(h.packet(s.from.Addr(), s.to.Addr(), payload))}
}

// changed is an exotic whose message is changed in wire form.
func changed(name string, change func(b []byte) []byte) exotic {
	return exotic{name: name, frames: func(s *sender, id uint16) [][]byte { return s.plain(change(s.message(id, nil))) }}
}

// form is an exotic whose message is changed.
func form(name string, change func(*dns.Msg)) exotic {
	return exotic{name: name, frames: func(s *sender, id uint16) [][]byte { return s.plain(s.message(id, change)) }}
}

// options is an exotic with EDNS options.
func options(name string, all ...dns.EDNS0) exotic {
	return form(name, func(m *dns.Msg) { m.SetEdns0(1232, false).IsEdns0().Option = all })
}

func (e exotic) inKernel() exotic { e.kernel = true; return e }

func (e exotic) unanswered() exotic { e.silent = true; return e }

// set sets a byte.
func set(at int, value byte) func([]byte) []byte {
	return func(b []byte) []byte { b[at] |= value; return b }
}

// webRecord returns a record that is not in the query's answer.
func webRecord() dns.RR {
	return &dns.A{Hdr: dns.RR_Header{Name: "web.test.", Rrtype: dns.TypeA, Class: dns.ClassINET}, A: net.IPv4(192, 0, 2, 9)}
}

// messages are forms of messages, for both families.
func messages() []exotic {
	return []exotic{
		form("plain", nil).inKernel(),
		form("EDNS", func(m *dns.Msg) { m.SetEdns0(1232, false) }).inKernel(),
		form("upper case", func(m *dns.Msg) { m.Question[0].Name = "wEB.TesT." }).inKernel(),
		form("not recursive, AD", func(m *dns.Msg) { m.RecursionDesired, m.AuthenticatedData = false, true }).inKernel(),
		form("EDNS, a size of 0", func(m *dns.Msg) { m.SetEdns0(0, false) }).inKernel(),
		form("EDNS, a size of 65535", func(m *dns.Msg) { m.SetEdns0(65535, false) }).inKernel(),
		changed("QR", set(2, 0x80)).unanswered(),
		changed("AA", set(2, 0x04)),
		changed("TC", set(2, 0x02)),
		changed("RA", set(3, 0x80)),
		changed("Z", set(3, 0x40)),
		changed("RCODE", set(3, 0x03)),
		changed("opcode STATUS", set(2, dns.OpcodeStatus<<3)),
		changed("opcode NOTIFY", set(2, dns.OpcodeNotify<<3)),
		changed("opcode UPDATE", set(2, dns.OpcodeUpdate<<3)),
		changed("opcode 15", set(2, 15<<3)),
		changed("no question", func(b []byte) []byte { b[5] = 0; return b[:12] }),
		changed("a question that is not counted", func(b []byte) []byte { b[5] = 0; return b }),
		form("two questions", func(m *dns.Msg) {
			m.Question = append(m.Question, dns.Question{Name: "six.test.", Qtype: dns.TypeAAAA, Qclass: dns.ClassINET})
		}),
		form("two equal questions", func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) }),
		changed("two questions of which one is there", func(b []byte) []byte { b[5] = 2; return b }),
		form("an answer", func(m *dns.Msg) { m.Answer = []dns.RR{webRecord()} }),
		changed("an answer that is not there", set(7, 1)),
		changed("an authority that is not there", set(9, 1)),
		changed("an OPT record that is not there", set(11, 1)),
		form("a record behind the question", func(m *dns.Msg) { m.Extra = []dns.RR{webRecord()} }),
		form("class CH", func(m *dns.Msg) {
			m.Question[0] = dns.Question{Name: "version.bind.", Qtype: dns.TypeTXT, Qclass: dns.ClassCHAOS}
		}),
		form("class CH of the name", func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS }),
		form("class ANY", func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassANY }),
		form("class 0", func(m *dns.Msg) { m.Question[0].Qclass = 0 }),
		form("type ANY", func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeANY }),
		form("type AXFR", func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeAXFR }),
		form("type OPT", func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeOPT }),
		options("EDNS, NSID", &dns.EDNS0_NSID{Code: dns.EDNS0NSID}),
		options("EDNS, a cookie", &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0123456789abcdef"}),
		options("EDNS, a client subnet", &dns.EDNS0_SUBNET{
			Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: net.IPv4(192, 0, 2, 0),
		}),
		options("EDNS, padding", &dns.EDNS0_PADDING{Padding: make([]byte, 20)}),
		options("EDNS, an unknown option", &dns.EDNS0_LOCAL{Code: 65001, Data: []byte("x")}),
		form("EDNS, version 1", func(m *dns.Msg) { m.SetEdns0(1232, false).IsEdns0().SetVersion(1) }),
		form("EDNS, flags", func(m *dns.Msg) { m.SetEdns0(1232, false).IsEdns0().SetZ(1) }),
		form("EDNS, twice", func(m *dns.Msg) { m.SetEdns0(1232, false); m.Extra = append(m.Extra, m.Extra[0]) }),
		form("EDNS, a name", func(m *dns.Msg) { m.SetEdns0(1232, false).IsEdns0().Hdr.Name = "x." }),
		form("EDNS and another record", func(m *dns.Msg) { m.Extra = append(m.SetEdns0(1232, false).Extra, webRecord()) }),
		{name: "EDNS, cut", frames: func(s *sender, id uint16) [][]byte {
			b := s.message(id, func(m *dns.Msg) { m.SetEdns0(1232, false) })
			return s.plain(b[:len(b)-3])
		}},
		{name: "EDNS, a length beyond the end", frames: func(s *sender, id uint16) [][]byte {
			b := s.message(id, func(m *dns.Msg) { m.SetEdns0(1232, false) })
			b[len(b)-1] = 4
			return s.plain(b)
		}},
		changed("bytes behind the message", func(b []byte) []byte { return append(b, 0, 1, 2) }),
		changed("eleven bytes behind the message", func(b []byte) []byte { return append(b, make([]byte, 11)...) }),
		changed("a kilobyte behind the message", func(b []byte) []byte { return append(b, make([]byte, 1024)...) }),
		changed("nothing", func([]byte) []byte { return nil }).unanswered(),
		changed("an ID", func(b []byte) []byte { return b[:2] }).unanswered(),
		changed("half a header", func(b []byte) []byte { return b[:6] }).unanswered(),
		changed("all of the header but a byte", func(b []byte) []byte { return b[:11] }).unanswered(),
		changed("a header", func(b []byte) []byte { return b[:12] }),
		changed("half a name", func(b []byte) []byte { return b[:15] }),
		changed("no type", func(b []byte) []byte { return b[:len(b)-4] }),
		changed("half a class", func(b []byte) []byte { return b[:len(b)-1] }),
		changed("a pointer as name", func(b []byte) []byte { return append(append(b[:12], 0xc0, 12), b[len(b)-4:]...) }),
		changed("a pointer behind a label", func(b []byte) []byte { return append(append(b[:16], 0xc0, 12), b[len(b)-4:]...) }),
		changed("a label of 64 bytes", func(b []byte) []byte {
			return append(append(append(append(b[:12:12], 64), make([]byte, 64)...), 0), b[len(b)-4:]...)
		}),
		changed("a label of the type 01", set(12, 0x40)),
		changed("a zero in a label", func(b []byte) []byte { b[13] = 0; return b }),
		changed("a dot in a label", func(b []byte) []byte { b[13] = '.'; return b }),
		changed("a byte above 127 in a label", func(b []byte) []byte { b[13] = 0xff; return b }),
		{name: "a name of 128 bytes", frames: longName(128), kernel: true},
		{name: "a name of 129 bytes", frames: longName(129)},
		{name: "a name of 255 bytes", frames: longName(255)},
		{name: "a name of 256 bytes", frames: longName(256)},
		{name: "source port 0", frames: func(s *sender, id uint16) [][]byte {
			other := netip.AddrPortFrom(s.from.Addr(), 0)
			return [][]byte{s.frame(s.ip(udp(other, s.to, s.message(id, nil))))}
		}, silent: true},
		{name: "another port", frames: func(s *sender, id uint16) [][]byte {
			return [][]byte{s.frame(s.ip(udp(s.from, netip.AddrPortFrom(s.to.Addr(), 54), s.message(id, nil))))}
		}, silent: true},
		{name: "a UDP length beyond the packet", frames: func(s *sender, id uint16) [][]byte {
			d := s.datagram(s.message(id, nil))
			binary.BigEndian.PutUint16(d[4:], uint16(len(d)+1))
			return [][]byte{s.frame(s.ip(checksummed(s.from.Addr(), s.to.Addr(), d)))}
		}, silent: true},
		{name: "a UDP length of 8", frames: func(s *sender, id uint16) [][]byte {
			d := s.datagram(s.message(id, nil))
			binary.BigEndian.PutUint16(d[4:], 8)
			return [][]byte{s.frame(s.ip(d))}
		}, silent: true},
		{name: "bytes behind the datagram", frames: func(s *sender, id uint16) [][]byte {
			return [][]byte{s.frame(s.ip(append(s.datagram(s.message(id, nil)), 1, 2, 3, 4)))}
		}},
		{name: "bytes behind the packet", frames: func(s *sender, id uint16) [][]byte {
			return [][]byte{append(s.plain(s.message(id, nil))[0], 0, 0, 0, 0, 0, 0)}
		}},
		{name: "a priority tag", frames: func(s *sender, id uint16) [][]byte {
			return [][]byte{s.frame(s.ip(s.datagram(s.message(id, nil))), 0)}
		}},
		{name: "a VLAN tag", frames: func(s *sender, id uint16) [][]byte {
			return [][]byte{s.frame(s.ip(s.datagram(s.message(id, nil))), 5)}
		}, silent: true},
		{name: "two VLAN tags", frames: func(s *sender, id uint16) [][]byte {
			return [][]byte{s.frame(s.ip(s.datagram(s.message(id, nil))), 5, 6)}
		}, silent: true},
		{name: "a broadcast frame", frames: func(s *sender, id uint16) [][]byte {
			f := s.plain(s.message(id, nil))
			copy(f[0], bytes.Repeat([]byte{0xff}, 6))
			return f
		}},
	}
}

// longName returns frames of a query for a name with a number of bytes in wire form.
func longName(length int) func(s *sender, id uint16) [][]byte {
	return func(s *sender, id uint16) [][]byte {
		const parent = "\x05flood\x04test\x00"
		b := s.message(id, nil)
		out := slices.Clone(b[:12])
		for left := length - len(parent); left > 0; {
			label := min(left, 64)
			if left-label == 1 {
				label--
			}
			out = append(append(out, byte(label-1)), strings.Repeat("a", label-1)...)
			left -= label
		}
		return s.plain(append(append(out, parent...), b[len(b)-4:]...))
	}
}

// packets4 are forms of IPv4 packets.
func packets4() []exotic {
	header := func(name string, h ipv4) exotic {
		return exotic{name: name, frames: func(s *sender, id uint16) [][]byte { return s.four(h, s.datagram(s.message(id, nil))) }}
	}
	patched := func(name string, patch func(packet []byte)) exotic {
		return exotic{name: name, frames: func(s *sender, id uint16) [][]byte {
			f := s.plain(s.message(id, nil))
			patch(f[0][etherLen:])
			return f
		}}
	}
	const more = 0x2000
	fragments := func(s *sender, id uint16) [][]byte {
		d := s.datagram(s.message(id, nil))
		return append(s.four(ipv4{fragment: more}, d[:24]), s.four(ipv4{fragment: 24 / 8}, d[24:])...)
	}
	return []exotic{
		header("do not fragment", ipv4{fragment: 0x4000}).inKernel(),
		header("the reserved flag", ipv4{fragment: 0x8000}).inKernel(),
		header("a type of service", ipv4{tos: 0xb9}).inKernel(),
		header("options", ipv4{options: []byte{1, 1, 1, 1}}),
		header("a router alert", ipv4{options: []byte{0x94, 4, 0, 0}}),
		header("ten words of options", ipv4{options: bytes.Repeat([]byte{1}, 40)}),
		{name: "fragments", frames: fragments},
		{name: "fragments in reverse order", frames: func(s *sender, id uint16) [][]byte {
			all := fragments(s, id)
			slices.Reverse(all)
			return all
		}},
		{name: "the first fragment only", frames: func(s *sender, id uint16) [][]byte {
			return s.four(ipv4{fragment: more}, s.datagram(s.message(id, func(m *dns.Msg) { m.Question[0].Name = "x.web.test." }))[:32])
		}, silent: true},
		{name: "all bytes, with more fragments", frames: func(s *sender, id uint16) [][]byte {
			d := s.datagram(s.message(id, func(m *dns.Msg) { m.Question[0].Name = "a23456.flood.test." }))
			return s.four(ipv4{fragment: more}, d[:len(d)&^7])
		}, silent: true},
		header("a length beyond the frame", ipv4{excess: 1}).unanswered(),
		patched("a wrong checksum of the header", func(p []byte) { p[10] ^= 1 }).unanswered(),
		patched("version 5", func(p []byte) { p[0] = 0x55; fix4(p) }).unanswered(),
		patched("a header of 16 bytes", func(p []byte) { p[0] = 0x44; fix4(p) }).unanswered(),
		patched("a header beyond the packet", func(p []byte) { p[0] = 0x4f; fix4(p) }).unanswered(),
		patched("protocol UDP-Lite", func(p []byte) { p[9] = 136; fix4(p) }).unanswered(),
		patched("a TTL of 1", func(p []byte) { p[8] = 1; fix4(p) }).inKernel(),
		patched("a multicast source", func(p []byte) { p[12] = 224; fix4(p) }).unanswered(),
		patched("source 127.0.0.1", func(p []byte) { copy(p[12:16], []byte{127, 0, 0, 1}); fix4(p) }).unanswered(),
		patched("source 0.0.0.0", func(p []byte) { copy(p[12:16], []byte{0, 0, 0, 0}); fix4(p) }).unanswered(),
		patched("source 255.255.255.255", func(p []byte) { copy(p[12:16], []byte{255, 255, 255, 255}); fix4(p) }).unanswered(),
	}
}

// fix4 sets the checksums of an IPv4 packet without options.
func fix4(p []byte) {
	p[10], p[11] = 0, 0
	binary.BigEndian.PutUint16(p[10:], ^folded(0, p[:20]))
	from, _ := netip.AddrFromSlice(p[12:16])
	to, _ := netip.AddrFromSlice(p[16:20])
	checksummed(from, to, p[20:])
}

// packets6 are forms of IPv6 packets.
func packets6() []exotic {
	const hopByHop, routing, fragment, none, destination = 0, 43, 44, 59, 60
	next := byte(17)
	extended := func(name string, h ipv6) exotic {
		return exotic{name: name, frames: func(s *sender, id uint16) [][]byte { return s.six(h, s.datagram(s.message(id, nil))) }}
	}
	padding := []byte{next, 0, 1, 4, 0, 0, 0, 0}
	part := func(offset, more, identification uint16) []byte {
		b := binary.BigEndian.AppendUint16([]byte{next, 0}, offset|more)
		return binary.BigEndian.AppendUint32(b, uint32(identification))
	}
	fragments := func(s *sender, id uint16) [][]byte {
		d := s.datagram(s.message(id, nil))
		first, second := ipv6{next: fragment, extensions: part(0, 1, id)}, ipv6{next: fragment, extensions: part(24, 0, id)}
		return append(s.six(first, d[:24]), s.six(second, d[24:])...)
	}
	patched := func(name string, patch func(packet []byte)) exotic {
		return exotic{name: name, frames: func(s *sender, id uint16) [][]byte {
			f := s.plain(s.message(id, nil))
			patch(f[0][etherLen:])
			return f
		}}
	}
	return []exotic{
		extended("a traffic class", ipv6{class: 0x0b}).inKernel(),
		patched("a flow label", func(p []byte) { p[3] = 7 }).inKernel(),
		patched("a hop limit of 1", func(p []byte) { p[7] = 1 }).inKernel(),
		extended("hop-by-hop options", ipv6{hopByHop: true, extensions: padding}),
		extended("destination options", ipv6{next: destination, extensions: padding}),
		extended("a routing header without segments", ipv6{next: routing, extensions: []byte{next, 0, 0, 0, 0, 0, 0, 0}}),
		extended("no next header", ipv6{next: none}).unanswered(),
		extended("an unknown next header", ipv6{next: 253}).unanswered(),
		{name: "an atomic fragment", frames: func(s *sender, id uint16) [][]byte {
			return s.six(ipv6{next: fragment, extensions: part(0, 0, id)}, s.datagram(s.message(id, nil)))
		}},
		{name: "fragments", frames: fragments},
		{name: "fragments in reverse order", frames: func(s *sender, id uint16) [][]byte {
			all := fragments(s, id)
			slices.Reverse(all)
			return all
		}},
		{name: "the first fragment only", frames: func(s *sender, id uint16) [][]byte { return fragments(s, id)[:1] }, silent: true},
		extended("a length beyond the frame", ipv6{excess: 1}).unanswered(),
		patched("a length of 0", func(p []byte) { p[4], p[5] = 0, 0 }).unanswered(),
		patched("version 5", func(p []byte) { p[0] = 0x50 }).unanswered(),
		patched("a multicast source", func(p []byte) { p[8] = 0xff; fix6(p) }).unanswered(),
		patched("source ::1", func(p []byte) { copy(p[8:24], append(make([]byte, 15), 1)); fix6(p) }).unanswered(),
		patched("source ::", func(p []byte) { copy(p[8:24], make([]byte, 16)); fix6(p) }).unanswered(),
		patched("no checksum", func(p []byte) { p[46], p[47] = 0, 0 }).unanswered(),
	}
}

// fix6 sets the checksum of an IPv6 packet.
func fix6(p []byte) {
	from, _ := netip.AddrFromSlice(p[8:24])
	to, _ := netip.AddrFromSlice(p[24:40])
	checksummed(from, to, p[40:])
}

// inbox has the replies that a pod's socket has received, by ID.
type inbox struct {
	mu  sync.Mutex
	all map[uint16][][]byte
}

func (b *inbox) add(reply []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	id := binary.BigEndian.Uint16(reply)
	b.all[id] = append(b.all[id], reply)
}

func (b *inbox) get(id uint16) [][]byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all[id]
}

// openInbox opens a socket whose replies are collected, until close.
func openInbox(t *testing.T, p *pod, address netip.AddrPort) (b *inbox, closed func()) {
	t.Helper()
	b = &inbox{all: map[uint16][][]byte{}}
	c := reserve(t, p, address)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for buffer := make([]byte, dns.MaxMsgSize); ; {
			n, err := c.Read(buffer)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil && n >= 2 {
				b.add(slices.Clone(buffer[:n]))
			}
		}
	}()
	return b, func() {
		_ = c.Close()
		<-ended
	}
}

// comparable returns a reply without its TTLs, which depend on the time.
func comparable(reply []byte) string {
	var m dns.Msg
	if err := m.Unpack(reply); err != nil {
		return fmt.Sprintf("%x: %v", reply, err)
	}
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			if rr.Header().Rrtype != dns.TypeOPT {
				rr.Header().Ttl = 0
			}
		}
	}
	return fmt.Sprintf("%d bytes\n%v", len(reply), &m)
}

// firstID is the ID of the first exotic.
const firstID = 1000

// sendAll sends all packets, and returns the replies by the packets' names. With each, it returns the names of the packets that
// the kernel has answered; without it, there must be none.
func sendAll(t *testing.T, i *instance, s *sender, all []exotic, each bool) (replies map[string]string, kernel []string) {
	t.Helper()
	s.TB, replies = t, map[string]string{}
	box, closed := openInbox(t, s.pod, s.from)
	defer closed()
	before := i.answered(t)
	for n, e := range all {
		for _, f := range e.frames(s, uint16(firstID+n)) {
			s.send(t, f)
		}
		if !each {
			continue
		}
		if after := i.answered(t); after > before {
			kernel, before = append(kernel, e.name), after
		}
	}
	for n, e := range all {
		if e.silent {
			continue
		}
		i.eventually(t, "a reply to "+e.name, func() error {
			if len(box.get(uint16(firstID+n))) == 0 {
				return errors.New("none")
			}
			return nil
		})
	}
	time.Sleep(time.Second) // for replies that are not expected
	if after := i.answered(t); after != before {
		t.Errorf("the kernel has answered %d queries, want %d", after, before)
	}
	for n, e := range all {
		for _, reply := range box.get(uint16(firstID + n)) {
			replies[e.name] += comparable(reply)
		}
	}
	return replies, kernel
}

// TestExoticPackets sends unusual packets and messages to a nodecache with answers in the kernel, and to one without: each has
// the same replies, and the kernel answers only those of the forms that it supports.
func TestExoticPackets(t *testing.T) {
	n := newNode(t)
	pods := []*pod{n.addPod(t, routed), n.addPod(t, bridged)}
	cases := func(server netip.Addr) []exotic {
		if server.Is4() {
			return append(messages(), packets4()...)
		}
		return append(messages(), packets6()...)
	}
	type run struct {
		pod    *pod
		server netip.Addr
	}
	want := map[run]map[string]string{}
	senders := map[run]*sender{}
	off := n.start(t, config{})
	for _, p := range pods {
		w := openPacketSocket(t, p)
		for _, server := range locals {
			s := &sender{packetSocket: w, from: netip.AddrPortFrom(p.IPv4, packetPort), to: netip.AddrPortFrom(server, 53)}
			if server.Is6() {
				s.from = netip.AddrPortFrom(p.IPv6, packetPort)
			}
			r := run{p, server}
			senders[r] = s
			all := cases(server)
			want[r], _ = sendAll(t, off, s, all, false)
			for _, e := range all {
				if (want[r][e.name] == "") != e.silent {
					t.Errorf("without the option, %s to %v has the reply %q", e.name, server, want[r][e.name])
				}
			}
		}
	}
	off.Stop(t)
	i := n.start(t, config{kernel: "on"})
	i.waitInterfaces(t, "attached", 1+len(pods))
	for r, s := range senders {
		s.TB = t
		long := longName(128)(s, 7)[0]
		i.heat(t, r.pod.Namespace, [][]byte{s.message(7, nil), long[len(long)-(12+128+4):]}, r.server)
		all := cases(r.server)
		var got map[string]string
		var kernel []string
		i.steady(t, func() { got, kernel = sendAll(t, i, s, all, true) })
		for _, e := range all {
			if got[e.name] != want[r][e.name] {
				t.Errorf("%s to %v: reply with the option\n%s\nwithout\n%s", e.name, r.server, got[e.name], want[r][e.name])
			}
			if answered := slices.Contains(kernel, e.name); answered != e.kernel {
				t.Errorf("%s to %v: the kernel has answered: %v, want %v", e.name, r.server, answered, e.kernel)
			}
		}
	}
}
