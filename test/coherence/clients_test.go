//go:build linux

package coherence

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

const (
	// batch is the number of queries that a client sends at once.
	batch = 48
	// patience is the time that a client waits for the answers to them; later ones still count.
	patience = 20 * time.Millisecond
	// lastPatience is the time that it waits at the end.
	lastPatience = time.Second
	// pause is the time between two batches: the programs and the API server need the machine, too.
	pause = 4 * time.Millisecond
	// popularFor is the number of batches after which other questions are popular: some seconds.
	popularFor = 150
)

// client sends random questions to a node's cache, and records the answers.
type client struct {
	*rand.Rand
	source
	packed   [][]byte // queries by question
	popular  []int    // questions of most queries of a skewed source
	batches  uint32   // that were sent
	answers  *memo
	conn     net.Conn
	inFlight [1 << 16]sent // by ID
	next     uint16
	waiting  int    // queries of the last batch
	buffer   []byte // received and not read, over TCP
	replies  []reply
}

// sent is a query without an answer so far.
type sent struct {
	at       int64
	question uint16
	batch    uint32
	waits    bool
}

// packQueries returns the queries for all questions. The ID is 0.
func packQueries(u *universe) (all [][]byte) {
	for i := range u.all {
		m := new(dns.Msg).SetQuestion(u.all[i].spelling(), u.all[i].qtype)
		m.Id = 0
		m.SetEdns0(1232, false)
		wire, err := m.Pack()
		if err != nil {
			panic(err) // all names are valid
		}
		all = append(all, wire)
	}
	return all
}

// run sends queries until stop is set.
func (c *client) run(stop *atomic.Bool) {
	for !stop.Load() {
		if c.conn == nil && !c.connect() {
			time.Sleep(patience)
			continue
		}
		c.sendBatch()
		c.receive(time.Now().Add(patience))
		time.Sleep(pause)
	}
	if c.conn != nil {
		c.receive(time.Now().Add(lastPatience))
		c.close()
	}
	c.abandon()
}

// abandon records that queries have got no reply.
func (c *client) abandon() {
	for i := range c.inFlight {
		if s := &c.inFlight[i]; s.waits {
			c.lost(s)
		}
	}
	c.waiting = 0
}

// lost records that a query has got no reply.
func (c *client) lost(s *sent) {
	s.waits = false
	c.replies = append(c.replies, reply{s.at, s.at, s.question, c.cache, noReply})
}

func (c *client) connect() bool {
	conn, err := dialFrom(c.from, c.network, c.address)
	if err != nil {
		return false
	}
	c.abandon()
	c.conn, c.buffer = conn, nil
	return true
}

func (c *client) close() {
	_ = c.conn.Close() // the server may have closed it
	c.conn = nil
}

// choose returns the number of a question.
func (c *client) choose() int {
	if c.popular != nil && c.IntN(4) > 0 {
		return pick(c.Rand, c.popular)
	}
	return c.IntN(len(c.packed))
}

func (c *client) sendBatch() {
	c.batches, c.waiting = c.batches+1, 0
	if c.skewed && c.batches%popularFor == 1 {
		c.popular = c.Perm(len(c.packed))[:len(c.packed)/16]
	}
	for range batch {
		n := c.choose()
		query := binary.BigEndian.AppendUint16(make([]byte, 0, 600), uint16(len(c.packed[n]))) // #nosec G115 -- short
		query = append(query, c.packed[n]...)
		c.next++
		binary.BigEndian.PutUint16(query[2:], c.next)
		if c.network == "udp" {
			query = query[2:]
		}
		if s := &c.inFlight[c.next]; s.waits {
			c.lost(s)
		}
		c.waiting++
		c.inFlight[c.next] = sent{monotonic(), uint16(n), c.batches, true} // #nosec G115 -- hundreds
		if _, err := c.conn.Write(query); err != nil && c.network == "tcp" {
			c.close()
			return
		}
	}
}

// receive reads answers until none to the last batch is missing, at most until a time.
func (c *client) receive(until time.Time) {
	if c.conn == nil || c.conn.SetReadDeadline(until) != nil {
		return
	}
	var packet [4096]byte
	for c.waiting > 0 {
		n, err := c.conn.Read(packet[:])
		at := monotonic()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return
		case err != nil && c.network == "tcp":
			c.close()
			return
		case err != nil: // the port is closed for a moment
			return
		case c.network == "udp":
			c.received(packet[:n], at)
		default:
			c.split(packet[:n], at)
		}
	}
}

// split records the whole messages of a connection.
func (c *client) split(read []byte, at int64) {
	c.buffer = append(c.buffer, read...)
	for len(c.buffer) >= 2 {
		end := 2 + int(binary.BigEndian.Uint16(c.buffer))
		if len(c.buffer) < end {
			return
		}
		c.received(c.buffer[2:end], at)
		c.buffer = c.buffer[end:]
	}
}

