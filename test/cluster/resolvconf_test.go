//go:build linux

package cluster

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
)

// uplinks is the file in which systemd-resolved writes its own upstreams.
const uplinks = "/run/systemd/resolve/resolv.conf"

// testResolvConf changes the resolv.conf of the node while nodecache runs, in the ways of systemd-resolved and
// NetworkManager, which rename another file over it: a pod's queries for external names go to the new servers. In the
// end nodecache starts on a node whose resolv.conf names 127.0.0.53 alone.
func (c *cluster) testResolvConf(t *testing.T) {
	const etc = "/etc/resolv.conf"
	conf := func(server string) string { return "nameserver " + server + "\nsearch " + nodeSearch + "\n" }
	rename := func(path, text string) {
		t.Helper()
		c.run(t, "sh", "-c", `printf %s "$2" > "$1.new" && mv "$1.new" "$1"`, "sh", path, text)
	}
	names := 0
	asks := func(server string) {
		t.Helper()
		for _, from := range clients {
			p := c.pod(t, from)
			c.wait(t, "an answer of "+server+" for "+from, startTimeout, func() error {
				names++ // no cache has it
				name := fmt.Sprintf("n%d.%s", names, serverName)
				got, err := p.request("GET", "/ask", url.Values{"name": {name}, "type": {"TXT"}})
				if err == nil && !strings.Contains(got, `"`+server+`"`) {
					err = fmt.Errorf("got %q", got)
				}
				return err
			})
		}
	}
	defer rename(etc, conf(outsideIPv4))

	asks(outsideIPv4)
	rename(etc, conf(outsideIPv6))
	asks(outsideIPv6)

	rename("/run/systemd/resolve/stub-resolv.conf", conf("127.0.0.53"))
	rename(uplinks, conf(outsideIPv4))
	c.run(t, "sh", "-c", `ln -s ../run/systemd/resolve/stub-resolv.conf "$1.new" && mv -T "$1.new" "$1"`, "sh", etc)
	asks(outsideIPv4)
	rename(uplinks, conf(outsideIPv6))
	asks(outsideIPv6)

	old := c.podsOf(t, nodecachePods)
	c.kubectl(t, "-n", "kube-system", "rollout", "restart", "daemonset/nodecache")
	c.kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/nodecache", "--timeout=3m")
	c.waitGone(t, nodecachePods, old)
	asks(outsideIPv6)
	rename(uplinks, conf(outsideIPv4))
	asks(outsideIPv4)
}
