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
)

// Numbers of the messages that the recorder reads, RFC 1035 section 4.1 and RFC 6891 section 6.1.
const (
	headerLen       = 12
	typeOPT         = 41
	optionKeepAlive = 11    // RFC 7828
	optionCaller    = 65313 // what is tested here
)

// option is one of an OPT record.
type option struct {
	code uint16
	data string
}

// query is what a recorder got. It is read without package dns, so that every byte counts.
type query struct {
	network string
	name    string // as in the message: lengths and labels
	opts    int    // OPT records
	size    uint16 // of UDP answers, of the last OPT record
	flags   uint32 // of that: extended code, version and DO
	options []option
}

// callers returns the data of the options that say who is calling.
func (q query) callers() (all []string) {
	for _, o := range q.options {
		if o.code == optionCaller {
			all = append(all, o.data)
		}
	}
	return all
}

// others returns the codes of the options but edns-tcp-keepalive, which is forward's own, and the caller.
func (q query) others() (all []uint16) {
	for _, o := range q.options {
		if o.code != optionKeepAlive && o.code != optionCaller {
			all = append(all, o.code)
		}
	}
	return all
}

// parse reads a query that has a question and nothing behind it but OPT records.
func parse(b []byte) (q query, err error) {
	if len(b) < headerLen {
		return q, fmt.Errorf("%x is no message", b)
	}
	at := headerLen
	for b[at] != 0 {
		at += int(b[at]) + 1
	}
	q.name = string(b[headerLen : at+1])
	at += 1 + 4
	for range binary.BigEndian.Uint16(b[10:]) {
		if b[at] != 0 || binary.BigEndian.Uint16(b[at+1:]) != typeOPT {
			return q, fmt.Errorf("%x has a record that is no OPT", b)
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
		return q, fmt.Errorf("%x has %d bytes too many", b, len(b)-at)
	}
	return q, nil
}

// recorder is an upstream that writes down queries. It answers NOERROR without records, and with an option
// of code 65313 of its own to those who have EDNS, or FORMERR to those if it is old.
type recorder struct {
	address string
	old     bool

	mu   sync.Mutex
	all  []query
	errs []error
}

// record starts a recorder on an address of this host.
func record(t *testing.T, host string, old bool) *recorder {
	t.Helper()
	r := &recorder{address: net.JoinHostPort(host, strconv.Itoa(daemon.FreePort(t))), old: old}
	p, err := net.ListenPacket("udp", r.address)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", r.address)
	if err != nil {
		t.Fatal(err)
	}
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
			return // it is closed
		}
		_, _ = p.WriteTo(r.answer("udp", b[:n]), from) // who asked may be gone
	}
}

func (r *recorder) connections(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return // it is closed
		}
		go r.connection(c)
	}
}

// connection answers until the other side closes.
func (r *recorder) connection(c net.Conn) {
	defer func() { _ = c.Close() }() // there is nothing to lose
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

// answer writes a query down and returns what is answered.
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

// of returns the queries for a name.
func (r *recorder) of(name string) (all []query) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, q := range r.all {
		if text(q.name) == name {
			all = append(all, q)
		}
	}
	return all
}

// text returns a name in the usual form.
func text(wire string) (name string) {
	for wire[0] != 0 {
		end := 1 + int(wire[0])
		name, wire = name+wire[1:end]+".", wire[end:]
	}
	return name
}
