package dropin

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/cmd/internal/dualstack"
	"github.com/nearside-dns/nearside/test/kit"
)

// clusterRecords connects to a server that answers with these records as cluster DNS does, with NXDOMAIN if none matches.
func clusterRecords(t *testing.T, server string, queried *[]string, records ...string) dualstack.Dial {
	return func(_ context.Context, _, to string) (net.Conn, error) {
		if to != server {
			return nil, errors.New("no server at " + to)
		}
		client, other := net.Pipe()
		go func() {
			connection := dns.Conn{Conn: other}
			for {
				question, err := connection.ReadMsg()
				if err != nil {
					return // closed
				}
				q := question.Question[0]
				*queried = append(*queried, q.Name+" "+dns.TypeToString[q.Qtype])
				if err := connection.WriteMsg(answerFrom(t, records, question)); err != nil {
					t.Error(err)
				}
			}
		}()
		return client, nil
	}
}

func answerFrom(t *testing.T, records []string, question *dns.Msg) *dns.Msg {
	q, answer := question.Question[0], new(dns.Msg).SetReply(question)
	answer.Authoritative = true
	for _, text := range records {
		rr, err := dns.NewRR(text)
		if err != nil {
			t.Error(err)
			continue
		}
		if rr.Header().Name == q.Name && rr.Header().Rrtype == q.Qtype {
			answer.Answer = append(answer.Answer, rr)
		}
	}
	if len(answer.Answer) == 0 {
		answer.Rcode = dns.RcodeNameError
	}
	return answer
}

// TestFallbackOfBothFamilies has one address of the Service in the environment, as the kubelet sets it, and the other in
// cluster DNS.
func TestFallbackOfBothFamilies(t *testing.T) {
	const (
		reverse4 = "11.0.96.10.in-addr.arpa. 5 IN PTR up.kube-system.svc.cluster.local."
		reverse6 = "b.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.0.0.0.0.d.f.ip6.arpa. 5 IN PTR up.kube-system.svc.cluster.local."
		second6  = "up.kube-system.svc.cluster.local. 5 IN AAAA fd00:96::b"
		second4  = "up.kube-system.svc.cluster.local. 5 IN A 10.96.0.11"
	)
	for _, c := range []struct {
		name, service string
		args          []string
		records       []string
		want          string // the line of the directive
		queries       int
	}{
		{"IPv4 first", "10.96.0.11", []string{"-localip", "169.254.20.10,fd00:20::10"}, []string{reverse4, second6}, "fallback 10.96.0.11 fd00:96::b\n", 2},
		{"IPv6 first", "fd00:96::b", []string{"-localip", "169.254.20.10,fd00:20::10"}, []string{reverse6, second4}, "fallback fd00:96::b 10.96.0.11\n", 2},
		{"a Service of one family", "10.96.0.11", []string{"-localip", "169.254.20.10,fd00:20::10"}, []string{reverse4, second4}, "fallback 10.96.0.11\n", 2},
		{"no name", "10.96.0.11", []string{"-localip", "169.254.20.10,fd00:20::10"}, nil, "fallback 10.96.0.11\n", 1},
		{"the name of another", "10.96.0.11", []string{"-localip", "169.254.20.10,fd00:20::10"}, []string{strings.Replace(reverse4, "up.", "web.", 1), second6}, "fallback 10.96.0.11\n", 1},
		{"node-local addresses of one family", "10.96.0.11", []string{"-localip", "169.254.20.10"}, []string{reverse4, second6}, "fallback 10.96.0.11\n", 0},
		{"link-local addresses have none", "10.96.0.11", []string{"-localip", "169.254.20.10,fe80::10"}, []string{reverse4, second6}, "fallback 10.96.0.11\n", 0},
		{"fallback by flag", "10.96.0.11", []string{"-localip", "169.254.20.10,fd00:20::10", "-fallback", "10.96.0.12"}, []string{reverse4, second6}, "fallback 10.96.0.12\n", 0},
		{"its own address", "10.96.0.11", []string{"-localip", "169.254.20.10,fd00:96::b"}, []string{reverse4, second6}, "fallback 10.96.0.11\n", 2},
		{"a loopback address", "10.96.0.11", []string{"-localip", "169.254.20.10,fd00:20::10"}, []string{reverse4, strings.Replace(second6, "fd00:96::b", "::1", 1)}, "fallback 10.96.0.11\n", 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := node(t, map[string]string{"UP_SERVICE_HOST": c.service}, append(c.args, "-upstreamsvc", "up")...)
			var queried []string
			n.dial = clusterRecords(t, netip.AddrPortFrom(netip.MustParseAddr(c.service), 53).String(), &queried, c.records...)
			conf := filepath.Join(t.TempDir(), "Corefile")
			kit.Write(t, conf, ".:53 {\n    log\n}\n")
			got, err := n.Source(conf, reader)
			kit.Must(t, err)
			if !strings.Contains(string(got.Text), c.want) || len(queried) != c.queries {
				t.Errorf("%d queries (%q), want %d; %q is not in\n%s", len(queried), queried, c.queries, c.want, got.Text)
			}
		})
	}
}

