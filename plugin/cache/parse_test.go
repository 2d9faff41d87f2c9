package cache

import (
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/plugin"

	"github.com/nearside-dns/nearside/plugin/internal/corefile"
	"github.com/nearside-dns/nearside/plugin/internal/store"
)

func parsed(t *testing.T, corefile string) (*Cache, error) {
	t.Helper()
	c := caddy.NewTestController("dns", corefile)
	c.ServerBlockKeys = []string{"dns://Example.org:53", "dns://example.net:53"}
	h, err := parse(c)
	return h, err
}

func at(line int) corefile.Position { return corefile.Position{File: "Testfile", Line: line} }

func TestParse(t *testing.T) {
	for _, c := range []struct {
		corefile string
		change   func(o *options)
	}{
		{"cache", func(*options) {}},
		{"cache {\n}", func(*options) {}},
		{"cache 30", func(o *options) { o.kinds[0].maxTTL, o.kinds[1].maxTTL = 30, 30 }},
		{"cache 30 {\nsuccess 9984 60\n}", func(o *options) { o.kinds[0].maxTTL, o.kinds[0].capacity, o.kinds[1].maxTTL = 60, 9984, 30 }},
		{"cache {\nsuccess 5000\n}", func(o *options) { o.kinds[0].capacity = 5000 }},
		{"cache {\nsuccess 5\n}", func(o *options) { o.kinds[0].capacity = 1024 }},
		{"cache {\nsuccess -1\n}", func(o *options) { o.kinds[0].capacity = 1024 }},
		{"cache {\nsuccess 9984 30 0\n}", func(o *options) { o.kinds[0] = kindOptions{capacity: 9984, maxTTL: 30, minGiven: true} }},
		{"cache {\nsuccess 9984 30 5 7\n}", func(o *options) { o.kinds[0] = kindOptions{capacity: 9984, maxTTL: 30, minTTL: 5, minGiven: true} }},
		{"cache {\ndenial 2500 10 3\n}", func(o *options) { o.kinds[1] = kindOptions{capacity: 2500, maxTTL: 10, minTTL: 3, minGiven: true} }},
		{"cache {\ndenial 2500 2147483647\n}", func(o *options) { o.kinds[1].capacity, o.kinds[1].maxTTL = 2500, math.MaxInt32 }},
		{"cache {\nprefetch 10\n}", func(o *options) { o.prefetch.amount = 10 }},
		{"cache {\nprefetch 0\n}", func(*options) {}},
		{"cache {\nprefetch 10 10s\n}", func(o *options) { o.prefetch = prefetchOptions{10, 10 * time.Second, 10} }},
		{"cache {\nprefetch 10 10s 90%\n}", func(o *options) { o.prefetch = prefetchOptions{10, 10 * time.Second, 90} }},
		{"cache {\nserve_stale\n}", func(o *options) { o.stale = staleOptions{maxAge: time.Hour} }},
		{"cache {\nserve_stale off\n}", func(o *options) { o.stale = defaultStale; o.stale.maxAge = 0 }},
		{"cache {\nserve_stale 0\n}", func(o *options) { o.stale = staleOptions{} }},
		{"cache {\nserve_stale 1h20m\n}", func(o *options) { o.stale = staleOptions{maxAge: 80 * time.Minute} }},
		{"cache {\nserve_stale 1h IMMEDIATE 30s\n}", func(o *options) { o.stale = staleOptions{maxAge: time.Hour, ttl: 30} }},
		{"cache {\nserve_stale 1h immediate 4294967295s 5m\n}", func(o *options) {
			o.stale = staleOptions{maxAge: time.Hour, ttl: math.MaxUint32, recheck: 5 * time.Minute}
		}},
		{"cache {\nserve_stale 1h verify\n}", func(o *options) { o.stale = staleOptions{maxAge: time.Hour, verify: true} }},
		{"cache {\nserve_stale 1h Verify 100ms\n}", func(o *options) {
			o.stale = staleOptions{maxAge: time.Hour, verify: true, timeout: 100 * time.Millisecond}
		}},
		{"cache {\nserve_stale 1h verify 0 30s 250ms\n}", func(o *options) {
			o.stale = staleOptions{maxAge: time.Hour, verify: true, ttl: 30, recheck: 250 * time.Millisecond}
		}},
		{"cache {\nserve_stale_policy PREFER_positive\nserve_stale\n}", func(o *options) { o.stale, o.preferPositive = staleOptions{maxAge: time.Hour}, true }},
		{"cache {\nservfail 0\n}", func(o *options) { o.servfail = 0 }},
		{"cache {\nservfail 5m\n}", func(o *options) { o.servfail = 5 * time.Minute }},
		{"cache {\ndisable success\n}", func(o *options) { o.kinds[0].disabled = plugin.Zones{"."} }},
		{"cache {\ndisable denial Example.com b.org\n}", func(o *options) { o.kinds[1].disabled = plugin.Zones{"example.com.", "b.org."} }},
		{"cache {\ndisable denial a.org\ndisable success b.org\n}", func(o *options) {
			o.kinds[1].disabled, o.kinds[0].disabled = plugin.Zones{"a.org."}, plugin.Zones{"b.org."}
		}},
		{"cache {\nkeepttl\n}", func(o *options) { o.keepTTL = true }},
		{"cache {\nbudget 32MiB\n}", func(o *options) { o.budget = 32 << 20 }},
		{"cache {\nbudget 64MB\n}", func(o *options) { o.budget = 64e6 }},
		{"cache {\nbudget 1048576\n}", func(o *options) { o.budget = 1 << 20 }},
		{"cache {\nbudget 1048576B\n}", func(o *options) { o.budget = 1 << 20 }},
		{"cache {\nbudget 1024KiB\n}", func(o *options) { o.budget = 1 << 20 }},
		{"cache {\nbudget 2GiB\n}", func(o *options) { o.budget = 2 << 30 }},
		{"cache {\nbudget 2GB\n}", func(o *options) { o.budget = 2e9 }},
		{"cache {\nbudget 9999KB\n}", func(o *options) { o.budget = 9999e3 }},
		{"cache {\nsnapshot /a/../b\n}", func(o *options) { o.snapshot = snapshotOptions{"/b", time.Minute, time.Hour, at(2)} }},
		{"cache {\nkeepttl\nsnapshot a/b 1s\n}", func(o *options) {
			o.keepTTL, o.snapshot = true, snapshotOptions{"a/b", time.Second, time.Hour, at(3)}
		}},
		{"cache {\nsnapshot a 24h\n}", func(o *options) { o.snapshot = snapshotOptions{"a", 24 * time.Hour, 24 * time.Hour, at(2)} }},
		{"cache {\nsnapshot a 10s 10s\n}", func(o *options) { o.snapshot = snapshotOptions{"a", 10 * time.Second, 10 * time.Second, at(2)} }},
	} {
		t.Run(c.corefile, func(t *testing.T) {
			h, err := parsed(t, c.corefile)
			kit.Must(t, err)
			want := newCache(nil).options
			c.change(&want)
			if !reflect.DeepEqual(h.options, want) {
				t.Errorf("options\n got %+v\nwant %+v", h.options, want)
			}
			if zones := []string{"example.org.", "example.net."}; !slices.Equal(h.Zones, zones) {
				t.Errorf("zones %q, want those of the block", h.Zones)
			}
		})
	}
}

