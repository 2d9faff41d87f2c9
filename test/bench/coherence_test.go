package main

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// sessionResponse is the response to sessionRequest with instance 1 and clock 2.
var sessionResponse = []byte{0, 1, 0xB0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xF8, 0xA0, 0, 17, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2}

// dsoMessage is a unidirectional message.
func dsoMessage(tlv byte, data ...byte) []byte {
	return append([]byte{0, 0, 0x30, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xF8, tlv, 0, byte(len(data))}, data...) // #nosec G115 -- short
}

// handled is an answer to a query of notifyQuery, with handles.
func handled(t *testing.T, query []byte, address string, handles ...byte) []byte {
	t.Helper()
	var q dns.Msg
	if err := q.Unpack(query); err != nil {
		t.Fatal(err)
	}
	m := new(dns.Msg).SetReply(&q)
	if m.Rcode = dns.RcodeNameError; address != "" {
		m.Rcode = dns.RcodeSuccess
		m.Answer = append(m.Answer, &dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: net.ParseIP(address)})
	}
	m.SetEdns0(1232, false)
	var data []byte
	for _, h := range handles {
		data = append(data, 0, 0, 0, 0, 0, 0, 0, h)
	}
	m.IsEdns0().Option = append(m.IsEdns0().Option, &dns.EDNS0_LOCAL{Code: handleOption, Data: data})
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestWatcher runs a watcher against a server of the test: it queries again when a handle of its answer ends, and only then.
func TestWatcher(t *testing.T) {
	queries := make(chan []byte)
	send := make(chan []byte)
	port := serveTCP(t, func(conn net.Conn) {
		request := make([]byte, len(sessionRequest))
		if _, err := io.ReadFull(conn, request); err != nil || string(request) != string(sessionRequest) {
			t.Errorf("request %x, %v", request, err)
		}
		go func() {
			for m := range send {
				if _, err := conn.Write(frame(m)); err != nil {
					return
				}
			}
		}()
		for {
			query, err := readAnswer(conn)
			if err != nil {
				return
			}
			queries <- query
		}
	})
	defer close(send)
	found := make(chan observation, 10)
	go func() { send <- sessionResponse }()
	w, err := newWatcher(int(port), 7, found)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.conn.Close() }()
	ended := make(chan error, 1)
	go func() { ended <- w.run() }()
	expect := func(result string) {
		t.Helper()
		select {
		case o := <-found:
			if o.result != result || o.cache != 7 {
				t.Errorf("%+v, want %s", o, result)
			}
		case err := <-ended:
			t.Fatal(err)
		}
	}
	query, err := notifyQuery("a.example.")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.watch(query); err != nil {
		t.Fatal(err)
	}
	first := <-queries
	send <- handled(t, first, "", 1, 2)
	expect("NXDOMAIN")
	send <- dsoMessage(0xA1, 0, 0, 0, 0, 0, 0, 0, 9)
	send <- dsoMessage(0xA2, 0, 0, 0, 0, 0, 0, 0, 3) // another handle
	send <- dsoMessage(0xA2, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 2)
	send <- handled(t, <-queries, "10.0.0.1", 3)
	expect("NOERROR 10.0.0.1")
	send <- dsoMessage(0xA2)
	send <- handled(t, <-queries, "10.0.0.2", 3)
	expect("NOERROR 10.0.0.2")
	send <- handled(t, first, "10.0.0.3")
	if err := <-ended; !errors.Is(err, errWrong) || !strings.Contains(err.Error(), "without handles") {
		t.Errorf("an answer without handles: %v", err)
	}
}

