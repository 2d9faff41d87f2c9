package main

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/test/bench/child"
	"github.com/nearside-dns/nearside/test/bench/dnsperf"
)

// podMode is the argument that makes this program a client in a pod; the next one is a podJob.
const podMode = "pod"

// The kinds of answers.
const (
	answersRecords = "records" // as the upstream server has them
	answersEcho    = "echo"    // the query, with the bit QR
	answersNone    = "none"    // queries are dropped
)

// podJob is a job of such a client.
type podJob struct {
	Server  netip.AddrPort
	Folder  string // for files
	Tag     string // of the names
	Answers string // their kind
	Rate    int    // queries per second
	Total   int    // queries at that rate
	Single  int    // queries one at a time, after them
	PIDs    []int  // of the server
}

// podDone is the report of the client.
type podDone struct {
	Checked, Sent, Answered int
	Rate                    float64         // reached
	Quiet                   bool            // nothing else used the machine before and after that
	Machine                 time.Duration   // CPU time of the machine, during the queries at the rate
	Client, Servers, Soft   time.Duration   // of it, that of the client, of the server, and of ksoftirqd
	Latencies               []time.Duration // of the queries one at a time, the shortest first
}

func (d *podDone) lost() int { return d.Sent - d.Answered }

// Parameters of the client.
const (
	podSockets = 10
	podTick    = 50 * time.Microsecond // between the queries of one time and of the next
	podBurst   = 100                   // max. queries at once, after the client had to wait for its core
	podBacklog = 2                     // queries of a socket without an answer, beyond which it receives more than one at a time
	podWait    = time.Second           // for the last answers
	podPause   = 500 * time.Microsecond
	podBuffer  = 4 << 20 // of a socket
)

// servePod runs the job and writes its result. It fails with the first wrong answer.
func servePod(argument string, to io.Writer) error {
	var job podJob
	if err := json.Unmarshal([]byte(argument), &job); err != nil {
		return fmt.Errorf("pod: %w", err)
	}
	p := podClient{podJob: job}
	if err := p.run(); err != nil {
		return fmt.Errorf("pod: %w", err)
	}
	return json.NewEncoder(to).Encode(p.done)
}

// podClient is a client with several sockets. Each query is sent alone, and each answer is received alone, as by the programs
// of pods.
type podClient struct {
	podJob
	packets []packet
	answers [][]byte // of each packet, with ID 0
	sockets []*podSocket
	buffer  [4096]byte
	done    podDone
}

// podSocket is a connected UDP socket.
type podSocket struct {
	fd      int
	id      uint16
	waiting int
	// queries has the number of the packet, from 1, of each ID that has no answer yet.
	queries [1 << 16]uint16
}

func (p *podClient) run() (err error) {
	runtime.LockOSThread()
	debug.SetGCPercent(-1)
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("PR_SET_TIMERSLACK: %w", err)
	}
	l, err := freshNames(p.Folder, p.Tag, hitQuestions)
	if err != nil {
		return err
	}
	p.packets = l.packets
	for range podSockets {
		s, err := newPodSocket(p.Server)
		if err != nil {
			return err
		}
		p.sockets = append(p.sockets, s)
	}
	if err := p.learn(); err != nil {
		return err
	}
	if p.Total > 0 {
		if err := p.load(); err != nil {
			return err
		}
	}
	if p.Answers == answersNone {
		return nil
	}
	return p.single()
}

func newPodSocket(server netip.AddrPort) (*podSocket, error) {
	family, address := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: int(server.Port())})
	if server.Addr().Is4() {
		address.(*unix.SockaddrInet4).Addr = server.Addr().As4()
	} else {
		family, address = unix.AF_INET6, &unix.SockaddrInet6{Port: int(server.Port()), Addr: server.Addr().As16()}
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	timeout := unix.NsecToTimeval(podWait.Nanoseconds())
	if err := errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, podBuffer),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout),
		unix.Connect(fd, address),
	); err != nil {
		return nil, fmt.Errorf("socket to %v: %w", server, err)
	}
	return &podSocket{fd: fd}, nil
}

