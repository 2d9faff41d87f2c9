package cache

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/cache/internal/snapshot"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
	"github.com/nearside-dns/nearside/test/kit"
)

// writeRecords writes a file with records.
func writeRecords(t *testing.T, file string, records ...snapshot.Record) {
	t.Helper()
	all := func(yield func(snapshot.Record) bool) {
		for _, r := range records {
			if !yield(r) {
				return
			}
		}
	}
	if _, err := snapshot.Write(file, snapshot.Header{Config: testConfig, Written: time.Now()}, maxSnapshot, all, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
}

// recordFor returns the record of a reply to a query.
func recordFor(t testing.TB, text, reply string, change func(m *dns.Msg)) snapshot.Record {
	t.Helper()
	m := replyTo(t, query(text), reply)
	if change != nil {
		change(m)
	}
	return snapshot.Record{Reply: kit.Pack(t, m)}
}

// TestHostileRecords has files with one record that is not restored, before one that is: its answer is served.
func TestHostileRecords(t *testing.T) {
	const good = "NOERROR; w. 300 IN A 192.0.2.1"
	raw := func(b ...byte) snapshot.Record { return snapshot.Record{Reply: b} }
	record := func(text, reply string) snapshot.Record { return recordFor(t, text, reply, nil) }
	cut := func(n int) snapshot.Record { r := record("v. A", good); r.Reply = r.Reply[:n]; return r }
	for _, c := range []struct {
		name   string
		record snapshot.Record
	}{
		{"empty", raw()},
		{"a header", cut(wire.HeaderLen)},
		{"a part of the name", cut(wire.HeaderLen + 1)},
		{"a part of the question", cut(wire.HeaderLen + 5)},
		{"a part of the record", cut(wire.HeaderLen + 20)},
		{"a pointer to itself", raw(0, 0, 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0, 0xc0, 12, 0, 1, 0, 1)},
		{"a label of 64 bytes", raw(append([]byte{0, 0, 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0, 64}, make([]byte, 80)...)...)},
		{"a query", recordFor(t, "v. A", "NOERROR; v. 300 IN A 192.0.2.1", func(m *dns.Msg) { m.Response = false })},
		{"an update", recordFor(t, "v. A", "NOERROR; v. 300 IN A 192.0.2.1", func(m *dns.Msg) { m.Opcode = dns.OpcodeUpdate })},
		{"truncated", recordFor(t, "v. A", "NOERROR TC; v. 300 IN A 192.0.2.1", nil)},
		{"another class", recordFor(t, "v. A", "NOERROR; v. 300 CH A 192.0.2.1", func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS })},
		{"two questions", recordFor(t, "v. A", "NOERROR; v. 300 IN A 192.0.2.1", func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) })},
		{"a transfer", record("v. AXFR", "NOERROR; v. 300 IN SOA a. b. 1 2 3 4 5")},
		{"a failure", record("v. A", "SERVFAIL")},
		{"a failure that is not parsed in wire form", record("v. A", "SERVFAIL; additional; v. 300 IN NAPTR 1 2 \"u\" \"s\" \"\" w.")},
		{"a referral that is not parsed in wire form", record("v. A", "NOERROR; authority; v. 300 IN NS n.; additional; v. 300 IN NAPTR 1 2 \"u\" \"s\" \"\" w.")},
		{"a refusal", record("v. A", "REFUSED")},
		{"a referral", record("v. A", "NOERROR; authority; v. 300 IN NS n.")},
		{"NXDOMAIN without a SOA record", record("v. A", "NXDOMAIN")},
		{"the answer to another question", record("v. A", "NOERROR; u. 300 IN A 192.0.2.1")},
		{"the TTL 0", record("v. A", "NOERROR; v. 0 IN A 192.0.2.1")},
		{"for a subnet", recordFor(t, "v. A", "NOERROR; v. 300 IN A 192.0.2.1", func(m *dns.Msg) {
			m.SetEdns0(1232, false)
			m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, SourceScope: 24, Address: []byte{192, 0, 2, 0}}}
		})},
		{"with a signature of a transaction", recordFor(t, "v. A", "NOERROR; v. 300 IN A 192.0.2.1", func(m *dns.Msg) {
			m.Extra = append(m.Extra, &dns.TSIG{Hdr: dns.RR_Header{Name: "k.", Rrtype: dns.TypeTSIG, Class: dns.ClassANY}, Algorithm: dns.HmacSHA256})
		})},
		{"a zone that is not cached", record("v.bypass. A", "NOERROR; v.bypass. 300 IN A 192.0.2.1")},
		{"a zone of another plugin", record("v.cluster.local. A", "NOERROR; v.cluster.local. 300 IN A 192.0.2.1")},
		{"a zone of another server block", record("v.other. A", "NOERROR; v.other. 300 IN A 192.0.2.1")},
		{"too old", func() snapshot.Record {
			r := recordFor(t, "v. A", "NOERROR; v. 300 IN A 192.0.2.1", nil)
			r.Age = time.Hour + 1
			return r
		}()},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := snapshotFile(t)
			log := logged(t)
			synctest.Test(t, func(t *testing.T) {
				writeRecords(t, file, c.record, recordFor(t, "w. A", good, nil))
				b := newTestCache(t, "cache {\nsnapshot "+file+"\n}")
				b.bypass, b.owned = plugin.Zones{"bypass."}, plugin.Zones{"cluster.local."}
				b.isDispatched = func(name string) bool { return !dns.IsSubDomain("other.", name) }
				b.fails()
				s := &snapshotCache{b, newSnapshotter(b.Cache), ""}
				s.begin(testConfig)
				defer s.end()
				log.want(t, "restored: 1 answers")
				b.want("w. A", good)
				if n := b.space.Len(store.Success) + b.space.Len(store.Denial); n != 1 {
					t.Errorf("%d answers", n)
				}
			})
		})
	}
}

