package transport

import (
	"encoding/binary"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/plugin/internal/wire"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// spoofer sends datagrams with the address and port of another process.
type spoofer struct {
	t  testing.TB
	fd int
}

func newSpoofer(t testing.TB) *spoofer {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	kit.Must(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	return &spoofer{t, fd}
}

// send sends an IPv4 packet with a UDP header, RFC 791 section 3.1 and RFC 768. The kernel fills in the checksum of
// the first; the second has none.
func (s *spoofer) send(from, to *net.UDPAddr, payload []byte) {
	s.t.Helper()
	p := make([]byte, 28, 28+len(payload))
	p[0], p[8], p[9] = 0x45, 64, unix.IPPROTO_UDP
	copy(p[12:], from.IP.To4())
	copy(p[16:], to.IP.To4())
	binary.BigEndian.PutUint16(p[20:], uint16(from.Port))
	binary.BigEndian.PutUint16(p[22:], uint16(to.Port))
	binary.BigEndian.PutUint16(p[24:], uint16(8+len(payload)))
	kit.Must(s.t, unix.Sendto(s.fd, append(p, payload...), 0, &unix.SockaddrInet4{Addr: [4]byte(to.IP.To4())}))
}

// forged returns a forged answer, with an A record.
func forged(query []byte) []byte {
	return append(edit(answer(query), func(b []byte) { b[wire.ANCountAt+1]++ }),
		0xc0, wire.HeaderLen, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 66)
}

// An attacker who knows the port of an idle socket fills it with answers of all ids before the query is sent. None of
// them is accepted.
func TestUDPAnswersBeforeTheQuery(t *testing.T) {
	if !netns.Inside(t) {
		return
	}
	attacker := newSpoofer(t)
	upstream := newUDPServer(t)
	d := newDatagrams(t, upstream)
	one := send(t, d, "first.example.")
	p := upstream.next()
	upstream.respond(p, answer(p.query))
	one.answered()
	for round := range 5 {
		becomes(t, "sockets", d.Metrics.Connections, 1)
		kit.Eventually(t, "the socket is idle", func() bool { return d.idleNow() == 1 })
		fill(t, attacker, upstream, p.from, question(t, "www.example."))
		victim := send(t, d, "www.example.")
		next := upstream.next()
		if next.from.Port == p.from.Port {
			t.Errorf("round %d: the query was sent from port %d, which had received answers", round, p.from.Port)
		}
		upstream.respond(next, answer(next.query))
		victim.answered()
		if victim.Reply[wire.ANCountAt+1] != 0 {
			t.Fatalf("round %d: the answer is the forged one: %x", round, victim.Reply)
		}
		if dropped := d.Metrics.dropped(); dropped != [4]int{} {
			t.Fatalf("round %d: %v answers of other ids, questions and cases, and malformed ones, were compared with the query", round, dropped)
		}
		p = next
	}
}

// fill sends answers of all ids to a socket, more than its buffer holds.
func fill(t *testing.T, attacker *spoofer, upstream *udpServer, to *net.UDPAddr, query []byte) {
	t.Helper()
	guess := forged(query)
	for id := range maxIDs {
		setID(guess, uint16(id))
		attacker.send(upstream.LocalAddr().(*net.UDPAddr), to, guess)
	}
}
