package nodelocal

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/kit"
)

// TestSelfQuery queries servers on the loopback address.
func TestSelfQuery(t *testing.T) {
	right := &NodeLocal{suffix: healthSuffix(".")}
	for _, tc := range []struct {
		name    string
		answer  dns.HandlerFunc
		network []string
		want    error
		fails   bool
	}{
		{"right", func(w dns.ResponseWriter, r *dns.Msg) { _, _ = right.ServeDNS(context.Background(), w, r) }, []string{"udp", "tcp"}, nil, false},
		{"UDP only", func(w dns.ResponseWriter, r *dns.Msg) { _, _ = right.ServeDNS(context.Background(), w, r) }, []string{"udp"}, nil, true},
		{"another server", func(w dns.ResponseWriter, r *dns.Msg) { _ = w.WriteMsg(new(dns.Msg).SetReply(r)) }, []string{"udp", "tcp"}, ErrOtherServer, true},
		{"refused", func(w dns.ResponseWriter, r *dns.Msg) { _ = w.WriteMsg(new(dns.Msg).SetRcode(r, dns.RcodeRefused)) }, []string{"udp", "tcp"}, ErrOtherServer, true},
		{"silence", func(dns.ResponseWriter, *dns.Msg) {}, []string{"udp", "tcp"}, nil, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			to := serve(t, tc.answer, tc.network)
			q := newSelfQuerier(to.Addr(), "lo", to.Port(), right.suffix)
			err := q.query(context.Background(), true)
			if (err != nil) != tc.fails || tc.want != nil && !errors.Is(err, tc.want) {
				t.Errorf("error %v, want %v", err, tc.want)
			}
		})
	}
}

// serve runs a server on a port of the loopback address until the end of the test.
func serve(t *testing.T, answer dns.HandlerFunc, networks []string) netip.AddrPort {
	t.Helper()
	packets, streams := kit.ListenBoth(t, "127.0.0.1:0")
	kit.Run(t, &dns.Server{PacketConn: packets, Handler: answer})
	if slices.Contains(networks, "tcp") {
		kit.Run(t, &dns.Server{Listener: streams, Handler: answer})
	} else if err := streams.Close(); err != nil {
		t.Fatal(err)
	}
	return packets.LocalAddr().(*net.UDPAddr).AddrPort()
}

// TestSelfQueryTCP queries a server that refuses TCP for a time.
func TestSelfQueryTCP(t *testing.T) {
	right := &NodeLocal{suffix: healthSuffix(".")}
	var refuse atomic.Bool
	var served atomic.Int32
	to := serve(t, func(w dns.ResponseWriter, r *dns.Msg) {
		if _, tcp := w.RemoteAddr().(*net.TCPAddr); tcp && refuse.Load() {
			_ = w.Close()
			return
		} else if tcp {
			served.Add(1)
		}
		_, _ = right.ServeDNS(context.Background(), w, r)
	}, []string{"udp", "tcp"})
	q := newSelfQuerier(to.Addr(), "lo", to.Port(), right.suffix)
	refuse.Store(true)
	for range 3 { // one of ten self-queries is sent over TCP, but every one after a failure
		if err := q.query(context.Background(), true); err == nil || !strings.HasPrefix(err.Error(), "tcp: ") {
			t.Errorf("without TCP: %v", err)
		}
	}
	refuse.Store(false)
	for i := range 2 * tcpEvery {
		if err := q.query(context.Background(), true); err != nil {
			t.Error(err)
		}
		if got, want := served.Load(), min(int32(i)+1, minAnswers); i < minAnswers+1 && got != want { // #nosec G115 -- at most 20
			t.Errorf("%d of the first %d self-queries after the failure were sent over TCP as well, want %d", got, i+1, want)
		}
	}
}
