package main

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/bench/dnsperf"
	"github.com/nearside-dns/nearside/test/bench/generated"
)

// lookups are pods that look up names of Services through their search list, as resolvers of the C library do.
type lookups struct {
	cluster generated.Cluster
	clients int
	server  string
	next    int // number of the next Service
	mu      sync.Mutex
}

func newLookups(c generated.Cluster, clients int, server string) *lookups {
	return &lookups{cluster: c, clients: clients, server: server}
}

// lookupResults are the results of lookups.
type lookupResults struct {
	failed    int
	latencies []time.Duration // also of those that failed, from the time at which the lookup was due
}

func (r *lookupResults) addTo(all figures, phase, name string) {
	slices.Sort(r.latencies)
	count := len(r.latencies)
	all.add(figure(phase, lookupCount), name, float64(count))
	all.add(figure(phase, lookupErrors), name, 100*float64(r.failed)/float64(max(1, count)))
	if count > 0 {
		all.add(figure(phase, lookups50), name, dnsperf.Percentile(r.latencies, 50))
		all.add(figure(phase, lookups99), name, dnsperf.Percentile(r.latencies, 99))
		all.add(figure(phase, lookupsMax), name, dnsperf.Percentile(r.latencies, 100))
	}
}

// during looks up names from all clients until a function returns. The clients begin one after the other within the time between two
// lookups of one client.
func (l *lookups) during(ctx context.Context, do func(context.Context) error) (all lookupResults, err error) {
	looking, stop := context.WithCancel(ctx)
	defer stop()
	var running sync.WaitGroup
	began, results := time.Now(), make([]lookupResults, l.clients)
	for i := range results {
		running.Go(func() {
			results[i] = l.client(looking, began.Add(lookupPause*time.Duration(i)/time.Duration(l.clients)))
		})
	}
	err = do(ctx)
	due := int(time.Since(began)/lookupPause-1) * l.clients
	stop()
	running.Wait()
	for _, r := range results {
		all.failed, all.latencies = all.failed+r.failed, append(all.latencies, r.latencies...)
	}
	if count := len(all.latencies); err == nil && count < due {
		err = fmt.Errorf("%d lookups, want %d: the clients are too slow", count, due)
	}
	return all, err
}

// lookupPause is the time between two lookups of a client.
const lookupPause = time.Second / lookupRate

// client looks up names at the rate of one client from a time on. A lookup that begins late counts from the time at which it was due.
func (l *lookups) client(ctx context.Context, first time.Time) (r lookupResults) {
	var mu sync.Mutex
	var running sync.WaitGroup
	defer running.Wait()
	for due := first; sleep(ctx, time.Until(due)); due = due.Add(lookupPause) {
		name, want := l.name()
		running.Go(func() {
			ok := lookUp(l.server, name, want)
			latency := time.Since(due)
			mu.Lock()
			defer mu.Unlock()
			if r.latencies = append(r.latencies, latency); !ok {
				r.failed++
			}
		})
	}
	return r
}

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// name returns the name of the next Service with a cluster address, as programs write it, and the address.
func (l *lookups) name() (name, address string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		s := l.cluster.Service(l.next % l.cluster.Services)
		if l.next++; !s.Headless {
			return s.Name + "." + s.Namespace, s.ClusterIP
		}
	}
}

// suffixes are the search list of a pod in another namespace, with a domain of the node, as the kubelet writes it.
var suffixes = []string{".clients.svc.cluster.local.", ".svc.cluster.local.", ".cluster.local.", ".example.internal."}

// The defaults of resolv.conf(5).
const (
	resolverTimeout  = 5 * time.Second
	resolverAttempts = 2
)

// lookUp tries the candidates of a name in turn, A and AAAA of each at the same time, and reports whether the address is that of the
// first one that exists.
func lookUp(server, name, want string) bool {
	for _, suffix := range suffixes {
		var a, aaaa *dns.Msg
		var both sync.WaitGroup
		both.Go(func() { a = resolve(server, name+suffix, dns.TypeA) })
		both.Go(func() { aaaa = resolve(server, name+suffix, dns.TypeAAAA) })
		both.Wait()
		switch {
		case a == nil || aaaa == nil || a.Rcode == dns.RcodeServerFailure || aaaa.Rcode == dns.RcodeServerFailure:
			return false
		case len(a.Answer) > 0:
			record, is := a.Answer[0].(*dns.A)
			return is && record.A.String() == want
		}
	}
	return false
}

// resolve sends a query, and again without a reply. It returns nil without one.
func resolve(server, name string, qtype uint16) *dns.Msg {
	m := new(dns.Msg).SetQuestion(name, qtype)
	for range resolverAttempts {
		conn, err := net.Dial("udp", server)
		if err != nil {
			return nil
		}
		reply, _, err := (&dns.Client{Timeout: resolverTimeout}).ExchangeWithConn(m, &dns.Conn{Conn: conn})
		_ = conn.Close() // the reply is there, or the time is over
		if err == nil {
			return reply
		}
	}
	return nil
}
