//go:build linux

package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// asked is the variable that enables these tests when it is "1": they take minutes.
const asked = "NEARSIDE_E2E"

// binaries are the paths of the programs that test/install.sh installs.
type binaries map[string]string

// require skips the test when it is not enabled, or a program is missing.
func require(t *testing.T) binaries {
	t.Helper()
	if os.Getenv(asked) != "1" {
		t.Skipf("set %s=1, or run make e2e", asked)
	}
	netns.Require(t, "ip", "ps", "nft", "nsenter", "containerd", "ctr", "runc")
	built := binaries{}
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl", "helm", "coredns"} {
		built[name] = controlplane.RequireBinary(t, name)
	}
	if _, err := os.Stat(filepath.Join(cniFolder, "ptp")); err != nil {
		kit.Lacking(t, fmt.Sprintf("%v; run test/install.sh", err))
	}
	return built
}
