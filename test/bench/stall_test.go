package main

import (
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// answerStall reads the two queries of a trial, and calls answer with them.
func answerStall(answer func(conn net.Conn, first, second []byte)) func(net.Conn) {
	return func(conn net.Conn) {
		first, err := readAnswer(conn)
		if err != nil {
			return // the client's error shows it
		}
		second, err := readAnswer(conn)
		if err != nil {
			return // the client's error shows it
		}
		answer(conn, first, second)
	}
}

// write writes the correct answer to a query. An error shows in the client's.
func write(conn net.Conn, query []byte) { _, _ = conn.Write(frame(testAnswer(query))) }

func TestStallPair(t *testing.T) {
	first, err := deadQuery("n0-test")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		answer func(conn net.Conn, first, second []byte)
		delay  time.Duration
		err    string // in the error
	}{
		{"second alone", func(conn net.Conn, _, second []byte) { write(conn, second) }, 0, ""},
		{"out of order", func(conn net.Conn, first, second []byte) {
			write(conn, second)
			write(conn, first)
		}, 0, ""},
		{"in order, late", func(conn net.Conn, first, second []byte) {
			write(conn, first)
			write(conn, second)
		}, 0, ""},
		{"first answered soon", func(conn net.Conn, first, second []byte) { write(conn, first) }, time.Minute, errNotStalled.Error()},
		{"wrong answer", func(conn net.Conn, first, second []byte) {
			answer := testAnswer(second)
			answer[3] |= dns.RcodeServerFailure
			_, _ = conn.Write(frame(answer)) // the client's error shows a failure
		}, 0, errWrong.Error()},
		{"no answer", func(net.Conn, []byte, []byte) {}, 0, "second answer: EOF"},
		{"a header cut short", func(conn net.Conn, _, second []byte) {
			_, _ = conn.Write(frame(second[:4])) // the client's error shows a failure
		}, 0, "of 4 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			port := serveTCP(t, answerStall(c.answer))
			pair := stallPair{first: first, second: tcpQuestions(t)[0], delay: c.delay}
			latency, err := pair.run(addressAt(int(port)), time.Minute)
			if c.err == "" && (err != nil || latency <= 0) {
				t.Errorf("%s, error %v", latency, err)
			}
			if c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("error %v, want %q in it", err, c.err)
			}
		})
	}
}

// TestStalls: trials that do not count are repeated, and a server that never counts is an error.
func TestStalls(t *testing.T) {
	for _, c := range []struct {
		name  string
		every int // n-th trial counts, 0 for none
		want  int
		err   error
	}{
		{"all", 1, stallWanted, nil},
		{"every third", 3, 2 * stallWanted / 3, nil},
		{"none", 0, 0, errNotStalled},
	} {
		t.Run(c.name, func(t *testing.T) {
			trials := make(chan int, 1)
			trials <- 0
			port := serveTCP(t, answerStall(func(conn net.Conn, first, second []byte) {
				n := 1 + <-trials
				trials <- n
				if c.every > 0 && n%c.every == 0 {
					write(conn, second)
				}
				write(conn, first)
			}))
			all, err := stalls(t.Context(), int(port), "test", stallPair{second: tcpQuestions(t)[0], delay: time.Minute})
			if len(all) != c.want || !errors.Is(err, c.err) || !slices.IsSorted(all) {
				t.Errorf("%d trials, error %v; want %d, %v", len(all), err, c.want, c.err)
			}
		})
	}
}

// TestDead: the server receives queries over both protocols, and does not answer.
func TestDead(t *testing.T) {
	var b bench
	if got := b.dead.block(53); got != "" {
		t.Errorf("%q for no server", got)
	}
	if err := b.startDead(" {\n        force_tcp\n    }"); err != nil {
		t.Fatal(err)
	}
	if got := b.dead.block(53); !strings.HasPrefix(got, "dead.example.org.:53 {") || !strings.Contains(got, "force_tcp\n    }\n}\n") {
		t.Errorf("server block %q", got)
	}
	for _, network := range []string{"udp", "tcp"} {
		client := dns.Client{Net: network, Timeout: 50 * time.Millisecond}
		_, _, err := client.Exchange(new(dns.Msg).SetQuestion("x."+deadZone, dns.TypeA), addressAt(b.dead.port))
		if timeout := net.Error(nil); !errors.As(err, &timeout) || !timeout.Timeout() {
			t.Errorf("%s: error %v, want a timeout", network, err)
		}
	}
	b.stopDead()
	if b.dead != nil {
		t.Error("new servers have the dead upstream")
	}
}
