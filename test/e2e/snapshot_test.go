package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
)

// testSnapshot kills clusterdns and starts it again while the API server is away: it answers from its snapshot, where CoreDNS answers
// SERVFAIL, and from the API server when that is back.
func testSnapshot(t *testing.T, c *cluster) {
	path := filepath.Join(t.TempDir(), "records")
	with := func(options string) func(t *testing.T) {
		return func(t *testing.T) {
			c.runWith(t, strings.Replace(corefile, "ttl 1", "ttl 30\n        startup_timeout 1s"+options, 1))
		}
	}
	snapshot := "\n        snapshot " + path + " 1s"
	c.dns.Stop(t)
	with(snapshot)(t)
	c.answering(t, 30*time.Second)
	kit.Within(t, 30*time.Second, "the snapshot", func() bool { _, err := os.Stat(path); return err == nil })
	kill := func() {
		t.Helper()
		c.dns.Signal(t, syscall.SIGKILL)
		if _, err := c.dns.Wait(10 * time.Second); err != nil {
			t.Fatal(err)
		}
	}
	kill()
	web := clusterIPs(t, c.client, "web")
	c.KillAPIServer()

	t.Run("CoreDNS", func(t *testing.T) {
		text := fmt.Sprintf(corefile, daemon.FreePort(t), daemon.FreePort(t), c.kubeconfig)
		coredns := &cluster{dns: daemon.Launch(t, controlplane.RequireBinary(t, "coredns"), text)}
		kit.Within(t, 30*time.Second, "a reply", func() bool { return coredns.rcode(t, "web.shop.svc.cluster.local") != "" })
		if got := coredns.rcode(t, "web.shop.svc.cluster.local"); got != "SERVFAIL" {
			t.Errorf("%s", got)
		}
	})
	answer := func(t *testing.T, args ...string) string {
		t.Helper()
		return strings.Join(strings.Fields(c.digLong(t, args...)), " ")
	}
	inUse := func(want string) bool {
		_, page := get(t, "http://"+c.metrics+"/metrics")
		return strings.Contains(page, "nearside_kubernetes_snapshot_in_use{file=\""+path+"\"} "+want+"\n")
	}
	t.Run("snapshot", func(t *testing.T) {
		with(snapshot)(t)
		kit.Within(t, 30*time.Second, "an answer", func() bool { return c.rcode(t, "web.shop.svc.cluster.local") == "NOERROR" })
		for _, tc := range []struct{ name, want string }{
			{"web.shop.svc.cluster.local A", " 5 IN A " + web[0]},
			{"web.shop.svc.cluster.local AAAA", " 5 IN AAAA " + web[1]},
			{"db-1.db.shop.svc.cluster.local A", " 5 IN A 10.244.1.10"},
			{"_postgres._tcp.db.shop.svc.cluster.local SRV", " 5 IN SRV 0 33 5432 db-1.db.shop.svc.cluster.local."},
			{"10-244-0-10.shop.pod.cluster.local A", " 5 IN A 10.244.0.10"},
			{"shop.svc.cluster.local A", " 5 IN SOA "},
		} {
			if got := answer(t, strings.Fields(tc.name)...); !strings.Contains(got, tc.want) || !strings.Contains(got, "EDE: 3") {
				t.Errorf("%s: %s, want %q and EDE 3", tc.name, got, tc.want)
			}
		}
		if got := answer(t, "nothere.shop.svc.cluster.local"); !strings.Contains(got, "NXDOMAIN") || !strings.Contains(got, "EDE: 19") || !strings.Contains(got, " 5 IN SOA ") {
			t.Errorf("a missing name: %s", got)
		}
		if got := answer(t, "+noedns", "web.shop.svc.cluster.local"); !strings.Contains(got, web[0]) || strings.Contains(got, "OPT PSEUDOSECTION") {
			t.Errorf("without EDNS: %s", got)
		}
		if c.ready(t) {
			t.Error("ready without snapshot_ready")
		}
		if !inUse("1") || !strings.Contains(c.dns.Output(), "answering from snapshot "+path) {
			t.Errorf("no metric or log line:\n%s", c.dns.Output())
		}
		kill()
	})
	whole, err := os.ReadFile(path)
	kit.Must(t, err)
	t.Run("half of a snapshot", func(t *testing.T) {
		kit.Must(t, os.WriteFile(path, whole[:len(whole)/2], 0o600))
		with(snapshot)(t)
		kit.Within(t, 30*time.Second, "a reply", func() bool { return c.rcode(t, "web.shop.svc.cluster.local") != "" })
		if got := c.rcode(t, "web.shop.svc.cluster.local"); got != "SERVFAIL" || !strings.Contains(c.dns.Output(), "refused: the checksum does not match") {
			t.Errorf("%s, and the log\n%s", got, c.dns.Output())
		}
		kill()
	})
	t.Run("the API server returns", func(t *testing.T) {
		kit.Write(t, path, string(whole))
		with(snapshot + "\n        snapshot_ready")(t)
		kit.Within(t, 30*time.Second, "ready", func() bool { return c.ready(t) })
		if got := c.rcode(t, "web.shop.svc.cluster.local"); got != "NOERROR" {
			t.Errorf("from the snapshot: %s", got)
		}
		c.StartAPIServer()
		kit.Within(t, 60*time.Second, "the records of the API server", func() bool { return inUse("0") })
		if got := answer(t, "web.shop.svc.cluster.local"); !strings.Contains(got, " 30 IN A "+web[0]) || strings.Contains(got, "EDE:") {
			t.Errorf("from the API server: %s", got)
		}
		if code, _ := get(t, "http://"+c.status+"/ready"); code != http.StatusOK {
			t.Errorf("readiness %d", code)
		}
		if got := c.dig(t, "db.shop.svc.cluster.local"); !slices.Equal(got, []string{"10.244.0.10", "10.244.1.10"}) {
			t.Errorf("db: %q", got)
		}
	})
}
