package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/bench/dnsperf"
)

// tcpQuestions returns questions with the addresses that testAnswer returns.
func tcpQuestions(t *testing.T) (all []tcpQuestion) {
	t.Helper()
	for _, name := range []string{"a.example.com.", "bb.example.com.", "ccc.example.com."} {
		query := packed(t, name, dns.TypeA, dns.ClassINET)
		q, err := readQuestion(query)
		if err != nil {
			t.Fatal(err)
		}
		address := addressOf(q.owner)
		all = append(all, tcpQuestion{query, dns.RcodeSuccess, 1, address[:]})
	}
	return all
}

func testAnswer(query []byte) []byte {
	q, err := readQuestion(query)
	if err != nil {
		return nil // which is a wrong answer
	}
	return answerTo(nil, query, q)
}

// serveTCP calls serve for each connection to a port of 127.0.0.1, for as long as the test runs.
func serveTCP(t *testing.T, serve func(net.Conn)) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed
			}
			wg.Go(func() {
				defer func() { _ = conn.Close() }()
				serve(conn)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close() // which ends it
		wg.Wait()
	})
	return l.Addr().(*net.TCPAddr).AddrPort().Port()
}

// frame adds the length before a message, as TCP needs it (RFC 1035 section 4.2.2).
func frame(m []byte) []byte { return append(binary.BigEndian.AppendUint16(nil, uint16(len(m))), m...) }

// TestTCPClientInFlight has a server that answers only when all queries in flight have arrived, the last one first, and
// in segments that end in the middle of answers.
func TestTCPClientInFlight(t *testing.T) {
	const inFlight, rounds = 5, 4
	port := serveTCP(t, func(conn net.Conn) {
		for range rounds {
			var answers []byte
			for range inFlight {
				query, err := readAnswer(conn)
				if err != nil {
					return // the client's report shows it
				}
				answers = append(frame(testAnswer(query)), answers...)
			}
			for _, part := range [][]byte{answers[:1], answers[1:50], answers[50:]} {
				if _, err := conn.Write(part); err != nil {
					return // the client's report shows it
				}
			}
		}
	})
	job := tcpJob{pipelines: pipelines{Connections: 3, InFlight: inFlight}, Port: port, Queries: 3 * inFlight * rounds, Questions: tcpQuestions(t)}
	done, err := job.run()
	if err != nil || done.Failure != "" || done.Sent != job.Queries || done.Answered != job.Queries || done.Seconds <= 0 {
		t.Errorf("%+v, error %v; want %d answers", done, err, job.Queries)
	}
}

// TestTCPClientFails has servers that answer the second query with the result of an edit of its correct answer.
func TestTCPClientFails(t *testing.T) {
	edited := func(at int, v byte) func([]byte) []byte {
		return func(answer []byte) []byte {
			answer[at] = v
			return frame(answer)
		}
	}
	for _, c := range []struct {
		name     string
		edit     func(answer []byte) []byte
		want     string // in the error
		answered int    // without an error
	}{
		{"correct", frame, "", 4},
		{"the connection ends", func([]byte) []byte { return nil }, "", 1},
		{"the connection ends in an answer", func(a []byte) []byte { return frame(a)[:20] }, "", 1},
		{"another id", edited(0, 9), "no query with id 2304 is in flight", 0},
		{"an answer too many", func(a []byte) []byte { return append(frame(a), frame(a)...) }, "a wrong answer", 0},
		{"no response", edited(2, 1), "want response code 0 and 1 records", 0},
		{"truncated", edited(2, 0x83), "want response code 0 and 1 records", 0},
		{"a failure", edited(3, 0x82), "want response code 0 and 1 records", 0},
		{"two records", edited(7, 2), "want response code 0 and 1 records", 0},
		{"another name", edited(headerSize+2, 'x'), "another question", 0},
		{"the question alone", func(a []byte) []byte { return frame(a[:headerSize+3]) }, "another question", 0},
		{"another address", func(a []byte) []byte { return edited(len(a)-1, a[len(a)-1]+1)(a) }, "another address", 0},
		{"a header cut short", func(a []byte) []byte { return frame(a[:4]) }, "of 4 bytes", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			port := serveTCP(t, func(conn net.Conn) {
				for n := 1; ; n++ {
					query, err := readAnswer(conn)
					if err != nil {
						return // the client has closed it
					}
					answer := frame(testAnswer(query))
					if n == 2 {
						answer = c.edit(answer[2:])
					}
					if _, err := conn.Write(answer); err != nil || len(answer) < 24 {
						return // the client's report shows it
					}
				}
			})
			job := tcpJob{pipelines: pipelines{Connections: 1, InFlight: 1}, Port: port, Queries: 4, Questions: tcpQuestions(t)}
			done, err := job.run()
			if c.want == "" {
				if err != nil || done.Answered != c.answered || (done.Failure != "") != (c.answered < job.Queries) {
					t.Errorf("%+v, error %v; want %d answers", done, err, c.answered)
				}
				return
			}
			if !errors.Is(err, errWrong) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q in it", err, c.want)
			}
		})
	}
}

