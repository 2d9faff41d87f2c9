package deploy

import (
	"path"
	"testing"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
)

// awaitExec waits until a command that the kubelet runs in the container ends with 0.
func (n *node) awaitExec(t *testing.T, command []string) {
	t.Helper()
	binary := daemon.Program(t, path.Base(command[0]))
	kit.Succeeds(t, deadline, "the probe", func() error {
		_, err := n.bed.Node.Try(binary, command[1:]...)
		return err
	})
}