func TestParseZones(t *testing.T) {
	for corefile, want := range map[string][]string{
		"cache Example.com":       {"example.com."},
		"cache 30 a.org b.org":    {"a.org.", "b.org."},
		"cache a.org 30":          {"a.org.", "30."},
		"cache 10.0.0.0/24":       {"0.0.10.in-addr.arpa."},
		"cache 30s {\nkeepttl\n}": {"30s."},
	} {
		h, err := parsed(t, corefile)
		if err != nil || !slices.Equal(h.Zones, want) {
			t.Errorf("%s: zones %q, %v; want %q", corefile, h.Zones, err, want)
			continue
		}
		if h.zonesLabel != strings.Join(want, ",") {
			t.Errorf("%s: label %q", corefile, h.zonesLabel)
		}
	}
}

func TestParseErrors(t *testing.T) {
	for _, c := range []struct{ corefile, want string }{
		{"cache 0", `1 - Error during parsing: invalid cache "0": TTL out of range 1-2147483647: want [TTL] [ZONES...]`},
		{"cache -1 example.org", `invalid cache "-1": TTL`},
		{"cache 2147483648", `invalid cache "2147483648": TTL`},
		{"cache\ncache", "2 - Error during parsing: duplicate cache: want one in a server block"},
		{"cache {\n\npositive 15\n}", `3 - Error during parsing: unknown option "positive": want one of budget, denial, disable`},
		{"cache {\nsuccess\n}", `2 - Error during parsing: invalid success: want a number of entries, and optionally TTLs in seconds: CAPACITY [TTL] [MINTTL]`},
		{"cache {\ndenial aaa\n}", `invalid denial "aaa": want a number of entries`},
		{"cache {\nsuccess 10 0\n}", `invalid success "0": TTL out of range 1-`},
		{"cache {\nsuccess 10 x\n}", `invalid success "x": TTL`},
		{"cache {\nsuccess 10 10 -1\n}", `invalid success "-1": TTL out of range 0-`},
		{"cache {\nprefetch\n}", "invalid prefetch: want a number of queries"},
		{"cache {\nprefetch -1\n}", `invalid prefetch "-1"`},
		{"cache {\nprefetch 1 blurp\n}", `invalid prefetch "blurp"`},
		{"cache {\nprefetch 1 1m 9%\n}", `invalid prefetch "9%"`},
		{"cache {\nprefetch 1 1m 91%\n}", `invalid prefetch "91%"`},
		{"cache {\nprefetch 1 1m 20\n}", `invalid prefetch "20"`},
		{"cache {\nprefetch 1 1m \"\"\n}", `invalid prefetch ""`},
		{"cache {\nprefetch 1 1m 10% 1\n}", `invalid prefetch "1" "1m" "10%" "1": want a number of queries`},
		{"cache {\nserve_stale 20\n}", `invalid serve_stale "20": not a duration of 0 or more, such as 30s: want off, or`},
		{"cache {\nserve_stale -20m\n}", `invalid serve_stale "-20m"`},
		{"cache {\nserve_stale off 1h\n}", `invalid serve_stale "1h": unexpected argument`},
		{"cache {\nserve_stale 1m nono\n}", `invalid serve_stale "nono"`},
		{"cache {\nserve_stale 1h immediate 100ms\n}", `invalid serve_stale "100ms": not whole seconds`},
		{"cache {\nserve_stale 1h immediate 4294967296s\n}", `invalid serve_stale "4294967296s": out of range 0s-1193046h28m15s`},
		{"cache {\nserve_stale 1h immediate -1s\n}", `invalid serve_stale "-1s"`},
		{"cache {\nserve_stale 1h immediate 30s 30s extra\n}", `invalid serve_stale "extra": unexpected argument`},
		{"cache {\nserve_stale 1h immediate 30s 5m1s\n}", `invalid serve_stale "5m1s": out of range 0s-5m0s`},
		{"cache {\nserve_stale 1h verify -1ms\n}", `invalid serve_stale "-1ms"`},
		{"cache {\nserve_stale 1h verify garbage\n}", `invalid serve_stale "garbage"`},
		{"cache {\nserve_stale 1h verify 100ms 500ms\n}", `invalid serve_stale "500ms": not whole seconds`},
		{"cache {\nserve_stale 1h verify 100ms 30s extra\n}", `invalid serve_stale "extra"`},
		{"cache {\nserve_stale 1h verify 100ms 30s 30s extra\n}", `"30s" "extra": want off, or`},
		{"cache {\nserve_stale_policy prefer_positive\n}", "2 - Error during parsing: serve_stale_policy requires serve_stale"},
		{"cache {\nserve_stale off\nserve_stale_policy prefer_positive\n}", "serve_stale_policy requires serve_stale"},
		{"cache {\nserve_stale\nserve_stale_policy\n}", "invalid serve_stale_policy: want prefer_positive"},
		{"cache {\nserve_stale\nserve_stale_policy none\n}", `invalid serve_stale_policy "none": want prefer_positive`},
		{"cache {\nserve_stale\nserve_stale_policy prefer_positive\nserve_stale_policy prefer_positive\n}", "4 - Error during parsing: duplicate option serve_stale_policy"},
		{"cache {\nservfail\n}", "invalid servfail: want a duration of 0s to 5m"},
		{"cache {\nservfail 6m\n}", `invalid servfail "6m": out of range 0s-5m0s`},
		{"cache {\nservfail 20\n}", `invalid servfail "20"`},
		{"cache {\nservfail -1s\n}", `invalid servfail "-1s"`},
		{"cache {\nservfail 1m invalid\n}", `invalid servfail "1m" "invalid": want a duration`},
		{"cache {\ndisable\n}", "invalid disable: want success or denial"},
		{"cache {\ndisable invalid example.org\n}", `invalid disable "invalid": want success or denial`},
		{"cache {\nkeepttl 1\n}", `invalid keepttl "1": want no argument`},
		{"cache {\nbudget\n}", "invalid budget: want a size of 1MiB or more, such as 32MiB"},
		{"cache {\nbudget 1023KiB\n}", `invalid budget "1023KiB": want a size of 1MiB or more`},
		{"cache {\nbudget 32\n}", `invalid budget "32"`},
		{"cache {\nbudget 32mib\n}", `invalid budget "32mib"`},
		{"cache {\nbudget 1.5MiB\n}", `invalid budget "1.5MiB"`},
		{"cache {\nbudget -32MiB\n}", `invalid budget "-32MiB"`},
		{"cache {\nbudget 9999999999GiB\n}", `invalid budget "9999999999GiB"`},
		{"cache {\nbudget 32MiB\nbudget 32MiB\n}", "duplicate option budget"},
		{"cache {\nsnapshot\n}", "2 - Error during parsing: invalid snapshot: want a file, and optionally"},
		{"cache {\nsnapshot \"\"\n}", `invalid snapshot "": want a file`},
		{"cache {\nsnapshot /a/\n}", `invalid snapshot "/a/": want a file`},
		{"cache {\nsnapshot a 1\n}", `invalid snapshot "1": not a duration of 0 or more, such as 30s: want a file`},
		{"cache {\nsnapshot a 999ms\n}", `invalid snapshot "999ms": out of range 1s-24h0m0s`},
		{"cache {\nsnapshot a 25h\n}", `invalid snapshot "25h": out of range 1s-24h0m0s`},
		{"cache {\nsnapshot a 1m 59s\n}", `invalid snapshot "59s": less than INTERVAL: want a file`},
		{"cache {\nsnapshot a 1m x\n}", `invalid snapshot "x": not a duration`},
		{"cache {\nsnapshot a 1m 1h b\n}", `invalid snapshot "a" "1m" "1h" "b": want a file`},
		{"cache {\nsnapshot a\nsnapshot b\n}", "3 - Error during parsing: duplicate option snapshot"},
	} {
		t.Run(c.corefile, func(t *testing.T) {
			_, err := parsed(t, c.corefile)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error\n got %v\nwant %s", err, c.want)
			}
		})
	}
}

func TestDefaults(t *testing.T) {
	h := newCache([]string{"."})
	if h.store != store.Shared || h.kinds[store.Success].maxTTL != 3600 || h.kinds[store.Denial].maxTTL != 1800 {
		t.Errorf("defaults: %+v", h.options)
	}
}
