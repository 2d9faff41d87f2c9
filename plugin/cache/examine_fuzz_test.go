package cache

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// Bits of the form of a query that wireQueryFor makes.
const (
	withDO = 1 << iota
	withSearch
	withUpper
	withCD
	withEDNS
)

// wireQueryFor returns a query for the question of a reply, in wire form. It returns false for a reply without a valid
// question.
func wireQueryFor(reply []byte, form byte) (packed []byte, ok bool) {
	name, ok := wire.AppendQuestionName(nil, reply)
	end := wire.HeaderLen + len(name)
	if !ok || len(reply) < end+4 {
		return nil, false
	}
	if form&withUpper != 0 {
		for i, c := range name {
			if 'a' <= c && c <= 'z' && i%3 == 0 {
				name[i] -= 'a' - 'A'
			}
		}
	}
	packed = append([]byte{0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}, name...)
	if form&withCD != 0 {
		packed[3] = 0x10
	}
	packed = append(packed, reply[end:end+4]...)
	var options []byte
	if form&withSearch != 0 {
		suffixes, _ := searchlist.AppendSuffixes(nil, []string{"a.example.", "b.example.", "example."})
		options = searchlist.AppendOption(nil, suffixes)
	}
	if form&(withDO|withEDNS|withSearch) != 0 {
		packed[11] = 1
		packed = append(packed, 0, 0, 41, 4, 208, 0, 0, form&withDO<<7, 0)
		packed = binary.BigEndian.AppendUint16(packed, uint16(len(options)))
		packed = append(packed, options...)
	}
	return packed, true
}

// wireCaches returns a cache for each of wireOptionsTested.
func wireCaches(t testing.TB) []*Cache {
	var caches []*Cache
	for _, options := range wireOptionsTested {
		caches = append(caches, newWireCache(t, ".", options))
	}
	return caches
}

// FuzzExamine compares examine with package dns, for any bytes, options of the cache and forms of the query.
func FuzzExamine(f *testing.F) {
	caches := wireCaches(f)
	add := func(q, text string) {
		var form byte
		if query(q).IsEdns0() != nil {
			form |= withEDNS
		}
		if searchlist.HasOption(query(q)) {
			form |= withSearch
		}
		m := wireReplyTo(f, query(q), text)
		for options := range wireOptionsTested {
			f.Add(byte(options), form|withUpper*byte(options%2), packReply(f, m, options%3 != 0))
		}
	}
	for _, tt := range ordinaryReplies {
		add(tt.query, tt.reply)
	}
	for _, tt := range unusualReplies {
		add(tt.query, tt.reply)
	}
	random := rand.New(rand.NewPCG(1, 2)) // #nosec G404 -- no need for secrecy
	for range 100 {
		f.Add(byte(random.Uint32()), byte(random.Uint32()), randomReply(random))
	}
	f.Fuzz(func(t *testing.T, options, form byte, reply []byte) {
		packed, ok := wireQueryFor(reply, form)
		var q wire.Query
		if !ok || !q.Parse(packed) {
			return
		}
		checkRead(t, caches[int(options)%len(caches)], packed, reply)
	})
}

// TestExamineAtRandom compares examine with package dns for random replies with all legal forms of compression, and for
// the same replies with changed bytes. A part of the former is ordinary, and stored.
func TestExamineAtRandom(t *testing.T) {
	caches := wireCaches(t)
	for seed := range uint64(8) {
		random := rand.New(rand.NewPCG(seed, rand.Uint64())) // #nosec G404
		whole, accepted, changedAccepted := 0, 0, 0
		for range 3000 {
			reply := randomReply(random)
			packed, ok := wireQueryFor(reply, byte(random.Uint32()))
			if !ok {
				t.Fatalf("invalid reply %x", reply)
			}
			c := caches[random.IntN(len(caches))]
			whole++
			if checkRead(t, c, packed, reply) {
				accepted++
			}
			for range 1 + random.IntN(3) {
				at := wire.HeaderLen*random.IntN(2) + random.IntN(len(reply)-wire.HeaderLen)
				reply[at] ^= 1 << random.IntN(8)
			}
			if packed, ok = wireQueryFor(reply, byte(random.Uint32())); ok && new(wire.Query).Parse(packed) && checkRead(t, c, packed, reply) {
				changedAccepted++
			}
		}
		t.Logf("%d replies: %d accepted; %d with changes", whole, accepted, changedAccepted)
		if accepted < whole/4 || changedAccepted < whole/20 {
			t.Errorf("%d of %d replies accepted, %d with changes", accepted, whole, changedAccepted)
		}
	}
}