// TestTCPClientSurplus: an answer is wrong when no query is in flight.
func TestTCPClientSurplus(t *testing.T) {
	port := serveTCP(t, func(conn net.Conn) {
		query, err := readAnswer(conn)
		if err != nil {
			return // the client's report shows it
		}
		answer := frame(testAnswer(query))
		_, _ = conn.Write(append(answer, answer...)) // the client's report shows a failure
	})
	job := tcpJob{pipelines: pipelines{Connections: 1, InFlight: 1}, Port: port, Queries: 1, Questions: tcpQuestions(t)}
	if done, err := job.run(); !errors.Is(err, errWrong) {
		t.Errorf("%+v, error %v; want %v", done, err, errWrong)
	}
}

// TestTCPClientShares: the connections have equal shares of the queries, and begin with different questions.
func TestTCPClientShares(t *testing.T) {
	var mu sync.Mutex
	var first []string
	port := serveTCP(t, func(conn net.Conn) {
		for n := 0; ; n++ {
			query, err := readAnswer(conn)
			if err != nil {
				return // the client has closed it
			}
			if n == 0 {
				mu.Lock()
				first = append(first, string(query[headerSize:]))
				mu.Unlock()
			}
			if _, err := conn.Write(frame(testAnswer(query))); err != nil {
				return // the client's report shows it
			}
		}
	})
	job := tcpJob{pipelines: pipelines{Connections: 3, InFlight: 2}, Port: port, Queries: 10, Questions: tcpQuestions(t)}
	done, err := job.run()
	if err != nil || done.Answered != 10 {
		t.Errorf("%+v, error %v", done, err)
	}
	mu.Lock()
	defer mu.Unlock()
	slices.Sort(first)
	if len(slices.Compact(first)) != 3 {
		t.Errorf("first questions %q", first)
	}
}

func TestServeTCPJob(t *testing.T) {
	port := serveTCP(t, func(conn net.Conn) {
		for {
			query, err := readAnswer(conn)
			if err != nil {
				return // the client has closed it
			}
			if _, err := conn.Write(frame(testAnswer(query))); err != nil {
				return // the client's report shows it
			}
		}
	})
	text := func(j tcpJob) string {
		b, err := json.Marshal(j)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	one := pipelines{Connections: 1, InFlight: 1}
	questions := tcpQuestions(t)
	for _, c := range []struct{ name, job, want string }{ // want is in the error, or in the report
		{"a number of queries", text(tcpJob{pipelines: one, Port: port, Queries: 7, Questions: questions}), `"Sent":7,"Answered":7,`},
		{"more than needed in flight", text(tcpJob{pipelines: pipelines{1, 9}, Port: port, Queries: 7, Questions: questions}), `"Sent":7,"Answered":7,`},
		{"a time", text(tcpJob{pipelines: one, Port: port, Queries: 1 << 40, For: 1, Questions: questions}), `"Sent":1,"Answered":1,`},
		{"no job", "fast", "invalid character"},
		{"no connections", text(tcpJob{Port: port, Queries: 7, Questions: questions}), "invalid job: 0 connections"},
		{"no questions", text(tcpJob{pipelines: one, Port: port, Queries: 7}), "0 questions"},
		{"more in flight than ids", text(tcpJob{pipelines: pipelines{1, 1<<16 + 1}, Port: port, Queries: 7, Questions: questions}), "65537 queries in flight"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out strings.Builder
			if err := serveTCPJob(strings.NewReader(c.job), &out); err != nil {
				out.WriteString(err.Error())
			}
			if !strings.Contains(out.String(), c.want) {
				t.Errorf("%q, want %q in it", &out, c.want)
			}
		})
	}
}

// TestTCPStatistics: queries that were not sent, as their connection broke, are lost.
func TestTCPStatistics(t *testing.T) {
	for _, c := range []struct {
		name string
		done tcpDone
		want string // in the error
	}{
		{"all answered", tcpDone{Sent: 1000, Answered: 1000, Seconds: 2}, ""},
		{"many lost", tcpDone{Sent: 1000, Answered: 900, Seconds: 2}, "900 were answered and 100 lost"},
		{"not sent", tcpDone{Sent: 10, Answered: 10, Seconds: 2}, "10 were answered and 990 lost"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := c.done.statistics(1000, "NOERROR")
			if s.Rate != float64(c.done.Answered)/2 {
				t.Errorf("%.0f queries per second", s.Rate)
			}
			err := s.Judge("NOERROR", 1000)
			if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, dnsperf.ErrLost) || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want %q in it", err, c.want)
			}
		})
	}
}
