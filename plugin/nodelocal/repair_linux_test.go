package nodelocal

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// TestIPv6DisabledWhileRunning removes all IPv6 addresses of the node, and one of IPv4: the latter is restored, and the log
// line has the addresses on which no query is answered.
func TestIPv6DisabledWhileRunning(t *testing.T) {
	netns.Enter(t)
	c := newConfig()
	c.Addresses = []netip.Addr{netip.MustParseAddr("fd00::a"), netip.MustParseAddr("169.254.20.10")}
	n := newNode(c)
	n.instance = announced(t, c.Interface)
	kit.Must(t, n.firstInterface())
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("1"), 0o600); err != nil {
		kit.Lacking(t, err.Error())
	}
	netns.Run(t, "ip", "address", "delete", "169.254.20.10/32", "dev", c.Interface)
	_, err := n.verifyInterface()
	if err == nil {
		t.Fatal("the interface has no IPv6 address, and no error is returned")
	}
	logged := kit.Logged(t)
	n.report(err)
	n.report(err) // once only
	got := logged.String()
	if strings.Count(got, "\n") != 1 || strings.Contains(got, "not affected") || !strings.Contains(got, "IPv6 is disabled by the sysctl") ||
		!strings.Contains(got, "; this server answers no queries to fd00::a; retry every 5s") {
		t.Errorf("the log has %q", got)
	}
	if out := netns.Run(t, "ip", "-4", "address", "show", "dev", c.Interface); !strings.Contains(out, "169.254.20.10/32") {
		t.Errorf("the IPv4 address is not restored:\n%s", out)
	}
}