func (c *client) received(m []byte, at int64) {
	if len(m) < 12 {
		return
	}
	s := &c.inFlight[binary.BigEndian.Uint16(m)]
	if !s.waits {
		return
	}
	s.waits = false
	if s.batch == c.batches { // replies to earlier ones are read on the way
		c.waiting--
	}
	c.replies = append(c.replies, reply{s.at, at, s.question, c.cache, c.answers.numberOf(m, c.packed[s.question])})
}

// memo returns the numbers of the answers in packed replies. All clients share it.
type memo struct {
	ttl   uint32 // the maximum in seconds
	texts *texts
	mu    sync.Mutex
	known map[string]int32 // by the reply without ID, TTLs and serial
}

// numberOf returns the number of the answer in the reply to a query. That of a reply which is neither an answer nor SERVFAIL is
// the number of a text that no right answer has.
func (c *memo) numberOf(m, query []byte) int32 {
	defect := defectOf(m, query)
	var zeroed []byte
	var ttl uint32
	if defect == "" {
		ok := false
		if zeroed, ttl, ok = withoutTTLs(m); !ok {
			defect = "malformed"
		} else if ttl > c.ttl {
			defect = fmt.Sprintf("with a TTL of %d: %x", ttl, m)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if defect != "" {
		return c.texts.numberOf("reply that is " + defect)
	}
	n, ok := c.known[string(zeroed)]
	if !ok {
		n = c.numberOfWhole(m)
		c.known[string(zeroed)] = n
	}
	return n
}

// numberOfWhole is numberOf for a reply that is to the query.
func (c *memo) numberOfWhole(m []byte) int32 {
	var reply dns.Msg
	if err := reply.Unpack(m); err != nil {
		return c.texts.numberOf("reply that is malformed: " + err.Error())
	}
	switch reply.Rcode { // with the part in the OPT record
	case dns.RcodeServerFailure:
		return failure
	case dns.RcodeSuccess, dns.RcodeNameError:
		if answer, ok := canonical(&reply); ok {
			return c.texts.numberOf(answer)
		}
		return c.texts.numberOf("reply that is a denial with records, or without SOA record")
	}
	return c.texts.numberOf("reply that is " + dns.RcodeToString[reply.Rcode])
}

// headerLen is the length of the header of a message.
const headerLen = 12

// defectOf returns the reason why a message is no whole reply to a query, "" if it is one.
func defectOf(m, query []byte) string {
	end := afterName(query, headerLen) + 4
	switch {
	case m[2]&0x80 == 0:
		return "no response"
	case m[2]&0x78 != 0:
		return "of another opcode"
	case m[2]&0x02 != 0:
		return "truncated"
	case len(m) < end || !bytes.Equal(m[4:6], query[4:6]) || !bytes.Equal(m[headerLen:end], query[headerLen:end]):
		return "for another question"
	}
	return ""
}

// withoutTTLs returns the part of a reply that is the same for the same answer, and the largest TTL of its answer and
// authority sections.
func withoutTTLs(m []byte) (zeroed []byte, ttl uint32, ok bool) {
	counts := [4]int{}
	for i := range counts {
		counts[i] = int(binary.BigEndian.Uint16(m[4+2*i:]))
	}
	zeroed = append(make([]byte, 0, len(m)), m...)
	at := headerLen
	for range counts[0] {
		if at = afterName(m, at) + 4; at > len(m) {
			return nil, 0, false
		}
	}
	for section, n := range counts[1:] {
		for range n {
			at = afterName(m, at)
			if at+10 > len(m) {
				return nil, 0, false
			}
			end := at + 10 + int(binary.BigEndian.Uint16(m[at+8:]))
			if end > len(m) {
				return nil, 0, false
			}
			switch binary.BigEndian.Uint16(m[at:]) {
			case dns.TypeOPT:
				at = end
				continue
			case dns.TypeSOA:
				clearSerial(zeroed[at+10 : end])
			}
			if section < 2 {
				ttl = max(ttl, binary.BigEndian.Uint32(m[at+4:]))
			}
			clear(zeroed[at+4 : at+8])
			at = end
		}
	}
	return zeroed[2:], ttl, at == len(m)
}

// clearSerial clears the serial in the data of an SOA record, the first of its last five fields.
func clearSerial(data []byte) {
	if n := len(data); n >= 20 {
		clear(data[n-20 : n-16])
	}
}

// afterName returns the offset behind a name.
func afterName(m []byte, at int) int {
	for at < len(m) {
		switch {
		case m[at] == 0:
			return at + 1
		case m[at] >= 0xc0:
			return at + 2
		}
		at += 1 + int(m[at])
	}
	return len(m) + 1
}
