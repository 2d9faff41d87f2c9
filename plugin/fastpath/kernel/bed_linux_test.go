//go:build amd64 || arm64

package kernel

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
	"github.com/nearside-dns/nearside/test/kit"
)

// requireRoot skips a test that needs CAP_BPF and CAP_NET_ADMIN.
func requireRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		kit.Lacking(t, "the test needs root")
	}
}

// listener4 and listener6 are the addresses of the tests' servers.
var (
	listener4 = netip.MustParseAddrPort("169.254.20.10:53")
	listener6 = netip.MustParseAddrPort("[fd00::a]:53")
)

// bed is a table with a store and two listeners.
type bed struct {
	testing.TB
	*Table
	store    *store.Store
	keyspace *store.Keyspace
	numbers  map[netip.AddrPort]int
	counted  recorder
	closed   bool
}

// recorder records the answers that a Table has counted.
type recorder struct {
	mu  sync.Mutex
	all []Answered
}

// Count implements Counter.
func (r *recorder) Count(a Answered) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, a)
}

// total returns the number of answers.
func (r *recorder) total() (n uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.all {
		n += a.Number
	}
	return n
}

func newBed(t testing.TB) *bed {
	t.Helper()
	requireRoot(t)
	b := &bed{TB: t, store: store.NewStore(store.DefaultBudget), numbers: map[netip.AddrPort]int{}}
	b.keyspace = b.store.NewKeyspace()
	table, err := NewTable(b.store)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	b.Table = table
	t.Cleanup(func() {
		if b.closed {
			return
		}
		if err := table.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, address := range []netip.AddrPort{listener4, listener6} {
		n, err := table.Listen(address)
		kit.Must(t, err)
		b.numbers[address] = n
		table.SetLease(n, time.Now().Add(time.Hour))
	}
	return b
}

// put stores the answer to a query, and copies it to the kernel. It returns the error of the copy.
func (b *bed) put(query []byte, e *store.Entry, shuffle bool) (err error) {
	b.Helper()
	var q wire.Query
	if !q.Parse(query) {
		b.Fatalf("no query: %x", query)
	}
	key := b.keyspace.Key(make([]byte, 0, store.MaxKey), query, &q)
	b.store.Put(b.keyspace, key, e)
	for _, number := range b.numbers {
		err = errors.Join(err, b.offer(e, number, key, shuffle))
	}
	return err
}

// offer copies an entry with a key, for a listener.
func (b *bed) offer(e *store.Entry, listener int, key []byte, shuffle bool) error {
	flags := key[8]
	o := Offer{
		Entry: e, Listener: listener, Shuffle: shuffle, Counter: &b.counted,
		Question: Question{Name: store.KeyName(key), Type: binary.BigEndian.Uint16(key[4:]), DO: flags&1 != 0, CD: flags&2 != 0},
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.copy(&o, validity.Now())
}

// datagram is a query on its way to a listener.
type datagram struct {
	from, to netip.AddrPort
	message  []byte
	partial  bool // a device is to complete the checksum
	without  bool // without a checksum
}

const etherLen = 14

// frame returns the datagram as an Ethernet frame with source and destination 00:00:00:00:00:00, as on lo.
func (d *datagram) frame() []byte {
	udpLen := 8 + len(d.message)
	f := make([]byte, 12, etherLen+40+udpLen)
	if d.to.Addr().Is4() {
		f = append(f, 8, 0, 0x45, 0)
		f = binary.BigEndian.AppendUint16(f, uint16(20+udpLen)) // #nosec G115 -- short
		f = append(f, 0x12, 0x34, 0, 0, 63, 17, 0, 0)
		f = append(append(f, d.from.Addr().AsSlice()...), d.to.Addr().AsSlice()...)
		binary.BigEndian.PutUint16(f[etherLen+10:], ^folded(0, f[etherLen:]))
	} else {
		f = append(f, 0x86, 0xdd, 0x60, 0x01, 0x02, 0x03)
		f = binary.BigEndian.AppendUint16(f, uint16(udpLen)) // #nosec G115 -- short
		f = append(f, 17, 63)
		f = append(append(f, d.from.Addr().AsSlice()...), d.to.Addr().AsSlice()...)
	}
	udp := len(f)
	f = binary.BigEndian.AppendUint16(f, d.from.Port())
	f = binary.BigEndian.AppendUint16(f, d.to.Port())
	f = binary.BigEndian.AppendUint16(f, uint16(udpLen)) // #nosec G115 -- short
	f = append(append(f, 0, 0), d.message...)
	head := pseudoSum(d.from.Addr(), d.to.Addr(), udpLen)
	switch {
	case d.without:
	case d.partial:
		binary.BigEndian.PutUint16(f[udp+6:], folded(head, nil))
	default:
		check := ^folded(head, f[udp:])
		if check == 0 {
			check = 0xffff
		}
		binary.BigEndian.PutUint16(f[udp+6:], check)
	}
	return f
}

// ambiguous reports whether the checksum of the datagram is both complete and the sum of the pseudo header: it does not show
// whether a device is to complete it.
func (d *datagram) ambiguous() bool {
	f := d.frame()
	udp := f[len(f)-8-len(d.message):]
	head := pseudoSum(d.from.Addr(), d.to.Addr(), len(udp))
	return folded(head, udp) == 0xffff && binary.BigEndian.Uint16(udp[6:]) == folded(head, nil)
}

// pseudoSum returns the sum of the pseudo header of UDP.
func pseudoSum(a, b netip.Addr, udpLen int) uint64 {
	sum := uint64(17 + udpLen) // #nosec G115 -- positive
	for _, address := range []netip.Addr{a, b} {
		for bytes := address.AsSlice(); len(bytes) > 0; bytes = bytes[2:] {
			sum += uint64(binary.BigEndian.Uint16(bytes))
		}
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
	return uint16(sum) // #nosec G115 -- folded
}

// The results of the program.
const (
	passedOn   = ^uint32(0)
	redirected = 7
)

// run runs the program on a frame.
func (b *bed) run(frame []byte) (result uint32, out []byte) {
	b.Helper()
	options := ebpf.RunOptions{Data: frame, DataOut: make([]byte, 4096)}
	result, err := b.objects.NearsideAnswer.Run(&options)
	kit.Must(b, err)
	return result, options.DataOut
}

// reply returns the message in a reply to a datagram, and fails unless all headers are right.
func (b *bed) reply(d *datagram, out []byte) []byte {
	b.Helper()
	got := datagram{to: d.from, from: d.to, partial: d.partial}
	head := etherLen + 40
	if d.to.Addr().Is4() {
		head = etherLen + 20
	}
	if len(out) < head+8+12 {
		b.Fatalf("reply %x too short", out)
	}
	got.message = out[head+8:]
	want := got.frame()
	if d.to.Addr().Is4() { // ID 0, do not fragment, TTL 64
		ip := want[etherLen:]
		copy(ip[4:], []byte{0, 0, 0x40, 0, 64})
		ip[10], ip[11] = 0, 0
		binary.BigEndian.PutUint16(ip[10:], ^folded(0, ip[:20]))
	} else {
		copy(want[etherLen:], []byte{0x60, 0, 0, 0})
		want[etherLen+7] = 64
	}
	if string(out) != string(want) {
		b.Fatalf("reply\n%x, want\n%x", out, want)
	}
	return got.message
}

// question returns a query.
func question(t testing.TB, name string, qtype uint16, change func(*dns.Msg)) []byte {
	t.Helper()
	m := new(dns.Msg).SetQuestion(name, qtype)
	m.Id = 7 // with a random one, the checksum of one query in 65,536 is ambiguous
	if change != nil {
		change(m)
	}
	return kit.Pack(t, m)
}
