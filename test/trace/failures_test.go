package trace

import (
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/zipkin"
)

// tracedCorefile traces queries; OPTIONS are those of trace.
const tracedCorefile = `.:PORT {
    bind 127.0.0.1
    trace COLLECTOR {
        OPTIONS
    }
    prometheus METRICS
    errors
    forward . UPSTREAM
}
`

// never has requests sent at the end only.
const never = "zipkin_max_batch_interval 1h\n zipkin_max_backlog_size 100000\n zipkin_max_batch_size 100000"

func traced(t *testing.T, options string) string {
	t.Helper()
	return strings.NewReplacer("OPTIONS", options, "METRICS", dead(t)).Replace(tracedCorefile)
}

// TestExit ends the programs: the collector has all spans by then.
func TestExit(t *testing.T) {
	for _, program := range []string{"clusterdns", "nodecache"} {
		t.Run(program, func(t *testing.T) {
			u, z := startUpstream(t), zipkin.New(t)
			p := start(t, daemon.Program(t, program), z, u, traced(t, never))
			for n := range 50 {
				kit.Ask(t, "udp", p.Addr, strconv.Itoa(n)+".example.", dns.TypeA)
			}
			answered := make(chan *dns.Msg)
			go func() {
				client := dns.Client{Timeout: patience}
				reply, _, err := client.Exchange(new(dns.Msg).SetQuestion("held.example.", dns.TypeA), p.Addr)
				if err != nil {
					t.Errorf("query in progress: %v", err)
				}
				answered <- reply
			}()
			<-u.received
			p.Signal(t, syscall.SIGTERM)
			kit.Eventually(t, "end begins", func() bool { return strings.Contains(p.Output(), "Shutting down") })
			close(u.release)
			<-answered
			if code, err := p.Wait(patience); code != 0 || err != nil {
				t.Errorf("exit code %d, %v", code, err)
			}
			s := z.Await(t, "state", func(zipkin.State) bool { return true })
			for _, name := range []string{"0.example.", "49.example.", "held.example."} {
				if len(s.Roots(tagName, name)) != 1 {
					t.Errorf("no span of %s", name)
				}
			}
		})
	}
}

// TestExitSlow ends clusterdns while several collectors do not reply.
func TestExitSlow(t *testing.T) {
	u, z := startUpstream(t), zipkin.New(t)
	z.Hold()
	corefile := ""
	for n := range 20 {
		zone := strconv.Itoa(n) + ".example"
		corefile += strings.Replace(traced(t, "every 1"), ".:PORT", zone+":PORT", 1)
	}
	corefile += ".:PORT {\n    bind 127.0.0.1\n}\n"
	p := start(t, daemon.Program(t, "clusterdns"), z, u, corefile)
	for n := range 20 {
		kit.Ask(t, "udp", p.Addr, "a."+strconv.Itoa(n)+".example.", dns.TypeA)
	}
	p.Signal(t, syscall.SIGTERM)
	z.Await(t, "ended requests", func(s zipkin.State) bool { return s.Ended == 20 })
	if code, err := p.Wait(patience); code != 0 || err != nil {
		t.Errorf("exit code %d, %v", code, err)
	}
}

// TestReload replaces a configuration while a query is in progress: its span and those that wait are sent.
func TestReload(t *testing.T) {
	u, z := startUpstream(t), zipkin.New(t)
	corefile := traced(t, never)
	p := start(t, daemon.Program(t, "clusterdns"), z, u, corefile)
	kit.Ask(t, "udp", p.Addr, "a.example.", dns.TypeA)
	answered := make(chan error, 1)
	go func() {
		client := dns.Client{Timeout: patience}
		_, _, err := client.Exchange(new(dns.Msg).SetQuestion("held.example.", dns.TypeA), p.Addr)
		answered <- err
	}()
	<-u.received
	p.Configure(t, strings.NewReplacer("COLLECTOR", z.Address(), "UPSTREAM", u.address).Replace(traced(t, "service next\n zipkin_max_batch_interval 10ms")))
	p.Signal(t, syscall.SIGUSR1)
	kit.Eventually(t, "the next configuration serves", func() bool {
		kit.Ask(t, "udp", p.Addr, "b.example.", dns.TypeA)
		s := z.Await(t, "state", func(zipkin.State) bool { return true })
		roots := s.Roots(tagName, "b.example.")
		return len(roots) > 0 && roots[len(roots)-1].LocalEndpoint.ServiceName == "next"
	})
	close(u.release)
	if err := <-answered; err != nil {
		t.Errorf("query in progress: %v", err)
	}
	for _, name := range []string{"a.example.", "held.example."} {
		if got := z.Traces(t, 1, tagName, name)[0][0].LocalEndpoint.ServiceName; got != "coredns" {
			t.Errorf("%s: service %s", name, got)
		}
	}
}

