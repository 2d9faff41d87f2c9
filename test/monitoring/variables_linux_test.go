package monitoring

import (
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/monitoring/picture"
)

// TestVariables asserts that the dashboard of nodecache finds an instance without node setup, as with Cilium, and
// without clusterdns.
func TestVariables(t *testing.T) {
	d, err := picture.Read(dashboards[nodecache])
	kit.Must(t, err)
	pages := map[string]exported{}
	for program, args := range map[string][]string{nodecache: {"-metrics-listen-address="}, clusterdns: nil} {
		metrics := net.JoinHostPort("127.0.0.1", strconv.Itoa(daemon.FreePort(t)))
		corefile := fmt.Sprintf(".:PORT {\n    bind 127.0.0.1\n    cache 30\n    forward . 127.0.0.1:1\n    prometheus %s\n}\n", metrics)
		daemon.Start(t, daemon.Program(t, program), corefile, args...)
		var page strings.Builder
		for sample, value := range daemon.Scrape(t, http.DefaultClient, metrics) {
			fmt.Fprintln(&page, sample, value)
		}
		pages[program] = exported{}
		pages[program].read(page.String())
	}
	lacks := func(t *testing.T, program string, expressions ...string) (all []string) {
		t.Helper()
		for i, n := range parse(t, expressions...) {
			if n.Error != "" || len(n.Selectors) == 0 {
				t.Errorf("%s: %d selectors, error %q", expressions[i], len(n.Selectors), n.Error)
			}
			for _, s := range n.Selectors {
				all = append(all, pages[program].lacks(s, nil)...)
			}
		}
		return all
	}
	for _, expression := range variables(t, d) {
		if lack := lacks(t, nodecache, expression); len(lack) > 0 {
			t.Errorf("%s: nodecache without -localip does not export %q", expression, lack)
		}
		if lack := lacks(t, clusterdns, expression); len(lack) == 0 {
			t.Errorf("%s: clusterdns exports it too, so that it is among the jobs of nodecache", expression)
		}
	}
	t.Run("can fail", func(t *testing.T) {
		if lack := lacks(t, nodecache, `nearside_nodelocal_setup_info{job=~".*"}`); len(lack) != 1 {
			t.Errorf("nodecache without -localip lacks %q of the setup", lack)
		}
	})
}
