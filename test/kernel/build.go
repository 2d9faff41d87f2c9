package kernel

import (
	"path/filepath"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

// BuildTest builds the tests of a package of this module, such as "plugin/nodelocal/link", into a static binary for the
// machine and returns its path. It has no race detector, which needs C.
func BuildTest(t testing.TB, pkg string) string {
	t.Helper()
	return build(t, pkg, "test", "-c")
}

// BuildProgram builds a program of this module, such as "cmd/nodecache", as BuildTest does.
func BuildProgram(t testing.TB, pkg string) string {
	t.Helper()
	return build(t, pkg, "build")
}

func build(t testing.TB, pkg string, command ...string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), filepath.Base(pkg))
	cmd := kit.Go(append(command, "-ldflags", "-s -w", "-o", to, "github.com/nearside-dns/nearside/"+pkg)...)
	cmd.Env = append(cmd.Env, "GOOS=linux", "GOARCH=amd64")
	kit.Output(t, cmd)
	return to
}