// TestRestoreDuplicate checks that the first of two replies to a question is restored: it is the newer one.
func TestRestoreDuplicate(t *testing.T) {
	file := snapshotFile(t)
	synctest.Test(t, func(t *testing.T) {
		first, second := "NOERROR; w. 300 IN A 192.0.2.1", "NOERROR; w. 300 IN A 192.0.2.2"
		writeRecords(t, file, recordFor(t, "w. A", first, nil), recordFor(t, "W. A", second, nil))
		b := newSnapshotCache(t, "", file)
		b.fails()
		b.testCache.want("w. A", first)
	})
}

// TestRestoreClamps checks that a file does not extend the lifetime of an answer: TTLs are limited as those of an upstream.
func TestRestoreClamps(t *testing.T) {
	file := snapshotFile(t)
	synctest.Test(t, func(t *testing.T) {
		writeRecords(t, file, recordFor(t, "w. A", "NOERROR; w. 2000000000 IN A 192.0.2.1", nil))
		b := newSnapshotCache(t, "success 1024 60", file)
		b.fails()
		b.testCache.want("w. A", "NOERROR; w. 60 IN A 192.0.2.1")
	})
}

// TestRestorePanic checks that a panic is logged, and that the cache works.
func TestRestorePanic(t *testing.T) {
	file := snapshotFile(t)
	log := logged(t)
	synctest.Test(t, func(t *testing.T) {
		writeRecords(t, file, recordFor(t, "w. A", "NOERROR; w. 300 IN A 192.0.2.1", nil))
		b := newTestCache(t, "cache {\nsnapshot "+file+"\n}")
		b.isDispatched = func(string) bool { panic("test") }
		s := &snapshotCache{b, newSnapshotter(b.Cache), ""}
		s.begin(testConfig)
		defer s.end()
		log.want(t, "panicked: test", "refused: panic: test; the cache starts with 0 answers")
		b.replies("NOERROR; " + a("w.", 60))
		b.want("w. A", "NOERROR; "+a("w.", 60))
	})
}

// TestRestoreSlow has a file that needs too long: the start does not wait for the rest of it.
func TestRestoreSlow(t *testing.T) {
	file := snapshotFile(t)
	log := logged(t)
	synctest.Test(t, func(t *testing.T) {
		var all []snapshot.Record
		for _, name := range []string{"a.", "b.", "c.", "d."} {
			all = append(all, recordFor(t, name+" A", "NOERROR; "+name+" 300 IN A 192.0.2.1", nil))
		}
		writeRecords(t, file, all...)
		b := newTestCache(t, "cache {\nsnapshot "+file+"\n}")
		b.isDispatched = func(string) bool { time.Sleep(maxRestore/2 + 1); return true }
		s := &snapshotCache{b, newSnapshotter(b.Cache), ""}
		s.begin(testConfig)
		defer s.end()
		log.want(t, "refused: restoring takes more than 2s; the cache starts with 2 answers")
		b.fails()
		b.want("b. A", "NOERROR; b. 298 IN A 192.0.2.1")
	})
}

