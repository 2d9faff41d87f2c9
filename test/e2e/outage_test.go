package e2e

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearside-dns/nearside/test/kit"
)

// reloadSignal makes the server read its Corefile again.
const reloadSignal = syscall.SIGUSR1

// expectation is a question whose answer does not change during the outage.
type expectation struct {
	name    string
	qtype   uint16
	rcode   int
	answers []string // rdata, sorted
}

// load sends the same questions all the time and counts the answers that are not as expected.
type load struct {
	addr   string
	asked  atomic.Int64
	wrong  atomic.Int64
	report func(string)
}

// run sends about a thousand questions a second in all, from a few clients, until ctx ends.
func (l *load) run(ctx context.Context, questions []expectation) {
	var wg sync.WaitGroup
	for client := range 4 {
		wg.Go(func() {
			conn, err := dns.Dial("udp", l.addr)
			if err != nil {
				l.fail(expectation{}, err.Error())
				return
			}
			defer func() { _ = conn.Close() }()
			tick := time.NewTicker(4 * time.Millisecond)
			defer tick.Stop()
			for i := client; ; i++ {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
					l.ask(conn, questions[i%len(questions)])
				}
			}
		})
	}
	wg.Wait()
}

func (l *load) ask(conn *dns.Conn, e expectation) {
	l.asked.Add(1)
	m := new(dns.Msg).SetQuestion(e.name, e.qtype)
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		l.fail(e, err.Error())
		return
	}
	if err := conn.WriteMsg(m); err != nil {
		l.fail(e, err.Error())
		return
	}
	r, err := conn.ReadMsg()
	if err != nil {
		l.fail(e, err.Error())
		return
	}
	var got []string
	for _, rr := range r.Answer {
		got = append(got, strings.TrimPrefix(rr.String(), rr.Header().String()))
	}
	slices.Sort(got)
	if r.Id != m.Id || r.Rcode != e.rcode || !slices.Equal(got, e.answers) {
		l.fail(e, fmt.Sprintf("%s %q", dns.RcodeToString[r.Rcode], got))
	}
}

func (l *load) fail(e expectation, got string) {
	if l.wrong.Add(1) <= 10 {
		l.report(fmt.Sprintf("%s %s: got %s, want %s %q", e.name, dns.TypeToString[e.qtype], got, dns.RcodeToString[e.rcode], e.answers))
	}
}

// testOutage sends queries while the API server is killed, restarted, changed, killed again and frozen: no answer is
// wrong, and the change is seen.
func testOutage(t *testing.T, c *cluster) {
	web := clusterIPs(t, c.client, "web")
	reverse, err := dns.ReverseAddr(web[0])
	kit.Must(t, err)
	l := &load{addr: net.JoinHostPort("127.0.0.1", fmt.Sprint(c.dns.Port)), report: func(s string) { t.Error(s) }}
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		l.run(ctx, []expectation{
			{"web.shop.svc.cluster.local.", dns.TypeA, dns.RcodeSuccess, web[:1]},
			{"web.shop.svc.cluster.local.", dns.TypeAAAA, dns.RcodeSuccess, web[1:]},
			{"db.shop.svc.cluster.local.", dns.TypeA, dns.RcodeSuccess, []string{"10.244.0.10", "10.244.1.10"}},
			{"db-1.db.shop.svc.cluster.local.", dns.TypeA, dns.RcodeSuccess, []string{"10.244.1.10"}},
			{"nothere.shop.svc.cluster.local.", dns.TypeA, dns.RcodeNameError, nil},
			{reverse, dns.TypePTR, dns.RcodeSuccess, []string{"web.shop.svc.cluster.local."}},
			{"10-244-0-10.shop.pod.cluster.local.", dns.TypeA, dns.RcodeSuccess, []string{"10.244.0.10"}},
		})
	})
	time.Sleep(time.Second)
	c.KillAPIServer()
	kit.Within(t, 30*time.Second, "the loss of the API server in the log", func() bool {
		return strings.Contains(c.dns.Output(), "answering from the last known state")
	})
	if !c.ready(t) {
		t.Error("not ready without an API server: all replicas would be unready at once")
	}
	c.StartAPIServer()
	if _, err := c.client.CoreV1().Services("shop").Create(t.Context(), headless("after"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.client.DiscoveryV1().EndpointSlices("shop").Create(t.Context(), slice("after-1", "after", "10.244.0.99"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	kit.Within(t, 60*time.Second, "a change after the outage", func() bool {
		return slices.Equal(c.dig(t, "after.shop.svc.cluster.local"), []string{"10.244.0.99"})
	})
	c.KillAPIServer()
	time.Sleep(2 * time.Second)
	c.StartAPIServer()
	time.Sleep(3 * time.Second)
	c.FreezeAPIServer() // its connections stay open
	time.Sleep(3 * time.Second)
	c.ThawAPIServer()
	stop()
	wg.Wait()
	t.Logf("%d questions, %d wrong answers", l.asked.Load(), l.wrong.Load())
	if l.asked.Load() < 5000 {
		t.Errorf("only %d questions were asked", l.asked.Load())
	}
}
