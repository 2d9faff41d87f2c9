package cache

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/template"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/test/kit"
)

// snapshotCorefile has a block with a file and one without. Its upstream is plugin template.
func snapshotCorefile(file, address, other string) caddy.CaddyfileInput {
	text := fmt.Sprintf(`example.:0 {
    bind 127.0.0.1
    cache {
        snapshot %s 1h
    }
    template IN A {
        answer "{{.Name}} 300 IN A %s"
    }
}
other.:0 {
    bind 127.0.0.1
    cache %s
}
`, file, address, other)
	return caddy.CaddyfileInput{Contents: []byte(text), ServerTypeName: "dns"}
}

// present returns the running snapshotter of a file.
func present(t *testing.T, file string) *snapshotter {
	t.Helper()
	snapshots.mu.Lock()
	defer snapshots.mu.Unlock()
	s := snapshots.all[file]
	if s == nil {
		t.Fatal("no snapshotter")
	}
	return s
}

// TestSnapshotReload starts a server, reloads and refuses configurations, and starts it again. The file is read at the first start of
// each process alone, and answers survive the reloads that do not change the server block.
func TestSnapshotReload(t *testing.T) {
	all := dnsserver.Directives
	kit.Must(t, dnsserver.SetDirectives([]string{"bind", "cache", "template"}))
	t.Cleanup(func() {
		if err := dnsserver.SetDirectives(all); err != nil {
			t.Error(err)
		}
	})
	file, log := snapshotFile(t), logged(t)
	const names = 3
	queries := func(s *snapshotter, address string) {
		t.Helper()
		for i := range names {
			w := new(client)
			if _, err := s.cache.ServeDNS(context.Background(), w, query(fmt.Sprintf("n%d.example. A", i))); err != nil {
				t.Fatal(err)
			}
			if got := w.reply.Answer[0].(*dns.A).A.String(); got != address {
				t.Errorf("answer %s, want %s", got, address)
			}
		}
	}
	wantAnswers := func(when string, s *snapshotter, want int) {
		t.Helper()
		if got := s.cache.space.Len(store.Success); got != want {
			t.Errorf("%s: %d answers, want %d", when, got, want)
		}
	}
	const first, second = "192.0.2.1", "192.0.2.2"
	before := store.Shared.Bytes()
	instance, err := caddy.Start(snapshotCorefile(file, first, ""))
	kit.Must(t, err)
	s := present(t, file)
	queries(s, first)
	kit.Write(t, file, "not to be read")

	bytes := store.Shared.Bytes()
	if _, err := instance.Restart(caddy.CaddyfileInput{Contents: append(snapshotCorefile(file, first, "30").Contents, "z.:0 {\n    bind 192.0.2.99\n}\n"...), ServerTypeName: "dns"}); err == nil {
		t.Fatal("no error")
	}
	if present(t, file) != s || store.Shared.Bytes() != bytes {
		t.Errorf("after a refused reload: another snapshotter, or %d bytes instead of %d", store.Shared.Bytes(), bytes)
	}
	wantAnswers("refused", s, names)

	if instance, err = instance.Restart(snapshotCorefile(file, first, "30")); err != nil { // the other block has changed
		t.Fatal(err)
	}
	next := present(t, file)
	if next == s || next.before != nil {
		t.Error("the snapshotter is the same, or refers to the previous one")
	}
	if s.present().due != next.present().due {
		t.Errorf("due at %v, want %v: a reload does not delay the writing", next.present().due, s.present().due)
	}
	wantAnswers("reloaded", next, names)
	for e := range next.cache.space.All() {
		if e.Restored || len(e.Options) > 0 {
			t.Error("the answer of this process is marked")
		}
	}
	queries(next, first)
	log.want(t)

	if instance, err = instance.Restart(snapshotCorefile(file, second, "30")); err != nil {
		t.Fatal(err)
	}
	wantAnswers("another upstream", present(t, file), 0)
	queries(present(t, file), second)
	if errs := instance.ShutdownCallbacks(); len(errs) > 0 {
		t.Error(errs)
	}
	if err := instance.Stop(); err != nil {
		t.Error(err)
	}
	if n := len(recordsIn(t, file)); n != names {
		t.Errorf("%d records, want %d", n, names)
	}
	if n := testutil.CollectAndCount(snapshotFailed); n != 0 {
		t.Errorf("%d metrics after the end", n)
	}
	log.want(t)

	if instance, err = caddy.Start(snapshotCorefile(file, first, "")); err != nil {
		t.Fatal(err)
	}
	log.want(t, "refused: written by another configuration of the server block")
	if instance, err = instance.Restart(snapshotCorefile(file, second, "")); err != nil {
		t.Fatal(err)
	}
	wantAnswers("changed after the start", present(t, file), 0)
	queries(present(t, file), second)
	if errs := instance.ShutdownCallbacks(); len(errs) > 0 {
		t.Error(errs)
	}
	if err := instance.Stop(); err != nil {
		t.Error(err)
	}
	if instance, err = caddy.Start(snapshotCorefile(file, second, "77")); err != nil {
		t.Fatal(err)
	}
	log.want(t, "restored: 3 answers")
	if n := testutil.ToFloat64(snapshotAnswers.WithLabelValues(file)); n != names {
		t.Errorf("%v restored answers, want %d", n, names)
	}
	if instance, err = instance.Restart(snapshotCorefile(file, second, "")); err != nil {
		t.Fatal(err)
	}
	restored := 0
	for e := range present(t, file).cache.space.All() {
		if e.Restored && len(e.Options) > 0 {
			restored++
		}
	}
	if restored != names {
		t.Errorf("%d marked answers after a reload, want %d", restored, names)
	}
	if errs := instance.ShutdownCallbacks(); len(errs) > 0 {
		t.Error(errs)
	}
	if err := instance.Stop(); err != nil {
		t.Error(err)
	}
	if got := store.Shared.Bytes(); got != before {
		t.Errorf("%d bytes in the store at the end, %d before", got, before)
	}
}

func TestSnapshotFileTwice(t *testing.T) {
	file := snapshotFile(t)
	_, err := setUp(t, "cache {\nsnapshot "+file+"\n}", "cache", "cache {\n\nsnapshot "+filepath.Dir(file)+"/./"+filepath.Base(file)+" 5m\n}")
	want := "plugin/cache: Testfile:3 - Error during parsing: snapshot: " + file + " is the file of Testfile:2, too: want one for each server block"
	if err == nil || err.Error() != want {
		t.Errorf("error\n got %v\nwant %s", err, want)
	}
	if _, err := setUp(t, "cache {\nsnapshot "+file+"\n}", "cache {\nsnapshot "+file+"2\n}"); err != nil {
		t.Error(err)
	}
}

// TestSnapshotRoot checks that a relative path is in the folder of directive root.
func TestSnapshotRoot(t *testing.T) {
	c := caddy.NewTestController("dns", "cache {\nsnapshot a/b\n}")
	dnsserver.GetConfig(c).Root = "/var/lib"
	h, err := parse(c)
	if err != nil || h.snapshot.file != "/var/lib/a/b" {
		t.Errorf("file %v, %v", h, err)
	}
}
