//go:build linux

package fastpath

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
)

const (
	floodRate    = 2500 // queries per second of a flood
	floodZone    = ".flood.test."
	longPrefix   = "long." // for names with longer answers
	floodSource  = "127.0.0.2"
	clientSource = "127.0.0.3"
	// clientPause is the time between two queries of the client that must be served. In floodDuring it sends about 300
	// queries, of which a datagram or two may be lost.
	clientPause = 20 * time.Millisecond
	// resolverTimeout is the time after which resolvers retry.
	resolverTimeout = 2 * time.Second
	// shippedLimit is the memory of nodecache in docs/operating.md, in bytes.
	shippedLimit = 160 << 20
)

// startFloodUpstream starts a server that never answers names of the flood, and answers all others at once.
func startFloodUpstream(t *testing.T) *upstream {
	t.Helper()
	return startUpstream(t, func(w dns.ResponseWriter, r *dns.Msg) {
		switch name := r.Question[0].Name; {
		case strings.HasSuffix(name, floodZone):
		case strings.HasPrefix(name, longPrefix):
			m := new(dns.Msg).SetReply(r)
			header := dns.RR_Header{Name: name, Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: 300}
			for range 15 {
				m.Answer = append(m.Answer, &dns.TXT{Hdr: header, Txt: []string{strings.Repeat("x", 200)}})
			}
			_ = w.WriteMsg(m) // the client retries
		default:
			answerAddress(w, r)
		}
	})
}

// dialFrom returns a UDP socket with a source address to a server.
func dialFrom(t *testing.T, source, server string) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(source)}}
	conn, err := d.Dial("udp", server)
	kit.Must(t, err)
	t.Cleanup(func() { _ = conn.Close() }) // it may have been closed before
	return conn
}