// send sends a packet with the next ID of the socket.
func (p *podClient) send(s *podSocket, packet int) error {
	b := p.packets[packet].bytes
	s.id++
	binary.BigEndian.PutUint16(b, s.id)
	if s.queries[s.id] == 0 {
		s.waiting++ // otherwise the earlier one is lost
	}
	s.queries[s.id] = uint16(packet + 1) // #nosec G115 -- fewer
	for {
		// The client is alone in its process, so the scheduler of Go is not informed.
		_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(s.fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), // #nosec G103
			0, 0, 0)
		switch errno {
		case 0:
			return nil
		case unix.EINTR, unix.ECONNREFUSED: // of an earlier query; this one was not sent
		default:
			return fmt.Errorf("send: %w", errno)
		}
	}
}

// receive receives an answer, and returns nil if there is none: after podWait, or at once with MSG_DONTWAIT.
func (p *podClient) receive(s *podSocket, flags uintptr) ([]byte, error) {
	var end time.Time
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(s.fd), uintptr(unsafe.Pointer(&p.buffer[0])), // #nosec G103
			uintptr(len(p.buffer)), flags, 0, 0)
		switch errno {
		case 0:
			return p.buffer[:n], nil
		case unix.EAGAIN:
			return nil, nil
		case unix.EINTR, unix.ECONNREFUSED: // a signal of the runtime ends the wait, every 10 ms
			if now := time.Now(); end.IsZero() {
				end = now.Add(podWait)
			} else if now.After(end) {
				return nil, nil
			}
		default:
			return nil, fmt.Errorf("receive: %w", errno)
		}
	}
}

// learn queries each name twice, one after another, and checks the second answers, which the later ones have to equal.
func (p *podClient) learn() error {
	p.answers = make([][]byte, len(p.packets))
	for i, q := range p.packets {
		switch p.Answers {
		case answersNone:
			continue
		case answersEcho:
			p.answers[i] = slices.Clone(q.bytes)
			p.answers[i][2] |= 0x80
			continue
		}
		for range 2 {
			answer, err := p.ask(p.sockets[0], i)
			if err != nil {
				return err
			}
			if err := (&checker{server: &server{}}).judge(q, answer); err != nil {
				return err
			}
			p.answers[i] = slices.Clone(answer)
			p.done.Checked++
		}
	}
	return nil
}

// ask sends a query until it is answered.
func (p *podClient) ask(s *podSocket, packet int) ([]byte, error) {
	for range tries {
		if err := p.send(s, packet); err != nil {
			return nil, err
		}
		for {
			answer, err := p.receive(s, 0)
			if err != nil {
				return nil, err
			}
			if answer == nil {
				break // lost
			}
			if len(answer) >= headerSize && binary.BigEndian.Uint16(answer) == s.id {
				clear(s.queries[:])
				s.waiting = 0
				return answer, nil
			}
		}
	}
	return nil, fmt.Errorf("no answer to %q: %w", p.packets[packet].bytes, dnsperf.ErrLost)
}

// ttlEnd is the end of the TTL of an answer with an IPv4 address, from its own end.
const ttlEnd = 2 + 4

// judge compares an answer with the known one. Only its TTL may differ.
func (p *podClient) judge(packet int, answer []byte) error {
	want := p.answers[packet]
	end := len(want)
	if p.Answers == answersRecords {
		end -= ttlEnd + 4
	}
	if len(answer) != len(want) || !bytes.Equal(answer[2:end], want[2:end]) ||
		len(want) > end && !bytes.Equal(answer[end+4:], want[end+4:]) {
		return fmt.Errorf("%w %x, want %x", errWrong, answer, want)
	}
	if end == len(want) {
		return nil
	}
	if ttl := binary.BigEndian.Uint32(answer[end:]); ttl == 0 || ttl > upstreamTTL {
		return fmt.Errorf("%w %x: TTL %d", errWrong, answer, ttl)
	}
	return nil
}

// collect receives the answers that have arrived on a socket: one, and more while too many are missing.
func (p *podClient) collect(s *podSocket, backlog int) error {
	for {
		answer, err := p.receive(s, unix.MSG_DONTWAIT)
		if err != nil || answer == nil {
			return err
		}
		if len(answer) < headerSize {
			return fmt.Errorf("%w %x", errWrong, answer)
		}
		id := binary.BigEndian.Uint16(answer)
		packet := s.queries[id]
		if packet == 0 {
			return fmt.Errorf("%w %x: no query has its ID", errWrong, answer)
		}
		if err := p.judge(int(packet-1), answer); err != nil {
			return err
		}
		s.queries[id] = 0
		s.waiting--
		p.done.Answered++
		if s.waiting <= backlog {
			return nil
		}
	}
}