// TestStartWithHangingDisk checks that a disk that hangs does not prevent the start.
func TestStartWithHangingDisk(t *testing.T) {
	file := snapshotFile(t)
	log := logged(t)
	synctest.Test(t, func(t *testing.T) {
		b := newTestCache(t, "cache {\nsnapshot "+file+"\n}")
		s := &snapshotCache{b, newSnapshotter(b.Cache), ""}
		hangs := make(chan struct{})
		s.open = func(string, int64) ([]byte, error) { <-hangs; return nil, os.ErrNotExist }
		s.begin(testConfig)
		defer s.end()
		log.want(t, "refused: restoring takes more than 2s; the cache starts with 0 answers")
		b.replies("NOERROR; " + a("w.", 60))
		b.want("w. A", "NOERROR; "+a("w.", 60))
		close(hangs)
	})
}

// TestExitWithHangingDisk checks that a disk that hangs does not prevent the exit.
func TestExitWithHangingDisk(t *testing.T) {
	file := snapshotFile(t)
	log := logged(t)
	b := newSnapshotCache(t, "", file)
	b.writing.Lock()
	b.exit()
	log.want(t, "not written at exit within 2s: the previous one remains")
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it was written: %v", err)
	}
	b.writing.Unlock()
	kit.Succeeds(t, kit.Patience, "written when the disk works again", func() error { // before the folder is removed
		_, err := os.Stat(file)
		return err
	})
}

// TestExitDuringStart checks that a process that is ended before it has restored the file does not replace it.
func TestExitDuringStart(t *testing.T) {
	file := snapshotFile(t)
	writeRecords(t, file, recordFor(t, "w. A", "NOERROR; w. 300 IN A 192.0.2.1", nil))
	b := newTestCache(t, "cache {\nsnapshot "+file+"\n}")
	newSnapshotter(b.Cache).exit()
	if n := len(recordsIn(t, file)); n != 1 {
		t.Errorf("%d records", n)
	}
}

// FuzzRestore restores replies of any form. An answer that is stored is valid for package dns, in both forms, answers the question, and
// is not fresh for longer than an upstream's reply.
func FuzzRestore(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 1)) // #nosec G404 -- no need for secrecy
	for range 50 {
		f.Add(randomReply(r), byte(r.IntN(4)), int64(r.IntN(1e12)))
	}
	// A denial with another SOA record, which ends after its first name.
	f.Add([]byte("\x00\x00\x80\x00\x00\x01\x00\x00\x00\x02\x00\x00\x01w\x00\x00\x01\x00\x01"+
		"\x00\x00\x06\x00\x01\x00\x00\x00\x3c\x00\x16\x00\x00"+strings.Repeat("\x00\x00\x00\x3c", 5)+
		"\x00\x00\x06\x00\x01\x00\x00\x00\x3c\x00\x01\x00"), byte(0), int64(1))
	f.Fuzz(func(t *testing.T, reply []byte, flags byte, age int64) {
		if age < 0 || len(reply) > dns.MaxMsgSize {
			return
		}
		c := newCache([]string{"."})
		c.store = store.NewStore(minBudget)
		c.space = c.store.NewKeyspace()
		now := c.now()
		record := snapshot.Record{Age: time.Duration(age), DO: flags&1 != 0, CD: flags&2 != 0, Reply: reply}
		stored := c.restore(&record, now, true)
		entries := 0
		for e := range c.space.All() {
			entries++
			checkRestored(t, c, e, &record, now)
		}
		if stored != (entries == 1) || entries > 1 {
			t.Fatalf("stored %t, %d entries", stored, entries)
		}
	})
}

