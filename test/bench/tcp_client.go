package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nearside-dns/nearside/test/bench/child"
	"github.com/nearside-dns/nearside/test/bench/dnsperf"
)

// tcpMode is the argument that makes this program the TCP client; standard input has a tcpJob.
const tcpMode = "tcp-client"

// tcpTimeout is the time without any answer on a connection after which its queries are lost.
const tcpTimeout = 5 * time.Second

// pipelines are the connections of a load over TCP. Each has the same number of queries in flight at all times: an answer
// is followed by the next query.
type pipelines struct {
	Connections int
	InFlight    int // on each connection
}

// tcpJob is the job of the TCP client.
type tcpJob struct {
	pipelines
	Port      uint16
	Queries   int           // of all connections together
	For       time.Duration // if it is not 0, the time after which no more queries are sent
	Questions []tcpQuestion // sent in turn
}

// tcpQuestion is a query with one question, and the expected answer.
type tcpQuestion struct {
	Query   []byte
	Rcode   int
	Records int
	Address []byte // IPv4 address of the only record, if known: the end of the answer
}

// tcpDone is the report of the TCP client.
type tcpDone struct {
	Sent, Answered int
	Seconds        float64
	Failure        string // of the first connection that ended early
}

// serveTCPJob runs the job and writes its result. It fails with the first wrong answer.
func serveTCPJob(from io.Reader, to io.Writer) error {
	var job tcpJob
	if err := json.NewDecoder(from).Decode(&job); err != nil {
		return fmt.Errorf("TCP client: %w", err)
	}
	done, err := job.run()
	if err != nil {
		return fmt.Errorf("TCP client: %w", err)
	}
	return json.NewEncoder(to).Encode(done)
}

// run opens the connections and sends the queries.
func (j *tcpJob) run() (done tcpDone, err error) {
	if j.Connections < 1 || j.InFlight < 1 || j.InFlight > 1<<16 || len(j.Questions) == 0 {
		return done, fmt.Errorf("invalid job: %d connections, %d queries in flight on each, %d questions", j.Connections, j.InFlight, len(j.Questions))
	}
	all := make([]*tcpClient, j.Connections)
	for i := range all {
		if all[i], err = j.connect(i); err != nil {
			return done, err
		}
		defer func() { _ = all[i].conn.Close() }()
	}
	began := time.Now()
	var wg sync.WaitGroup
	for _, c := range all {
		if j.For > 0 {
			c.until = began.Add(j.For)
		}
		wg.Go(c.run)
	}
	wg.Wait()
	done.Seconds = time.Since(began).Seconds()
	for _, c := range all {
		done.Sent, done.Answered = done.Sent+c.sent, done.Answered+c.answered
		if errors.Is(c.err, errWrong) {
			return done, c.err
		}
		if c.err != nil && done.Failure == "" {
			done.Failure = c.err.Error()
		}
	}
	return done, nil
}

// connect opens the i-th connection, which has an equal share of the queries.
func (j *tcpJob) connect(i int) (*tcpClient, error) {
	conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(j.Port))))
	if err != nil {
		return nil, err
	}
	c := &tcpClient{
		conn: conn, questions: j.Questions, next: i * len(j.Questions) / j.Connections,
		left: (j.Queries + i) / j.Connections, slots: make([]int, j.InFlight), in: make([]byte, 0, 1<<17),
	}
	return c, nil
}

// tcpClient is a connection with a constant number of queries in flight. The ids are their numbers, from 0.
type tcpClient struct {
	conn           net.Conn
	questions      []tcpQuestion
	next           int   // index of the next question
	slots          []int // by id: the index of the question in flight, -1 for none
	left           int   // queries to send
	until          time.Time
	sent, answered int
	in, out        []byte
	err            error
}

func (c *tcpClient) run() {
	for id := range c.slots {
		c.slots[id] = -1
		c.append(id)
	}
	for c.err == nil && c.answered < c.sent {
		if !c.until.IsZero() && time.Now().After(c.until) {
			c.left = 0
		}
		c.err = c.exchange()
	}
}

// append appends the next query to the output, if there is one.
func (c *tcpClient) append(id int) {
	if c.left == 0 {
		return
	}
	query := c.questions[c.next].Query
	c.out = binary.BigEndian.AppendUint16(c.out, uint16(len(query)))
	c.out = binary.BigEndian.AppendUint16(c.out, uint16(id)) // #nosec G115 -- less than 65536
	c.out = append(c.out, query[2:]...)
	c.slots[id] = c.next
	c.next = (c.next + 1) % len(c.questions)
	c.left--
	c.sent++
}

