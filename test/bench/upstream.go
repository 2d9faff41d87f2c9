package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/bench/child"
)

// The upstream server of the part misses is this program in another mode.
const (
	upstreamMode  = "upstream"            // argument for it
	nearMode      = "near-upstream"       // the same, with immediate acknowledgements
	upstreamDelay = 20 * time.Millisecond // from a query to its answer
	upstreamTTL   = 3600                  // of the answers, in seconds: longer than a run
	negativeTTL   = 30                    // of answers without records, in seconds
)

// hostDomain is the search domain of the node's own resolv.conf. Nothing exists in it.
const hostDomain = "node.internal."

// inHostDomain reports whether a name in wire format, in lower case, is hostDomain or below it.
func inHostDomain(owner []byte) bool {
	return bytes.HasSuffix(owner, []byte("\x04node\x08internal\x00"))
}

// Names of class CH for which the upstream server answers a TXT record with its counts.
const (
	nameCounts = "counts."
	nameReset  = "reset." // also resets the counts
)

// upstreamCounts are the counts of the upstream server.
type upstreamCounts struct {
	open    int // open TCP connections now
	maxOpen int // maximum of open TCP connections
	queries int // over TCP and UDP
}

// The text of the TXT record.
const countsFormat = "open %d max %d queries %d"

func (c upstreamCounts) String() string {
	return fmt.Sprintf(countsFormat, c.open, c.maxOpen, c.queries)
}

func parseCounts(text string) (c upstreamCounts, err error) {
	if _, err := fmt.Sscanf(text, countsFormat, &c.open, &c.maxOpen, &c.queries); err != nil {
		return c, fmt.Errorf("counts of the upstream server: %q: %w", text, err)
	}
	return c, nil
}

// askCounts queries the counts of an upstream server.
func askCounts(port int, name string) (upstreamCounts, error) {
	m := new(dns.Msg).SetQuestion(name, dns.TypeTXT)
	m.Question[0].Qclass = dns.ClassCHAOS
	client := dns.Client{Timeout: 5 * time.Second}
	r, _, err := client.Exchange(m, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return upstreamCounts{}, fmt.Errorf("counts of the upstream server: %w", err)
	}
	if len(r.Answer) == 1 {
		if txt, ok := r.Answer[0].(*dns.TXT); ok && len(txt.Txt) == 1 {
			return parseCounts(txt.Txt[0])
		}
	}
	return upstreamCounts{}, fmt.Errorf("counts of the upstream server: no answer: %s", r)
}

// startUpstream starts an upstream server on the core of the load, for one server alone, so that it counts no
// connections of others.
func (b *bench) startUpstream(ctx context.Context) (port int, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	port = child.FreePort()
	mode := upstreamMode
	if b.near {
		mode = nearMode
	}
	p, err := child.Start(ctx, child.LoadCore, b.folder, fmt.Sprintf("%s-%d", mode, port), self, mode, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return 0, err
	}
	b.upstreams = append(b.upstreams, p)
	return port, child.Await(ctx, 10*time.Second, "the upstream server", func() bool {
		_, err := askCounts(port, nameCounts)
		return err == nil
	})
}

func (b *bench) stopUpstreams() {
	for _, p := range b.upstreams {
		p.Stop()
	}
	b.upstreams = nil
}

// addressOf is the upstream server's address of an owner name in wire format. It depends on the name, so that an answer
// to another question is detected.
func addressOf(owner []byte) (address [4]byte) {
	h := fnv.New32a()
	_, _ = h.Write(owner) // never fails
	binary.BigEndian.PutUint32(address[:], h.Sum32())
	return address
}

// address6Of is the upstream server's IPv6 address of an owner name. Every second name has none.
func address6Of(owner []byte) (address [16]byte, ok bool) {
	address4 := addressOf(owner)
	copy(address[:], "\x20\x01\x0d\xb8") // 2001:db8::/32, RFC 3849
	copy(address[12:], address4[:])
	return address, address4[3]&1 == 0
}

