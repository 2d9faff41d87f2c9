package test

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
)

// failingUpstream is an upstream whose names in example. have the TTL 300, those in brief.example. the TTL 5, and those in gone.example. do
// not exist.
type failingUpstream struct {
	servers [2]*dns.Server // for UDP and TCP
	address string
}

func startUpstream(t *testing.T) *failingUpstream {
	t.Helper()
	u := &failingUpstream{address: loopback(t)}
	conn, listener := kit.ListenBoth(t, u.address)
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) { _ = w.WriteMsg(upstreamReply(t, q)) })
	u.servers = [2]*dns.Server{{PacketConn: conn, Handler: handler}, {Listener: listener, Handler: handler}}
	for _, s := range u.servers {
		kit.Run(t, s)
	}
	return u
}

// loopback returns an address of this host with a free port.
func loopback(t *testing.T) string {
	t.Helper()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(daemon.FreePort(t)))
}

func upstreamReply(t *testing.T, q *dns.Msg) *dns.Msg {
	m := new(dns.Msg).SetReply(q)
	name := q.Question[0].Name
	switch {
	case dns.IsSubDomain("gone.example.", name):
		m.Rcode = dns.RcodeNameError
		m.Ns = []dns.RR{record(t, "example. 300 IN SOA ns.example. root.example. 1 2 3 4 300")}
	case dns.IsSubDomain("brief.example.", name):
		m.Answer = []dns.RR{record(t, name+" 5 IN A 192.0.2.5")}
	case dns.IsSubDomain("example.", name):
		m.Answer = []dns.RR{record(t, name+" 300 IN CNAME Target.example."), record(t, "Target.example. 300 IN A 192.0.2.1")}
	default:
		m.Rcode = dns.RcodeRefused
	}
	return m
}

func record(t *testing.T, text string) dns.RR {
	rr, err := dns.NewRR(text)
	if err != nil {
		t.Error(err)
	}
	return rr
}

// snapshotBed is a program with a file of snapshots, and an upstream.
type snapshotBed struct {
	program, corefile string
	address, metrics  string
	file              string
	upstream          *failingUpstream
	asked, received   time.Time // before and after the answers were received
	args              []string
}

// newSnapshotBed returns a bed whose Corefile has an option of cache. A program with it answers on one address after a restart, too.
func newSnapshotBed(t *testing.T, program, option string, args ...string) *snapshotBed {
	t.Helper()
	b := &snapshotBed{
		program: program, address: loopback(t), metrics: loopback(t), file: filepath.Join(t.TempDir(), "snapshot"),
		upstream: startUpstream(t), args: args,
	}
	_, port, err := net.SplitHostPort(b.address)
	kit.Must(t, err)
	b.corefile = strings.NewReplacer("ADDRESS", port, "METRICS", b.metrics, "OPTION", strings.ReplaceAll(option, "FILE", b.file), "UPSTREAM", b.upstream.address).Replace(
		`probe.invalid:PORT {
    bind 127.0.0.1
    whoami
}
.:ADDRESS {
    bind 127.0.0.1
    errors
    prometheus METRICS
    cache 3600 {
        OPTION
    }
    forward . UPSTREAM {
        max_fails 0
    }
}
`)
	return b
}

func (b *snapshotBed) start(t *testing.T) *daemon.Process {
	t.Helper()
	return daemon.Start(t, b.program, b.corefile, b.args...)
}

var warmed = []string{"a.example.", "b.example.", "c.gone.example.", "d.brief.example."}

// warm queries the names.
func (b *snapshotBed) warm(t *testing.T) {
	t.Helper()
	b.asked = time.Now()
	for _, name := range warmed {
		for range 2 {
			if m := b.query(t, name, "udp"); m.Rcode == dns.RcodeServerFailure {
				t.Fatalf("%s: %v", name, m)
			}
		}
	}
	b.received = time.Now()
}

func (b *snapshotBed) query(t *testing.T, name, network string) *dns.Msg {
	t.Helper()
	m, err := kit.Exchange(network, b.address, new(dns.Msg).SetQuestion(name, dns.TypeA).SetEdns0(1232, false))
	kit.Must(t, err)
	return m
}

// awaitWrite waits until the program has written the present answers.
func (b *snapshotBed) awaitWrite(t *testing.T) {
	t.Helper()
	kit.Eventually(t, "the snapshot is written", func() bool {
		written := daemon.Scrape(t, http.DefaultClient, b.metrics).Sum("nearside_cache_snapshot_written_timestamp_seconds", "file", b.file)
		return written > float64(b.received.UnixNano())/1e9
	})
}

// awaitReplaced queries a restored name until the upstream's answer has replaced it.
func (b *snapshotBed) awaitReplaced(t *testing.T, name string) {
	t.Helper()
	kit.Within(t, time.Minute, "the restored answer for "+name+" is replaced", func() bool {
		opt := b.query(t, name, "udp").IsEdns0()
		return opt != nil && len(opt.Option) == 0
	})
}

// stopUpstream stops the upstream: its queries are refused by the kernel.
func (b *snapshotBed) stopUpstream(t *testing.T) {
	t.Helper()
	for _, s := range b.upstream.servers {
		kit.Must(t, s.Shutdown())
	}
}