func TestOpenSession(t *testing.T) {
	wrong := func(at int, b byte) []byte {
		m := append([]byte(nil), sessionResponse...)
		m[at] = b
		return m
	}
	for name, c := range map[string]struct {
		response []byte
		ok       bool
	}{
		"session":         {sessionResponse, true},
		"NOTIMP":          {[]byte{0, 1, 0xB0, 4, 0, 0, 0, 0, 0, 0, 0, 0}, false},
		"another ID":      {wrong(1, 2), false},
		"another TLV":     {wrong(13, 0xA1), false},
		"another version": {wrong(16, 2), false},
		"cut":             {sessionResponse[:20], false},
		"no header":       {sessionResponse[:5], false},
	} {
		t.Run(name, func(t *testing.T) {
			port := serveTCP(t, func(conn net.Conn) {
				if _, err := conn.Write(frame(c.response)); err == nil {
					_, _ = io.Copy(io.Discard, conn) // until the client closes it
				}
			})
			s, err := openSession(int(port), 300)
			if (err == nil) != c.ok || err != nil && !errors.Is(err, errWrong) {
				t.Errorf("error %v", err)
			}
			if s != nil {
				_ = s.conn.Close()
			}
		})
	}
}

func TestSimulatedHandle(t *testing.T) {
	var beats, ends int
	s := &simulated{beat: func(time.Time) { beats++ }, ended: func([]byte, time.Time) error { ends++; return nil }}
	for name, c := range map[string]struct {
		message     []byte
		beats, ends int
		ok          bool
	}{
		"heartbeat":             {dsoMessage(0xA1, 1, 2, 3, 4, 5, 6, 7, 8), 1, 0, true},
		"invalidation of all":   {dsoMessage(0xA2), 0, 1, true},
		"invalidation":          {dsoMessage(0xA2, 1, 2, 3, 4, 5, 6, 7, 8), 0, 1, true},
		"heartbeat of no clock": {dsoMessage(0xA1, 1), 0, 0, false},
		"half a handle":         {dsoMessage(0xA2, 1, 2, 3, 4), 0, 0, false},
		"unknown":               {dsoMessage(0xA3), 0, 0, false},
		"TLV that is cut":       {dsoMessage(0xA1, 1, 2, 3, 4, 5, 6, 7, 8)[:20], 0, 0, false},
		"response":              {sessionResponse, 0, 0, true},
		"answer":                {make([]byte, headerSize), 0, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			beats, ends = 0, 0
			if err := s.handle(c.message, time.Now()); (err == nil) != c.ok || beats != c.beats || ends != c.ends {
				t.Errorf("%d heartbeats, %d invalidations, %v", beats, ends, err)
			}
		})
	}
}

// TestReportCoherence reports figures of the part, and its bars.
func TestReportCoherence(t *testing.T) {
	b := bench{settings: settings{parts: []string{partCoherence, partSessions}, rounds: 1, sessions: 10}, results: results{}}
	for what, v := range map[string]float64{
		coherenceReach: 0.5, coherenceHit: 2, coherenceChangeP99: 49, coherenceCreateP99: 51, fleetPeak: 300, fleetCPU: 9, fleetMax: 300,
	} {
		b.results.add(what, nameCoherent, v)
		b.results.add(what, nameFleet, v)
	}
	b.results.add(coherenceReach, nameTimed, 30)
	b.results.add(coherenceHit, nameTimed, 2.02)
	var text strings.Builder
	if err := b.report(&text); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"| nodecache, clusterdns, coherent | 0.50 | 0.02 | 2.00 | 0.99 |",
		"p99 at most 50 ms | 49.00 ms | yes |", "did not exist | 51.00 ms | **no** |", "at most 1/10 | 0.50 of 100, 1/60.0 of 30.00 of 100 | yes |",
		"at most 400 MB | 314.6 MB | yes |", "at most 10 % of a core | 9 % | yes |", "within a second | 300.00 ms | yes |",
		"(3 %) | 2.00 us, 1/1.0 of 2.02 us | yes |",
	} {
		if !strings.Contains(text.String(), line) {
			t.Errorf("no line %q in\n%s", line, text.String())
		}
	}
}
