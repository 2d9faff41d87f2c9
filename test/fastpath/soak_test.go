//go:build linux

package fastpath

import (
	"bufio"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/kit"
)

var soak = flag.Duration("soak", 10*time.Second, "how long TestSoak lasts")

// Maximum growth of a program from the end of the warm-up to the end of the soak.
const (
	moreMemory     = 16 << 20 // bytes; the queries do not use up the budget for answers
	morePart       = 4        // and this fraction of the memory then, since the race detector needs several times as much
	moreGoroutines = 10 + 64  // the latter are idle workers of the fast path
)

// versions are the successive addresses of a Service. A client that has received one must not receive an older one.
type versions struct{ seen atomic.Int64 }

const versionsNet = "10.97."

func versionAddress(v int64) string { return fmt.Sprintf("%s%d.%d", versionsNet, v/250, v%250+1) }

// question returns a query for the address of a Service.
func (v *versions) question(name string) question {
	minimum := v.seen.Load()
	return question{name + ".shop.svc.cluster.local.", dns.TypeA, func(m *dns.Msg) string {
		if m.Rcode != dns.RcodeSuccess || len(m.Answer) != 1 {
			return fmt.Sprintf("want one address and got\n%v", m)
		}
		a, ok := m.Answer[0].(*dns.A)
		if !ok {
			return fmt.Sprintf("want one address and got\n%v", m)
		}
		four := a.A.To4()
		got := int64(four[2])*250 + int64(four[3]) - 1
		if got < minimum {
			return fmt.Sprintf("%v, when %s was seen before", a.A, versionAddress(minimum))
		}
		for seen := v.seen.Load(); seen < got && !v.seen.CompareAndSwap(seen, got); seen = v.seen.Load() {
		}
		return ""
	}}
}

// residentMemory returns the resident memory of a process in bytes.
func residentMemory(t *testing.T, pid int) int64 {
	t.Helper()
	return memoryOf(t, pid, "VmRSS")
}

// memoryOf returns a field of a process's status (proc_pid_status(5)) in bytes.
func memoryOf(t *testing.T, pid int, field string) int64 {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	kit.Must(t, err)
	defer func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), field+":"); ok {
			kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64)
			kit.Must(t, err)
			return kb << 10
		}
	}
	t.Fatalf("no %s", field)
	return 0
}

// garbageSource sends what needs no answer. It has no other clients: one whose socket got a port that garbage has just closed
// would receive late answers.
const garbageSource = "127.0.0.5"