// wireWriter writes a random message. Each name may refer to any name before it, in another case, too.
type wireWriter struct {
	*rand.Rand
	b     []byte
	names map[string][]int // offsets by name in presentation form
}

var (
	writtenNames = []string{"www.example.", "a.example.", "b.example.", "Example.", "lb.CDN.example.", "www.a.example.", "org.", ".", "x.www.example."}
	writtenTypes = []uint16{
		dns.TypeA, dns.TypeA, dns.TypeA, dns.TypeAAAA, dns.TypeCNAME, dns.TypeCNAME, dns.TypeNS, dns.TypeSOA, dns.TypeMX,
		dns.TypeSRV, dns.TypeTXT, dns.TypePTR, dns.TypeHTTPS, dns.TypeDNAME,
	}
	writtenTTLs = []uint32{0, 1, 5, 30, 60, 300, 300, 3600, 86400, 1<<32 - 1}
)

// randomReply returns a reply that package dns accepts, except for loops of pointers.
func randomReply(random *rand.Rand) []byte {
	w := wireWriter{Rand: random, b: make([]byte, wire.HeaderLen, 1024), names: map[string][]int{}}
	rcodes := []byte{dns.RcodeSuccess, dns.RcodeSuccess, dns.RcodeSuccess, dns.RcodeNameError, dns.RcodeNameError, dns.RcodeServerFailure, dns.RcodeRefused}
	w.b[2], w.b[3], w.b[5] = 0x80|byte(w.IntN(2))<<2, byte(w.IntN(4))<<5|rcodes[w.IntN(len(rcodes))], 1
	question := writtenNames[w.IntN(len(writtenNames))]
	qtype := writtenTypes[w.IntN(len(writtenTypes))]
	w.name(question, false)
	w.b = binary.BigEndian.AppendUint16(w.b, qtype)
	w.b = binary.BigEndian.AppendUint16(w.b, dns.ClassINET)
	owner, many := question, 1+39*(w.IntN(10)/9)
	for range w.IntN(4) * many {
		switch {
		case w.IntN(3) == 0:
			target := writtenNames[w.IntN(len(writtenNames))]
			w.record(6, owner, dns.TypeCNAME, target)
			owner = target
		case w.IntN(6) == 0:
			w.record(6, "", 0, "")
		default:
			w.record(6, owner, qtype, "")
		}
	}
	for range w.IntN(3) {
		rrtype := []uint16{dns.TypeSOA, dns.TypeSOA, dns.TypeNS, 0}[w.IntN(4)]
		w.record(8, "", rrtype, "")
	}
	opt := w.IntN(4)
	for i := range w.IntN(3) * many {
		if i == 0 && opt == 1 {
			w.opt()
		}
		w.record(10, "", 0, "")
	}
	if opt == 2 {
		w.opt()
	}
	return w.b
}

// name writes a name, in random case, and if compress is set in random compression.
func (w *wireWriter) name(name string, compress bool) {
	for name != "." {
		if at := w.names[name]; compress && len(at) > 0 && w.IntN(4) > 0 {
			w.b = binary.BigEndian.AppendUint16(w.b, 0xc000|uint16(at[w.IntN(len(at))])) // #nosec G115
			return
		}
		if len(w.b) < 1<<14 {
			w.names[name] = append(w.names[name], len(w.b))
		}
		end, _ := dns.NextLabel(name, 0)
		w.b = append(w.b, byte(end-1)) // #nosec G115
		for _, c := range []byte(name[:end-1]) {
			if 'a' <= c && c <= 'z' && w.IntN(40) == 0 {
				c -= 'a' - 'A'
			}
			w.b = append(w.b, c)
		}
		if name = name[end:]; name == "" {
			break
		}
	}
	w.b = append(w.b, 0)
}