// wantAnswers checks that the names are answered, with TTLs that continue.
func (b *snapshotBed) wantAnswers(t *testing.T) {
	t.Helper()
	for _, name := range warmed {
		for _, network := range []string{"udp", "udp", "tcp", "udp"} {
			before := int(time.Since(b.received) / time.Second)
			m := b.query(t, name, network)
			latest := int(time.Since(b.asked)/time.Second) + 1
			records, rcode, code := m.Answer, dns.RcodeSuccess, dns.ExtendedErrorCodeStaleAnswer
			if strings.HasSuffix(name, ".gone.example.") {
				records, rcode, code = m.Ns, dns.RcodeNameError, dns.ExtendedErrorCodeStaleNXDOMAINAnswer
			}
			if m.Rcode != rcode || len(records) == 0 {
				t.Errorf("%s over %s: %v", name, network, m)
				continue
			}
			ttl := int(records[0].Header().Ttl)
			if brief := strings.HasSuffix(name, ".brief.example."); brief && ttl > 30 || !brief && (ttl > 300-before || ttl < 300-latest) {
				t.Errorf("%s over %s: TTL %d after %d seconds", name, network, ttl, before)
			}
			if opt := m.IsEdns0(); opt == nil || len(opt.Option) != 1 || opt.Option[0].String() != fmt.Sprintf("%d (%s): ()", code, dns.ExtendedErrorCodeToString[code]) {
				t.Errorf("%s over %s: OPT record %v", name, network, opt)
			}
		}
	}
}

// TestNodecacheSnapshot ends nodecache and starts it again without an upstream: it answers the names that it has answered before.
func TestNodecacheSnapshot(t *testing.T) {
	path := daemon.Program(t, "nodecache")
	const none = "-metrics-listen-address="
	for _, tt := range []struct {
		name, option string
		signal       syscall.Signal
	}{
		{"SIGTERM", "snapshot FILE 1h", syscall.SIGTERM}, // written at the exit alone
		{"SIGKILL", "snapshot FILE 1s", syscall.SIGKILL},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newSnapshotBed(t, path, tt.option, none)
			first := b.start(t)
			b.warm(t)
			if tt.signal == syscall.SIGKILL {
				b.awaitWrite(t)
			}
			b.end(t, first, tt.signal)
			if info, err := os.Stat(b.file); err != nil || info.Mode() != 0o600 {
				t.Fatalf("file %v, %v", info, err)
			}
			b.stopUpstream(t)
			second := b.start(t)
			b.wantAnswers(t)
			if m := b.query(t, "other.example.", "udp"); m.Rcode != dns.RcodeServerFailure {
				t.Errorf("a name that was not queried: %v", m)
			}
			if want := fmt.Sprintf("Snapshot %s restored: %d answers", b.file, len(warmed)); !strings.Contains(second.Output(), want) {
				t.Errorf("the log has no %q", want)
			}
			metrics := daemon.Scrape(t, http.DefaultClient, b.metrics)
			hits, restored := metrics.Sum("nearside_cache_restored_hits_total"), metrics.Sum("nearside_cache_snapshot_restored_total", "file", b.file)
			if want := float64(4 * len(warmed)); hits != want || restored != float64(len(warmed)) {
				t.Errorf("%v queries answered with %v restored answers, want %v and %d", hits, restored, want, len(warmed))
			}
			if answered := metrics.Sum("nearside_fastpath_answered_total"); answered < float64(2*len(warmed)) {
				t.Errorf("the fast path has sent %v answers", answered)
			}
		})
	}
	t.Run("another configuration", func(t *testing.T) {
		b := newSnapshotBed(t, path, "snapshot FILE 1h", none)
		first := b.start(t)
		b.warm(t)
		b.end(t, first, syscall.SIGTERM)
		b.stopUpstream(t)
		b.corefile = strings.Replace(b.corefile, "cache 3600", "cache 3599", 1)
		second := b.start(t)
		if m := b.query(t, warmed[0], "udp"); m.Rcode != dns.RcodeServerFailure {
			t.Errorf("answer %v", m)
		}
		if !strings.Contains(second.Output(), "refused: written by another configuration of the server block; the cache starts with 0 answers") {
			t.Error("the reason is not logged")
		}
	})
	t.Run("two processes", func(t *testing.T) { // an update in which the new one starts first
		b := newSnapshotBed(t, path, "snapshot FILE 1s", none, "-reuseport")
		first := b.start(t)
		b.warm(t)
		b.awaitWrite(t)
		second := b.start(t)
		b.received = time.Now()
		b.awaitWrite(t)
		b.end(t, first, syscall.SIGTERM)
		b.asked = time.Now()
		for _, name := range warmed {
			b.awaitReplaced(t, name)
		}
		b.received = time.Now()
		b.awaitWrite(t)
		b.end(t, second, syscall.SIGKILL)
		b.stopUpstream(t)
		third := b.start(t)
		b.wantAnswers(t)
		for i, p := range []*daemon.Process{second, third} {
			if !strings.Contains(p.Output(), fmt.Sprintf("restored: %d answers", len(warmed))) {
				t.Errorf("process %d has not restored the answers", i+2)
			}
		}
	})
	t.Run("CoreDNS", func(t *testing.T) { // control
		b := newSnapshotBed(t, controlplane.RequireBinary(t, "coredns"), "success 9984")
		first := b.start(t)
		b.warm(t)
		b.end(t, first, syscall.SIGTERM)
		b.stopUpstream(t)
		b.start(t)
		for _, name := range warmed {
			if m := b.query(t, name, "udp"); m.Rcode != dns.RcodeServerFailure {
				t.Errorf("%s: %v", name, m)
			}
		}
	})
}

func (b *snapshotBed) end(t *testing.T, p *daemon.Process, s syscall.Signal) {
	t.Helper()
	p.Signal(t, s)
	if code, err := p.Wait(daemonEnds); err != nil || s == syscall.SIGTERM && code != 0 {
		t.Fatalf("exit code %d, %v", code, err)
	}
}