func checkRestored(t *testing.T, c *Cache, e *store.Entry, r *snapshot.Record, now time.Duration) {
	t.Helper()
	var buf [keyQuery]byte
	var q wire.Query
	packed, ok := store.QueryFromKey(&q, buf[:0], e.Key())
	if !ok || q.DO != r.DO || q.CD != r.CD || q.Search != nil {
		t.Fatalf("query %+v", q)
	}
	if limit := now - r.Age + defaultMaxTTL*time.Second; e.Expires > limit || e.Expires == 0 || freshnessOf(e, c.now()) == unusable {
		t.Errorf("expires at %v, want at most %v", e.Expires, limit)
	}
	p := e.Patch(max(now, e.Stored))
	for _, limit := range []int{dns.MinMsgSize, dns.MaxMsgSize} {
		form := e.Form(&q, &p, limit, dns.MaxMsgSize)
		if form == nil {
			continue
		}
		b := form.AppendReply(nil, packed, &q, &p)
		m := new(dns.Msg)
		if err := m.Unpack(b); err != nil {
			t.Fatalf("invalid answer: %v\n%x", err, b)
		}
		if got := m.Question[0]; got.Qtype != binary.BigEndian.Uint16(e.Key()[4:]) || m.Rcode != dns.RcodeSuccess && m.Rcode != dns.RcodeNameError {
			t.Errorf("answer %v", m)
		}
	}
	query := kit.Unpack(t, packed)
	w := new(client)
	c.Next = plugin.HandlerFunc(func(context.Context, dns.ResponseWriter, *dns.Msg) (int, error) { return dns.RcodeServerFailure, nil })
	e.Popularity = nil // no query in the background
	if code, err := c.ServeDNS(context.Background(), w, query); err != nil || freshnessOf(e, c.now()) == fresh && w.reply == nil {
		t.Errorf("served: %d, %v, %v", code, err, w.reply)
	}
}

// TestMaxSnapshot has answers of more than 16 MiB: the file is not larger, and is restored.
func TestMaxSnapshot(t *testing.T) {
	file := snapshotFile(t)
	synctest.Test(t, func(t *testing.T) { // in which restoring takes no time
		b := newTestCache(t, "cache {\nsnapshot "+file+"\n}")
		b.store = store.NewStore(128 << 20)
		b.space = b.store.NewKeyspace()
		const names = 5000 // with 4 KiB each
		r := recordFor(t, "n0000. TXT", "NOERROR; n0000. 300 IN TXT"+strings.Repeat(` "`+strings.Repeat("a", 250)+`"`, 16), nil)
		for i := range names {
			r.Reply = bytes.ReplaceAll(r.Reply, fmt.Appendf(nil, "n%04d", max(0, i-1)), fmt.Appendf(nil, "n%04d", i))
			if !b.restore(&r, b.now(), false) {
				t.Fatalf("record %d is not restored", i)
			}
		}
		s := &snapshotCache{b, newSnapshotter(b.Cache), ""}
		s.config, s.state.restored = testConfig, true
		s.exit()
		info, err := os.Stat(file)
		kit.Must(t, err)
		if size := info.Size(); size > maxSnapshot || size < maxSnapshot-1<<20 {
			t.Errorf("%d bytes, want up to %d", size, maxSnapshot)
		}
		next := newSnapshotCache(t, "budget 64MiB", file)
		if n := next.space.Len(store.Success); n < names/2 || n == names {
			t.Errorf("%d answers", n)
		}
	})
}

// BenchmarkSnapshot writes and restores a file of the maximum length.
func BenchmarkSnapshot(b *testing.B) {
	newSnapshotter := func(file string) *snapshotter {
		c := newCache([]string{"."})
		c.snapshot.file, c.snapshot.maxAge, c.snapshot.interval = file, time.Hour, time.Hour
		c.store = store.NewStore(64 << 20)
		c.space = c.store.NewKeyspace()
		return newSnapshotter(c)
	}
	file := filepath.Join(b.TempDir(), "snapshot")
	s := newSnapshotter(file)
	now := s.cache.now()
	for i := range 200000 {
		r := recordFor(b, fmt.Sprintf("name-%d.example.org. A", i), fmt.Sprintf("NOERROR; name-%d.example.org. 300 IN A 192.0.2.1", i), nil)
		s.cache.restore(&r, now, false)
	}
	s.state.restored = true
	b.Run("write", func(b *testing.B) {
		for b.Loop() {
			s.write(func() error { return nil })
		}
	})
	info, err := os.Stat(file)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("restore", func(b *testing.B) {
		for b.Loop() {
			restored, _, err := newSnapshotter(file).read()
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(restored), "answers")
			b.ReportMetric(float64(info.Size())/(1<<20), "MiB")
		}
	})
}
