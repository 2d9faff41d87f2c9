package transport

import (
	"encoding/binary"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/vouch"
)

const (
	minRead = 4 << 10
	maxRead = 32 << 10
)

// input is the state of a connection's reader.
type input struct {
	buf   []byte
	have  int         // bytes of an incomplete message
	calls []*Call     // a buffer for reuse
	batch batch.Batch // of the calls' owners
}

// read receives answers until the connection ends.
func (c *conn) read() {
	c.buf = make([]byte, minRead)
	var err error
	if c.stream != nil {
		err = c.stream.read(c)
	} else {
		err = c.readBlocking()
	}
	c.pool.lost(c, err)
}

// readBlocking is read for TLS.
func (c *conn) readBlocking() error {
	for {
		n, err := c.c.Read(c.room())
		if n > 0 {
			c.received(n)
		}
		c.pause()
		if err != nil {
			return err
		}
	}
}

// room returns the buffer for the next read, which is not empty.
func (c *conn) room() []byte { return c.buf[c.have:] }

// received processes the messages of a read of n bytes into room.
func (c *conn) received(n int) {
	c.have += n
	rest := c.receive(c.buf[:c.have])
	c.have = copy(c.buf, rest)
	if need := readSize(c.buf[:c.have], n); need > len(c.buf) {
		c.buf = append(make([]byte, 0, need), c.buf[:c.have]...)[:need]
	}
}

// readSize returns the size of the read buffer: larger after a long read, and at least the message that has begun.
func readSize(begun []byte, lastRead int) int {
	need := 0
	if lastRead >= minRead {
		need = maxRead
	}
	if len(begun) >= lengthLen {
		need = max(need, lengthLen+int(binary.BigEndian.Uint16(begun)))
	}
	return need
}

// nextMessage splits off the first message, which is nil if it is incomplete.
func nextMessage(b []byte) (message, rest []byte) {
	if len(b) < lengthLen {
		return nil, b
	}
	end := lengthLen + int(binary.BigEndian.Uint16(b))
	if len(b) < end {
		return nil, b
	}
	return b[lengthLen:end:end], b[end:]
}

// receive processes the complete messages of a read, and returns the rest. After the last message, it ends the invalidated
// answers, then calls the owners of the answered calls, and flushes their output.
func (c *conn) receive(b []byte) (rest []byte) {
	p := c.pool
	p.mu.Lock()
	p.done = c.calls[:0]
	if !countsSegments {
		p.Metrics.Received.Inc()
	}
	now := p.now()
	for c.violation == nil && !c.closed {
		message, rest := nextMessage(b)
		if message == nil {
			break
		}
		b = rest
		c.answer(message, now)
	}
	violation := c.violation
	if violation != nil || c.closed {
		b = nil
	}
	ended := c.takeEnded()
	p.sendWaiting()
	c.closeIfUnused()
	if len(c.out) > 0 {
		c.batch.Add(c)
	}
	c.calls = p.unlock(&c.batch)
	vouch.End(ended)
	callOwners(&c.batch, c.calls)
	c.batch.Flush()
	if violation != nil {
		p.lost(c, violation)
	}
	return b
}

// endOwners is callOwners outside of a batch.
func endOwners(calls ...*Call) {
	var b batch.Batch
	callOwners(&b, calls)
	b.Flush()
}

// callOwners calls the owners of ended calls, which it removes from the slice.
func callOwners(b *batch.Batch, calls []*Call) {
	for i, call := range calls {
		calls[i] = nil
		call.Owner.Ended(b, call)
	}
}
