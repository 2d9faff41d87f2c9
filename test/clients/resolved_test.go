//go:build linux

package clients

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// stubIP is the address on which systemd-resolved answers.
const stubIP = "127.0.0.53"

// resolvedConfig is the configuration of systemd-resolved, with the address of its server.
const resolvedConfig = `[Resolve]
DNS=%s
Domains=~.
DNSSEC=no
LLMNR=no
MulticastDNS=no
`

// resolvedStart runs systemd-resolved, the second argument, with a configuration, the first, in its own /run.
const resolvedStart = `mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/resolve /run/systemd/resolved.conf.d
chown 987:987 /run/systemd/resolve
cp "$1" /run/systemd/resolved.conf.d/test.conf
exec "$2"`

// resolved is systemd-resolved, queried by dig. It is unpacked and not installed, since the package changes the machine's
// resolver.
func resolved() client {
	return client{name: "systemd-resolved", programs: []string{"dig"}, types: withoutAddresses, run: runResolved}
}

// resolvedProgram returns the path of systemd-resolved.
func resolvedProgram(t *testing.T) string {
	t.Helper()
	program, err := filepath.EvalSymlinks(controlplane.RequireBinary(t, "systemd-resolved"))
	kit.Must(t, err)
	return program
}

func runResolved(t *testing.T, n *netns.Namespace, server string, all []question) (replies []reply) {
	t.Helper()
	users := kit.Read(t, "/etc/passwd")
	n.Etc(t, "passwd", users+"\nsystemd-resolve:x:987:987::/:/usr/sbin/nologin\n") // the user that it changes to
	config := filepath.Join(t.TempDir(), "resolved.conf")
	kit.Must(t, os.WriteFile(config, fmt.Appendf(nil, resolvedConfig, server), 0o644))
	// Without a link that has a routable address, it takes the machine for offline.
	if _, err := n.Try("ip", "link", "add", "outside", "type", "veth", "peer", "name", "peer"); err == nil {
		n.Run(t, "ip", "addr", "add", "192.0.2.10/24", "dev", "outside")
		n.Run(t, "ip", "link", "set", "outside", "up")
		n.Run(t, "ip", "link", "set", "peer", "up")
	}
	n.Start(t, "sh", "-ec", resolvedStart, "sh", config, resolvedProgram(t))
	kit.Succeeds(t, maxWait, "systemd-resolved answers", func() error {
		_, err := n.Try("dig", "@"+stubIP, "+time=1", "+tries=1", "web"+inServices)
		return err
	})
	return tool("", "dig").run(t, n, stubIP, all)
}