// TestRefusedReload keeps tracing after a configuration that cannot start.
func TestRefusedReload(t *testing.T) {
	u, z := startUpstream(t), zipkin.New(t)
	p := start(t, daemon.Program(t, "clusterdns"), z, u, traced(t, "zipkin_max_batch_interval 10ms"))
	p.Configure(t, strings.NewReplacer("COLLECTOR", "datadog 127.0.0.1:1", "UPSTREAM", u.address).Replace(traced(t, "every 1")))
	p.Signal(t, syscall.SIGUSR1)
	kit.Eventually(t, "error", func() bool { return strings.Contains(p.Output(), "Not reloaded") })
	kit.Ask(t, "udp", p.Addr, "a.example.", dns.TypeA)
	z.Traces(t, 1, tagName, "a.example.")
}

// TestNoCollector has a collector that does not run, and one that never replies: all queries are answered, spans are dropped, and
// one line is logged.
func TestNoCollector(t *testing.T) {
	for _, tc := range []struct {
		name string
		held bool
		line string
	}{{"dead", false, "connection refused"}, {"no reply", true, "more spans than it accepts"}} {
		t.Run(tc.name, func(t *testing.T) {
			u, z := startUpstream(t), zipkin.New(t)
			metrics := dead(t)
			corefile := strings.NewReplacer("OPTIONS", "zipkin_max_batch_interval 1ms\n zipkin_max_backlog_size 10", "METRICS", metrics).Replace(tracedCorefile)
			if tc.held {
				z.Hold()
			} else {
				corefile = strings.Replace(corefile, "COLLECTOR", dead(t), 1)
			}
			p := start(t, daemon.Program(t, "clusterdns"), z, u, corefile)
			var clients sync.WaitGroup
			for _, network := range []string{"udp", "tcp"} {
				clients.Go(func() {
					for n := range 200 {
						if reply := kit.Ask(t, network, p.Addr, strconv.Itoa(n)+".example.", dns.TypeA); len(reply.Answer) != 1 {
							t.Errorf("%s: %s", network, reply)
						}
					}
				})
			}
			clients.Wait()
			dropped := daemon.Scrape(t, http.DefaultClient, metrics).Sum("nearside_trace_dropped_spans_total")
			if dropped < 1000 {
				t.Errorf("%v spans dropped", dropped)
			}
			if tc.held {
				z.Release()
			}
			kit.Eventually(t, tc.line, func() bool { return strings.Contains(p.Output(), tc.line) })
			if n := strings.Count(p.Output(), "plugin/trace: Spans are not sent"); n != 1 {
				t.Errorf("%d lines:\n%s", n, p.Output())
			}
		})
	}
}

// TestDatadog refuses an endpoint of Datadog with one line.
func TestDatadog(t *testing.T) {
	for _, program := range []string{"clusterdns", "nodecache"} {
		command := exec.Command(daemon.Program(t, program), "-conf", "stdin")
		command.Stdin = strings.NewReader(".:5399 {\n    errors\n    trace datadog localhost:8126\n}\n")
		output, err := command.CombinedOutput()
		const want = `stdin:3 - Error during parsing: invalid trace "datadog" "localhost:8126": want zipkin and an endpoint: nearside sends spans to Zipkin collectors only`
		if err == nil || !strings.Contains(string(output), want) || strings.Count(string(output), "\n") != 1 {
			t.Errorf("%s: %v\n%s", program, err, output)
		}
	}
}
