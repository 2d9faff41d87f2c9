//go:build linux

package monitoring

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/netns"
)

// load is the background traffic of pods: queries whose answers are not checked.
type load struct {
	stop    chan struct{}
	pause   time.Duration // of each client, between two queries
	clients sync.WaitGroup
	once    sync.Once
}

// clients is the number of concurrent clients.
const clients = 8

// startLoad has pods send queries until the end of the test, each client at a steady rate: most of them to nodecache,
// one to the other replica of cluster DNS; one over TCP.
func (b *bed) startLoad(t *testing.T, perSecond int) *load {
	t.Helper()
	l := &load{stop: make(chan struct{}), pause: time.Second / time.Duration(perSecond)}
	for i := range clients {
		network, server := "udp", local
		switch i {
		case 0:
			network = "tcp"
		case 1:
			server = otherDNS
		}
		l.clients.Go(func() { l.ask(b.Pod[i%len(b.Pod)], network, server, rand.New(rand.NewPCG(uint64(i), 1))) })
	}
	l.clients.Go(func() { b.change(t, l.stop) })
	t.Cleanup(l.end)
	return l
}

// change adds and removes endpoints, and ends a watch from time to time, as the API server does.
func (b *bed) change(t *testing.T, stop chan struct{}) {
	for n := 0; ; n++ {
		select {
		case <-stop:
			return
		case <-time.After(500 * time.Millisecond):
		}
		if err := b.api.Put(b.databases(4 + n%3)); err != nil {
			t.Error(err)
			return
		}
		if n%4 == 0 {
			b.api.DropWatches("endpointslices")
		}
	}
}

func (l *load) end() {
	l.once.Do(func() { close(l.stop) })
	l.clients.Wait()
}

// ask sends one query after the other.
func (l *load) ask(from *netns.Namespace, network, server string, random *rand.Rand) {
	var connection *dns.Conn
	defer func() {
		if connection != nil {
			_ = connection.Close()
		}
	}()
	for {
		select {
		case <-l.stop:
			return
		case <-time.After(l.pause):
		}
		if connection == nil {
			if socket, err := from.Dial(net.Dialer{Timeout: time.Second}, network, net.JoinHostPort(server, "53")); err == nil {
				connection = &dns.Conn{Conn: socket}
			}
			continue
		}
		qtype := []uint16{dns.TypeA, dns.TypeAAAA}[random.IntN(2)]
		client := dns.Client{Timeout: time.Second}
		if _, _, err := client.ExchangeWithConn(new(dns.Msg).SetQuestion(someName(random), qtype), connection); err != nil {
			_ = connection.Close()
			connection = nil
		}
	}
}

// someName is a name that a pod may query: of the cluster, of the first entry of its search list, or outside.
func someName(random *rand.Rand) string {
	// A few names are frequent, many are rare.
	n := int(random.ExpFloat64() * 20)
	switch random.IntN(10) {
	case 0, 1, 2:
		return fmt.Sprintf("web-%d.%s.svc.cluster.local.", n%20, []string{"shop", "bank"}[n%2])
	case 3, 4:
		return fmt.Sprintf("host-%d.example.com.shop.svc.cluster.local.", n)
	case 5:
		return "db.shop.svc.cluster.local."
	case 6:
		return fmt.Sprintf("none-%d.shop.svc.cluster.local.", n)
	case 7:
		return fmt.Sprintf("short-%d.example.com.", n)
	default:
		return fmt.Sprintf("host-%d.example.com.", n)
	}
}
