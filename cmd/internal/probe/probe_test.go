package probe

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/kit"
)

// server answers over UDP and TCP on one port of 127.0.0.1. Without a handler the port is closed.
func server(t *testing.T, udp, tcp dns.HandlerFunc) string {
	t.Helper()
	conn, ln := kit.ListenBoth(t, "127.0.0.1:0")
	if udp != nil {
		kit.Run(t, &dns.Server{PacketConn: conn, Handler: udp})
	} else if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if tcp != nil {
		kit.Run(t, &dns.Server{Listener: ln, Handler: tcp})
	} else if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	return ln.Addr().String()
}

func answer(t *testing.T, rcode int) dns.HandlerFunc {
	return func(w dns.ResponseWriter, q *dns.Msg) {
		if err := w.WriteMsg(new(dns.Msg).SetRcode(q, rcode)); err != nil {
			t.Error(err)
		}
	}
}

func silent(dns.ResponseWriter, *dns.Msg) {}

// second does not answer the first query.
func second(t *testing.T, rcode int) dns.HandlerFunc {
	var queries atomic.Int64
	return func(w dns.ResponseWriter, q *dns.Msg) {
		if queries.Add(1) > 1 {
			answer(t, rcode)(w, q)
		}
	}
}

func TestCommand(t *testing.T) {
	ok, refused, failed, absent := answer(t, dns.RcodeSuccess), answer(t, dns.RcodeRefused), answer(t, dns.RcodeServerFailure), answer(t, dns.RcodeNameError)
	tests := []struct {
		name     string
		udp, tcp dns.HandlerFunc
		args     string
		code     int
		want     string // in the output
	}{
		{"any answer", refused, failed, "", 0, "udp: REFUSED in "},
		{"no answer over UDP", silent, ok, "-timeout 100ms", 1, "clusterdns probe: udp: read udp "},
		{"no answer over TCP", ok, silent, "-timeout 100ms", 1, "clusterdns probe: tcp: read tcp "},
		{"closed", nil, nil, "-timeout 100ms", 1, "connection refused"},
		{"UDP alone", ok, nil, "-timeout 100ms", 1, "tcp: dial tcp"},
		{"one datagram lost", second(t, dns.RcodeSuccess), ok, "", 0, "udp: NOERROR in "},
		{"name", ok, ok, "-name kubernetes.default.svc.cluster.local", 0, "tcp: NOERROR in "},
		{"name before the first sync", failed, failed, "-timeout 100ms -name kubernetes.default.svc.cluster.local", 1, "udp: kubernetes.default.svc.cluster.local. is SERVFAIL at 127.0.0.1:"},
		{"name that does not exist", ok, absent, "-timeout 100ms -name a.b", 1, "tcp: a.b. is NXDOMAIN at "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			args := append([]string{"-server", server(t, tt.udp, tt.tcp)}, strings.Fields(tt.args)...)
			var out, errs strings.Builder
			code := command("clusterdns", args, &out, &errs)
			text := out.String() + errs.String()
			if code != tt.code || !strings.Contains(text, tt.want) || strings.Count(text, "\n") != 1 {
				t.Errorf("exit code %d, printed %q, want %d and %q in one line", code, text, tt.code, tt.want)
			}
		})
	}
}

// TestQuestion checks the queries.
func TestQuestion(t *testing.T) {
	type query struct {
		dns.Question
		version uint8 // of EDNS
	}
	questions := make(chan query, 4)
	h := func(w dns.ResponseWriter, q *dns.Msg) {
		a := query{Question: q.Question[0]}
		if opt := q.IsEdns0(); opt != nil {
			a.version = opt.Version()
		}
		questions <- a
		answer(t, dns.RcodeSuccess)(w, q)
	}
	addr := server(t, h, h)
	for _, tt := range []struct {
		args []string
		want query
	}{
		{[]string{"-server", addr}, query{dns.Question{Name: ".", Qtype: dns.TypeNS, Qclass: dns.ClassINET}, 1}},
		{[]string{"-server", addr, "-name", "web.shop"}, query{dns.Question{Name: "web.shop.", Qtype: dns.TypeA, Qclass: dns.ClassINET}, 0}},
	} {
		var out strings.Builder
		if code := command("clusterdns", tt.args, &out, &out); code != 0 {
			t.Fatalf("exit code %d: %s", code, out.String())
		}
		for range 2 {
			if got := <-questions; got != tt.want {
				t.Errorf("query %v, want %v", got, tt.want)
			}
		}
	}
}

func TestFlags(t *testing.T) {
	tests := []struct{ args, want string }{
		{"-server 127.0.0.1", `-server: "127.0.0.1" is not an address with a port`},
		{"-server localhost:53", `"localhost:53" is not an address`},
		{"-name a..b", `-name: "a..b" is not a domain name`},
		{"-timeout 0s", "invalid -timeout 0s: want more than 0"},
		{"-timeout soon", "invalid value"},
		{"now", `unexpected argument "now"`},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			var out, errs strings.Builder
			if code := command("nodecache", strings.Fields(tt.args), &out, &errs); code != 2 || out.Len() > 0 ||
				!strings.Contains(errs.String(), tt.want) || !strings.HasSuffix(errs.String(), "see nodecache probe -help\n") {
				t.Errorf("exit code %d, printed %q and %q, want %q", code, out.String(), errs.String(), tt.want)
			}
		})
	}
	t.Run("help", func(t *testing.T) {
		var out, errs strings.Builder
		if code := command("clusterdns", []string{"-help"}, &out, &errs); code != 0 || errs.Len() > 0 || !strings.Contains(out.String(), "-server address") {
			t.Errorf("exit code %d, printed %q and %q", code, out.String(), errs.String())
		}
	})
}
