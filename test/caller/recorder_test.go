//go:build linux

package caller

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
)

// Numbers in messages, RFC 1035 section 4.1 and RFC 6891 section 6.1.
const (
	headerLen       = 12
	typeOPT         = 41
	optionKeepAlive = 11    // RFC 7828
	optionCaller    = 65313 // the option under test
)

// option is an option of an OPT record.
type option struct {
	code uint16
	data string
}

// query is a query that a recorder received. It is parsed without package dns, which would hide some bytes.
type query struct {
	network string
	name    string // in wire form
	opts    int    // number of OPT records
	size    uint16 // UDP payload size of the last OPT record
	flags   uint32 // extended code, version and DO of the last OPT record
	options []option
}

// callers returns the data of the options 65313.
func (q query) callers() (all []string) {
	for _, o := range q.options {
		if o.code == optionCaller {
			all = append(all, o.data)
		}
	}
	return all
}

// others returns the codes of the options, except edns-tcp-keepalive, which forward adds, and 65313.
func (q query) others() (all []uint16) {
	for _, o := range q.options {
		if o.code != optionKeepAlive && o.code != optionCaller {
			all = append(all, o.code)
		}
	}
	return all
}

// parse parses a query with one question and no records but OPT records.
func parse(b []byte) (q query, err error) {
	if len(b) < headerLen {
		return q, fmt.Errorf("%x is not a message", b)
	}
	at := headerLen
	for b[at] != 0 {
		at += int(b[at]) + 1
	}
	q.name = string(b[headerLen : at+1])
	at += 1 + 4
	for range binary.BigEndian.Uint16(b[10:]) {
		if b[at] != 0 || binary.BigEndian.Uint16(b[at+1:]) != typeOPT {
			return q, fmt.Errorf("%x has a record that is not OPT", b)
		}
		q.opts++
		q.size, q.flags = binary.BigEndian.Uint16(b[at+3:]), binary.BigEndian.Uint32(b[at+5:])
		end := at + 11 + int(binary.BigEndian.Uint16(b[at+9:]))
		for at += 11; at < end; {
			length := int(binary.BigEndian.Uint16(b[at+2:]))
			q.options = append(q.options, option{binary.BigEndian.Uint16(b[at:]), string(b[at+4 : at+4+length])})
			at += 4 + length
		}
	}
	if at != len(b) {
		return q, fmt.Errorf("%x has %d bytes after the last record", b, len(b)-at)
	}
	return q, nil
}

// recorder is an upstream that records queries. It answers NOERROR without records. Replies to queries with EDNS have an
// option 65313; an old recorder answers such queries with FORMERR.
type recorder struct {
	address string
	old     bool

	mu   sync.Mutex
	all  []query
	errs []error
}

// record starts a recorder on an address of this machine.
func record(t *testing.T, host string, old bool) *recorder {
	t.Helper()
	r := &recorder{address: net.JoinHostPort(host, strconv.Itoa(daemon.FreePort(t))), old: old}
	p, err := net.ListenPacket("udp", r.address)
	kit.Must(t, err)
	l, err := net.Listen("tcp", r.address)
	kit.Must(t, err)
	go r.datagrams(p)
	go r.connections(l)
	t.Cleanup(func() {
		if err := errors.Join(p.Close(), l.Close()); err != nil {
			t.Error(err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if err := errors.Join(r.errs...); err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *recorder) datagrams(p net.PacketConn) {
	b := make([]byte, 65535)
	for {
		n, from, err := p.ReadFrom(b)
		if err != nil {
			return // closed
		}
		_, _ = p.WriteTo(r.answer("udp", b[:n]), from) // the client may have closed its socket
	}
}

func (r *recorder) connections(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return // closed
		}
		go r.connection(c)
	}
}

// connection answers queries until the client closes the connection.
func (r *recorder) connection(c net.Conn) {
	defer func() { _ = c.Close() }() // all replies were written
	var length [2]byte
	for {
		if _, err := io.ReadFull(c, length[:]); err != nil {
			return
		}
		b := make([]byte, binary.BigEndian.Uint16(length[:]))
		if _, err := io.ReadFull(c, b); err != nil {
			return
		}
		reply := r.answer("tcp", b)
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...)); err != nil {
			return
		}
	}
}

// answer records a query and returns the reply.
func (r *recorder) answer(network string, b []byte) []byte {
	q, err := parse(b)
	q.network = network
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, q)
	if err != nil {
		r.errs = append(r.errs, err)
	}
	question := headerLen + len(q.name) + 4
	reply := slices.Clone(b[:question])
	reply[2] |= 0x80                 // a response
	copy(reply[10:12], []byte{0, 0}) // no additional records
	if q.opts == 0 {
		return reply
	}
	if r.old {
		reply[3] |= 1 // FORMERR
		return reply
	}
	reply[11] = 1
	reply = append(reply, 0, 0, typeOPT, 4, 208, 0, 0, 0, 0, 0, 4+3)
	reply = binary.BigEndian.AppendUint16(reply, optionCaller)
	return append(reply, 0, 3, 1, 1, 'x')
}

// queriesFor returns the queries for a name.
func (r *recorder) queriesFor(name string) (all []query) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, q := range r.all {
		if text(q.name) == name {
			all = append(all, q)
		}
	}
	return all
}

// text returns a name in presentation form.
func text(wire string) (name string) {
	for wire[0] != 0 {
		end := 1 + int(wire[0])
		name, wire = name+wire[1:end]+".", wire[end:]
	}
	return name
}
