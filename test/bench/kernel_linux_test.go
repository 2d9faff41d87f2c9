package main

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf/asm"

	"github.com/nearside-dns/nearside/test/bench/dnsperf"
	"github.com/nearside-dns/nearside/test/kit"
)

// requirePods skips a test that needs root and nft.
func requirePods(t *testing.T) {
	t.Helper()
	_, err := program("nft")
	if os.Geteuid() != 0 || err != nil {
		kit.Lacking(t, "the test needs root and nft")
	}
}

// testNetwork makes a network, which ends with the test.
func testNetwork(t *testing.T) *network {
	t.Helper()
	requirePods(t)
	n, err := newNetwork(true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// runInPod runs a client in the pod.
func runInPod(t *testing.T, n *network, job podJob) (podDone, error) {
	t.Helper()
	job.Folder, job.Tag = t.TempDir(), podTag
	p := podClient{podJob: job}
	err := n.pod.do(p.run)
	return p.done, err
}

// TestPodPrograms has a client in a pod query programs at the veth.
func TestPodPrograms(t *testing.T) {
	for _, c := range []struct {
		name, answers string
		address       netip.AddrPort
		code          asm.Instructions
	}{
		{"dropped", answersNone, localAddress, dropProgram()},
		{"dropped, IPv6", answersNone, localAddress6, dropProgram()},
		{"sent back", answersEcho, localAddress, turnProgram()},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := testNetwork(t)
			a, err := n.attach("bench", c.code)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := a.close(); err != nil {
					t.Error(err)
				}
			}()
			var done podDone
			mean, err := n.programTime(func() (err error) {
				done, err = runInPod(t, n, podJob{Server: c.address, Answers: c.answers, Rate: 1000, Total: 200, Single: 20})
				return err
			})
			if err != nil || mean <= 0 {
				t.Fatalf("%v, mean time %v", err, mean)
			}
			want, single := 200, 20
			if c.answers == answersNone {
				want, single = 0, 0
			}
			if done.Sent != 200 || done.Answered != want || len(done.Latencies) != single || done.Machine <= 0 || done.Client <= 0 {
				t.Errorf("%+v", done)
			}
		})
	}
}

// TestPodServer has a client in a pod query servers of the node.
func TestPodServer(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4)) // the client blocks one
	for _, c := range []struct {
		name, answers string
		answer        func(query []byte) []byte // nil for none
		fails         bool
	}{
		{"echo", answersEcho, echoed, false},
		{"records", answersRecords, rightAnswer, false},
		{"echo instead of records", answersRecords, echoed, true},
		{"no server", answersEcho, nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := testNetwork(t)
			if c.answer != nil {
				serveNode(t, n, c.answer)
			}
			job := podJob{Server: localAddress, Answers: c.answers, Rate: 1000, Single: 1}
			if !c.fails {
				job.Total, job.Single = 100, 20
			}
			done, err := runInPod(t, n, job)
			switch {
			case c.fails && err == nil:
				t.Errorf("no error: %+v", done)
			case c.answer == nil && !errors.Is(err, dnsperf.ErrLost):
				t.Errorf("error %v, want %v", err, dnsperf.ErrLost)
			case !c.fails && (err != nil || done.Answered != 100 || len(done.Latencies) != 20 || done.Rate <= 0):
				t.Errorf("%v, %+v", err, done)
			}
		})
	}
}

// echoed is the answer of the echo server.
func echoed(query []byte) []byte {
	query[2] |= 0x80
	return query
}

// rightAnswer is the answer of the upstream server.
func rightAnswer(query []byte) []byte {
	q, err := readQuestion(query)
	if err != nil {
		return nil
	}
	return answerTo(nil, query, q)
}

// serveNode serves the node-local address until the end of the test.
func serveNode(t *testing.T, n *network, answer func(query []byte) []byte) {
	t.Helper()
	var conn net.PacketConn
	if err := n.node.do(func() (err error) {
		conn, err = net.ListenPacket("udp", localAddress.String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		buffer := make([]byte, 512)
		for {
			size, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			if _, err := conn.WriteTo(answer(buffer[:size]), from); err != nil {
				return
			}
		}
	})
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		serving.Wait()
	})
}

// TestPodJudge compares answers with the known one.
func TestPodJudge(t *testing.T) {
	l, err := freshNames(t.TempDir(), podTag, 1)
	if err != nil {
		t.Fatal(err)
	}
	q, err := readQuestion(l.packets[0].bytes)
	if err != nil {
		t.Fatal(err)
	}
	known := answerTo(nil, l.packets[0].bytes, q)
	for _, c := range []struct {
		name   string
		change func(b []byte) []byte
		wrong  bool
	}{
		{"the same", func(b []byte) []byte { return b }, false},
		{"another ID", func(b []byte) []byte { b[0]++; return b }, false},
		{"a lower TTL", func(b []byte) []byte { binary.BigEndian.PutUint32(b[len(b)-10:], 7); return b }, false},
		{"TTL 0", func(b []byte) []byte { binary.BigEndian.PutUint32(b[len(b)-10:], 0); return b }, true},
		{"a higher TTL", func(b []byte) []byte { binary.BigEndian.PutUint32(b[len(b)-10:], upstreamTTL+1); return b }, true},
		{"another address", func(b []byte) []byte { b[len(b)-1]++; return b }, true},
		{"another name", func(b []byte) []byte { b[headerSize+1]++; return b }, true},
		{"another response code", func(b []byte) []byte { b[3] |= 2; return b }, true},
		{"cut short", func(b []byte) []byte { return b[:len(b)-1] }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := podClient{podJob: podJob{Answers: answersRecords}, answers: [][]byte{known}}
			if err := p.judge(0, c.change(append([]byte(nil), known...))); errors.Is(err, errWrong) != c.wrong {
				t.Errorf("error %v", err)
			}
		})
	}
}

// TestPodJob: a job that is none is an error.
func TestPodJob(t *testing.T) {
	var to strings.Builder
	if err := servePod("{", &to); err == nil || to.Len() > 0 {
		t.Errorf("error %v, output %q", err, &to)
	}
	began := time.Now()
	if sleepUntil(began.Add(-time.Second)); time.Since(began) > time.Minute {
		t.Error("a sleep until an earlier time")
	}
}