// garbage sends packets that need no answer: random bytes, queries with a byte changed, packets from the files,
// datagrams that are larger than any query.
func garbage(t *testing.T, address string, files []query, valid []byte, stop chan struct{}) {
	dialer := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(garbageSource)}}
	for {
		conn, err := dialer.Dial("udp", address)
		if err != nil {
			t.Error(err)
			return
		}
		for j := range 20 {
			var b []byte
			switch j % 4 {
			case 0:
				b = make([]byte, rand.IntN(600))
				for k := range b {
					b[k] = byte(rand.Uint32())
				}
			case 1:
				b = append(b, valid...)
				b[rand.IntN(len(b))] = byte(rand.Uint32())
			case 2:
				b = files[rand.IntN(len(files))].packet
			default:
				b = append(append(b, valid...), make([]byte, 1500+rand.IntN(60000))...)
			}
			if _, err := conn.Write(b); err != nil {
				continue // a late answer to an earlier query
			}
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		select {
		case <-stop:
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// TestSoak sends queries for cached and other names, while the cluster changes and invalid packets arrive.
func TestSoak(t *testing.T) {
	const (
		workers  = 24
		services = 4
		absent   = 2000 // names that don't exist
		outside  = 2000 // names of the forwarded zone
	)
	folder := newCluster(t)
	u := startUpstream(t, answerAddress)
	var changing [services]versions
	change := func(i int, version int64) {
		name := fmt.Sprintf("changing%d", i)
		if err := writeManifest(folder, name+".yaml", clusterIP(name, versionAddress(version*services+int64(i)))); err != nil {
			t.Error(err)
		}
	}
	for i := range changing {
		change(i, 0)
	}
	corefile := clusterBlock(folder) + fmt.Sprintf("example.org:PORT {\nbind 127.0.0.1 ::1\nerrors\ncache 5\nforward . %s\n}\n", u.address)
	s := start(t, "clusterdns", strings.ReplaceAll(corefile, "FASTPATH", ""))

	next := func(worker, i int) question {
		switch rand.IntN(8) {
		case 0:
			return question{fmt.Sprintf("no%d.shop.svc.cluster.local.", rand.IntN(absent)), dns.TypeA, isRcode(dns.RcodeNameError)}
		case 1:
			return question{fmt.Sprintf("x%d.example.org.", rand.IntN(outside)), dns.TypeA, isAddress("192.0.2.1")}
		case 2:
			return question{mixCase("db-0.db.shop.svc.cluster.local."), dns.TypeA, isAddress("10.244.1.20")}
		case 3:
			return question{"web.shop.svc.cluster.local.", dns.TypeA, isAddress("10.96.12.34")}
		case 4:
			return question{"web.shop.svc.cluster.local.", dns.TypeTXT, isRcode(dns.RcodeSuccess)}
		default:
			n := (worker + i) % services
			return changing[n].question(fmt.Sprintf("changing%d", n))
		}
	}
	stop := make(chan struct{})
	var others sync.WaitGroup
	files, valid := malformed(t), pack(t, newQuery("web.shop.svc.cluster.local.", dns.TypeA))
	others.Go(func() { garbage(t, s.Addr, files, valid, stop) })
	var version atomic.Int64
	others.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(200 * time.Millisecond):
				n := version.Add(1)
				change(int(n)%services, n)
			}
		}
	})

	before := s.scrape(t)
	warm := startLoad(t, s.Addr, workers, next)
	time.Sleep(max(*soak/4, 3*time.Second))
	warm.end(t)
	memory := residentMemory(t, s.Pid())
	l4 := startLoad(t, s.Addr, workers/2, next)
	l6 := startLoad(t, net.JoinHostPort("::1", strconv.Itoa(s.Port)), workers/2, next)
	time.Sleep(*soak)
	asked := l4.end(t) + l6.end(t)
	close(stop)
	others.Wait()

	after := s.scrape(t).Since(before)
	t.Logf("%d queries, %d changes; the fast path answered %v queries and handed over %v", asked, version.Load(), after.Sum(answeredTotal), after.Sum(handedOverTotal))
	if after.Sum(answeredTotal) == 0 || after.Sum(handedOverTotal) == 0 {
		t.Error("want some of both")
	}
	if n := after.Sum(droppedTotal, "reason", "overload") + after.Sum(receiveDrops); n != 0 {
		t.Errorf("%v queries were dropped", n)
	}
	for i := range changing {
		if changing[i].seen.Load() < int64(services) {
			t.Errorf("Service %d was never seen to change", i)
		}
	}
	if now := residentMemory(t, s.Pid()); now-memory > moreMemory+memory/morePart {
		t.Errorf("%d bytes of memory, %d after warming up", now, memory)
	} else {
		t.Logf("%d KiB of memory, %d after warming up", now>>10, memory>>10)
	}
	kit.Eventually(t, "nothing is in flight", func() bool { return s.scrape(t).Sum(inFlight) == 0 })
	kit.Eventually(t, "the goroutines are gone", func() bool {
		return s.scrape(t).Sum(goroutines) <= before.Sum(goroutines)+moreGoroutines
	})
	if panics := s.scrape(t).Sum("coredns_panics_total"); panics != 0 {
		t.Errorf("%v panics", panics)
	}
}