// load sends queries at the rate, whether they are answered or not. Before the next query of a socket, it tries to receive one
// answer, so that the number of system calls for queries that are answered at once and for those that are dropped is the same.
func (p *podClient) load() error {
	before, err := p.usage()
	if err != nil {
		return err
	}
	started := time.Now()
	began := started
	for p.done.Sent < p.Total {
		due := min(int(time.Since(began).Seconds()*float64(p.Rate))+1, p.Total)
		if due-p.done.Sent > podBurst { // the client had to wait: no flood
			began = began.Add(time.Duration(due-p.done.Sent-podBurst) * time.Second / time.Duration(p.Rate))
			due = p.done.Sent + podBurst
		}
		for ; p.done.Sent < due; p.done.Sent++ {
			s := p.sockets[p.done.Sent%len(p.sockets)]
			if err := cmp.Or(p.collect(s, podBacklog), p.send(s, p.done.Sent%len(p.packets))); err != nil {
				return err
			}
		}
		next := time.Duration(p.done.Sent) * time.Second / time.Duration(p.Rate)
		sleepUntil(began.Add((next + podTick - 1) / podTick * podTick))
	}
	p.done.Rate = float64(p.Total) / time.Since(started).Seconds()
	if err := p.finish(time.Now().Add(podWait / 50)); err != nil {
		return err
	}
	after, err := p.usage()
	if err != nil {
		return err
	}
	p.done.Machine = after.machine.used(before.machine)
	p.done.Client, p.done.Servers, p.done.Soft = after.client-before.client, after.servers-before.servers, after.soft-before.soft
	return p.finish(time.Now().Add(podWait))
}

// finish receives the remaining answers.
func (p *podClient) finish(until time.Time) error {
	for time.Now().Before(until) && p.done.lost() > 0 && p.Answers != answersNone {
		for _, s := range p.sockets {
			if err := p.collect(s, 0); err != nil {
				return err
			}
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

// sleepUntil sleeps without the scheduler of Go, whose timers are less exact.
func sleepUntil(at time.Time) {
	left := time.Until(at)
	if left <= 0 {
		return
	}
	t := unix.NsecToTimespec(left.Nanoseconds())
	// A signal makes it shorter.
	_, _, _ = unix.RawSyscall6(unix.SYS_CLOCK_NANOSLEEP, unix.CLOCK_MONOTONIC, 0, uintptr(unsafe.Pointer(&t)), // #nosec G103
		0, 0, 0)
}

// single measures the latency of queries one at a time, with pauses of random length.
func (p *podClient) single() error {
	s := p.sockets[0]
	random := rand.New(rand.NewPCG(1, 1)) // #nosec G404
	for i := range p.Single {
		sleepUntil(time.Now().Add(time.Duration(random.Int64N(int64(2 * podPause)))))
		packet := i % len(p.packets)
		began := time.Now()
		answer, err := p.ask(s, packet)
		if err != nil {
			return err
		}
		p.done.Latencies = append(p.done.Latencies, time.Since(began))
		if err := p.judge(packet, answer); err != nil {
			return err
		}
	}
	slices.Sort(p.done.Latencies)
	return nil
}

// usage is CPU time.
type usage struct {
	machine               machineTime
	client, servers, soft time.Duration
}

func (p *podClient) usage() (u usage, err error) {
	if u.client, err = (&child.Process{PID: os.Getpid()}).CPU(); err != nil {
		return u, err
	}
	for _, pid := range p.PIDs {
		spent, err := (&child.Process{PID: pid}).CPU()
		if err != nil {
			return u, err
		}
		u.servers += spent
	}
	if u.soft, err = softTime(); err != nil {
		return u, err
	}
	u.machine, err = machineNow()
	return u, err
}

func machineNow() (m machineTime, err error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return m, err
	}
	at := time.Now()
	m, err = parseStat(string(text))
	m.at = at
	return m, err
}

// softTime returns the CPU time of the threads ksoftirqd.
func softTime() (sum time.Duration, err error) {
	names, err := filepath.Glob("/proc/[1-9]*/comm")
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil || !strings.HasPrefix(string(text), "ksoftirqd/") {
			continue // other processes may end at any time
		}
		var pid int
		if _, err := fmt.Sscanf(name, "/proc/%d/comm", &pid); err != nil {
			return 0, err
		}
		spent, err := (&child.Process{PID: pid}).CPU()
		if err != nil {
			return 0, err
		}
		sum += spent
	}
	return sum, nil
}