// answerTo answers a query of class IN: every name exists that is not in hostDomain.
func answerTo(to, query []byte, q question) []byte {
	if inHostDomain(q.owner) {
		return appendNegative(to, query, q, dns.RcodeNameError)
	}
	switch q.qtype {
	case dns.TypeA:
		address := addressOf(q.owner)
		return appendAnswer(to, query, q, upstreamTTL, address[:])
	case dns.TypeAAAA:
		if address, ok := address6Of(q.owner); ok {
			return appendAnswer(to, query, q, upstreamTTL, address[:])
		}
	}
	return appendNegative(to, query, q, dns.RcodeSuccess)
}

// headerSize is the size of a message's header (RFC 1035 section 4.1.1).
const headerSize = 12

var errQuery = errors.New("not a query with one question")

// question has the fields of a query that the upstream server reads.
type question struct {
	owner        []byte // in wire format
	qtype, class uint16
	end          int // of the question section in the message
}

// readQuestion reads a query with one question. Its name is not compressed, as there is nothing before it.
func readQuestion(query []byte) (q question, err error) {
	if len(query) < headerSize || query[2]&0x80 != 0 || binary.BigEndian.Uint16(query[4:]) != 1 {
		return q, errQuery
	}
	at := headerSize
	for at < len(query) && query[at] != 0 {
		if query[at] > 63 {
			return q, errQuery
		}
		at += 1 + int(query[at])
	}
	q.end = at + 1 + 4 // the root, type and class
	if q.end > len(query) || at-headerSize >= 255 {
		return q, errQuery
	}
	q.owner = query[headerSize : at+1]
	q.qtype, q.class = binary.BigEndian.Uint16(query[at+1:]), binary.BigEndian.Uint16(query[at+3:])
	return q, nil
}

// appendAnswer appends the answer to a query: its question, and a record of that name and type if there are data for it.
// It has no OPT record, as from a server without EDNS.
func appendAnswer(to, query []byte, q question, ttl uint32, data []byte) []byte {
	start := len(to)
	to = append(to, query[:q.end]...)
	answer := to[start:]
	answer[2] = answer[2]&0x79 | 0x80 // QR; opcode and RD are the query's
	answer[3] = 0x80                  // RA, NOERROR
	clear(answer[6:headerSize])       // no records but those of the question section
	if data == nil {
		return to
	}
	answer[7] = 1
	to = append(to, 0xc0, headerSize) // the owner name is that of the question
	to = binary.BigEndian.AppendUint16(to, q.qtype)
	to = binary.BigEndian.AppendUint16(to, q.class)
	to = binary.BigEndian.AppendUint32(to, ttl)
	to = binary.BigEndian.AppendUint16(to, uint16(len(data)))
	return append(to, data...)
}

// appendNegative appends an answer without records, with an SOA record for its TTL (RFC 2308 section 3). The zone is
// that of the name's last two labels.
func appendNegative(to, query []byte, q question, rcode byte) []byte {
	start := len(to)
	to = appendAnswer(to, query, q, 0, nil)
	to[start+3] |= rcode
	to[start+9] = 1                                 // records in the authority section
	zone := 0xc000 | (headerSize + zoneAt(q.owner)) // a pointer to it, RFC 1035 section 4.1.4
	to = binary.BigEndian.AppendUint16(to, uint16(zone))
	to = binary.BigEndian.AppendUint16(to, dns.TypeSOA)
	to = binary.BigEndian.AppendUint16(to, q.class)
	to = binary.BigEndian.AppendUint32(to, negativeTTL)
	to = binary.BigEndian.AppendUint16(to, 2+2+5*4)
	to = binary.BigEndian.AppendUint16(to, uint16(zone)) // MNAME
	to = binary.BigEndian.AppendUint16(to, uint16(zone)) // RNAME
	for _, v := range []uint32{1, 7200, 1800, 86400, negativeTTL} {
		to = binary.BigEndian.AppendUint32(to, v)
	}
	return to
}

// zoneAt returns the offset of an owner name's last two labels.
func zoneAt(owner []byte) int {
	var last, before int
	for at := 0; at < len(owner) && owner[at] != 0; at += 1 + int(owner[at]) {
		before, last = last, at
	}
	return before
}
