package main

import (
	"context"
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

// looked are the results of lookups.
type looked struct {
	count, failed int
	took          []time.Duration // of those that did not fail
}

func (l *looked) addTo(all figures, phase, name string) {
	slices.Sort(l.took)
	all.add(figure(phase, lookupCount), name, float64(l.count))
	all.add(figure(phase, lookupErrors), name, 100*float64(l.failed)/float64(max(1, l.count)))
	if len(l.took) > 0 {
		all.add(figure(phase, lookups50), name, dnsperf.Percentile(l.took, 50))
		all.add(figure(phase, lookups99), name, dnsperf.Percentile(l.took, 99))
		all.add(figure(phase, lookupsMax), name, dnsperf.Percentile(l.took, 100))
	}
}

// during looks up names from all clients until a function returns.
func (l *lookups) during(ctx context.Context, do func(context.Context) error) (looked, error) {
	looking, stop := context.WithCancel(ctx)
	defer stop()
	var running sync.WaitGroup
	results := make([]looked, l.clients)
	for i := range results {
		running.Go(func() { results[i] = l.client(looking, i) })
	}
	err := do(ctx)
	stop()
	running.Wait()
	var all looked
	for _, r := range results {
		all.count, all.failed, all.took = all.count+r.count, all.failed+r.failed, append(all.took, r.took...)
	}
	return all, err
}

// client looks up names at the rate of one client until the end. The clients begin one after the other within the time between two
// lookups.
func (l *lookups) client(ctx context.Context, number int) (r looked) {
	const pause = time.Second / lookupRate
	if !sleep(ctx, pause*time.Duration(number)/time.Duration(l.clients)) {
		return r
	}
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	var mu sync.Mutex
	var running sync.WaitGroup
	defer running.Wait()
	for {
		select {
		case <-ctx.Done():
			return r
		case <-ticker.C:
		}
		name, want := l.name()
		running.Go(func() {
			began := time.Now()
			ok := lookUp(l.server, name, want)
			took := time.Since(began)
			mu.Lock()
			defer mu.Unlock()
			if r.count++; ok {
				r.took = append(r.took, took)
			} else {
				r.failed++
			}
		})
	}
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
