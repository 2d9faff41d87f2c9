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

// release returns the release of the kernel, and its version numbers, 0 if they cannot be parsed.
func (n *node) release() (text string, major, minor int, err error) {
	words, err := n.proc.SysctlStrings("kernel.osrelease")
	text = strings.Join(words, " ")
	if _, err := fmt.Sscanf(text, "%d.%d", &major, &minor); err != nil {
		major, minor = 0, 0
	}
	return text, major, minor, err
}

// checkKernel reports the release of the kernel.
func (n *node) checkKernel(context.Context) []Line {
	const name = "kernel release"
	release, major, minor, err := n.release()
	switch {
	case err != nil:
		return skipped(name, err)
	case major == 0:
		return one(name, release, Skip, "its number cannot be read; the rules need 5.2 or later")
	case major < minMajor || major == minMajor && minor < minMinor:
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