// exchange writes the output, reads once, and appends a query for each answer. Queries thus arrive in batches, as from a
// client that pipelines them.
func (c *tcpClient) exchange() error {
	if len(c.out) > 0 {
		if _, err := c.conn.Write(c.out); err != nil {
			return err
		}
		c.out = c.out[:0]
	}
	if err := c.conn.SetReadDeadline(time.Now().Add(tcpTimeout)); err != nil {
		return err
	}
	n, err := c.conn.Read(c.in[len(c.in):cap(c.in)])
	if err != nil {
		return err
	}
	rest := c.in[:len(c.in)+n]
	for len(rest) >= 2 && len(rest)-2 >= int(binary.BigEndian.Uint16(rest)) {
		answer := rest[2 : 2+binary.BigEndian.Uint16(rest)]
		rest = rest[2+len(answer):]
		if err := c.receive(answer); err != nil {
			return err
		}
	}
	c.in = c.in[:copy(c.in[:cap(c.in)], rest)]
	return nil
}

// receive checks an answer, and appends the next query.
func (c *tcpClient) receive(answer []byte) error {
	if len(answer) < headerSize {
		return fmt.Errorf("%w of %d bytes", errWrong, len(answer))
	}
	id := int(binary.BigEndian.Uint16(answer))
	if id >= len(c.slots) || c.slots[id] < 0 {
		return fmt.Errorf("%w: no query with id %d is in flight", errWrong, id)
	}
	if err := c.questions[c.slots[id]].judge(answer); err != nil {
		return err
	}
	c.slots[id] = -1
	c.answered++
	c.append(id)
	return nil
}

// judge checks an answer of at least the header's size, without its id: response code, number of records, question and
// address.
func (q *tcpQuestion) judge(answer []byte) error {
	const response, truncated = 0x80, 0x02
	if answer[2]&response == 0 || answer[2]&truncated != 0 || int(answer[3]&0xf) != q.Rcode || int(binary.BigEndian.Uint16(answer[6:])) != q.Records {
		return fmt.Errorf("%q: %w: header %x, want response code %d and %d records", q.Query[headerSize:], errWrong, answer[:headerSize], q.Rcode, q.Records)
	}
	asked, err := readQuestion(q.Query)
	if err != nil {
		return err
	}
	if len(answer) < asked.end || !bytes.Equal(answer[headerSize:asked.end], q.Query[headerSize:asked.end]) {
		return fmt.Errorf("%q: %w: another question: %q", q.Query[headerSize:], errWrong, answer)
	}
	if !bytes.HasSuffix(answer[asked.end:], q.Address) {
		return fmt.Errorf("%q: %w: another address: %q", q.Query[headerSize:], errWrong, answer)
	}
	return nil
}

// askTCP sends every question of a load a number of times over the load's connections, from the core of the load.
func askTCP(ctx context.Context, port int, l *load, times int) (dnsperf.Statistics, error) {
	s, failure, err := runTCPJob(ctx, port, l, tcpJob{Queries: times * len(l.packets)})
	if err != nil {
		return s, err
	}
	if err := s.Judge(l.rcode, times*len(l.packets)); err != nil {
		return s, fmt.Errorf("%w: %s", err, failure)
	}
	return s, nil
}

// askTCPFor sends the questions of a load again and again for a number of seconds.
func askTCPFor(ctx context.Context, port int, l *load, seconds int) error {
	_, _, err := runTCPJob(ctx, port, l, tcpJob{Queries: 1 << 40, For: time.Duration(seconds) * time.Second})
	return err
}

// runTCPJob runs a job in a process of its own. All its answers have the response code of the load.
func runTCPJob(ctx context.Context, port int, l *load, job tcpJob) (s dnsperf.Statistics, failure string, err error) {
	job.pipelines, job.Port = l.pipes, uint16(port) // #nosec G115 -- a port
	for _, p := range l.packets {
		job.Questions = append(job.Questions, tcpQuestion{p.bytes, p.rcode, p.records, p.address})
	}
	input, err := json.Marshal(job)
	if err != nil {
		return s, "", err
	}
	self, err := os.Executable()
	if err != nil {
		return s, "", err
	}
	cmd := exec.CommandContext(ctx, "taskset", "-c", child.LoadCore, self, tcpMode)
	cmd.Stdin = bytes.NewReader(input)
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return s, "", errors.New(strings.TrimSpace(string(exit.Stderr)))
	}
	if err != nil {
		return s, "", err
	}
	var done tcpDone
	if err := json.Unmarshal(out, &done); err != nil {
		return s, "", err
	}
	return done.statistics(job.Queries, l.rcode), done.Failure, nil
}

// statistics counts queries that a broken connection did not send as lost.
func (d *tcpDone) statistics(queries int, rcode string) dnsperf.Statistics {
	return dnsperf.Statistics{
		Sent: queries, Completed: d.Answered, Lost: queries - d.Answered, Rate: float64(d.Answered) / d.Seconds,
		RCodes: map[string]int{rcode: d.Answered},
	}
}