// startFlood has sources send queries for different names, in turn, until the returned function is called.
func startFlood(t *testing.T, server string, sources ...string) (stop func()) {
	t.Helper()
	var conns []net.Conn
	for _, source := range sources {
		conns = append(conns, dialFrom(t, source, server))
	}
	stopped := make(chan struct{})
	var sending sync.WaitGroup
	sending.Go(func() {
		run := unique(1)[0]
		begin := time.Now()
		for sent := 0; ; time.Sleep(time.Millisecond) {
			select {
			case <-stopped:
				return
			default:
			}
			for ; sent < int(floodRate*time.Since(begin).Seconds()); sent++ {
				packet, err := newQuery(fmt.Sprintf("x%d-%s", sent, strings.TrimSuffix(run, ".")+floodZone), dns.TypeA).Pack()
				if err == nil {
					_, err = conns[sent%len(conns)].Write(packet)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	stop = sync.OnceFunc(func() {
		close(stopped)
		sending.Wait()
		for _, c := range conns {
			_ = c.Close()
		}
	})
	t.Cleanup(stop)
	return stop
}

// served has a client query new names for some time, and returns how many were answered in time and how many not.
func served(t *testing.T, server string, last time.Duration) (answered, failed int) {
	t.Helper()
	var mu sync.Mutex
	var asking sync.WaitGroup
	for end := time.Now().Add(last); time.Now().Before(end); time.Sleep(clientPause) {
		name := "served." + unique(1)[0]
		conn := dialFrom(t, clientSource, server)
		asking.Go(func() {
			ok := isAnswered(conn, name)
			mu.Lock()
			defer mu.Unlock()
			if ok {
				answered++
			} else {
				failed++
			}
		})
	}
	asking.Wait()
	return answered, failed
}

// isAnswered reports whether a name is answered in time.
func isAnswered(conn net.Conn, name string) bool {
	defer func() { _ = conn.Close() }() // the answer is counted
	packet, err := newQuery(name, dns.TypeA).Pack()
	if err == nil {
		_, err = conn.Write(packet)
	}
	if err == nil {
		err = conn.SetReadDeadline(time.Now().Add(resolverTimeout))
	}
	b := make([]byte, 4096)
	n := 0
	if err == nil {
		n, err = conn.Read(b)
	}
	reply := new(dns.Msg)
	return err == nil && reply.Unpack(b[:n]) == nil && isAddress("192.0.2.1")(reply) == ""
}

// highestMemory returns the maximum resident memory of a process, in bytes.
func highestMemory(t *testing.T, pid int) int {
	t.Helper()
	return int(memoryOf(t, pid, "VmHWM"))
}

// fillCache queries names until the cache is full.
func fillCache(t *testing.T, s *server) {
	t.Helper()
	const maxRounds = 4000
	const atOnce = 16 // the socket has room for their answers
	conn := dialFrom(t, "127.0.0.4", s.Addr)
	for round := range maxRounds {
		if round%100 == 0 && s.scrape(t).Sum("coredns_cache_evictions_total") > 0 {
			return
		}
		for _, name := range unique(atOnce) {
			if _, err := conn.Write(pack(t, newQuery(longPrefix+name, dns.TypeTXT).SetEdns0(4096, false))); err != nil {
				t.Fatal(err)
			}
		}
		kit.Must(t, conn.SetReadDeadline(time.Now().Add(resolverTimeout)))
		for range atOnce {
			if _, err := conn.Read(make([]byte, 4096)); err != nil {
				break // a datagram was lost: the next names replace it
			}
		}
	}
	t.Fatal("the cache does not get full")
}

// A flood is measured after its first queries have ended, 4.8 seconds after the start, and others have replaced them.
const (
	floodBefore = 5 * time.Second
	floodDuring = 7 * time.Second
)

// floodBlock is nodecache's server block in front of an upstream.
func floodBlock(u *upstream, options string) string {
	return fmt.Sprintf(".:PORT {\n    bind 127.0.0.1\n    prometheus METRICS\n    cache\n    forward . %s {\n        %s\n    }\n}\n", u.address, options)
}

// measureFlood has sources flood a server while another client sends queries, and checks that this one is served, and
// the memory of the server.
func measureFlood(t *testing.T, s *server, sources ...string) {
	t.Helper()
	stop := startFlood(t, s.Addr, sources...)
	time.Sleep(floodBefore)
	answered, failed := served(t, s.Addr, floodDuring)
	stop()
	memory := highestMemory(t, s.Pid())
	t.Logf("%d answered, %d not, %d MiB", answered, failed, memory>>20)
	if failed*100 >= answered+failed {
		t.Errorf("%d of %d queries of the other client were not answered, want less than one of a hundred", failed, answered+failed)
	}
	if memory > shippedLimit {
		t.Errorf("nodecache took %d MiB, want %d at most", memory>>20, shippedLimit>>20)
	}
	if n := s.scrape(t).Sum("nearside_forward_up"); n != 1 {
		t.Error("the upstream counts as down, though it answers other names")
	}
}

// TestFloodOfOneClient has one client flood names that the upstream never answers, while another queries new names that
// it answers.
func TestFloodOfOneClient(t *testing.T) {
	for name, options := range map[string]string{"over UDP": "", "over TCP": "force_tcp"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			measureFlood(t, startFrom(t, daemon.ProgramWithoutRace(t, "nodecache"), floodBlock(startFloodUpstream(t), options)), floodSource)
		})
	}
}

// TestFloodOfManyAddresses has the flood come from 200 addresses, while the cache is full.
func TestFloodOfManyAddresses(t *testing.T) {
	s := startFrom(t, daemon.ProgramWithoutRace(t, "nodecache"), floodBlock(startFloodUpstream(t), ""))
	fillCache(t, s)
	var sources []string
	for i := range 200 {
		sources = append(sources, fmt.Sprintf("127.0.1.%d", 1+i))
	}
	measureFlood(t, s, sources...)
}

// TestFloodOfOneClientLikeCoreDNS sends the same flood to CoreDNS and to nodecache: nodecache serves the other client,
// and uses no more memory.
func TestFloodOfOneClientLikeCoreDNS(t *testing.T) {
	path := controlplane.RequireBinary(t, "coredns")
	const corefile = ".:PORT {\n    bind 127.0.0.1\n    cache\n    forward . %s\n}\n" // directives that both have
	type result struct{ answered, failed, memory int }
	results := map[string]*result{"coredns": {}, "nodecache": {}}
	var measuring sync.WaitGroup
	for name, r := range results {
		p := path
		if name == "nodecache" {
			p = daemon.ProgramWithoutRace(t, name)
		}
		s := daemon.Start(t, p, fmt.Sprintf(corefile, startFloodUpstream(t).address))
		startFlood(t, s.Addr, floodSource)
		measuring.Go(func() {
			time.Sleep(floodBefore)
			r.answered, r.failed = served(t, s.Addr, floodDuring)
			r.memory = highestMemory(t, s.Pid())
		})
	}
	measuring.Wait()
	here, there := results["nodecache"], results["coredns"]
	t.Logf("nodecache: %d answered, %d not, %d MiB; coredns: %d answered, %d not, %d MiB",
		here.answered, here.failed, here.memory>>20, there.answered, there.failed, there.memory>>20)
	if here.failed*100 >= here.answered+here.failed {
		t.Errorf("%d of %d queries of the other client were not answered, want less than one of a hundred (CoreDNS: %d)", here.failed, here.answered+here.failed, there.failed)
	}
	if here.memory > there.memory {
		t.Errorf("nodecache took %d MiB, CoreDNS %d", here.memory>>20, there.memory>>20)
	}
}