// record writes a record, and counts it at an offset. An empty owner, type or target is a random one.
func (w *wireWriter) record(countAt int, owner string, rrtype uint16, target string) {
	if owner == "" {
		owner = writtenNames[w.IntN(len(writtenNames))]
	}
	if rrtype == 0 {
		rrtype = writtenTypes[w.IntN(len(writtenTypes))]
	}
	if target == "" {
		target = writtenNames[w.IntN(len(writtenNames))]
	}
	w.name(owner, true)
	w.header(countAt, rrtype, dns.ClassINET, writtenTTLs[w.IntN(len(writtenTTLs))])
	data := len(w.b)
	w.data(rrtype, target)
	binary.BigEndian.PutUint16(w.b[data-2:], uint16(len(w.b)-data)) // #nosec G115
}

func (w *wireWriter) header(countAt int, rrtype, class uint16, ttl uint32) {
	w.b = binary.BigEndian.AppendUint16(w.b, rrtype)
	w.b = binary.BigEndian.AppendUint16(w.b, class)
	w.b = append(binary.BigEndian.AppendUint32(w.b, ttl), 0, 0)
	binary.BigEndian.PutUint16(w.b[countAt:], binary.BigEndian.Uint16(w.b[countAt:])+1)
}

func (w *wireWriter) data(rrtype uint16, target string) {
	switch rrtype {
	case dns.TypeA:
		w.bytes(4)
	case dns.TypeAAAA:
		w.bytes(16)
	case dns.TypeTXT:
		n := w.IntN(40)
		w.b = append(w.b, byte(n)) // #nosec G115
		w.bytes(n)
	case dns.TypeMX:
		w.bytes(2)
		w.name(target, true)
	case dns.TypeSRV:
		w.bytes(6)
		w.name(target, true)
	case dns.TypeHTTPS:
		w.bytes(2)
		w.name(target, w.IntN(4) == 0)
		w.b = append(w.b, 0, 1, 0, 3, 2, 'h', '2', 0, 4, 0, 4)
		w.bytes(4)
	case dns.TypeSOA:
		w.name(target, true)
		w.name("host."+target, true)
		w.bytes(16)
		w.b = binary.BigEndian.AppendUint32(w.b, writtenTTLs[w.IntN(len(writtenTTLs))])
	default:
		w.name(target, true)
	}
}

func (w *wireWriter) bytes(n int) {
	for range n {
		w.b = append(w.b, byte(w.Uint32())) // #nosec G115
	}
}

// opt writes an OPT record with random options.
func (w *wireWriter) opt() {
	w.b = append(w.b, 0)
	w.header(10, dns.TypeOPT, 1232, uint32(w.IntN(2))<<15) // #nosec G115
	data := len(w.b)
	for range w.IntN(4) {
		switch w.IntN(5) {
		case 0, 1:
			n := 2 + w.IntN(5) + 260*(w.IntN(4)/3)
			w.b = append(w.b, 0, dns.EDNS0EDE, byte(n>>8), byte(n)) // #nosec G115
			w.bytes(n)
		case 2, 3:
			suffixes := []string{"a.example.", "b.example.", "c.example."}[:1+w.IntN(2)]
			list, _ := searchlist.AppendSuffixes(nil, suffixes[w.IntN(len(suffixes)):])
			w.b = searchlist.AppendOption(w.b, list[:len(list)*w.IntN(2)])
		default:
			w.b = append(w.b, 0, byte(w.IntN(32)), 0, 2, 1, 2) // #nosec G115
		}
	}
	binary.BigEndian.PutUint16(w.b[data-2:], uint16(len(w.b)-data)) // #nosec G115
}
