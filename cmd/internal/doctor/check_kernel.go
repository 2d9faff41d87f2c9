//go:build linux

package doctor

import (
	"context"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// The first kernel whose inet tables have chains of the types route and nat, which the rules use.
const minMajor, minMinor = 5, 2

// checkKernel reports the release of the kernel.
func (n *node) checkKernel(context.Context) []Line {
	const name = "kernel release"
	words, err := n.proc.SysctlStrings("kernel.osrelease")
	if err != nil {
		return skipped(name, err)
	}
	release := strings.Join(words, " ")
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return one(name, release, Skip, "its number cannot be read; the rules need 5.2 or later")
	}
	if major < minMajor || major == minMajor && minor < minMinor {
		return one(name, release, Warn, `the nftables rules need 5.2 or later: update it, or use "backend iptables"`)
	}
	return one(name, release, OK, "")
}

// checkPrivileges reports whether the other checks may read the rules.
func (n *node) checkPrivileges(context.Context) []Line {
	const name = "privileges"
	self, err := n.proc.Self()
	if err != nil {
		return skipped(name, err)
	}
	status, err := self.NewStatus()
	if err != nil {
		return skipped(name, err)
	}
	user := fmt.Sprintf("user %d", os.Geteuid())
	if os.Geteuid() == 0 {
		user = "root"
	}
	if status.CapEff&(1<<unix.CAP_NET_ADMIN) == 0 {
		return one(name, user+" without CAP_NET_ADMIN", Warn, "run it as root, or in the nodecache container: the rules cannot be read without CAP_NET_ADMIN")
	}
	return one(name, user+" with CAP_NET_ADMIN", OK, "")
}