// TestFallbackFoundLater has cluster DNS that does not answer until after the start.
func TestFallbackFoundLater(t *testing.T) {
	n := node(t, map[string]string{"KUBE_DNS_SERVICE_HOST": "10.96.0.11"}, "-localip", "169.254.20.10,fd00:20::10")
	conf := filepath.Join(t.TempDir(), "Corefile")
	kit.Write(t, conf, ".:53 {\n    log\n}\n")
	source := func() string {
		t.Helper()
		got, err := n.Source(conf, reader)
		kit.Must(t, err)
		return string(got.Text)
	}
	if text := source(); !strings.Contains(text, "fallback 10.96.0.11\n") {
		t.Errorf("without an answer:\n%s", text)
	}
	var queried []string
	n.second.Dial = clusterRecords(t, "10.96.0.11:53", &queried,
		"11.0.96.10.in-addr.arpa. 5 IN PTR kube-dns.kube-system.svc.cluster.local.", "kube-dns.kube-system.svc.cluster.local. 5 IN AAAA fd00:96::b")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	n.second.Follow(ctx, cancel) // returns when it has found the address
	const both = "fallback 10.96.0.11 fd00:96::b\n"
	if text := source(); !strings.Contains(text, both) {
		t.Errorf("with an answer:\n%s", text)
	}
	n.second.Dial = clusterRecords(t, "10.96.0.99:53", &queried)
	if changed, err := n.second.Look(context.Background()); changed || err == nil || !strings.Contains(source(), both) {
		t.Errorf("without an answer again: changed %t, error %v\n%s", changed, err, source())
	}
}

// TestFallbackAfterEmptyAnswers has cluster DNS that answers without addresses for a while, as it does while it starts or
// while its list of Services is incomplete.
func TestFallbackAfterEmptyAnswers(t *testing.T) {
	for _, tc := range []struct {
		name        string
		from, until time.Duration // of the empty answers, since the start
		at          time.Duration // when the fallbacks are read
		want        string
		reloads     int
	}{
		{"found soon after empty answers at the start", 0, 8 * time.Second, time.Minute, "10.96.0.11 fd00:96::b", 1},
		{"unchanged by two empty answers", time.Minute, dualstack.Every + 2*dualstack.Retry - time.Second, time.Hour, "10.96.0.11 fd00:96::b", 0},
		{"dropped when all answers are empty", time.Minute, 2 * time.Hour, time.Hour, "10.96.0.11", 1},
		{"found again after all were empty", time.Minute, time.Hour, time.Hour + 2*dualstack.Every, "10.96.0.11 fd00:96::b", 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := node(t, map[string]string{"KUBE_DNS_SERVICE_HOST": "10.96.0.11"}, "-localip", "169.254.20.10,fd00:20::10")
				var queried []string
				empty := clusterRecords(t, "10.96.0.11:53", &queried)
				full := clusterRecords(t, "10.96.0.11:53", &queried,
					"11.0.96.10.in-addr.arpa. 5 IN PTR kube-dns.kube-system.svc.cluster.local.", "kube-dns.kube-system.svc.cluster.local. 5 IN AAAA fd00:96::b")
				start, reloads := time.Now(), 0
				n.dial = func(ctx context.Context, network, to string) (net.Conn, error) {
					if since := time.Since(start); since >= tc.from && since < tc.until {
						return empty(ctx, network, to)
					}
					return full(ctx, network, to)
				}
				n.second = n.newLookup()
				if _, err := n.second.Look(t.Context()); err != nil && tc.from > 0 { // that of the start
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go n.second.Follow(ctx, func() { reloads++ })
				time.Sleep(tc.at)
				synctest.Wait()
				if got := strings.Join(n.defaultFallback(), " "); got != tc.want || reloads != tc.reloads {
					t.Errorf("fallback %s after %d reloads, want %s after %d", got, reloads, tc.want, tc.reloads)
				}
			})
		})
	}
}
