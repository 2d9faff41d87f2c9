package cache

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/plugin/pkg/nearside"

	"github.com/miekg/dns"
)

func newController(serverType, input string) *caddy.Controller {
	return nearside.NewController(serverType, input)
}

func cacheParse(c *caddy.Controller) (*Cache, error) {
	parsed, err := coreCacheParse(c)
	nearside.Parsed(c, err)
	return parsed, err
}

// remote is the program that serves a Cache, with its upstream.
type remote struct {
	nearside.Program
	upstream string
}

var remotes = map[*Cache]*remote{}

func (c *Cache) remote() *remote {
	if remotes[c] == nil {
		remotes[c] = &remote{upstream: nearside.Upstream(func() nearside.Handler { return c.Next })}
	}
	return remotes[c]
}

// ServeDNS sends the query to the program, whose upstream is the next plugin of the test.
func (c *Cache) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	if nearside.Shifted(c.now()) {
		return dns.RcodeServerFailure, nearside.Unsupported("the test sets the clock of CoreDNS's cache")
	}
	p := c.remote()
	if err := p.Use(c.corefile(p.upstream)); err != nil {
		return dns.RcodeServerFailure, err
	}
	reply, err := p.Exchange(ctx, w, r)
	if err != nil {
		return dns.RcodeServerFailure, err
	}
	return dns.RcodeSuccess, w.WriteMsg(reply)
}

// corefile returns the configuration of the fields.
func (c *Cache) corefile(upstream string) string {
	var b strings.Builder
	line := func(format string, values ...any) { fmt.Fprintf(&b, format+"\n", values...) }
	seconds := func(d time.Duration) int { return int(d / time.Second) }
	line(".:0 {\nerrors\nprometheus localhost:0")
	line("cache %s {", strings.Join(c.Zones, " "))
	line("success %d %d %d", c.pcap, seconds(c.pttl), seconds(c.minpttl))
	line("denial %d %d %d", c.ncap, seconds(c.nttl), seconds(c.minnttl))
	line("servfail %s", c.failttl)
	if c.prefetch > 0 {
		line("prefetch %d %s %d%%", c.prefetch, c.duration, c.percentage)
	}
	if c.staleUpTo > 0 && c.verifyStale {
		line("serve_stale %s verify %s %s %s", c.staleUpTo, c.verifyStaleTimeout, c.staleTTL, c.staleRecheck)
	} else if c.staleUpTo > 0 {
		line("serve_stale %s immediate %s %s", c.staleUpTo, c.staleTTL, c.staleRecheck)
	}
	if c.preferPositive {
		line("serve_stale_policy prefer_positive")
	}
	if len(c.pexcept) > 0 {
		line("disable success %s", strings.Join(c.pexcept, " "))
	}
	if len(c.nexcept) > 0 {
		line("disable denial %s", strings.Join(c.nexcept, " "))
	}
	if c.keepttl {
		line("keepttl")
	}
	line("}\nforward . %s {\nmax_fails 0\n}\n}", upstream)
	return b.String()
}

// entries returns the number of entries in the metric of the program, or the given number if no program has served the Cache.
func entries(c *Cache, kind string, own int) int {
	p := remotes[c]
	if p == nil || p.Instance == nil {
		return own
	}
	response, err := http.Get("http://" + p.Metrics + "/metrics")
	if err != nil {
		panic(err)
	}
	defer response.Body.Close()
	for s := bufio.NewScanner(response.Body); s.Scan(); {
		if strings.HasPrefix(s.Text(), "coredns_cache_entries{") && strings.Contains(s.Text(), `type="`+kind+`"`) {
			n, err := strconv.Atoi(s.Text()[strings.LastIndexByte(s.Text(), ' ')+1:])
			if err != nil {
				panic(err)
			}
			return n
		}
	}
	return 0
}
